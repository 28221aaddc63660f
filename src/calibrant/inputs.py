"""Arrays, tensors, data frames and lists as given, to checked rows of values, labels and weights."""

from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrant import frames, hints, options
from calibrant.arrays import Array, IndexArray, Marks, is_tensor, of_tensor

if TYPE_CHECKING:
    from torch import Tensor

    # Data frames and series of different libraries have nothing in common but a length.
    Values = Tensor | np.ndarray[Any, Any] | Sequence[Any] | Sized
else:
    Values = Any
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

    values: Array
    target: IndexArray
    weight: Array | None
    names: tuple[str, ...] | None


def as_array(name: str, value: Values) -> Marks:
    """Convert a tensor, an array, a data frame or a list of numbers to an array, without a copy if possible."""
    if is_tensor(value):
        return of_tensor(value, name)
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: remove masked samples first")
    frame = frames.opened(value)
    if name == "logits" and frame is None and not hasattr(value, "__array__") and (hint := hints.of_logits(value)):
        raise TypeError(f"logits must be an array, got {type(value).__name__}: {hint}")
    try:
        array = frames.as_array(value)
    except ValueError:
        raise ValueError(f"all rows of {name} must have the same length: fill or leave out the shorter ones") from None
    if array.dtype.kind not in "fiub":
        which = "" if frame is None else ": pass the columns with numbers only"
        raise TypeError(f"{name} must hold numbers, got an array of {array.dtype}{which}")
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))


def numbers(name: str, value: Values) -> Array:
    """The same in float32 or float64; half precision has too few digits for a confidence."""
    array = as_array(name, value)
    if array.dtype.kind == "c":
        raise TypeError(f"{name} must be real numbers, got {array.dtype}")
    exact = {"float16": np.float32, "float32": np.float32}.get(array.dtype.name, np.float64)
    return array.astype(exact, copy=False)


def in_unit_interval(name: str, values: Array) -> Array:
    """Values in [0, 1], those that rounding has pushed past its ends put back, or raise an error with a remedy."""
    if values.size == 0:
        return values
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        return values
    slack = 8 * np.finfo(values.dtype).eps
    if -slack <= low and high <= 1 + slack:
        return values.clip(0, 1)
    if low != low:
        raise ValueError(f"{name} must lie in [0, 1], got NaN: leave out those samples")
    raise ValueError(f"{name} must lie in [0, 1], got values from {low:g} to {high:g}: {hints.of_range(values)}")


def check_shape(name: str, array: Marks, expected: tuple[int, ...], like: str) -> None:
    """Raise ``ValueError`` unless the array has the shape of ``like``."""
    if array.shape != tuple(expected):
        raise ValueError(f"{name} must have shape {tuple(expected)} to match {like}, got {array.shape}")


def zero_one(name: str, value: Values, expected: tuple[int, ...], like: str) -> Marks:
    """0 and 1, or booleans, in the shape of ``like``, as booleans."""
    array = as_array(name, value)
    check_shape(name, array, expected, like)
    marks: Marks = array == 1
    if array.dtype != bool and not (marks | (array == 0)).all():
        raise ValueError(f"{name} must hold only 0 (wrong) and 1 (right)")
    return marks


def distributions(values: Array) -> Array:
    """``(N, C)`` probabilities, or raise an error if a row does not sum to 1."""
    if values.ndim < 2 or values.shape[-1] < 2:
        raise ValueError(f"probabilities must have shape (..., N, C) with C at least 2, got {values.shape}")
    total = values @ np.ones(values.shape[-1], values.dtype)  # several times as fast as sums of short rows
    if total.size and not (total.min() >= 1 - TOLERANCE and total.max() <= 1 + TOLERANCE):
        raise ValueError("probabilities must sum to 1 over the last dimension: pass the softmax of the logits")
    return values


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
    options.check_ignore_index(ignore_index)
    values = numbers(name, given)
    if values.ndim == 0:
        raise ValueError(f"{name} must have shape (N, C), (N, C, d1, ...) or (N,), got a number")
    binary = values.ndim == 1 or values.shape[1] == 1
    values = values[:, np.newaxis] if values.ndim == 1 else values
    shape = values.shape[:1] + values.shape[2:]
    labels = list(frames.as_array(classes).tolist()) if classes is not None else _column_names(given)
    weight = None if sample_weight is None else _checked_weight(sample_weight, shape)
    found = _labels(frames.in_order(target, labels), labels, classes is not None, ignore_index)
    if not multi_label and found.shape == values.shape and values.shape[1] == 1:
        found = found[:, 0]
    elif multi_label and found.shape == shape and binary:
        found = found[:, np.newaxis]
    several = _is_multi_label(name, values, found, ignore_index) if multi_label is None else multi_label
    count = values.shape[1] if several or not binary else 2
    if classes is not None and labels is not None and len(set(labels)) != count:
        raise ValueError(f"classes must have a name for each of the {count} classes, got {len(labels)}: {labels}")
    flat = _flattened(values)
    if several:
        check_shape("target", found, values.shape, name)
        marks = _marks(_flattened(found), ignore_index)
        # What is ignored may hold anything, NaN included.
        flat = np.where(marks == IGNORED, flat.dtype.type(0.5), flat) if (marks == IGNORED).any() else flat
        kept = (marks != IGNORED).any(1)
    else:
        _refuse_columns(found, shape)
        check_shape("target", found, shape, name)
        marks = found.ravel()
        kept = np.ones(len(marks), dtype=bool) if ignore_index is None else marks != ignore_index
        flat = flat[:, 0] if binary else flat
    if not kept.all():
        flat, marks, weight = flat[kept], marks[kept], None if weight is None else weight[kept]
    if not several:
        _check_range(marks, count)
    if weight is not None and len(weight) and not (weight > 0).any():
        raise ValueError("sample_weight must be above 0 somewhere: check the weights")
    return Rows(flat, marks, weight, tuple(map(str, labels)) if labels is not None and len(labels) == count else None)


