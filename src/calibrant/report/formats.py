"""Numbers, names and sentences as the terminal, the page and the figures show them."""

import math
import re
import unicodedata
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from calibrant.inputs import counted as counted
from calibrant.metrics.closed_form import p_value
from calibrant.metrics.evaluate import Scores
from calibrant.metrics.intervals import Interval
from calibrant.metrics.registry import number

# They join letters in Persian and Hindi, and people in emoji.
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"


def percent(share: float) -> str:
    """A share in percent, or a dash if there is none."""
    return "\N{EN DASH}" if math.isnan(share) else f"{100 * share:.2f}\N{NO-BREAK SPACE}%"


def points(share: float) -> str:
    """A difference of shares in points, with its sign."""
    return f"{100 * share:+z.2f}"


def ends(gap: Interval) -> str:
    """The interval of a gap in points."""
    return f"{100 * gap.low:z.2f} to {100 * gap.high:z.2f}"


def in_unit(interval: Interval) -> str:
    """The ends of an interval in the unit of its metric."""
    return f"{number(interval.metric, interval.low)} to {number(interval.metric, interval.high)}"


def bare_p(value: float) -> str:
    """A p-value without the letter: ``< 0.001`` or ``0.250``."""
    return p_value(value).removeprefix("p ").removeprefix("= ")


def clean(text: str) -> str:
    r"""Text without characters that are invisible or change how others are shown, as names of files may contain.

    Example:
        >>> clean("resnet\u202e\x1b[31m\n50")
        'resnet [31m 50'
    """
    return " ".join("".join(map(_visible, text)).split())


def _visible(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    if category == "Cs" or ord(character) & 0xFFFE == 0xFFFE:
        return "\N{REPLACEMENT CHARACTER}"
    return "" if category == "Cf" and character not in JOINERS else character


def shortened(name: str, most: int) -> str:
    """A name of at most so many characters, cut with an ellipsis."""
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def as_sentence(text: object) -> str:
    """What a result prints as, with a capital letter and a full stop."""
    words = str(text)
    return f"{words[0].upper()}{words[1:]}."


class ScoreRow(NamedTuple):
    """One score of several models: the value of each, empty if it has none, and what their conventions share."""

    key: str
    label: str
    values: list[str]
    convention: str


def score_rows(models: Sequence[Scores]) -> list[ScoreRow]:
    """The scores of models side by side."""
    found = [{entry.key: entry for entry in scores} for scores in models]
    rows = []
    for key in dict.fromkeys(key for entries in found for key in entries):
        having = [entries[key] for entries in found if key in entries]
        values = [str(entries.get(key, "")) for entries in found]
        rows.append(ScoreRow(key, having[0].label, values, _shared([entry.convention for entry in having])))
    return rows


def _shared(conventions: Sequence[str]) -> str:
    """The parts with which all conventions begin: the number of bins of a sweep differs between columns."""
    parts = zip(*(re.split("(?=[,;] )", each) for each in conventions), strict=False)
    return "".join(same[0] for same in takewhile(lambda each: len(set(each)) == 1, parts))
