"""Base classes of the post-hoc methods: checked input, saved state, calibrated logits and probabilities."""

import copy
import json
import math
import numbers
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self, TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn

from calibrant import inputs
from calibrant.numerics import accumulation_dtype, at_least_float32, log_softmax, traced
from calibrant.posthoc import containers
from calibrant.posthoc.containers import Array, as_tensor
from calibrant.posthoc.folds import fold_numbers
from calibrant.posthoc.notices import FitWarning

# Fits of few rows are cross-checked against doing nothing: up to this many, or four times those that a method needs, if
# the logits have no more than so many elements.
CROSS_CHECKED, CROSS_CHECKED_ELEMENTS = 200, 2**16
# Logits beyond this overflow in float32 when they are scaled.
HUGE = 1e30
# Logarithm of float32's smallest normal number, below which no log-probability is taken.
FLOOR = math.log(torch.finfo(torch.float32).tiny)
Predictions = TypeVar("Predictions")


def full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off: the eight bits of precision of its matrix products are too few for a confidence."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def relative(logits: Tensor) -> Tensor:
    """Logits relative to the largest of their row, which a softmax does not see; finite for all finite logits."""
    return (logits - logits.amax(1, keepdim=True)).clamp_min(-HUGE)


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

    def __init__(self) -> None:
        super().__init__()
        self.class_count_: int | None = None
        self.labels_: list[Any] | None = None
        self.samples_: int | None = None
        self.notices_: list[str] = []
        self._told = False  # that the logits look like probabilities

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
                names, the columns of a data frame with these names, else the sorted names.
        """
        # Tensors made in inference mode cannot be part of a graph, and a calibrator may come before a loss.
        with torch.inference_mode(False), torch.no_grad():
            rows, labels, weight = self._checked(logits, target, sample_weight, ignore_index, classes)
            device = rows.device
            if accumulation_dtype(rows) != torch.float64:  # the device has no float64: solve on the CPU
                rows, labels = rows.cpu(), labels.cpu()
                weight = None if weight is None else weight.cpu()
            self.notices_ = []
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
            labels = containers.class_indices(target, names, ignore_index)
        weight = None if sample_weight is None else as_tensor(sample_weight, "sample_weight")
        data = inputs.classification(
            values, labels, ignore_index=ignore_index, sample_weight=weight,
            if_not_finite="leave those samples out, or fix the model",
        )  # fmt: skip
        rows, indices, weights = data.logits.detach(), data.target, data.weight
        if data.mask is not None:
            rows, indices = rows[data.mask], indices[data.mask]
            weights = None if weights is None else weights[data.mask]
        if len(rows) == 0:
            raise ValueError(f"{type(self).__name__} needs at least 1 sample to fit, got none: pass held-out data")
        self.labels_ = names
        if weights is None or bool((weights == 1).all()):
            return rows, indices, None
        return rows, indices, weights.double()

    def solve(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Fit on checked data, without notices."""
        self.fit_rows(rows, target, weight)
        self.class_count_, self.samples_ = rows.shape[1], len(rows)

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
        if like_probabilities(rows[:: max(1, len(rows) // 1000)]):
            self.notice("these logits look like probabilities: pass logits_from_probabilities(probabilities)")
        if weight is not None and float(weight.mean()) < 0.1:
            self.notice(
                f"the weights of {len(rows)} samples sum to {float(weight.sum()):.3g}, and count as that many samples: "
                "divide them by their mean"
            )

    def rows(self, given: Any) -> Tensor:
        """Check logits to be calibrated and convert them to ``(N, C)``, at least float32."""
        logits = as_tensor(containers.in_order(given, self.labels_))
        if not isinstance(given, Tensor):
            logits = logits.to(next((buffer.device for buffer in self.buffers()), None))
        self.require_fitted()
        inputs.check_float("logits", logits)
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
                    else f"got {classes} in logits of shape {tuple(logits.shape)}: use the model it was fitted for, "
                    "or fit again"
                )
            )
        logits = at_least_float32(logits)
        if not traced():
            largest = torch.finfo(logits.dtype).max
            inputs.require_between(
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


class Calibrator(Fitted):
    r"""Base class of the post-hoc calibrators: a small module to put after a trained classifier.

    ``fit`` solves for the parameters of the method; ``predict_proba`` returns calibrated probabilities, and
    calling the module returns calibrated logits, if the method has them. Sums are accumulated in float64;
    parameters have the dtype and device of the logits. ``.to()`` moves them to other devices and wider dtypes;
    ``.half()`` and ``torch.autocast`` do not change them.

    Probabilities are mixed with the uniform distribution, :math:`(1 - \epsilon) p + \epsilon / C` with
    :math:`\epsilon = 1 / (n + 1)` for n held-out samples: n samples cannot show that an event never happens, and a
    probability of 0 would make the log loss infinite.

    Args:
        strict: The method as published: no mixing, and an error where there is no optimum. By default the answer is
            bounded there, with a notice.
    """

    # Rows that a fit needs before its parameters mean much, below which there is a notice.
    least_rows = 50

    def __init__(self, *, strict: bool = False) -> None:
        super().__init__()
        self.strict = bool(strict)
        self.smoothing_: float = 0.0

    def solve(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Fit on checked data, without notices."""
        count = len(rows) if weight is None else max(1.0, float(weight.sum()))
        self.smoothing_ = 0.0 if self.strict else 1 / (count + 1)
        super().solve(rows, target, weight)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "smoothing_": self.smoothing_}

    def set_extra_state(self, state: Tensor | dict[str, Any]) -> None:
        """Load the part of a state_dict that is not a buffer."""
        super().set_extra_state(state)
        self.smoothing_ = saved_settings(state).get("smoothing_", 0.0)

    def rows_needed(self, classes: int) -> int:  # noqa: ARG002 (some methods need rows for each class)
        """Rows below which the fit has a notice."""
        return self.least_rows

    def examine(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Add notices: few rows, absent classes, and a cross-check of small fits against doing nothing."""
        super().examine(rows, target, weight)
        needed = self.rows_needed(rows.shape[1])
        if len(rows) < needed:
            self.notice(
                f"{len(rows)} samples of {rows.shape[1]} classes are few for this method, which needs about {needed}: "
                "use more data, or AutoCalibration, which falls back to fewer parameters"
            )
        self.absent_classes(target)
        self.check_order(rows, target)
        few = 10 <= len(rows) <= max(CROSS_CHECKED, 4 * needed) and rows.numel() <= CROSS_CHECKED_ELEMENTS
        if few and (worse := self._harm(rows, target, weight)):
            self.notice(worse)

    def absent_classes(self, target: Tensor) -> None:
        """Add a notice about classes without samples."""
        absent = (target.bincount(minlength=self.class_count_ or 0) == 0).nonzero().flatten().tolist()
        if absent:
            named = ", ".join(str(k if self.labels_ is None else self.labels_[k]) for k in absent[:5])
            named += ", ..." if len(absent) > 5 else ""
            self.notice(
                f"{len(absent)} of {self.class_count_} classes have no samples ({named}): "
                "they may become unlikely; use data with all classes, or TemperatureScaling"
            )

    def check_order(self, rows: Tensor, target: Tensor) -> None:
        """Add a notice about predictions that are no better than chance, or all right."""
        if any("no better than chance" in text or "prediction is right" in text for text in self.notices_):
            return
        true = rows.gather(1, target.unsqueeze(1)).squeeze(1)
        if float((rows.mean(1) - true).sum(dtype=torch.float64)) >= 0 and len(rows) >= 10:
            shown = "" if self.labels_ is None else f" (columns were taken as {', '.join(map(str, self.labels_[:8]))})"
            self.notice(
                "the held-out predictions are no better than chance: check that logits and target are in the same "
                f"order, and columns in the order of the classes{shown}"
            )
        elif len(rows) >= 10 and bool((true >= rows.amax(1)).all()):
            self.notice(
                f"every held-out prediction is right, in all {len(rows)} samples: fit on more data, or on data the "
                "model was not trained on"
            )

    def worse_than_nothing(
        self, logits: Any, target: Any, *, sample_weight: Any = None, ignore_index: int | None = -100
    ) -> str | None:
        """Compare the method with doing nothing in cross-validation; a sentence with numbers if it is worse, else None.

        Args:
            logits: Logits that the method was fitted on, as for ``fit``.
            target: Their classes.
            sample_weight: Their weights, as for ``fit``.
            ignore_index: Label of samples to ignore; None to ignore none.
        """
        with torch.no_grad():
            rows, labels, weight = self._checked(logits, target, sample_weight, ignore_index, self.labels_)
            return self._harm(rows, labels, weight)

    def _harm(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> str | None:
        after = cross_fitted(self, rows, target, weight)
        share = torch.ones(len(rows), dtype=torch.float64) if weight is None else weight.cpu()
        share = share / share.sum()
        column = target.unsqueeze(1)
        before = log_softmax(rows.double()).clamp_min(FLOOR)
        both = before, after.log().clamp_min(FLOOR)
        loss = [float(-(share * p.gather(1, column).squeeze(1).cpu()).sum()) for p in both]
        right = [float((share * (p.argmax(1) == target).cpu()).sum()) for p in both]
        if loss[1] <= loss[0] and right[1] >= right[0] - 1 / len(rows):
            return None
        return (
            f"in cross-validation on these {len(rows)} samples it is worse than doing nothing: log loss "
            f"{loss[1]:.3f} against {loss[0]:.3f}, accuracy {right[1]:.1%} against {right[0]:.1%}: leave the "
            "predictions as they are, or use more data"
        )

    @overload
    def __call__(self, logits: Tensor) -> Tensor: ...
    @overload
    def __call__(self, logits: Array) -> Array: ...
    def __call__(self, logits: Any) -> Any:
        """Call ``forward``, as every module does; defined only for its types."""
        return super().__call__(logits)

    def forward(self, logits: Any) -> Any:
        """Return calibrated logits in the given shape; raises ``TypeError`` if the method only has probabilities.

        Args:
            logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``. What comes out is what went in:
                a tensor, a NumPy array or a data frame.
        """
        if isinstance(logits, Tensor):
            return self._logits(self.rows(logits), logits.shape)
        with torch.no_grad():
            return containers.like(logits, self._logits(self.rows(logits), np.shape(logits)), self.classes_)

    def _logits(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        with full_precision(rows):
            calibrated = self.mixed_logits(self.calibrated_logits(rows))
        if len(shape) > 1 and shape[1] > 1:
            return _unflattened(calibrated, shape)
        return (calibrated[:, 1] - calibrated[:, 0]).reshape(shape)

    @overload
    def predict_proba(self, logits: Tensor) -> Tensor: ...
    @overload
    def predict_proba(self, logits: Array) -> Array: ...
    def predict_proba(self, logits: Any) -> Any:
        """Return calibrated probabilities, ``(N, C)`` with rows that sum to one; ``(N, 2)`` for binary logits.

        Args:
            logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``. What comes out is what went in:
                a tensor, a NumPy array or a data frame.
        """
        if isinstance(logits, Tensor):
            return self._probabilities(self.rows(logits), logits.shape)
        with torch.no_grad():
            return containers.like(logits, self._probabilities(self.rows(logits), np.shape(logits)), self.classes_)

    def _probabilities(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        with full_precision(rows):
            return _unflattened(self.mixed(rows), shape)

    def predict(self, logits: Any) -> Any:
        """Return the most likely class of each sample, by its label in ``classes_``: a NumPy array."""
        rows = self.predict_proba(logits)
        best = np.asarray(rows.detach().cpu() if isinstance(rows, Tensor) else rows).argmax(1)
        return self.classes_[best]

    def mixed(self, rows: Tensor) -> Tensor:
        """Return calibrated probabilities of validated ``(N, C)`` logits, mixed with the uniform distribution."""
        calibrated = self.probabilities(rows)
        if self.smoothing_ == 0:
            return calibrated
        return calibrated * (1 - self.smoothing_) + self.smoothing_ / rows.shape[1]

    def mixed_logits(self, calibrated: Tensor) -> Tensor:
        """Return the logits of calibrated logits' probabilities, mixed with the uniform distribution."""
        if self.smoothing_ == 0:
            return calibrated
        kept = log_softmax(calibrated) + math.log1p(-self.smoothing_)
        return kept.logaddexp(kept.new_tensor(math.log(self.smoothing_ / calibrated.shape[1])))

    def fold_into(self, linear: nn.Linear) -> nn.Module:
        """Return a layer that gives calibrated logits; raises ``TypeError`` if the method has none."""
        raise TypeError(
            f"{type(self).__name__} cannot be folded into {type(linear).__name__}: use "
            "TemperatureScaling(strict=True), or put the calibrator behind the model"
        )

    def calibrated_logits(self, logits: Tensor) -> Tensor:  # noqa: ARG002 (methods that have them use it)
        """Return calibrated logits of validated ``(N, C)`` logits, before mixing."""
        raise TypeError(
            f"{type(self).__name__} has no calibrated logits, only probabilities: call predict_proba(logits)"
        )

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return calibrated probabilities of validated ``(N, C)`` logits, before mixing."""
        return self.calibrated_logits(logits).softmax(dim=1)


def like_probabilities(rows: Tensor) -> bool:
    """Whether rows of logits look like probabilities: not negative with a sum of 1, or a 0 and a number up to 1."""
    if len(rows) < 8 or bool((rows < 0).any()):
        return False
    binary = rows.shape[1] == 2 and not rows[:, 0].any() and bool((rows[:, 1] <= 1).all())
    return binary or bool(((rows.sum(1) - 1).abs() < 1e-3).all())


def cross_fitted(calibrator: Calibrator, rows: Tensor, target: Tensor, weight: Tensor | None, folds: int = 5) -> Tensor:
    """Probabilities of each row by a fit without its fold, ``(N, C)``, float64 where the device has it.

    A fold whose fit fails keeps its own probabilities.

    Args:
        calibrator: The method; it is not changed.
        rows: Validated logits, ``(N, C)``.
        target: Class indices, ``(N,)``.
        weight: ``(N,)`` or None.
        folds: Number of folds; samples are assigned by their values, so that their order does not matter.
    """
    number = fold_numbers(rows, target, folds)
    result = rows.to(accumulation_dtype(rows)).softmax(1)
    for fold in range(folds):
        kept, out = number != fold, number == fold
        if not (kept.any() and out.any()):
            continue
        fresh = copy.deepcopy(calibrator)
        try:
            fresh.solve(rows[kept], target[kept], None if weight is None else weight[kept])
        except ValueError:
            continue
        result[out] = fresh.mixed(rows[out]).to(result.dtype)
    return result


def _unflattened(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows of classes in the shape of dense logits."""
    if len(shape) < 3:
        return rows
    return rows.reshape(shape[0], *shape[2:], rows.shape[1]).movedim(-1, 1)


@overload
def logits_from_probabilities(probabilities: Tensor) -> Tensor: ...
@overload
def logits_from_probabilities(probabilities: Array) -> Array: ...
def logits_from_probabilities(probabilities: Any) -> Any:
    """Logits whose softmax gives the probabilities, for models that only return probabilities.

    Probabilities are floored at float32's smallest normal number, 1.2e-38, in every dtype: a 0, as forests return,
    becomes a finite logit of -87, which does not dominate a fit.

    Args:
        probabilities: ``(N, C)`` with rows that sum to one; or ``(N,)``, the probability of class 1. Torch, NumPy or a
            data frame; what comes out is what went in.

    Returns:
        ``(N, C)`` log-probabilities, or the ``(N,)`` logit of class 1; at least float32.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import logits_from_probabilities
        >>> logits_from_probabilities(torch.tensor([[0.2, 0.8], [0.5, 0.5]])).softmax(1)
        tensor([[0.2000, 0.8000],
                [0.5000, 0.5000]])
        >>> logits_from_probabilities(torch.tensor([0.5, 1.0])).sigmoid()
        tensor([0.5000, 1.0000])
    """
    values = as_tensor(probabilities, "probabilities")
    inputs.check_float("probabilities", values)
    values = at_least_float32(values)
    if values.dim() == 1:
        inputs.check_unit_interval("probabilities", values)
        logits = values.log().clamp_min(FLOOR) - (1 - values).log().clamp_min(FLOOR)
    elif values.dim() > 2:
        raise ValueError(f"probabilities must have shape (N, C) or (N,), got {tuple(values.shape)}")
    else:
        inputs.check_probabilities(values, None)
        logits = values.log().clamp_min(FLOOR)
    return containers.like(probabilities, logits, getattr(probabilities, "columns", None))