def checked_target(target: Values, samples: int, classes: int, like: str) -> IndexArray:
    """Return class indices as an array, or raise an error if they do not match ``like``."""
    labels = _labels(target, None, False, None)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    _refuse_columns(labels, (samples,))
    check_shape("target", labels, (samples,), like)
    _check_range(labels, classes)
    return labels


def checked_weight(sample_weight: Values, samples: int) -> Array:
    """Return the weight of each sample in float64, or raise an error."""
    weight = _checked_weight(sample_weight, (samples,))
    if samples and not (weight > 0).any():
        raise ValueError("sample_weight must be above 0 somewhere: check the weights")
    return weight


def _checked_weight(sample_weight: Values, shape: tuple[int, ...]) -> Array:
    weight = as_array("sample_weight", sample_weight).astype(np.float64)
    weight = weight[:, 0] if weight.ndim == len(shape) + 1 and weight.shape[1] == 1 else weight
    check_shape("sample_weight", weight, shape, "the samples")
    if not (np.isfinite(weight) & (weight >= 0)).all():
        raise ValueError("sample_weight must be finite and at least 0: check the weights")
    return weight.ravel()


def _flattened(values: Marks) -> Any:
    """``(N, C, d1, ...)`` becomes ``(N * d1 * ..., C)``."""
    return values if values.ndim == 2 else np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])


def _column_names(given: Values) -> list[Any] | None:
    """Names of the columns of a data frame; None if there are none, or they only count the columns."""
    names = frames.columns(given)
    return None if len(names) < 2 or names == list(range(len(names))) else names


def _labels(target: Values, names: list[Any] | None, named: bool, ignore_index: int | None) -> IndexArray:
    """Class indices of a target that holds indices, names, or the numbers that ``classes=`` gave the classes."""
    if frames.has_names(target):
        if names is None:
            example = frames.as_array(target).ravel()[0]
            raise ValueError(f"target holds names, such as {example!r}: pass classes= with the name of every column")
        return frames.class_indices(target, [str(name) for name in names], ignore_index)
    labels = as_array("target", target)
    if labels.dtype.kind == "f" and not (labels == labels.round()).all():
        kind = "NaN" if np.isnan(labels).any() else "fractions"
        raise TypeError(f"target must hold whole class indices, got {kind}")
    labels = labels.astype(np.int64, copy=False)
    if named and names is not None and labels.ndim == 1 and not any(isinstance(name, str) for name in names):
        return frames.class_indices(labels, names, ignore_index)
    return labels


def _is_multi_label(name: str, values: Array, target: IndexArray, ignore_index: int | None) -> bool:
    """Whether a target is 0 or 1 for each class, and not one-hot; raise an error if it may be either."""
    if target.shape != values.shape or values.shape[1] < 2:
        return False
    labels = target if ignore_index is None else np.where(target == ignore_index, 0, target)
    if not ((labels == 0) | (labels == 1)).all():
        return False
    if (labels.sum(1) != 1).any():
        return True
    # One label per sample in every sample: a one-hot target, unless the probabilities are no distribution.
    return name == "probabilities" and not (np.abs(values.sum(1) - 1) < TOLERANCE).all()


def _marks(target: IndexArray, ignore_index: int | None) -> IndexArray:
    marks = target if ignore_index is None else np.where(target == ignore_index, IGNORED, target)
    counted = marks if ignore_index is None else marks[target != ignore_index]
    if not ((counted == 0) | (counted == 1)).all():
        raise ValueError(
            "a multi-label target must hold only 0 and 1: round soft labels, and set ignore_index to leave a value out "
            f"(now {ignore_index})"
        )
    return marks


def _refuse_columns(labels: IndexArray, shape: tuple[int, ...]) -> None:
    if labels.ndim == len(shape) + 1 and labels.ndim > 1:
        expected = "(N,)" if len(shape) == 1 else str(tuple(shape))
        raise ValueError(
            f"target must have shape {expected}, got {labels.shape}: call target.argmax(1) if it is one-hot, or "
            "pass multi_label=True if each class is a label of its own"
        )


def _check_range(target: IndexArray, classes: int) -> None:
    if target.size and not (target.min() >= 0 and target.max() < classes):
        raise ValueError(
            f"target must lie in 0..{classes - 1} for {classes} classes, got labels from {target.min()} to "
            f"{target.max()}"
        )
