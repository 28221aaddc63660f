"""The border: arrays, tensors, data frames and lists are converted and checked here once, and trusted everywhere else.

Samples of metrics and fits come from :func:`rows_of`; logits to be calibrated from :func:`logit_rows`.
"""

import re
import sys
import warnings
from collections.abc import Mapping, Sequence, Sized
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrant import frames
from calibrant.frames import Array, IndexArray, Marks, is_tensor

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
# Values that leave [0, 1] by less are neither logits nor percentages.
NEAR = 0.1
# Logits whose rows miss a sum of 1 by less are probably probabilities; fewer rows may do so by chance.
LIKE_ONE, LIKE_ROWS = 1e-3, 8


class InputWarning(UserWarning):
    """Input that is probably not what it was passed as, such as probabilities passed as logits."""


class FitWarning(UserWarning):
    """A post-hoc fit that is doubtful: too few samples, a class without any, or worse than doing nothing."""


class Rows(NamedTuple):
    """Logits or probabilities as rows of samples, without ignored samples."""

    values: Array  # (N, C), or (N,) of class 1 of two
    target: IndexArray  # class indices, (N,); or 0, 1 and IGNORED of each label, (N, L)
    weight: Array | None  # (N,) in float64; a weight of 2 is the row twice
    names: tuple[str, ...] | None


def check_range(
    name: str, value: float, *, low: float, high: float = 1e12, open_low: bool = False, open_high: bool = False
) -> float:
    """Return the number ``value`` as a float; raise unless it lies in the interval."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not ((value > low if open_low else value >= low) and (value < high if open_high else value <= high)):
        above = f"above {low:g}" if open_low else f"at least {low:g}"
        raise ValueError(f"{name} must be {above} and {'below' if open_high else 'at most'} {high:g}, got {value}")
    return float(value)


def check_count(name: str, value: int, low: int = 1) -> int:
    """Return the count ``value``; raise unless it is a whole number up to a million, or at least ``low`` = 0."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {type(value).__name__}")
    if value < low or (low and value > 10**6):
        raise ValueError(f"{name} must be at least {low}{' and at most 1000000' if low else ''}, got {value}")
    return int(value)


def check_ignore_index(value: int | None) -> int | None:
    """Return the label ``value``; raise unless it is a whole number or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise TypeError(f"ignore_index must be a whole number or None, got {value!r}")
    if value is not None and not -(2**63) <= value < 2**63:
        raise ValueError(f"ignore_index must fit in 64 bits, got {value}")
    return None if value is None else int(value)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def warn(text: str, category: type[UserWarning] = InputWarning) -> None:
    """Issue a warning at the first line outside this package, and outside of torch that calls its modules."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(("calibrant.", "torch.")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def hint_for_logits(logits: object) -> str:
    """How to get the logits of a model's output, such as the ``ModelOutput`` of transformers."""
    if hasattr(logits, "logits"):
        return "pass outputs.logits"
    return 'pass outputs.logits, or outputs["logits"] of a dict' if isinstance(logits, Mapping) else ""


def counted(several: float, word: str) -> str:
    """A number and its noun: ``1 sample``, ``2,000 samples``."""
    return f"{several:,} {word}{'s' if several != 1 else ''}"


def few(names: Sequence[Any], most: int = 3) -> str:
    """The first names, quoted."""
    return ", ".join(map(repr, names[:most])) + ", ..." * (len(names) > most)


def sum_to_one(rows: Array) -> bool:
    """Whether every row holds numbers in [0, 1] that sum to 1."""
    inside = rows.max() <= 1 and rows.min() >= 0  # first, because the sum of large logits may overflow
    return bool(inside and (np.abs(rows.sum(-1) - 1) <= LIKE_ONE).all())


