"""What the cells of a file mean: numbers, class indices, correctness; and what is doubtful about them."""

import re
from collections.abc import Sequence

import numpy as np

from calibrant.files.formats import Array, empty_cells
from calibrant.hints import is_distribution
from calibrant.inputs import TOLERANCE
from calibrant.metrics.columns import RIGHT, Kind
from calibrant.metrics.rounding import EXACT, explained_by_rounding, renormalised
from calibrant.metrics.two_classes import called, fits_other, in_order, with_positive

WORDS = {"true": 1.0, "false": 0.0}
# Label that predictions leave out by themselves, in pixels and in several labels.
LEFT_OUT = -100
# Values between these are too close to [0, 1] for logits and percentages.
LEAST, MOST = 0.1, 1.5
# Share of rows that must agree before a confidence is taken for the probability of a class.
NEARLY_ALL = 0.99
# Fewest rows that show whether logits are probabilities, and how many are looked at.
FEWEST, SAMPLED = 8, 1000
# Labels that a notice names.
MOST_NAMED = 5


def filled(name: str, column: Array) -> Array:
    """A column without a mask; an empty cell is an error."""
    if missing := int(np.ma.getmaskarray(column).sum()):
        raise ValueError(empty_cells(name, missing))
    array: Array = np.ma.getdata(column)
    return array


def is_text(column: Array) -> bool:
    """Whether a column holds text."""
    return column.dtype.kind in "OUS"


def numbers_of(name: str, column: Array) -> Array:
    """Numbers of a column; text is parsed, also percentages and lists as Python and NumPy print them.

    Example:
        >>> numbers_of("confidence", np.array(["90%", "65 %"], dtype=object))
        array([90., 65.])
        >>> numbers_of("probabilities", np.array(["[0.9, 0.1]", "[0.5 0.5]"], dtype=object))
        array([[0.9, 0.1],
               [0.5, 0.5]])
    """
    column = filled(name, column)
    if not is_text(column):
        return column
    cells = column.tolist()
    for row, cell in enumerate(cells, 1):
        if not isinstance(cell, str):
            raise ValueError(f"column {name!r} must hold numbers, got {type(cell).__name__} in row {row}")
    cells = [cell.strip() for cell in cells]
    if not cells or not all(cell.startswith("[") for cell in cells):
        return np.array([_number(name, row, cell.removesuffix("%")) for row, cell in enumerate(cells, 1)])
    rows = [
        [_number(name, row, part) for part in re.split(r"[\s,]+", cell.strip("[] \n")) if part]
        for row, cell in enumerate(cells, 1)
    ]
    if len(lengths := {len(row) for row in rows}) > 1:
        raise ValueError(f"lists in column {name!r} must have one length, got {min(lengths)} to {max(lengths)}")
    return np.array(rows)


def _number(name: str, row: int, cell: str) -> float:
    try:
        return WORDS[cell.lower()] if cell.lower() in WORDS else float(cell)
    except ValueError:
        raise ValueError(f"column {name!r} must hold a number in every row; row {row} has {cell!r}") from None


def correctness_of(name: str, column: Array) -> Array:
    """1 where a prediction is right and 0 where it is wrong; also in words.

    Example:
        >>> correctness_of("correct", np.array(["Yes", "no"], dtype=object))
        array([1., 0.])
    """
    if is_text(column):
        cells = [str(cell).strip() for cell in filled(name, column).tolist()]
        column = np.array([RIGHT.get(cell.lower(), cell) for cell in cells], dtype=object)
    return numbers_of(name, column)


def correctness_of_prediction(prediction: Array, target: Array) -> tuple[Array, tuple[str, ...]]:
    """Where two columns of classes agree, and a notice if capital letters were ignored."""
    if is_text(prediction) != is_text(target):
        raise ValueError("names classes in two ways: the prediction and the target must both be names or both numbers")
    if not is_text(prediction):
        return prediction == target, ()
    one, other = (np.array([str(cell).strip() for cell in column.tolist()], str) for column in (prediction, target))
    small = np.char.lower(one) == np.char.lower(other)
    if not set(np.char.lower(one)) & set(np.char.lower(other)):
        raise ValueError(
            f"no prediction is ever a class of the target: it has {_few(sorted(set(one.tolist())))} against "
            f"{_few(sorted(set(other.tolist())))}"
        )
    ignored = ("capital letters of predicted and true classes are ignored",)
    return small, ignored * bool((small != (one == other)).any())


