"""Checks of the tensors given to losses and to the training side, and their conversion to what these compute with.

Shapes and types are always checked. Values (NaN, labels out of range, too few samples) are checked at once on the CPU;
on an accelerator, and inside ``torch.compile``, by a device-side assertion that never makes the host wait; inside a
``torch.func`` transform or a tracer, where there may be no values, not at all.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant import inputs
from calibrant.numerics import accumulation_dtype, at_least_float32, readable, softmax, sum_in_any_order, traced
from calibrant.torch_private import assert_without_waiting

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Pairs(NamedTuple):
    """Confidences and whether they are right, samples last; and a mask or weights, None if each counts once."""

    confidence: Tensor
    correct: Tensor
    weight: Tensor | None = None

    @property
    def mask(self) -> Tensor | None:
        """Which samples count; None if all are known to."""
        return mask_of(self.weight)

    def counts(self) -> Tensor | None:
        """How often each sample counts, in the accumulation dtype; None if each counts once."""
        return None if self.weight is None else self.weight.to(accumulation_dtype(self.confidence))

    def samples(self) -> Tensor:
        """How many samples count, in each row."""
        counts = self.counts()
        wide = accumulation_dtype(self.confidence)
        return self.confidence.new_tensor(self.confidence.shape[-1], dtype=wide) if counts is None else counts.sum(-1)

    def residual(self) -> Tensor:
        """Correctness minus confidence, as often as each sample counts, in the accumulation dtype."""
        wide, counts = accumulation_dtype(self.confidence), self.counts()
        residual = self.correct.to(wide) - self.confidence.to(wide)
        return residual if counts is None else residual * counts

    def right_and_wrong(self) -> tuple[Tensor, Tensor]:
        """How often each sample counts as right, and as wrong."""
        correct, counts = self.correct.to(accumulation_dtype(self.confidence)), self.counts()
        return (correct, 1 - correct) if counts is None else (correct * counts, (1 - correct) * counts)


class Classification(NamedTuple):
    """Flattened classifier output: ``(N, C)`` logits, ``(N,)`` target, and how often each sample counts."""

    logits: Tensor
    target: Tensor
    weight: Tensor | None = None

    @property
    def mask(self) -> Tensor | None:
        """Which samples count; None if all are known to."""
        return mask_of(self.weight)


def mask_of(weight: Tensor | None) -> Tensor | None:
    """Which samples count, from how often they do; None if all are known to."""
    if weight is None or (readable(weight) and bool(weight.numpy().all())):
        return None
    return weight if weight.dtype == torch.bool else weight > 0


def require(condition: Tensor, message: Callable[[], str]) -> None:
    """Raise ``ValueError`` if the 0-d ``condition`` is false, without ever stalling an accelerator."""
    if torch.compiler.is_compiling() or (condition.device.type != "cpu" and not traced()):
        assert_without_waiting(condition, message())
    elif not traced() and not condition:
        raise ValueError(message())


def require_between(values: Tensor, low: float, high: float, message: Callable[[str], str]) -> None:
    """Raise ``ValueError`` unless every value lies in [low, high]; NaN does not. The message is given the range."""
    if values.numel() == 0:
        return
    if readable(values):  # operations on a small tensor are overhead
        array = values.detach().numpy()
        least, most = array.min(), array.max()
        if not (low <= least and most <= high):
            raise ValueError(message(f" from {least:g} to {most:g}"))
    else:
        smallest, largest = values.detach().aminmax()
        require((smallest >= low) & (largest <= high), lambda: message(""))


def require_zero_one(values: Tensor, message: Callable[[], str]) -> None:
    """Raise ``ValueError`` if a value is neither 0 nor 1."""
    if values.dtype == torch.bool:
        return
    if readable(values):  # operations on a small tensor are overhead
        array = values.detach().numpy()
        if not ((array == 0) | (array == 1)).all():
            raise ValueError(message())
    else:
        require(((values == 0) | (values == 1)).all(), message)


def require_samples(pairs: Pairs | Classification, minimum: int, name: str) -> None:
    """Raise ``ValueError`` if the batch is too small; warn if no row has enough samples because others are ignored."""
    samples = pairs[1].shape[-1]
    weight = pairs.weight.numpy() if pairs.weight is not None and readable(pairs.weight) else None
    if samples < minimum and (weight is None or weight.all()):
        raise ValueError(
            f"{name} needs at least {minimum} sample{'s' * (minimum > 1)}, got {samples}: "
            "raise the calibration batch size or set drop_last=True"
        )
    if weight is None:
        return
    if not ((weight > 0).sum(-1) >= minimum).any():
        reason = f"too many samples of this batch were ignored, {name} needs at least {minimum}"
        if not weight.any():
            reason = "every sample of this batch was ignored"
        inputs.warn(f"{reason}: the objective is 0 here", UserWarning)
    elif minimum > 1 and (largest := weight.sum(-1).max()) < minimum:
        raise ValueError(
            f"sample_weight must sum to at least {minimum} for {name}, got {largest:g}: a weight of 2 is the "
            "sample twice, so multiply weights that are not counts by w.sum() / (w**2).sum()"
        )


def pairs(
    confidence: Tensor,
    correct: Tensor,
    mask: Tensor | None,
    *,
    name: str,
    minimum: int = 1,
    sample_weight: Tensor | None = None,
) -> Pairs:
    """Validate ``(confidence, correct)`` as given by the user, samples along the last dimension."""
    check_float("confidence", confidence)
    check_like("correct", correct, confidence, "confidence")
    if confidence.dim() == 0:
        raise ValueError("confidence must have at least one dimension, the samples; got a 0-d tensor")
    if mask is not None:
        check_mask(mask, confidence, "confidence")
    confidence, correct = at_least_float32(confidence), at_least_float32(correct.detach())
    weight = mask if sample_weight is None else checked_weight(sample_weight, mask, confidence)
    if (mask := mask_of(weight)) is not None:
        confidence = torch.where(mask, confidence, 0.5)
        correct = torch.where(mask, correct, torch.zeros_like(correct))
    require_between(
        confidence, 0, 1,
        lambda found: f"confidence must lie in [0, 1], got values{found}: pass probabilities without NaN, not logits",
    )  # fmt: skip
    require_zero_one(correct, lambda: "correct must hold only 0 (wrong) and 1 (right)")
    checked = Pairs(confidence, correct, weight)
    require_samples(checked, minimum, name)
    return checked


def checked_weight(weight: Tensor, mask: Tensor | None, like: Tensor) -> Tensor:
    """Validate sample weights of the shape of ``like``, and return them with 0 where the mask is False."""
    check_like("sample_weight", weight, like, "the samples")
    if weight.is_complex():
        raise TypeError(f"sample_weight must be real, got {weight.dtype}")
    weight = weight.detach().to(like.dtype)
    if mask is not None:
        weight = torch.where(mask, weight, 0.0)
    require_between(
        weight, 0, torch.finfo(like.dtype).max,
        lambda found: f"sample_weight must be finite and not negative, got values{found}: leave samples out with 0",
    )  # fmt: skip
    return weight


def check_dense(name: str, value: Tensor) -> None:
    """Raise ``TypeError`` unless ``value`` is a tensor, neither sparse nor nested."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}: use torch.as_tensor({name})")
    if value.layout != torch.strided or value.is_nested:
        kind = "a nested tensor" if value.is_nested else str(value.layout)
        raise TypeError(f"{name} must be a dense tensor, got {kind}: call {name}.to_dense() or pad it")


