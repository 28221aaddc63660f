"""Base classes of the post-hoc methods: checked input, saved state, calibrated logits and probabilities."""

import json
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from calibrant import inputs
from calibrant.numerics import accumulation_dtype, at_least_float32, traced

Array = npt.NDArray[Any]


def as_tensor(value: Tensor | Array) -> Tensor:
    """Convert a NumPy array to a tensor, without a copy if that is safe; return anything else unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    native = value.astype(value.dtype.newbyteorder("="), copy=False)
    # A read-only array would make torch warn about writes that never happen.
    return torch.from_numpy(np.require(native, requirements=["C", "W"]))


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


def _saved_settings(state: Tensor | dict[str, Any]) -> dict[str, Any]:
    """Settings in an extra state; in version 0.1 it was the dictionary itself."""
    if isinstance(state, dict):
        return state
    settings: dict[str, Any] = json.loads(bytes(state.tolist()))
    return settings


class Fitted(nn.Module, ABC):
    """Base class of anything fitted to held-out logits: buffers of any shape, the number of classes, and checks."""

    # Options that change the meaning of the buffers, and results of a fit other than its buffers.
    decisive: tuple[str, ...] = ()
    found: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.classes_: int | None = None

    def fit(self, logits: Tensor | Array, target: Tensor | Array, *, ignore_index: int | None = -100) -> Self:
        """Fit on predictions the model was not trained on, and return self.

        Args:
            logits: ``(N, C)``, or binary ``(N,)`` or ``(N, 1)``: the logit of class 1. Torch or NumPy.
            target: Integer class indices, ``(N,)``.
            ignore_index: Label of samples to ignore; None to ignore none.
        """
        # Tensors made in inference mode cannot be part of a graph, and a calibrator may come before a loss.
        with torch.inference_mode(False), torch.no_grad():
            return self._fit(as_tensor(logits), as_tensor(target), ignore_index)

    def _fit(self, logits: Tensor, target: Tensor, ignore_index: int | None) -> Self:
        _check_dimensions(logits)
        data = inputs.classification(logits, target, ignore_index=ignore_index)
        rows, labels = data.logits.detach(), data.target
        if data.mask is not None:
            rows, labels = rows[data.mask], labels[data.mask]
        if len(rows) == 0:
            raise ValueError(f"{type(self).__name__} needs at least 1 sample to fit, got none: pass held-out data")
        device = rows.device
        if accumulation_dtype(rows) != torch.float64:  # the device has no float64: solve on the CPU
            rows, labels = rows.cpu(), labels.cpu()
        with full_precision(rows):
            self.fit_rows(rows, labels)
        if device != rows.device:
            self.to(device, torch.float32)
        self.classes_ = rows.shape[1]
        return self

    @abstractmethod
    def fit_rows(self, logits: Tensor, target: Tensor) -> None:
        """Set the buffers from validated ``(N, C)`` logits, float32 or float64, and ``(N,)`` labels."""

    def rows(self, logits: Tensor | Array) -> Tensor:
        """Check logits to be calibrated and convert them to ``(N, C)``, at least float32."""
        if isinstance(logits, np.ndarray):
            logits = as_tensor(logits).to(next((buffer.device for buffer in self.buffers()), None))
        self.require_fitted()
        inputs.check_float("logits", logits)
        _check_dimensions(logits)
        binary = logits.dim() == 1 or logits.shape[1] == 1
        classes = 2 if binary else logits.shape[1]
        if classes != self.classes_:
            raise ValueError(
                f"{type(self).__name__} was fitted on {self.classes_} classes, got {classes} in logits of shape "
                f"{tuple(logits.shape)}: use the model it was fitted for, or fit again"
            )
        logits = at_least_float32(logits)
        if not traced():
            largest = torch.finfo(logits.dtype).max
            inputs.require_between(
                logits, -largest, largest,
                lambda _: "logits must be finite, got NaN or infinity: leave out such samples or fix the model",
            )  # fmt: skip
        if binary:
            logits = logits.reshape(-1, 1)
            logits = torch.cat((torch.zeros_like(logits), logits), dim=1)
        return logits

    def require_fitted(self) -> None:
        """Raise ``RuntimeError`` before ``fit``."""
        # Some loaders, such as from_pretrained, leave out buffers that are None until the fit.
        if self.classes_ is None or any(buffer is None for buffer in self._buffers.values()):
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
        return {"method": type(self).__name__, "classes": self.classes_ or 0, **state}

    def get_extra_state(self) -> Tensor:
        """Return the part of the state that is not a buffer, as bytes of JSON: safetensors only store tensors."""
        return torch.tensor(list(json.dumps(self._settings()).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor | dict[str, Any]) -> None:
        """Load the part of a state_dict that is not a buffer."""
        saved = _saved_settings(state)
        self.classes_ = saved["classes"] or None
        for name in self.found:
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
        saved = None if state is None else _saved_settings(state)
        needed = ["_extra_state", *(self._buffers if saved is None or self.classes_ or saved["classes"] else ())]
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
        if self.classes_ is not None and not saved["classes"]:
            return f"this is the state of a {mine['method']} that is not fitted: save it after fit"
        return None

    def extra_repr(self) -> str:
        """Show the options and the number of classes, as torch's modules do."""
        options = {key: value for key, value in vars(self).items() if not key.startswith("_") and key != "training"}
        return ", ".join(f"{key}={value!r}" for key, value in sorted(options.items()))