def names_of_classes(
    of_columns: Sequence[str] | None, given: Sequence[str] | None, count: int
) -> tuple[str, ...] | None:
    """Names of the classes, from the columns or from the file of ``--classes``, which must agree."""
    names = of_columns
    if given is not None and (of_columns is None or sorted(given) != sorted(of_columns)):
        if of_columns is not None and not all(name.isdecimal() for name in of_columns):
            raise ValueError(f"its columns name the classes {_few(of_columns)}, but --classes has {_few(given)}")
        names = given
    if names is not None and len(names) != max(count, 2):
        raise ValueError(f"has {max(count, 2)} classes, but --classes has {len(names)} names: write one for each")
    return None if names is None else tuple(names)


def class_indices(
    name: str,
    labels: Array,
    names: tuple[str, ...] | None,
    count: int,
    *,
    column: str | None = None,
    positive: str | None = None,
) -> tuple[Array, tuple[str, ...] | None, tuple[str, ...]]:
    """Class indices of labels, which may be names; the names of the classes if known; and notices.

    Args:
        name: Name of the labels, for errors.
        labels: Numbers or text, ``(N,)``.
        names: Names of the classes, if known.
        count: Number of classes.
        column: Column of the values of one class of two, if there is one.
        positive: Class that it is for, if given.

    Example:
        >>> class_indices("label", np.array(["dog", "cat", "dog"], dtype=object), None, 2)[0]
        array([1, 0, 1])
    """
    labels = filled(name, labels)
    if positive is not None:
        labels = np.array([called(cell) for cell in labels.tolist()], dtype=object)
        names = with_positive(name, positive, names, labels.tolist(), count)
    if not is_text(labels):
        return _numbered(name, labels, names, count)
    cells = [str(cell).strip() for cell in labels.tolist()]
    found = set(cells)
    whole = all(map(_is_whole, found))
    if names is None and (whole or found <= {"", *WORDS}):
        return _numbered(name, numbers_of(name, labels), None, count)
    notices: tuple[str, ...] = ()
    if names is None:
        if len(found) != count:
            raise ValueError(
                f"column {name!r} has {len(found)} names of classes ({_few(sorted(found))}), but there are {count} "
                "classes: give their order with --classes FILE"
            )
        names, notice = in_order(found, column)
        notices = (notice,)
    if unknown := found - set(names):
        if whole:
            return numbers_of(name, labels), names, ()
        raise ValueError(f"column {name!r} has {_few(sorted(unknown))}, which is none of the classes {_few(names)}")
    place = {each: k for k, each in enumerate(names)}
    return np.array([place[cell] for cell in cells], np.int64), names, notices


def _numbered(
    name: str, labels: Array, names: tuple[str, ...] | None, count: int
) -> tuple[Array, tuple[str, ...] | None, tuple[str, ...]]:
    """Numbers are class indices, unless the classes are called by other numbers."""
    if names is None or not all(map(_is_whole, names)):
        if count == 2 and labels.dtype.kind in "fi" and set(np.unique(labels).tolist()) == {-1, 1}:
            return (labels > 0).astype(np.int64), names, (f"read {name} -1 and 1 as classes 0 and 1",)
        if labels.dtype.kind in "fiu" and len(labels) > 1 and labels.min() == 1 and labels.max() == count:
            raise ValueError(
                f"column {name!r} counts {count} classes from 1: subtract 1, or give --classes FILE with 1 to {count}, "
                "one on each line"
            )
        return labels, names, ()
    place = {float(each): k for k, each in enumerate(names)}
    if unknown := sorted(set(labels.tolist()) - set(place)):
        raise ValueError(
            f"column {name!r} has {_few([f'{each:g}' for each in unknown])}, none of the classes {_few(names)}"
        )
    return np.array([place[each] for each in labels.tolist()], np.int64), names, ()


def refuse_stray(name: str, labels: Array, count: int) -> None:
    """Refuse a single label that is no class, such as -100 or 255, with the option that leaves it out."""
    if labels.dtype.kind not in "fiu":
        return
    outside = labels[(labels < 0) | (labels >= count)]
    left_out = labels.ndim > 1 and (outside == LEFT_OUT).all()
    if 0 < len(outside) < labels.size and (outside == outside[0]).all() and not left_out:
        places = "rows" if labels.ndim == 1 else "places"
        raise ValueError(
            f"column {name!r} has {outside[0]:g} in {len(outside):,} of {labels.size:,} {places}: give "
            f"--ignore-index {outside[0]:g} if they are to be left out; classes are 0 to {count - 1}"
        )