def check_float(name: str, value: Tensor) -> None:
    """Raise ``TypeError`` unless ``value`` is a dense floating-point tensor."""
    check_dense(name, value)
    if value.dtype not in FLOATS:
        raise TypeError(f"{name} must be floating point, got {value.dtype}: call {name}.float()")


def check_like(name: str, value: Tensor, like: Tensor, like_name: str) -> None:
    """Raise unless ``value`` is a dense tensor of the shape and on the device of ``like``."""
    check_dense(name, value)
    if value.shape != like.shape:
        raise ValueError(f"{name} must have shape {tuple(like.shape)} to match {like_name}, got {tuple(value.shape)}")
    check_device(name, value, like, like_name)


def check_device(name: str, value: Tensor, like: Tensor, like_name: str) -> None:
    """Raise unless both tensors are on the same device."""
    if value.device != like.device:
        raise ValueError(f"{name} is on {value.device} but {like_name} on {like.device}: move one of them with .to()")


def check_mask(mask: Tensor, like: Tensor, like_name: str) -> None:
    """Raise unless ``mask`` is a boolean tensor of the shape and on the device of ``like``."""
    check_like("mask", mask, like, like_name)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True where a sample counts), got {mask.dtype}: call mask.bool()")


def check_logits(logits: Tensor) -> None:
    """Raise unless these are dense floating-point tensors of at least one class or label."""
    if not isinstance(logits, Tensor) and (hint := inputs.hint_for_logits(logits)):
        raise TypeError(f"logits must be a torch.Tensor, got {type(logits).__name__}: {hint}")
    check_float("logits", logits)
    if logits.dim() == 0:
        raise ValueError("logits must have shape (N, C), (N, C, d1, ...) or (N,), got a 0-d tensor")
    if logits.dim() > 1 and logits.shape[1] == 0:
        raise ValueError(f"logits must have at least one class or label, got shape {tuple(logits.shape)}")


