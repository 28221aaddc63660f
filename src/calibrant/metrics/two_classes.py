"""Which of two classes a column of probabilities is of: by ``--positive``, by its name, or in alphabetical order."""

import re
import shlex
from collections.abc import Iterable, Sequence

import numpy as np

from calibrant.frames import Array
from calibrant.metrics.layouts import OTHER_NAMES, SEPARATED

# A warning needs this many standard errors, and a log loss below this share of the other.
ERRORS, SHARE = 3.0, 0.9
NOT_TWO = "--positive is for probabilities or logits of two classes: leave it out"


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