def refuse_one_hot(name: str, labels: Array, probabilities: Array | None) -> None:
    """Refuse labels ``(N, C)`` with one 1 in every row, unless rows of the probabilities do not sum to 1."""
    sums = np.ones(1) if probabilities is None else probabilities.sum(1)
    if (np.abs(sums - 1) < TOLERANCE).all() and (labels.sum(1) == 1).all() and labels.max() == 1:
        raise ValueError(
            f"{name!r} is one-hot, with one 1 in every row: write the number of the class of each row in its place, "
            "which is target.argmax(1) in Python"
        )


def checked_values(
    kind: Kind, values: Array, option: str, *, percent: bool, several: bool = False
) -> tuple[Array, tuple[str, ...]]:
    """Values as shares, with rounded rows divided by their sum, and notices of what was changed.

    Args:
        kind: Kind of the values.
        values: The values.
        option: What an option calls them, for errors.
        percent: Whether they are percentages.
        several: Whether a sample has several labels, so that a row need not sum to 1.

    Example:
        >>> p = np.array([[0.33, 0.33, 0.33], [0.5, 0.3, 0.2]])
        >>> values, notices = checked_values("probabilities", p, "probs", percent=False)
        >>> values[0].sum().round(6), notices
        (np.float64(1.0), ('1 of 2 rows of rounded probabilities sum to 0.99 to 0.99: they are divided by their sum',))
    """
    if values.ndim and not len(values):
        raise ValueError("has no rows: was it written to the end?")
    if kind == "logits":
        if percent:
            raise ValueError("has logits, which are no percentages: leave out --percent")
        if not several:
            _refuse_minus_infinity(values)
        return values, ()
    if values.dtype.kind not in "fiub":
        return values, ()
    if percent:
        values = values / 100
    if values.ndim == 2 and values.shape[1] == 1 and (values == 1).all():
        raise ValueError(
            f"{kind} has one column, and every value is 1, as a softmax over one output gives: write its sigmoid"
        )
    notices: tuple[str, ...] = ()
    if values.ndim == 2 and values.shape[1] > 1 and not several and values.min() >= 0 and values.max() <= MOST:
        values, notices = _divided_by_sums(values)
    low, high = float(values.min(initial=1)), float(values.max(initial=0))
    slack = 8 * np.finfo(np.result_type(values.dtype, np.float32)).eps
    if low < -slack or high > 1 + slack:
        remedy = "leave out --percent" if percent else _remedy(kind, low, high, option)
        raise ValueError(f"{kind} must lie in [0, 1], got values from {low:.4g} to {high:.4g}: {remedy}")
    return values, notices


def _remedy(kind: Kind, low: float, high: float, option: str) -> str:
    """What values outside [0, 1] probably are, and what to do."""
    if low > -LEAST and high <= MOST:
        return "they are too close to it for logits, so clip them, or check how they were computed"
    logits = f"--logits {option}" if kind == "probabilities" else ""
    if low >= 0 and high <= 100:
        return "give --percent if they are percentages" + f", or {logits} if they are logits" * bool(logits)
    return f"these look like logits: give {logits}" if logits else "write the probability of the predicted class"


def _refuse_minus_infinity(values: Array) -> None:
    if values.dtype.kind != "f" or values.ndim < 1 or np.isnan(values).any() or (values == np.inf).any():
        return
    if rows := (values.reshape(len(values), -1) == -np.inf).any(1).sum():
        raise ValueError(
            f"logits must be finite, got -inf in {rows:,} of {len(values):,} rows: write a large negative number, such "
            "as -10000, for a class that cannot be"
        )


