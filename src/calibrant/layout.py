"""Which columns of a source hold its predictions, what its labels mean, and whether its probabilities were rounded."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from calibrant.frames import Array
from calibrant.inputs import TOLERANCE

Kind = Literal["logits", "probabilities", "confidence"]
# What people write for right and wrong, besides 0 and 1.
RIGHT = {"yes": "1", "no": "0", "y": "1", "n": "0", "correct": "1", "incorrect": "0", "right": "1", "wrong": "0"}
KINDS: tuple[Kind, ...] = ("logits", "probabilities", "confidence")
# Names that are taken for another, in order of preference; capital letters do not matter.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "logits": ("logit", "logprobs", "log_probs", "logprob"),
    "probabilities": ("probability", "probs", "prob", "predict_proba", "proba", "y_prob", "y_proba", "y_pred_proba"),
    "confidence": ("conf",),
    "target": ("targets", "label", "labels", "label_ids", "y_true", "y", "truth", "true_label", "ground_truth", "gold"),
    "correct": ("is_correct",),
    "prediction": ("predicted", "pred", "y_pred", "predicted_label", "predicted_class", "answer"),
}
SEPARATED = r"[_.:\- \[(]+(.+?)[\])]*"
# A warning needs this many standard errors, and a log loss below this share of the other.
ERRORS, SHARE = 3.0, 0.9
NOT_TWO = "--positive is for probabilities or logits of two classes: leave it out"
# Distance of a sum from 1 that rounding of float32 explains, and that is not worth a notice.
EXACT = 1e-4
# Digits that rounded probabilities have.
FEWEST_DIGITS, MOST_DIGITS = 2, 6


@dataclass(frozen=True)
class Columns:
    """Names of the arrays or columns of a source, and what its numbers mean.

    Either ``target`` (class indices from 0, or names of classes) with ``logits`` or ``probabilities``; or
    ``confidence`` with ``correct`` (0 or 1, or boolean), or with ``prediction`` and ``target``. Values of classes are
    one array, or one column of lists; or one plain column for each class, named ``logits_0``, ``logits_1`` and so on,
    or by the classes, ``logits_cat``, ``logits_dog``; or one plain column for class 1 of two. If a source has several
    of the three, the one you have named is used, otherwise the first in the order logits, probabilities, confidence.

    The default of each name is the name of the attribute, or another that is common, such as ``y_true``; see
    :data:`calibrant.layout.OTHER_NAMES`.

    Attributes:
        logits: Name of the array or column of logits, or prefix of several columns; or the columns of the classes,
            separated by commas: they name the classes.
        probabilities: The same for probabilities.
        target: Name of the true classes: indices, or names.
        confidence: Name of the confidence in the prediction, if there are no classes.
        correct: Name of the correctness (1 if the prediction is right), if there are no classes.
        prediction: Name of the predicted class, in place of the correctness.
        weight: Name of the weights of the samples.
        classes: File with the name of a class on each line, in the order of the values.
        positive: Label of the class, of two, that one column of probabilities or logits is for; by default the one
            that the column is named after, or the last in alphabetical order.
        ignore_index: Label of samples to leave out, such as -100.
        percent: Probabilities and confidences are percentages.

    Example:
        >>> Columns(confidence="score", correct="hit").kinds()
        ('confidence',)
    """

    logits: str | None = None
    probabilities: str | None = None
    target: str | None = None
    confidence: str | None = None
    correct: str | None = None
    prediction: str | None = None
    weight: str | None = None
    classes: Path | None = None
    positive: str | None = None
    ignore_index: int | None = None
    percent: bool = False

    def kinds(self) -> tuple[Kind, ...]:
        """Kinds to look for, in order of preference: those the user has named, else all three."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None) or KINDS

    def names_none(self) -> bool:
        """Whether no kind of values was named."""
        return all(getattr(self, kind) is None for kind in KINDS)

    def of(self, kind: Kind) -> tuple[str, str]:
        """Names of the values of this kind and of their labels."""
        labels = (self.correct or "correct") if kind == "confidence" else (self.target or "target")
        return getattr(self, kind) or kind, labels

    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, one on each line of the file that was given.

        Raises:
            ValueError: If it cannot be read, is empty, or repeats a name.
        """
        if self.classes is None:
            return None
        try:
            lines = self.classes.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"--classes {self.classes} cannot be read: write the name of a class on each line"
            ) from error
        names = tuple(line.strip() for line in lines if line.strip())
        if not names or len(set(names)) < len(names):
            raise ValueError(f"--classes {self.classes} must hold the name of a class on each line, each name once")
        return names


@dataclass(frozen=True)
class Layout:
    """The columns of a source that hold predictions.

    Attributes:
        kind: Kind of the values.
        values: Column of values, or one column for each class.
        labels: Column of the true class, or of the correctness; one for each label if there are several; or none.
        prediction: Column of the predicted class, if the labels are true classes but the values only confidences.
        classes: Names of the classes, if the columns have them.
        notices: What was assumed, in sentences.
    """

    kind: Kind
    values: tuple[str, ...]
    labels: tuple[str, ...] = ()
    prediction: str | None = None
    classes: tuple[str, ...] | None = None
    notices: tuple[str, ...] = ()


def find_layout(there: Sequence[str], columns: Columns) -> Layout:
    """Find the predictions among the columns of a source.

    Args:
        there: Names of the columns.
        columns: Names that were given.

    Raises:
        ValueError: If there are none; the message says what is there, and which option names it.

    Example:
        >>> found = find_layout(["id", "prob_cat", "prob_dog", "label"], Columns())
        >>> found.kind, found.values, found.labels, found.classes
        ('probabilities', ('prob_cat', 'prob_dog'), ('label',), ('cat', 'dog'))
    """
    found = [layout for kind in columns.kinds() if (layout := _of_kind(kind, there, columns))]
    if not found and columns.names_none() and {"predictions", "label_ids"} <= set(there):
        found = [_predictions_of_a_trainer(there, columns)]
    for layout in sorted(found, key=lambda layout: not layout.labels):
        return layout
    looked_for = " or ".join(repr(columns.of(kind)[0]) for kind in columns.kinds())
    shown = ", ".join(there[:20]) + (", ..." if len(there) > 20 else "") or "no arrays"
    raise ValueError(f"has no {looked_for}; it has {shown}: name yours with --logits, --probabilities or --confidence")


def name_of_values(layout: Layout, columns: Columns) -> str:
    """What an option calls the values of a layout: their column, or what their columns begin with.

    Example:
        >>> name_of_values(find_layout(["Prob_cat", "Prob_cow", "label"], Columns()), Columns())
        'prob'
    """
    given: str | None = getattr(columns, layout.kind)
    prefixes = (layout.kind, *OTHER_NAMES[layout.kind]) if len(layout.values) > 1 else ()
    begins = (each for each in prefixes if len(_members(each, layout.values)) == len(layout.values))
    return given or next(begins, layout.values[0])


def name_of_target(there: Sequence[str], columns: Columns) -> str | None:
    """The column of the target: the one that was named, or one with a common name."""
    return _one("target", there, columns.target)


def _predictions_of_a_trainer(there: Sequence[str], columns: Columns) -> Layout:
    """What the Trainer of transformers returns: usually logits."""
    found = _of_kind("logits", there, Columns(logits="predictions", target=columns.target or "label_ids"))
    assert found is not None  # noqa: S101 (the caller has seen the column)
    notice = "'predictions' are taken for logits, as the Trainer of transformers returns them"
    return Layout("logits", found.values, found.labels, notices=(notice,))


def _of_kind(kind: Kind, there: Sequence[str], columns: Columns) -> Layout | None:
    values, classes = _values(kind, there, getattr(columns, kind))
    if not values:
        return None
    labels: tuple[str, ...] = ()
    prediction = None
    if kind == "confidence" and (correct := _one("correct", there, columns.correct)):
        labels = (correct,)
    elif target := _one("target", there, columns.target):
        prediction = _one("prediction", there, columns.prediction) if kind == "confidence" else None
        labels = (target,) if kind != "confidence" or prediction else ()
    elif classes is not None or len(values) > 1:
        labels = _one_each("target", there, columns.target, classes or [str(k) for k in range(len(values))])
    assumed = _assumed({kind: values, "target" if prediction or kind != "confidence" else "correct": labels,
                        "prediction": (prediction,) if prediction else ()}, columns)  # fmt: skip
    return Layout(kind, values, labels, prediction, classes, assumed)


def _assumed(used: dict[str, tuple[str, ...]], columns: Columns) -> tuple[str, ...]:
    """A notice of the columns that were found by another name than their own."""
    said = [
        f"{names[0]!r}{f' to {names[-1]!r}' * (len(names) > 1)} as {role}"
        for role, names in used.items()
        if names and getattr(columns, role) is None and not re.fullmatch(rf"{role}({SEPARATED})?", names[0], re.I)
    ]
    return (f"read {', '.join(said)}",) if said else ()


def _one(role: str, there: Sequence[str], given: str | None) -> str | None:
    """The column of a role: the one that was named, or one with a common name."""
    if given is not None:
        return given if given in there else None
    small: dict[str, str] = {}
    for name in there:
        small.setdefault(name.lower(), name)
    return next((small[name] for name in (role, *OTHER_NAMES[role]) if name in small), None)


def _values(kind: Kind, there: Sequence[str], given: str | None) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Columns of the values of this kind, and the names of their classes."""
    if given is not None and given in there:
        return (given,), None
    if given is not None and "," in given and set(listed := given.split(",")) <= set(there):
        return tuple(listed), tuple(listed)
    for prefix in (given,) if given is not None else (kind, *OTHER_NAMES[kind]):
        if given is None and (only := _one_of(prefix, there)):
            return (only,), None
        members = _members(prefix, there)
        if kind != "confidence" and len(members) > 1:
            return _ordered(prefix, members)
    return (), None


