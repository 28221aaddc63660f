"""What the cells of a file mean: numbers, correctness and probabilities; and what is doubtful about them."""

import re
import shlex
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from scipy.special import expit

from calibrant.files.formats import Array, empty_cells
from calibrant.inputs import TOLERANCE, distributions, few, flattened, in_unit_interval, mistaken

Kind = Literal["logits", "probabilities", "confidence"]
TRUE_AND_FALSE = {"true": 1.0, "false": 0.0}
# What people write for right and wrong, besides 0 and 1.
RIGHT = TRUE_AND_FALSE | dict.fromkeys(("yes", "y", "correct", "right"), 1.0)
RIGHT |= dict.fromkeys(("no", "n", "incorrect", "wrong"), 0.0)
# Label that predictions leave out by themselves, in pixels and in several labels.
LEFT_OUT = -100
# Share of rows that must agree before a confidence is taken for the probability of a class.
NEARLY_ALL = 0.99
# Distance of a sum from 1 that rounding of float32 explains, and that is not worth a notice.
EXACT = 1e-4
# Digits that rounded probabilities have.
FEWEST_DIGITS, MOST_DIGITS = 2, 6
# A notice of the other class needs this many standard errors, and a log loss below this share.
ERRORS, SHARE = 3.0, 0.9


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
    """Numbers of a column; text is parsed: percentages, words for right and wrong, and lists as they are printed."""
    column = filled(name, column)
    if not is_text(column):
        return column
    cells = [str(cell).strip() for cell in column.tolist()]
    lists = len(cells) > 0 and all(cell.startswith("[") for cell in cells)
    rows = []
    for place, cell in enumerate(cells, 1):
        parts = re.findall(r"[^\s,\[\]]+", cell) if lists else [cell.removesuffix("%")]
        try:
            rows.append([number_of(part) for part in parts])
        except ValueError:
            raise ValueError(f"column {name!r} must hold a number in every row; row {place} has {cell!r}") from None
    check_lengths(name, {len(row) for row in rows})
    return np.array(rows) if lists else np.array(rows).reshape(-1)


def check_lengths(name: str, lengths: set[int]) -> None:
    """Raise an error unless all lists have one length."""
    if len(lengths) > 1:
        raise ValueError(f"lists in column {name!r} must have one length, got {min(lengths)} to {max(lengths)}")


def number_of(cell: Any) -> float:
    """A cell as a number; words for right and wrong are 1 and 0."""
    word = str(cell).lower()
    return RIGHT[word] if word in RIGHT else float(cell)


def called(label: object) -> str:
    """A label as --positive names it: ``1`` for 1.0, and text without spaces around it."""
    return str(label).strip() if isinstance(label, str | bool) else f"{label:g}"


def correctness_of_prediction(prediction: Array, target: Array) -> tuple[Array, tuple[str, ...]]:
    """Where two columns of classes agree, and a notice if capital letters were ignored."""
    if is_text(prediction) != is_text(target):
        raise ValueError("names classes in two ways: the prediction and the target must both be names or both numbers")
    if not is_text(prediction):
        return prediction == target, ()
    one = [str(cell).strip() for cell in prediction.tolist()]
    other = [str(cell).strip() for cell in target.tolist()]
    if not set(map(str.lower, one)) & set(map(str.lower, other)):
        raise ValueError(
            f"no prediction is ever a class of the target: it has {few(sorted(set(one)))} against "
            f"{few(sorted(set(other)))}"
        )
    right = [a.lower() == b.lower() for a, b in zip(one, other, strict=True)]
    exact = [a == b for a, b in zip(one, other, strict=True)]
    ignored = ("capital letters of predicted and true classes are ignored",)
    return np.array(right), ignored * (right != exact)


def checked_values(
    kind: Kind, values: Array, option: str, *, percent: bool, several: bool = False
) -> tuple[Array, tuple[str, ...]]:
    """Values as shares, with rounded rows divided by their sum, unless labels are ``several``; and what was changed."""
    if values.ndim and not len(values):
        raise ValueError("has no rows: was it written to the end?")
    if kind == "logits" and percent:
        raise ValueError("has logits, which are no percentages: leave out --percent")
    if kind == "logits" or values.dtype.kind not in "fiub" or np.isnan(values).any():
        return values, ()  # NaN is an error of the predictions, unless it is ignored
    notices: tuple[str, ...] = ()
    if percent:
        values = values / 100
    checked = in_unit_interval(
        kind,
        values,
        percentages="leave out --percent" if percent else "give --percent if they are percentages",
        logits=f"give --logits {option}" if kind == "probabilities" else "write the probability of the prediction",
    )
    if values.ndim == 2 and values.shape[1] > 1 and not several:
        checked, notices = _divided_by_sums(checked)
    return checked, notices