def _divided_by_sums(values: Array) -> tuple[Array, tuple[str, ...]]:
    """Rows divided by their sum if rounding explains how far it is from 1; else an error."""
    sums = values.sum(1, dtype=np.float64)
    off = np.abs(sums - 1) > EXACT
    if not off.any():
        return values, ()
    low, high = sums[off].min(), sums[off].max()
    if np.abs(sums - 1).max() > explained_by_rounding(values):
        few = np.allclose(values, values.round(1), rtol=0, atol=1e-7)
        remedy = "write more digits" if few else "divide each row by its sum, or write the softmax of the logits"
        raise ValueError(
            f"probabilities must sum to 1 in every row, but {off.sum():,} of {len(values):,} rows sum to {low:.6g} to "
            f"{high:.6g}: {remedy}"
        )
    notice = renormalised(int(off.sum()), len(values), float(low), float(high))
    return np.where(off[:, None], values / sums[:, None], values).astype(values.dtype, copy=False), (notice,)


def looks_like_another_kind(kind: Kind, values: Array, labels: Array | None, option: str) -> tuple[str, ...]:
    """A notice of logits that look like probabilities, or of a column of ones."""
    if kind == "probabilities" and values.ndim == 1 and len(values) > 2 and (values == 1).all():
        return (f"every value of {option!r} is 1, as a softmax over one output gives: write its sigmoid",)
    if kind != "logits" or values.dtype.kind not in "fiu":
        return ()
    rows = values if values.ndim < 3 else np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])
    some = rows[:: max(1, len(rows) // SAMPLED)]
    if len(rows) < FEWEST or some.min() < 0 or some.max() > 1 or not some.any():
        return ()
    if some.ndim == 1 or some.shape[1] == 1 or (labels is not None and labels.shape == values.shape):
        return (f"these logits all lie in [0, 1], as probabilities do: give --probabilities {option} if they are",)
    if is_distribution(some):
        return (f"these logits look like probabilities (rows sum to 1): give --probabilities {option} if they are",)
    return ()


def looks_like_a_class(
    name: str, confidence: Array, predicted_name: str, predicted: Array, *, percent: bool
) -> tuple[str, ...]:
    """A notice of a confidence that is below one half where one of two classes is predicted, and only there."""
    half = 50 if percent else 0.5
    classes = sorted(set(predicted.tolist()))
    if len(classes) != 2 or confidence.dtype.kind not in "fiu" or not (confidence < half).any():
        return ()
    for other, one in (classes, classes[::-1]):
        if ((confidence < half) == (predicted == other)).mean() >= NEARLY_ALL:
            order = f" and --classes FILE with {called(other)} and {called(one)}, one on each line" * (one < other)
            return (
                f"{name!r} is below {half:g} where {predicted_name!r} is {called(other)}, and only there: if it is the "
                f"probability of {called(one)}, give --probabilities {name}{order}",
            )
    return ()


def looks_like_the_other_class(
    kind: Kind, values: Array, labels: Array, names: tuple[str, ...] | None, option: str
) -> tuple[str, ...]:
    """A notice of probabilities or logits that fit the other of two classes much better."""
    values = values.astype(np.float64)
    if not np.isin(labels, (0, 1)).all() or not np.isfinite(values).all():
        return ()
    if values.ndim > 1:
        values = values[:, -1] - values[:, 0] * (kind == "logits" and values.shape[1] == 2)
    p = 1 / (1 + np.exp(-np.clip(values, -700, 700))) if kind == "logits" else values
    p, place = np.unique(p, return_inverse=True)
    samples, events = (np.bincount(place, each).astype(np.float64) for each in (np.ones(len(place)), labels))
    return fits_other(option, "0" if names is None else names[0], p, samples, events)


def constant_labels(name: str | None, labels: Array, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """Notices of a target in which only one class occurs, or of several labels that never or always apply."""

    def named(k: int) -> str:
        return names[k] if names and 0 <= k < len(names) else str(k)

    if labels.ndim < 2:
        same = len(labels) > 2 and not (labels != labels[0]).any()
        return (f"only class {named(int(labels[0]))} occurs in {name!r}: check the labels",) * same
    known = labels != LEFT_OUT
    notices = []
    for mark, how in ((0, "never"), (1, "always")):
        found = np.flatnonzero(known.any(0) & ((labels == mark) | ~known).all(0))
        if len(found):
            listed = ", ".join(map(named, found[:MOST_NAMED].tolist())) + ", ..." * (len(found) > MOST_NAMED)
            notices.append(f"{len(found):,} of {labels.shape[1]:,} labels {how} apply ({listed}): check them")
    return tuple(notices)


def _is_whole(cell: str) -> bool:
    return cell.removeprefix("-").removesuffix(".0").isdecimal()


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + ", ..." * (len(names) > 3)
