"""Arrays, tensors, data frames and lists as given, to checked rows of values, labels and weights."""

from collections.abc import Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant import frames, hints, inputs
from calibrant.arrays import IndexArray
from calibrant.numerics import at_least_float32

# Data frames and series of different libraries have nothing in common but a length.
Values = Tensor | np.ndarray[Any, Any] | Sequence[Any] | Sized
# Mark of an ignored entry of a multi-label target.
IGNORED = -1
# Largest distance of a sum of probabilities from 1: more than rounding to three digits, less than a defect.
TOLERANCE = 0.005


class Rows(NamedTuple):
    """Logits or probabilities as rows of samples, without ignored samples.

    Attributes:
        values: ``(N, C)``, or ``(N,)`` of class 1 of two.
        target: Class indices, ``(N,)``; or 0, 1 and ``IGNORED`` of each label, ``(N, L)``.
        weight: ``(N,)`` in float64, if given.
        names: Names of the classes, if given.
    """

    values: Tensor
    target: Tensor
    weight: Tensor | None
    names: tuple[str, ...] | None


def as_tensor(name: str, value: Values) -> Tensor:
    """Convert any array or data frame to a CPU tensor, without a copy if possible."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: remove masked samples first")
    frame = frames.opened(value)
    if name == "logits" and frame is None and not hasattr(value, "__array__") and (hint := hints.of_logits(value)):
        raise TypeError(f"logits must be an array, got {type(value).__name__}: {hint}")
    array = frames.as_array(value)
    if array.dtype.kind not in "fiub":
        which = "" if frame is None else ": pass the columns with numbers only"
        raise TypeError(f"{name} must hold numbers, got an array of {array.dtype}{which}")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind == "u" and native.dtype.itemsize > 1:
        native = native.astype(np.int64)
    if native.dtype == np.longdouble:
        native = native.astype(np.float64)
    native = np.ascontiguousarray(native)
    # torch warns about read-only arrays; we only read.
    return torch.from_numpy(native if native.flags.writeable else native.copy())


def numbers(name: str, value: Values) -> Tensor:
    """The same in floating point, at least float32; integers are converted."""
    tensor = as_tensor(name, value)
    if not isinstance(value, Tensor) and not tensor.is_floating_point():
        tensor = tensor.double()
    inputs.check_float(name, tensor)
    return at_least_float32(tensor)


def in_unit_interval(name: str, values: Tensor) -> Tensor:
    """Values in [0, 1], those that rounding has pushed past its ends put back, or raise an error with a remedy."""
    if values.numel() == 0:
        return values
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        return values
    slack = 8 * torch.finfo(values.dtype).eps
    if -slack <= low and high <= 1 + slack:
        return values.clamp(0, 1)
    if low != low:
        raise ValueError(f"{name} must lie in [0, 1], got NaN: leave out those samples")
    raise ValueError(f"{name} must lie in [0, 1], got values from {low:g} to {high:g}: {hints.of_range(values)}")


def rows_of(
    name: str,
    given: Values,
    target: Values,
    sample_weight: Values | None,
    classes: Sequence[Any] | None,
    ignore_index: int | None,
    multi_label: bool | None,
) -> Rows:
    """Flatten logits or probabilities, with their target, weights and names.

    Args:
        name: ``"logits"`` or ``"probabilities"``.
        given: ``(N, C)``, dense ``(N, C, d1, ...)``, or ``(N,)`` or ``(N, 1, ...)`` of class 1 of two.
        target: Class indices or names, the shape of the values without the classes; or 0 and 1 of the same shape.
        sample_weight: The shape of the values without the classes.
        classes: Names of the classes.
        ignore_index: Label of what is left out; None to leave out nothing.
        multi_label: Whether each class is a label of its own; None to decide by the target.
    """
    inputs.check_ignore_index(ignore_index)
    values = numbers(name, given)
    if values.dim() == 0:
        raise ValueError(f"{name} must have shape (N, C), (N, C, d1, ...) or (N,), got a number")
    binary = values.dim() == 1 or values.shape[1] == 1
    values = values.unsqueeze(1) if values.dim() == 1 else values
    shape = values.shape[:1] + values.shape[2:]
    labels = list(frames.as_array(classes).tolist()) if classes is not None else _column_names(given)
    weight = None if sample_weight is None else _checked_weight(sample_weight, shape)
    found = _labels(frames.in_order(target, labels), labels, classes is not None, ignore_index)
    if not multi_label and found.shape == values.shape and values.shape[1] == 1:
        found = found.squeeze(1)
    elif multi_label and found.shape == shape and binary:
        found = found.unsqueeze(1)
    several = _is_multi_label(name, values, found, ignore_index) if multi_label is None else multi_label
    count = values.shape[1] if several or not binary else 2
    if classes is not None and labels is not None and len(set(labels)) != count:
        raise ValueError(f"classes must have a name for each of the {count} classes, got {len(labels)}: {labels}")
    flat = values.movedim(1, -1).flatten(0, -2)
    if several:
        inputs.check_shape("target", found, values.shape, name)
        marks = _marks(found.movedim(1, -1).flatten(0, -2), ignore_index)
        # What is ignored may hold anything, NaN included.
        flat = torch.where(marks == IGNORED, 0.5, flat) if bool((marks == IGNORED).any()) else flat
        kept = (marks != IGNORED).any(1)
    else:
        _refuse_columns(found, shape)
        inputs.check_shape("target", found, shape, name)
        marks = found.flatten()
        kept = torch.ones(len(marks), dtype=torch.bool) if ignore_index is None else marks != ignore_index
        flat = flat.squeeze(1) if binary else flat
    if not bool(kept.all()):
        flat, marks, weight = flat[kept], marks[kept], None if weight is None else weight[kept]
    if not several:
        _check_range(marks, count)
    if weight is not None and len(weight) and not bool((weight > 0).any()):
        raise ValueError("sample_weight must be above 0 somewhere: check the weights")
    return Rows(flat, marks, weight, tuple(map(str, labels)) if labels is not None and len(labels) == count else None)


def checked_target(target: Values, samples: int, classes: int, like: str) -> IndexArray:
    """Return class indices as an array, or raise an error if they do not match ``like``."""
    labels = _labels(target, None, False, None)
    labels = labels.squeeze(1) if labels.dim() == 2 and labels.shape[1] == 1 else labels
    _refuse_columns(labels, torch.Size([samples]))
    inputs.check_shape("target", labels, torch.Size([samples]), like)
    _check_range(labels, classes)
    return labels.numpy()


def checked_weight(sample_weight: Values, samples: int) -> Tensor:
    """Return the weight of each sample in float64, or raise an error."""
    weight = _checked_weight(sample_weight, torch.Size([samples]))
    if samples and not bool((weight > 0).any()):
        raise ValueError("sample_weight must be above 0 somewhere: check the weights")
    return weight


def _checked_weight(sample_weight: Values, shape: torch.Size) -> Tensor:
    weight = as_tensor("sample_weight", sample_weight).double()
    weight = weight.squeeze(1) if weight.dim() == len(shape) + 1 and weight.shape[1] == 1 else weight
    inputs.check_shape("sample_weight", weight, shape, "the samples")
    if not bool((weight.isfinite() & (weight >= 0)).all()):
        raise ValueError("sample_weight must be finite and at least 0: check the weights")
    return weight.flatten()


def _column_names(given: Values) -> list[Any] | None:
    """Names of the columns of a data frame; None if there are none, or they only count the columns."""
    names = frames.columns(given)
    return None if len(names) < 2 or names == list(range(len(names))) else names


def _labels(target: Values, names: list[Any] | None, named: bool, ignore_index: int | None) -> Tensor:
    """Class indices of a target that holds indices, names, or the numbers that ``classes=`` gave the classes."""
    if frames.has_names(target):
        if names is None:
            example = frames.as_array(target).ravel()[0]
            raise ValueError(f"target holds names, such as {example!r}: pass classes= with the name of every column")
        return frames.class_indices(target, [str(name) for name in names], ignore_index)
    labels = as_tensor("target", target)
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        kind = "NaN" if bool(labels.isnan().any()) else "fractions"
        raise TypeError(f"target must hold whole class indices, got {kind}")
    labels = labels.long()
    if named and names is not None and labels.dim() == 1 and not any(isinstance(name, str) for name in names):
        return frames.class_indices(labels, names, ignore_index)
    return labels


def _is_multi_label(name: str, values: Tensor, target: Tensor, ignore_index: int | None) -> bool:
    """Whether a target is 0 or 1 for each class, and not one-hot; raise an error if it may be either."""
    if target.shape != values.shape or values.shape[1] < 2:
        return False
    labels = target if ignore_index is None else torch.where(target == ignore_index, 0, target)
    if not bool(((labels == 0) | (labels == 1)).all()):
        return False
    if bool((labels.sum(1) != 1).any()):
        return True
    # One label per sample in every sample: a one-hot target, unless the probabilities are no distribution.
    return name == "probabilities" and not bool(((values.sum(1) - 1).abs() < TOLERANCE).all())


def _marks(target: Tensor, ignore_index: int | None) -> Tensor:
    marks = target if ignore_index is None else torch.where(target == ignore_index, IGNORED, target)
    counted = marks if ignore_index is None else marks[target != ignore_index]
    if not bool(((counted == 0) | (counted == 1)).all()):
        raise ValueError(
            "a multi-label target must hold only 0 and 1: round soft labels, and set ignore_index to leave a value out "
            f"(now {ignore_index})"
        )
    return marks


def _refuse_columns(labels: Tensor, shape: torch.Size) -> None:
    if labels.dim() == len(shape) + 1 and labels.dim() > 1:
        expected = "(N,)" if len(shape) == 1 else str(tuple(shape))
        raise ValueError(
            f"target must have shape {expected}, got {tuple(labels.shape)}: call target.argmax(1) if it is one-hot, or "
            "pass multi_label=True if each class is a label of its own"
        )


def _check_range(target: Tensor, classes: int) -> None:
    inputs.require_between(
        target, 0, classes - 1,
        lambda found: f"target must lie in 0..{classes - 1} for {classes} classes, got labels{found}",
    )  # fmt: skip
