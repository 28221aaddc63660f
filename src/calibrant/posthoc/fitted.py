"""Base class of anything fitted to held-out logits: checked input, saved state, and notices."""

import json
import numbers
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.losses import checks
from calibrant.numerics import accumulation_dtype, at_least_float32, traced
from calibrant.posthoc import containers
from calibrant.posthoc.containers import Array, as_tensor
from calibrant.posthoc.notices import FitWarning, counted


def full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off: the eight bits of precision of its matrix products are too few for a confidence."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def check_whole(name: str, value: int, low: int | None = None) -> None:
    """Raise unless ``value`` is a whole number, and at least ``low`` if that is given."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if low is not None and value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def saved_settings(state: Tensor | dict[str, Any]) -> dict[str, Any]:
    """Settings in an extra state; in version 0.1 it was the dictionary itself."""
    if isinstance(state, dict):
        return state
    settings: dict[str, Any] = json.loads(bytes(state.tolist()))
    return settings


class Fitted(nn.Module, ABC):
    """Base class of anything fitted to held-out logits: buffers of any shape, the classes, and checks."""

    # Options that change the meaning of the buffers, and results of a fit other than its buffers.
    decisive: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    class_count_: int | None
    labels_: list[Any] | None
    samples_: int | None
    notices_: list[str]
    _told: bool  # that the logits look like probabilities

    def __init__(self) -> None:
        super().__init__()
        # Here and below not by setattr, with which a module looks for parameters and buffers in all it has.
        vars(self).update(class_count_=None, labels_=None, samples_=None, notices_=[], _told=False)

    @property
    def classes_(self) -> Array:
        """Label of each class, in the order of the columns; 0, 1, ... unless the target had names."""
        self.require_fitted()
        return np.arange(self.class_count_ or 0) if self.labels_ is None else np.asarray(self.labels_)

    def fit(
        self,
        logits: Any,
        target: Any,
        *,
        sample_weight: Any = None,
        ignore_index: int | None = -100,
        classes: Sequence[Any] | None = None,
    ) -> Self:
        """Fit on predictions the model was not trained on, and return self.

        Args:
            logits: ``(N, C)``, dense ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``: the logit of class 1.
                Torch, NumPy or a data frame.
            target: Class indices, or names of classes, ``(N, ...)``: the shape of the logits without the classes.
            sample_weight: Non-negative weights, the shape of ``target``. A sample of weight 2 counts as two.
            ignore_index: Label of samples to ignore; None to ignore none.
            classes: Label of each column of the logits. By default the target holds the indices 0 to C - 1; if it holds
                names, the columns of a data frame with these names, else the sorted names. A single column with the
                name of a class is that class.
        """
        # Tensors made in inference mode cannot be part of a graph, and a calibrator may come before a loss.
        leave = torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()
        with leave, torch.no_grad():
            rows, labels, weight = self._checked(logits, target, sample_weight, ignore_index, classes)
            device = rows.device
            if accumulation_dtype(rows) != torch.float64:  # the device has no float64: solve on the CPU
                rows, labels = rows.cpu(), labels.cpu()
                weight = None if weight is None else weight.cpu()
            vars(self)["notices_"] = []
            with full_precision(rows):
                self.solve(rows, labels, weight)
                self.examine(rows, labels, weight)
            if device != rows.device:
                self.to(device, torch.float32)
        level = 2 if type(self).fit is Fitted.fit else 3  # the line that calls fit
        for notice in self.notices_:
            warnings.warn(f"{type(self).__name__}: {notice}", FitWarning, stacklevel=level)
        return self

    def _checked(
        self, logits: Any, target: Any, sample_weight: Any, ignore_index: int | None, classes: Sequence[Any] | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows that count, their labels, and their weights in float64 if these differ."""
        if classes is sample_weight is None and (usual := containers.plain(logits, target, ignore_index)):
            vars(self)["labels_"] = None
            return *usual, None
        values = as_tensor(logits)
        count = 2 if values.dim() < 2 or values.shape[1] == 1 else values.shape[1]
        names: list[Any] | None = None
        if classes is not None:
            names = list(classes.tolist() if hasattr(classes, "tolist") else classes)
        if names is None and containers.has_names(target):
            names = containers.names_in(target, logits, count)
        if names is not None and len(set(names)) != count:
            raise ValueError(f"classes must have {count} different labels, one per class of the logits, got {names}")
        if names is None:
            labels = containers.whole_numbers(as_tensor(target, "target"), target)
        else:
            labels = torch.from_numpy(containers.class_indices(target, names, ignore_index))
            labels = labels.to(target.device) if isinstance(target, Tensor) else labels
        weight = None if sample_weight is None else as_tensor(sample_weight, "sample_weight")
        data = checks.classification(
            values, labels, ignore_index=ignore_index, sample_weight=weight,
            if_not_finite="leave those samples out, or fix the model",
        )  # fmt: skip
        rows, indices, weights = data.logits.detach(), data.target, data.weight
        if data.mask is not None:
            rows, indices = rows[data.mask], indices[data.mask]
            weights = None if weights is None else weights[data.mask]
        if rows.shape[0] == 0:
            raise ValueError(f"{type(self).__name__} needs at least 1 sample to fit, got none: pass held-out data")
        vars(self)["labels_"] = names
        if weights is None or bool((weights == 1).all()):
            return rows, indices, None
        return rows, indices, weights.double()

    def solve(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Fit on checked data, without notices."""
        self.fit_rows(rows, target, weight)
        vars(self).update(class_count_=rows.shape[1], samples_=rows.shape[0])

    @abstractmethod
    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Set the buffers.

        Args:
            logits: Validated logits, ``(N, C)``, float32 or float64.
            target: Class indices, ``(N,)``.
            weight: ``(N,)`` in float64, all positive; None if all are 1.
        """

    def notice(self, text: str) -> None:
        """Record something doubtful about the fit; ``fit`` warns about it when it is done."""
        self.notices_.append(text)

    def examine(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> None:  # noqa: ARG002 (methods use it)
        """Add notices about the data and what was fitted."""
        stride = rows.shape[0] // 1000
        if like_probabilities(rows[::stride] if stride > 1 else rows):
            self.notice("these logits look like probabilities: pass logits_from_probabilities(probabilities)")
        if weight is not None and float(weight.mean()) < 0.1:
            self.notice(
                f"the weights of {counted(len(rows), 'sample')} sum to {float(weight.sum()):.3g}, and count as that "
                "many samples: divide them by their mean"
            )

    def as_given(self, given: Any) -> Tensor:
        """Convert logits to a tensor, with columns in the order of the classes.

        An empty list has no row that shows the number of classes, so ``(0,)`` becomes ``(0, C)``.
        """
        logits = as_tensor(containers.in_order(given, self.labels_))
        if not isinstance(given, Tensor):
            logits = logits.to(next((buffer.device for buffer in self.buffers()), None))
        empty = not traced() and logits.dim() == 1 and len(logits) == 0
        return logits.reshape(0, self.class_count_ or 0) if empty else logits

    def rows(self, given: Any) -> Tensor:
        """Check logits to be calibrated and convert them to ``(N, C)``, at least float32."""
        self.require_fitted()
        logits = self.as_given(given)
        checks.check_float("logits", logits)
        if logits.dim() == 0 or (logits.dim() > 1 and logits.shape[1] == 0):
            raise ValueError(
                f"logits must have shape (N, C), or (N,) or (N, 1) if binary, got {tuple(logits.shape)}: "
                "pass a batch of samples with at least one class"
            )
        binary = logits.dim() == 1 or logits.shape[1] == 1
        classes = 2 if binary else logits.shape[1]
        if classes != self.class_count_:
            one = logits.dim() == 1 and len(logits) == self.class_count_
            raise ValueError(
                f"{type(self).__name__} was fitted on {self.class_count_} classes, "
                + (
                    f"got logits of shape ({len(logits)},), which is a batch of binary logits: pass logits[None] if "
                    "they are the logits of one sample"
                    if one
                    else f"got logits of shape {tuple(logits.shape)}, which are those of two classes: use the model it "
                    "was fitted for, or fit again"
                    if binary
                    else f"got {classes} in logits of shape {tuple(logits.shape)}: use the model it was fitted for, "
                    "or fit again"
                )
            )
        logits = at_least_float32(logits)
        if not traced():
            largest = torch.finfo(logits.dtype).max
            checks.require_between(
                logits, -largest, largest,
                lambda _: "logits must be finite, got NaN or infinity: leave out such samples or fix the model",
            )  # fmt: skip
        if logits.dim() > 2:
            logits = logits.movedim(1, -1).flatten(0, -2)
        if binary:
            logits = logits.reshape(-1, 1)
            logits = torch.cat((torch.zeros_like(logits), logits), dim=1)
        if not (self._told or traced()) and like_probabilities(logits[:64].detach()):
            self._told = True
            text = "these logits look like probabilities: pass logits_from_probabilities(probabilities)"
            warnings.warn(f"{type(self).__name__}: {text}", FitWarning, stacklevel=3)
        return logits

    def require_fitted(self) -> None:
        """Raise ``RuntimeError`` before ``fit``."""
        # Some loaders, such as from_pretrained, leave out buffers that are None until the fit.
        if self.class_count_ is None or any(buffer is None for buffer in self._buffers.values()):
            raise RuntimeError(
                f"{type(self).__name__} is not fitted: call fit(logits, target) on held-out data, or load a state_dict"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move buffers to other devices and wider dtypes, but never lose precision."""

        def careful(buffer: Tensor) -> Tensor:
            there = fn(buffer.new_empty(0, dtype=torch.float32))
            if buffer.dtype == torch.float64 and accumulation_dtype(there) != torch.float64:
                return self.narrowed(buffer).to(there.device)
            moved = fn(buffer)
            return moved if moved.itemsize >= buffer.itemsize else buffer.to(moved.device)

        super()._apply(careful, recurse)  # type: ignore[no-untyped-call]
        return self

    def narrowed(self, buffer: Tensor) -> Tensor:
        """Return a float64 buffer in float32, for a device without float64."""
        return buffer.float()

    def _settings(self) -> dict[str, Any]:
        """The part of the state that is not a buffer: the method, the number of classes, and the options."""
        state = {name: getattr(self, name) for name in self.decisive + self.found}
        labels = {} if self.labels_ is None else {"labels": self.labels_}
        return {"method": type(self).__name__, "classes": self.class_count_ or 0, **labels, **state}

    def get_extra_state(self) -> Tensor:
        """Return the part of the state that is not a buffer, as bytes of JSON: safetensors only store tensors."""
        return torch.tensor(list(json.dumps(self._settings()).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor | dict[str, Any]) -> None:
        """Load the part of a state_dict that is not a buffer."""
        saved = saved_settings(state)
        self.class_count_ = saved["classes"] or None
        self.labels_ = saved.get("labels")
        for name in self.found:
            if name in saved:  # states of earlier versions lack some
                value = saved[name]
                setattr(self, name, tuple(value) if isinstance(value, list) else value)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load a state that fits completely, or nothing of one that does not."""
        state = state_dict.get(prefix + "_extra_state")
        saved = None if state is None else saved_settings(state)
        needed = ["_extra_state", *(self._buffers if saved is None or self.class_count_ or saved["classes"] else ())]
        missing = [prefix + name for name in needed if prefix + name not in state_dict]
        refused = None if saved is None else self._refusal(saved)
        if refused is not None:
            error_msgs.append(refused)
        elif missing:
            missing_keys.extend(missing if strict else ())
        else:
            # A fresh calibrator has no buffers yet, and one fitted on other data may have them in other shapes.
            for name, buffer in self._buffers.items():
                new = state_dict.get(prefix + name)
                if new is not None and (buffer is None or (buffer.shape, buffer.dtype) != (new.shape, new.dtype)):
                    self._buffers[name] = torch.empty_like(new, device=None if buffer is None else buffer.device)
            super()._load_from_state_dict(
                state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )

    def _refusal(self, saved: dict[str, Any]) -> str | None:
        """Reason why a state cannot be loaded, if there is one."""
        mine = self._settings()
        if saved["method"] != mine["method"]:
            return f"this is the state of a {saved['method']}, not of a {mine['method']}: use the same kind"
        for name in self.decisive:
            if saved[name] != mine[name]:
                return (
                    f"this is the state of a {mine['method']} with {name}={saved[name]!r}, not with "
                    f"{name}={mine[name]!r}: use the same options"
                )
        if self.class_count_ is not None and not saved["classes"]:
            return f"this is the state of a {mine['method']} that is not fitted: save it after fit"
        return None

    def extra_repr(self) -> str:
        """Show the options and the number of classes, as torch's modules do."""
        hidden = {"training", "labels_", "notices_", "samples_"}
        options = {key: value for key, value in vars(self).items() if not key.startswith("_") and key not in hidden}
        return ", ".join(f"{key}={value!r}" for key, value in sorted(options.items()))


def like_probabilities(rows: Tensor) -> bool:
    """Whether rows of logits look like probabilities: not negative with a sum of 1, or a 0 and a number up to 1."""
    values: Any = checks.as_read(rows)
    if values.shape[0] < 8 or float(values.min()) < 0 or float(values.max()) > 2:
        return False
    binary = values.shape[1] == 2 and not values[:, 0].any() and bool((values[:, 1] <= 1).all())
    return binary or bool((abs(values.sum(1) - 1) < 1e-3).all())