def _one_of(name: str, there: Sequence[str]) -> str | None:
    return next((each for each in there if each.lower() == name), None)


def _members(prefix: str, there: Sequence[str]) -> dict[str, str]:
    """Columns that begin with a prefix, by what follows it."""
    matches = ((name, re.fullmatch(re.escape(prefix) + SEPARATED, name, re.IGNORECASE)) for name in there)
    return {found[1]: name for name, found in matches if found}


def _ordered(prefix: str, members: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Columns in the order of their numbers; columns with names stay in their order, and name the classes."""
    if not all(re.fullmatch(r"\d+", suffix) for suffix in members):
        return tuple(members.values()), tuple(members)
    numbered = {int(suffix): name for suffix, name in members.items()}
    first = min(numbered)
    for number in range(min(first, 1), min(first, 1) + len(members)):
        if number not in numbered:
            raise ValueError(f"has {len(members)} columns {prefix}_..., but no '{prefix}_{number}': number them from 0")
    columns = tuple(numbered[number] for number in sorted(numbered))
    # Numbered from 1: then the labels are, too.
    return columns, tuple(str(number) for number in sorted(numbered)) if first else None


def _one_each(role: str, there: Sequence[str], given: str | None, suffixes: Sequence[str]) -> tuple[str, ...]:
    """Columns of a role, one for each class: those of several labels."""
    for prefix in (given,) if given is not None else (role, *OTHER_NAMES[role]):
        members = _members(prefix, there)
        if set(suffixes) <= set(members):
            return tuple(members[suffix] for suffix in suffixes)
    return ()


def called(label: object) -> str:
    """A label as --positive names it.

    Example:
        >>> called(1.0), called(" good "), called(True)
        ('1', 'good', 'True')
    """
    return str(label).strip() if isinstance(label, str | bool) else f"{label:g}"


def with_positive(
    label: str, positive: str, names: Sequence[str] | None, found: Iterable[str], count: int
) -> tuple[str, str]:
    """Names of two classes, the positive one last.

    Args:
        label: Column of the labels, for errors.
        positive: Class that the probability is of.
        names: Names of the classes in the order of their values, if known.
        found: Labels that occur.
        count: Number of classes of the values.

    Raises:
        ValueError: If there are not two classes, if it is none of them, or if their order is known to be another.
    """
    known = sorted(set(names or found))
    if set(known) <= {"0", "1"}:
        known = ["0", "1"]
    if count != 2:
        raise ValueError(NOT_TWO)
    if positive not in known or len(known) != 2:
        listed = ", ".join(map(repr, known[:5])) + ", ..." * (len(known) > 5)
        raise ValueError(f"--positive {positive!r} must be one of two labels, but those of {label!r} are {listed}")
    if names is not None and names[1] != positive:
        raise ValueError(
            f"its values are named {names[0]!r} and {names[1]!r}, in this order: leave out --positive, or correct the "
            "names"
        )
    (other,) = (each for each in known if each != positive)
    return other, positive


def in_order(found: Iterable[str], column: str | None) -> tuple[tuple[str, ...], str]:
    """Names of classes in alphabetical order, unless the column names one of two; and a notice of what was assumed.

    Args:
        found: Labels that occur.
        column: Column of the probabilities or logits of one class; None if each class has values.

    Example:
        >>> names, notice = in_order(["good", "default"], "y_prob")
        >>> print(names, notice)
        ('default', 'good') 'y_prob' is taken for class 'good', the last in alphabetical order: give --positive default if it is for that one
        >>> in_order(["good", "default"], "p_default")[0]
        ('good', 'default')
    """  # noqa: E501 (printed in one line)
    names = tuple(sorted(found))
    if column is None or len(names) != 2:
        order = ", ".join(f"{k} = {each!r}" for k, each in enumerate(names[:3])) + ", ..." * (len(names) > 3)
        return names, f"the classes are taken in alphabetical order ({order}): give --classes FILE if it is another"
    why = "the last in alphabetical order"
    if (named := _named(column, names)) is not None:
        names, why = (names[1 - named], names[named]), "as its name says"
    other = shlex.quote(names[0])
    return names, f"{column!r} is taken for class {names[1]!r}, {why}: give --positive {other} if it is for that one"


def _named(column: str, names: Sequence[str]) -> int | None:
    """Class that the name of a column ends in, after a word for probabilities or logits; such as ``p_default``."""
    words = ("p", "logits", *OTHER_NAMES["logits"], "probabilities", *OTHER_NAMES["probabilities"])
    ends = [column, *(found[1] for word in words if (found := re.fullmatch(word + SEPARATED, column, re.IGNORECASE)))]
    return next((k for k, name in enumerate(names) if name.lower() in map(str.lower, ends)), None)


def fits_other(column: str, other: str, p: Array, samples: Array, events: Array) -> tuple[str, ...]:
    """A notice if probabilities fit the other of two classes much better, beyond chance.

    Args:
        column: Column of the probabilities, or of logits.
        other: Name of the other class.
        p: Probabilities, distinct and ascending.
        samples: Number of samples of each.
        events: How many of these are of the class that the probabilities are taken for.

    Example:
        >>> p = np.linspace(0.1, 0.9, 9)
        >>> fits_other("y_prob", "default", p, np.full(9, 50.0), 50 * (1 - p))[0][:73]
        "'y_prob' fits class 'default' much better (AUC 0.204; log loss 1.215, but"
    """
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


def explained_by_rounding(values: Array) -> float:
    """Distance of the sum of a row from 1 that the number of digits explains.

    Example:
        >>> round(explained_by_rounding(np.array([[0.33, 0.33, 0.33]])), 4)
        0.0151
    """
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