def check_objective(value: object, name: str = "objective") -> None:
    """Raise ``TypeError`` for a class in place of an object, and for what cannot be called."""
    if isinstance(value, type):
        raise TypeError(f"{name} must be an object, got the class {value.__name__}: write {value.__name__}()")
    if value is not None and not callable(value):
        raise TypeError(f"{name} must take (logits, labels), got {type(value).__name__}")


def classification(
    logits: Tensor,
    target: Tensor | None,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
    sample_weight: Tensor | None = None,
) -> Classification:
    """Validate and flatten classifier output and weights of its samples; no target if labels do not matter."""
    check_logits(logits)
    if target is None:
        shape, ignore_index = logits.shape[:1] + logits.shape[2:], None
        target = torch.zeros(shape, dtype=torch.long, device=logits.device)
    check_dense("target", target)
    if target.is_floating_point() or target.is_complex():
        remedy = "call target.long(), or target.argmax(dim=1) if it is one-hot or holds probabilities"
        hint = _likely_target(target, logits, ignore_index) or remedy
        raise TypeError(f"target must hold integer class indices, got {target.dtype}: {hint}")
    if logits.dim() == 1:
        logits = logits.unsqueeze(1)
    expected = logits.shape[:1] + logits.shape[2:]
    if logits.shape[1] == 1 and target.shape == logits.shape:
        target = target.squeeze(1)
        mask, sample_weight = (
            given.squeeze(1) if isinstance(given, Tensor) and given.shape == logits.shape else given
            for given in (mask, sample_weight)
        )
    if target.shape != expected:
        hint = _likely_target(target, logits, ignore_index)
        raise ValueError(
            f"target must have shape {tuple(expected)} for logits of shape {tuple(logits.shape)}, "
            f"got {tuple(target.shape)}" + (f": {hint}" if hint else "")
        )
    check_device("target", target, logits, "logits")

    logits, target = at_least_float32(logits), target.long()
    weight = valid_samples(target, mask, ignore_index)
    if sample_weight is not None:
        weight = checked_weight(sample_weight, weight, logits[:, 0])
    if logits.dim() > 2:
        logits, target = inputs.flattened(logits), target.flatten()
    weight = None if weight is None else weight.flatten()
    if (counts := mask_of(weight)) is not None:
        # Samples that do not count may hold anything, NaN included; zeros keep their gradient finite.
        logits = torch.where(counts.unsqueeze(1), logits, 0.0)
        target = torch.where(counts, target, 0)
    if logits.shape[1] == 1:
        logits = torch.cat((torch.zeros_like(logits), logits), dim=1)
    _require_finite(logits)
    classes = logits.shape[1]
    require_between(
        target, 0, classes - 1,
        lambda found: (
            f"target must lie in 0..{classes - 1} for {classes} classes, got labels{found}: "
            f"number the classes from 0, or set ignore_index to leave a label out (now {ignore_index})"
        ),
    )  # fmt: skip
    return Classification(logits, target, weight)


def multi_label_pairs(
    logits: Tensor,
    target: Tensor,
    mask: Tensor | None,
    ignore_index: int | None,
    sample_weight: Tensor | None,
) -> Pairs:
    """Validate and flatten multi-label output: every label's probability and whether it applies, each ``(C, N)``."""
    check_logits(logits)
    check_dense("target", target)
    if target.shape != logits.shape:
        raise ValueError(
            f"target must have the shape of the logits, {tuple(logits.shape)}, in the multi-label view, got "
            f'{tuple(target.shape)}: for one class per sample use view="top-label" or "class-wise"'
        )
    check_device("target", target, logits, "logits")
    if logits.dim() == 1:
        logits, target = logits.unsqueeze(1), target.unsqueeze(1)
        mask = mask.unsqueeze(1) if isinstance(mask, Tensor) and mask.dim() == 1 else mask
    target = target.detach()
    valid = valid_samples(target, mask, ignore_index)
    if valid is not None:
        target = torch.where(valid, target, torch.zeros_like(target))
        valid = _by_label(valid)
    advice = f"round soft labels, and set ignore_index to leave a value out (now {ignore_index})"
    require_zero_one(target, lambda: f"target must hold only 0 and 1 in the multi-label view: {advice}")
    if sample_weight is not None:
        check_like("sample_weight", sample_weight, logits[:, 0], "the samples of the logits")
        sample_weight = _by_label(sample_weight.unsqueeze(1).expand(logits.shape))
    data = classification(_by_label(logits), _by_label(target).long(), valid, None, sample_weight)
    # The sigmoid is a softmax over (0, logit): one rounding for all, so that equal logits stay tied.
    confidence, correct, rows = softmax(data.logits)[:, 1], data.target == 1, (logits.shape[1], -1)
    weight = None if data.weight is None else data.weight.reshape(rows)
    return Pairs(confidence.reshape(rows), correct.reshape(rows), weight)