def looks_like_probabilities(logits: Array, *, of_one: bool = True, logs: bool = False) -> bool:
    """Whether logits of 8 samples or more are probably probabilities: the one rule for all of the package.

    ``of_one`` includes ``(N,)``, or a column beside zeros, which of an untrained network may lie in [0, 1] by chance;
    ``logs`` includes logarithms of probabilities.
    """
    if len(logits) < LIKE_ROWS:
        return False
    some = logits[:: max(1, len(logits) // 1000)]
    binary = some.ndim == 1 or (some.shape[1] == 2 and not some[:, 0].any())
    if binary and not of_one:
        return False
    if logs and not binary and some.max() < 0.01 and sum_to_one(np.exp(some)):
        return True
    inside = some.min() >= 0 and some.max() <= 1 and some.any()
    return bool(inside and (binary or sum_to_one(some)))


def mistaken(name: str, values: Array, independent: bool = False) -> str:
    """What is probably wrong with logits that look like probabilities, or probabilities that are all 1; or nothing."""
    if name == "probabilities":
        ones = values.ndim == 1 and len(values) > 2 and bool((values == 1).all())
        return "every probability is 1, as a softmax over one class gives: take the sigmoid of the logits" * ones
    if not looks_like_probabilities(values.ravel() if independent else values):
        return ""
    how = "all lie in [0, 1]" if values.ndim == 1 or independent else "look like probabilities (rows sum to 1)"
    return f"these logits {how}"


def warn_if_mistaken(name: str, values: Array, independent: bool = False) -> None:
    """Warn of :func:`mistaken` values, with the remedy."""
    if found := mistaken(name, values, independent):
        warn(found + ": pass probabilities= if they are probabilities" * (name == "logits"))


def as_array(name: str, value: Values) -> Marks:
    """Convert a tensor, an array, a data frame or a list of numbers to an array, without a copy if possible."""
    if np.ma.isMaskedArray(value):
        raise TypeError(f"{name} is a masked array: remove masked samples first")
    frame = frames.opened(value)
    if name == "logits" and frame is None and not hasattr(value, "__array__") and (hint := hint_for_logits(value)):
        raise TypeError(f"logits must be an array, got {type(value).__name__}: {hint}")
    try:
        array = frames.as_array(value, name)
    except ValueError:
        raise ValueError(f"all rows of {name} must have the same length: fill or leave out the shorter ones") from None
    if array.dtype == object and name != "target":
        cells = array.ravel().tolist()
        if all(cell is None or isinstance(cell, Real) for cell in cells):
            array = array.astype(np.float64)
    if array.dtype.kind not in "fiub":
        which = "" if frame is None else ": pass the columns with numbers only"
        raise TypeError(f"{name} must hold numbers, got an array of {array.dtype}{which}")
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def numbers(name: str, value: Values) -> Array:
    """The same in float32 or float64; half precision has too few digits for a confidence."""
    array = as_array(name, value)
    exact = {"float16": np.float32, "float32": np.float32}.get(array.dtype.name, np.float64)
    return array.astype(exact, copy=False)


def in_unit_interval(
    name: str,
    values: Array,
    *,
    percentages: str = "divide by 100 if they are percentages",
    logits: str = "pass logits=",
) -> Array:
    """Values in [0, 1], those that rounding has pushed past its ends put back; or an error with one of the remedies."""
    if values.size == 0:
        return values
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        return values
    slack = 8 * np.finfo(np.result_type(values, np.float32)).eps
    if -slack <= low and high <= 1 + slack:
        return values.clip(0, 1)
    if low != low:
        raise ValueError(f"{name} must lie in [0, 1], got NaN: leave out those samples")
    remedy = f"these look like logits: {logits}"
    if low > -NEAR and high <= 1 + NEAR:
        remedy = "they are too close to it for logits: clip them, or check how they were computed"
    elif low >= 0 and high <= 100:
        remedy = f"{percentages}, or {logits} if they are logits"
    raise ValueError(f"{name} must lie in [0, 1], got values from {low:g} to {high:g}: {remedy}")


def finite_logits(logits: Array) -> Array:
    """The logits; raise ``ValueError`` if one is NaN or infinite."""
    if logits.size and not (-np.inf < logits.min() and logits.max() < np.inf):
        unusable = int((~np.isfinite(logits)).reshape(len(logits), -1).any(1).sum())
        raise ValueError(
            f"logits must be finite, got NaN or infinity in {unusable} of {counted(len(logits), 'sample')}: leave "
            "those samples out, or fix the model"
        )
    return logits


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


def distributions(values: Array, tolerance: float = TOLERANCE) -> Array:
    """``(N, C)`` probabilities, or raise an error if a row does not sum to 1."""
    if values.ndim < 2 or values.shape[-1] < 2:
        raise ValueError(f"probabilities must have shape (..., N, C) with C at least 2, got {values.shape}")
    total = values @ np.ones(values.shape[-1], values.dtype)  # several times as fast as sums of short rows
    off = total[~(np.abs(total - 1) <= tolerance)]
    if off.size:
        remedy = "divide each row by its sum, or take the softmax of the logits"
        if np.allclose(values, values.round(1), rtol=0, atol=1e-7):
            remedy = "keep more digits"
        raise ValueError(
            f"probabilities must sum to 1 in every row, but {off.size:,} of {counted(total.size, 'row')} sum to "
            f"{off.min():.6g} to {off.max():.6g}: {remedy}"
        )
    return values


def rows_of(
    name: str,
    given: Values,
    target: Values,
    sample_weight: Values | None = None,
    classes: Sequence[Any] | None = None,
    ignore_index: int | None = None,
    multi_label: bool | None = None,
) -> Rows:
    """Flatten logits or probabilities with target and weights; if ``multi_label`` is None, the target decides it."""
    check_ignore_index(ignore_index)
    values = numbers(name, given)
    if values.ndim == 0:
        raise ValueError(f"{name} must have shape (N, C), (N, C, d1, ...) or (N,), got a number")
    binary = values.ndim == 1 or values.shape[1] == 1
    values = values[:, np.newaxis] if values.ndim == 1 else values
    shape = values.shape[:1] + values.shape[2:]
    columns = frames.columns(given)
    labels = None if len(columns) < 2 or columns == list(range(len(columns))) else columns
    if classes is not None:
        labels = list(classes if isinstance(classes, tuple) else frames.as_array(classes).tolist())
    weight = None if sample_weight is None else checked_weight(sample_weight, shape)
    found = _labels(in_order(target, labels), labels, classes is not None, ignore_index)
    if not multi_label and found.shape == values.shape and values.shape[1] == 1:
        found = found[:, 0]
    elif multi_label and found.shape == shape and binary:
        found = found[:, np.newaxis]
    several = _is_multi_label(name, values, found, ignore_index) if multi_label is None else multi_label
    count = values.shape[1] if several or not binary else 2
    if classes is not None and labels is not None and len(set(labels)) != count:
        raise ValueError(f"classes must have a name for each of the {count} classes, got {len(labels)}: {labels}")
    flat = flattened(values)
    if several:
        check_shape("target", found, values.shape, name)
        marks = _marks(flattened(found), ignore_index)
        # What is ignored may hold anything, NaN included.
        flat = np.where(marks == IGNORED, flat.dtype.type(0.5), flat) if (marks == IGNORED).any() else flat
        kept = (marks != IGNORED).any(1)
    else:
        _check_target(found, shape, count, name, ignore_index)
        marks = found.ravel()
        kept = np.ones(len(marks), dtype=bool) if ignore_index is None else marks != ignore_index
        flat = flat[:, 0] if binary else flat
    if not kept.all():
        flat, marks = flat[kept], marks[kept]
        weight = None if weight is None else checked_weight(weight[kept], (len(marks),))
    names = tuple(map(str, labels)) if labels is not None and len(labels) == count else None
    return Rows(flat, marks, weight, names)


def checked_target(target: Values, samples: int, classes: int, like: str) -> IndexArray:
    """Return class indices as an array, or raise an error if they do not match ``like``."""
    labels = _labels(target, None, False, None)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    _check_target(labels, (samples,), classes, like)
    return labels


def checked_weight(sample_weight: Values, shape: tuple[int, ...]) -> Array:
    """Return the weight of each sample as a flat array in float64, or raise an error."""
    weight = as_array("sample_weight", sample_weight).astype(np.float64)
    weight = weight[:, 0] if weight.ndim == len(shape) + 1 and weight.shape[1] == 1 else weight
    check_shape("sample_weight", weight, shape, "the samples")
    if not (np.isfinite(weight) & (weight >= 0)).all():
        raise ValueError("sample_weight must be finite and at least 0: check the weights")
    if weight.size and not weight.any():
        raise ValueError("sample_weight must be above 0 somewhere, got only zeros: check the weights")
    return weight.ravel()


def has_names(target: Any) -> bool:
    """Whether the targets are names, strings for example, rather than numbers."""
    if is_tensor(target):
        return False
    array = target if type(target) is np.ndarray else frames.as_array(target)
    if array.dtype.kind == "O":
        values = array.ravel()
        return len(values) > 0 and not all(isinstance(value, int | float | np.number) for value in values[:100])
    return array.dtype.kind not in "biuf"


def class_names(target: Values, given: Values, count: int) -> list[Any]:
    """Labels of the columns if the target holds names: those of a data frame's columns, else the sorted names."""
    found = set(frames.as_array(target).ravel().tolist())
    columns = frames.columns(given)
    if len(columns) == count > 1 and (named := labels_of_columns(columns, found)):
        return named
    if len(columns) == 1 and len(found) == 2 and columns[0] in found:  # a single column is that of the second class
        return [*(found - set(columns)), *columns]
    if len(found) != count:
        raise ValueError(
            f"target holds {counted(len(found), 'different label')}, but the logits have {count} classes: pass "
            "classes= with the label of every column of the logits, in their order"
        )
    try:
        return sorted(found)
    except TypeError:
        raise ValueError(
            "target holds labels of different types, such as a name and None: leave samples without a label out, or "
            "pass classes="
        ) from None


def labels_of_columns(columns: Sequence[Any], found: set[Any]) -> list[Any] | None:
    """The label that each column is named after, such as ``cow`` or ``prob_cow``; None if none is, an error if some."""
    if found <= set(columns):
        return list(columns)
    labels = []
    for name in columns:
        ends = [label for label in found if re.search(rf"(^|\W|_){re.escape(str(label))}$", str(name))]
        labels += sorted(ends, key=lambda label: len(str(label)))[-1:]
    if not labels:
        return None
    if len(labels) < len(columns) or set(labels) != found:
        raise ValueError(
            f"only some of the columns {', '.join(map(str, columns))} are named after the classes of the target: name "
            "all of them so, or pass classes= with the label of every column, in their order"
        )
    return labels


def class_indices(target: Any, labels: Sequence[Any], ignore_index: int | None = None) -> Marks:
    """Positions of the targets in ``labels``; raises ``ValueError`` for one that is not among them."""
    array = frames.as_array(target)
    place = {label: index for index, label in enumerate(labels)}
    if ignore_index is not None:
        place.setdefault(ignore_index, ignore_index)
    try:
        indices = [place[label] for label in array.ravel().tolist()]
    except KeyError as unknown:
        raise ValueError(
            f"target holds {unknown.args[0]!r}, which is not one of the {len(labels)} classes {few(labels, 5)}: "
            "pass classes= with the label of every column, in their order"
        ) from None
    return np.array(indices, dtype=np.int64).reshape(array.shape)


def in_order(given: Any, labels: Sequence[Any] | None) -> Any:
    """Values of a data frame with its columns in the order of the labels, if they are named after these."""
    own = [str(name) for name in frames.columns(given)]
    names = [str(label) for label in (range(len(own)) if labels is None else labels)]
    named = labels_of_columns(own, set(names)) if len(own) > 1 else None
    if named is None or named == names:
        return given
    if sorted(named) != sorted(names):
        raise ValueError(f"the columns {own} are not the classes {names}: name all columns after the classes, or none")
    return frames.as_array(given)[:, [named.index(name) for name in names]]


def logit_rows(given: Any, *, one_is_binary: bool = True) -> Any:
    """Logits to be calibrated as ``(N, C)`` rows, at least float32; if ``one_is_binary``, with a 0 for class 0."""
    if not is_tensor(given):
        values: Any = numbers("logits", given)
    elif given.is_floating_point():
        values = given.float() if given.itemsize < 4 else given
    else:
        values = given.double()
    if values.ndim == 0 or (values.ndim > 1 and values.shape[1] == 0):
        raise ValueError(
            f"logits must have shape (N, C), or (N,) or (N, 1) if binary, got {tuple(values.shape)}: pass a batch of "
            "samples with at least one class"
        )
    if values.ndim > 1 and (values.shape[1] > 1 or not one_is_binary):
        return flattened(values)
    column = values.reshape(-1, 1)
    if is_tensor(given):
        return sys.modules["torch"].cat((column * 0, column), 1)
    return np.concatenate((np.zeros_like(column), column), 1)


def in_container(given: Any, rows: Any, labels: Sequence[Any] | None = None, *, of_logits: bool = False) -> Any:
    """Rows ``(N, C)`` or ``(N,)`` in the container that the logits came in; in one column only ``of_logits``."""
    shape = tuple(np.shape(given))
    if of_logits and (len(shape) < 2 or shape[1] == 1):
        rows = (rows[:, 1] - rows[:, 0]).reshape(shape)
    elif rows.ndim == 1:
        rows = rows.reshape(shape[0], *shape[2:])
        given = given if is_tensor(given) else None
    elif len(shape) > 2:
        rows = rows.reshape(shape[0], *shape[2:], rows.shape[1])
        rows = rows.movedim(-1, 1) if is_tensor(rows) else np.moveaxis(rows, -1, 1)
    if is_tensor(given):
        return rows if is_tensor(rows) else sys.modules["torch"].from_numpy(rows)
    return rows if is_tensor(rows) else frames.like(given, rows, labels)


def flattened(values: Any) -> Any:
    """``(N, C, d1, ...)`` becomes ``(N * d1 * ..., C)``; a tensor stays one."""
    if values.ndim == 2:
        return values
    last = values.movedim(1, -1) if is_tensor(values) else np.moveaxis(values, 1, -1)
    return last.reshape(-1, values.shape[1])


def _labels(target: Values, names: list[Any] | None, named: bool, ignore_index: int | None) -> IndexArray:
    """Class indices of a target that holds indices, names, or the numbers that ``classes=`` gave the classes."""
    if has_names(target):
        if names is None:
            example = frames.as_array(target).ravel().tolist()[0]
            raise ValueError(f"target holds names, such as {example!r}: pass classes= with the name of every column")
        return class_indices(target, [str(name) for name in names], ignore_index)
    labels = as_array("target", target)
    if labels.dtype.kind == "f" and not (labels == labels.round()).all():
        missing = int(np.isnan(labels).sum())
        kind = f"NaN in {missing} samples: leave out those without a target" if missing else "fractions"
        raise TypeError(f"target must hold whole class indices, got {kind}")
    labels = labels.astype(np.int64, copy=False)
    if named and names is not None and labels.ndim == 1 and not any(isinstance(name, str) for name in names):
        return class_indices(labels, names, ignore_index)
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


def _check_target(
    labels: IndexArray, shape: tuple[int, ...], classes: int, like: str, ignore_index: int | None = None
) -> None:
    """Raise ``ValueError`` unless these are class indices in the shape of ``like``, or ignored."""
    if labels.ndim == len(shape) + 1 and labels.ndim > 1:
        expected = "(N,)" if len(shape) == 1 else str(tuple(shape))
        raise ValueError(
            f"target must have shape {expected}, got {labels.shape}: call target.argmax(1) if it is one-hot, or "
            "pass multi_label=True if each class is a label of its own"
        )
    check_shape("target", labels, shape, like)
    found = labels if ignore_index is None else labels[labels != ignore_index]
    if found.size and not (found.min() >= 0 and found.max() < classes):
        raise ValueError(
            f"target must lie in 0..{classes - 1} for {classes} classes, got labels from {found.min()} to {found.max()}"
        )