def _divided_by_sums(values: Array) -> tuple[Array, tuple[str, ...]]:
    """Rows divided by their sum if rounding explains how far it is from 1; else an error."""
    sums = values.sum(1, dtype=np.float64)
    off = np.abs(sums - 1) > EXACT
    if not off.any():
        return values, ()
    distributions(values, explained_by_rounding(values))
    divided = np.where(off[:, None], values / sums[:, None], values).astype(values.dtype, copy=False)
    low, high = float(sums[off].min()), float(sums[off].max())
    return divided, (renormalised(int(off.sum()), len(values), low, high),)


def explained_by_rounding(values: Array) -> float:
    """Distance of the sum of a row from 1 that the number of digits explains."""
    wide = values.astype(np.float64)
    for digits in range(FEWEST_DIGITS, MOST_DIGITS):
        if np.allclose(wide, wide.round(digits), rtol=0, atol=1e-7):
            return max(TOLERANCE, float(0.5 * 10.0**-digits * values.shape[1] + EXACT))
    return TOLERANCE


def renormalised(rows: int, samples: int, low: float, high: float) -> str:
    """The notice that rows were divided by their sum."""
    return (
        f"{rows:,} of {samples:,} rows of rounded probabilities sum to {low:.6g} to {high:.6g}: they are divided by "
        "their sum"
    )


def looks_like_another_kind(kind: Kind, values: Array, option: str, *, several: bool) -> tuple[str, ...]:
    """A notice of logits that look like probabilities, or of a column of ones."""
    if values.dtype.kind not in "fiu":
        return ()
    rows = values if values.ndim < 3 else flattened(values)
    if rows.shape[1:] == (1,):
        rows = rows[:, 0]
    found = mistaken(kind, rows, independent=several)
    if found and kind == "logits":
        found += f": give --probabilities {option} if they are probabilities"
    return (found,) if found else ()


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


def counted_by_risk(kind: Kind, values: Array, labels: Array, weight: Array | None) -> tuple[Array, Array, Array]:
    """The distinct probabilities of class 1 of two, ascending; the number of their samples, and of those of class 1."""
    rows = values.reshape(len(values), -1)
    if rows.dtype.kind not in "fiub" or not np.isfinite(rows).all():
        return (np.zeros(0),) * 3  # an error of the predictions
    p = rows[:, -1].astype(np.float64)
    if kind == "logits":
        p = expit(p if rows.shape[1] == 1 else p - rows[:, 0])
    weight = np.ones(len(p)) if weight is None else weight.ravel()
    distinct, place = np.unique(p, return_inverse=True)
    return distinct, np.bincount(place, weight), np.bincount(place, weight * (labels == 1))


def fits_other(column: str, other: str, p: Array, samples: Array, events: Array) -> tuple[str, ...]:
    """A notice if probabilities, counted as by ``counted_by_risk``, fit the other of two classes much better."""
    rest = samples - events
    total, came, not_came = samples.sum(), events.sum(), rest.sum()
    if min(came, not_came) == 0:
        return ()
    auc = float(events @ (rest.cumsum() - rest / 2) / (came * not_came))
    p = np.clip(p, 1e-12, 1 - 1e-12)
    odds = np.log(p) - np.log1p(-p)
    gain = float((rest - events) @ odds / total)  # of the log loss, if p is that of the other class
    error = np.sqrt(max(float(samples @ odds**2 / total) - gain**2, 0.0) / total)
    loss = -float(events @ np.log(p) + rest @ np.log1p(-p)) / total
    worse_than_chance = 0.5 - auc > ERRORS * np.sqrt((total + 1) / (12 * came * not_came))
    if not worse_than_chance or gain <= ERRORS * error or loss - gain > SHARE * loss:
        return ()
    return (
        f"{column!r} fits class {other!r} much better (AUC {auc:.3f}; log loss {loss:.3f}, but {loss - gain:.3f} if it "
        f"is for {other!r}): give --positive {shlex.quote(other)}",
    )


def only_class(k: float, names: Sequence[str] | None, label: str) -> str:
    """The notice that a column of labels has one class."""
    name = names[int(k)] if names is not None and 0 <= k < len(names) else f"{k:g}"
    return f"only class {name} occurs in {label!r}: check the labels"