def _by_label(values: Tensor) -> Tensor:
    """``(N, C, d1, ...)`` becomes ``(C * N * d1 * ...,)``."""
    return values.movedim(1, 0).flatten()


def _likely_target(target: Tensor, logits: Tensor, ignore_index: int | None) -> str:
    """What a target of another shape probably is: a column, multi-label or one-hot; empty if it cannot be read."""
    if target.numel() == len(logits) and target.dim() == 2:
        return "pass target.squeeze(1)"
    if target.shape != logits.shape or logits.dim() < 2 or logits.shape[1] < 2 or not readable(target):
        return ""
    labels = target if ignore_index is None else torch.where(target == ignore_index, 0, target)
    if not ((labels == 0) | (labels == 1)).all():
        return ""
    if (labels.sum(1) != 1).any():
        return (
            'it looks multi-label, which view="multi-label" of ESDLoss, MMCELoss and ECELoss handles, and '
            "multi_label=True of CalibratedLoss; posthoc.MultiLabelCalibration for calibrators"
        )
    return "" if target.is_floating_point() else "it looks one-hot, pass target.argmax(dim=1)"


def valid_samples(target: Tensor, mask: Tensor | None, ignore_index: int | None) -> Tensor | None:
    """Which samples count: neither masked nor labelled ``ignore_index``; None if all are known to count."""
    if mask is not None:
        check_mask(mask, target, "target")
    # If the values can be read, the common case that every sample counts takes the faster path.
    look = readable(target)
    if ignore_index is not None and not (look and (target.numpy() != ignore_index).all()):
        valid = target != ignore_index
        return valid if mask is None else valid & mask
    return None if mask is not None and readable(mask) and mask.numpy().all() else mask


def _require_finite(logits: Tensor) -> None:
    def message(_: str) -> str:
        where = f" in {int((~logits.isfinite()).any(1).sum())} of {len(logits)} samples" if readable(logits) else ""
        advice = "lower the learning rate, clip gradients, or leave those samples out with mask="
        return f"logits must be finite, got NaN or infinity{where}: {advice}"

    largest = torch.finfo(logits.dtype).max
    require_between(logits, -largest, largest, message)


def warn_of_probabilities(data: Classification) -> bool:
    """Warn about logits that look like probabilities; return whether there were enough readable samples to tell."""
    if not readable(data.logits):
        return False
    rows = data.logits.detach().numpy() if data.mask is None else data.logits.detach().numpy()[data.mask.numpy()]
    if len(rows) < inputs.LIKE_ROWS:
        return False
    if inputs.looks_like_probabilities(rows, of_one=False):
        inputs.warn(
            "these logits look like probabilities (rows sum to 1): remove the softmax at the end of the model, "
            "or pass probabilities.log()"
        )
    return True


def top_label_pairs(data: Classification) -> Pairs:
    """The confidence in the predicted class, and whether that class is right: each ``(N,)``."""
    _, confidence, predicted = top_label(data.logits)
    return Pairs(confidence, predicted.squeeze(1) == data.target, data.weight)


def top_label(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Numerators of the softmax, ``(N, C)``, the confidence in the predicted class, ``(N,)``, and it, ``(N, 1)``."""
    largest, predicted = logits.max(1, keepdim=True)
    powers = torch.exp(logits - largest)
    # The largest of these numerators of the softmax is 1.
    return powers, sum_in_any_order(powers).reciprocal().to(logits.dtype), predicted


def one_hot(data: Classification) -> Tensor:
    """Whether each class is the right one, ``(N, C)``; unlike torch's, it works under ``torch.vmap``."""
    classes = torch.arange(data.logits.shape[1], device=data.target.device)
    return data.target.unsqueeze(1) == classes