class Calibrator(Fitted):
    """Base class of the post-hoc calibrators: a small module to put after a trained classifier.

    ``fit`` solves for the parameters of the method; ``predict_proba`` returns calibrated probabilities, and
    calling the module returns calibrated logits, if the method has them. Sums are accumulated in float64;
    parameters have the dtype and device of the logits. ``.to()`` moves them to other devices and wider dtypes;
    ``.half()`` and ``torch.autocast`` do not change them.
    """

    @overload
    def __call__(self, logits: Tensor) -> Tensor: ...
    @overload
    def __call__(self, logits: Array) -> Array: ...
    def __call__(self, logits: Tensor | Array) -> Tensor | Array:
        """Call ``forward``, as every module does; defined only for its types."""
        return super().__call__(logits)  # type: ignore[no-any-return]

    def forward(self, logits: Tensor | Array) -> Tensor | Array:
        """Return calibrated logits in the given shape; raises ``TypeError`` if the method only has probabilities.

        Args:
            logits: ``(N, C)``, or binary ``(N,)`` or ``(N, 1)``. A NumPy array gives a NumPy array.
        """
        if isinstance(logits, np.ndarray):
            with torch.no_grad():
                return self._logits(self.rows(logits), logits.shape).cpu().numpy()
        return self._logits(self.rows(logits), logits.shape)

    def _logits(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        with full_precision(rows):
            calibrated = self.calibrated_logits(rows)
        if len(shape) == 2 and shape[1] > 1:
            return calibrated
        return (calibrated[:, 1] - calibrated[:, 0]).reshape(shape)

    @overload
    def predict_proba(self, logits: Tensor) -> Tensor: ...
    @overload
    def predict_proba(self, logits: Array) -> Array: ...
    def predict_proba(self, logits: Tensor | Array) -> Tensor | Array:
        """Return calibrated probabilities, ``(N, C)`` with rows that sum to one; ``(N, 2)`` for binary logits.

        Args:
            logits: ``(N, C)``, or binary ``(N,)`` or ``(N, 1)``. A NumPy array gives a NumPy array.
        """
        if isinstance(logits, np.ndarray):
            with torch.no_grad():
                return self._probabilities(self.rows(logits)).cpu().numpy()
        return self._probabilities(self.rows(logits))

    def _probabilities(self, rows: Tensor) -> Tensor:
        with full_precision(rows):
            return self.probabilities(rows)

    def calibrated_logits(self, logits: Tensor) -> Tensor:  # noqa: ARG002 (methods that have them use it)
        """Return calibrated logits of validated ``(N, C)`` logits."""
        raise TypeError(
            f"{type(self).__name__} has no calibrated logits, only probabilities: call predict_proba(logits)"
        )

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return calibrated probabilities of validated ``(N, C)`` logits."""
        return self.calibrated_logits(logits).softmax(dim=1)


def logits_from_probabilities(probabilities: Tensor | Array) -> Tensor:
    """Logits whose softmax gives the probabilities, for models that only return probabilities.

    The probability is floored at the smallest normal number of the dtype, so that 0 becomes a finite logit.

    Args:
        probabilities: ``(N, C)`` with rows that sum to one; or ``(N,)``, the probability of class 1.

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
    values = as_tensor(probabilities)
    inputs.check_float("probabilities", values)
    values = at_least_float32(values)
    tiny = torch.finfo(values.dtype).tiny
    if values.dim() == 1:
        inputs.check_unit_interval("probabilities", values)
        return values.clamp_min(tiny).log() - (1 - values).clamp_min(tiny).log()
    if values.dim() > 2:
        raise ValueError(f"probabilities must have shape (N, C) or (N,), got {tuple(values.shape)}")
    inputs.check_probabilities(values, None)
    return values.clamp_min(tiny).log()


def _check_dimensions(logits: Tensor) -> None:
    if isinstance(logits, Tensor) and (logits.dim() not in (1, 2) or (logits.dim() == 2 and logits.shape[1] == 0)):
        raise ValueError(
            f"logits must have shape (N, C), or (N,) or (N, 1) if binary, got {tuple(logits.shape)}: "
            "flatten other dimensions into the samples"
        )
