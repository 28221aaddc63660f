"""Numbers, names and sentences as the page and the figures show them."""

import math
import re
import unicodedata

from calibrant.inputs import counted as counted
from calibrant.metrics.closed_form import p_value

MINUS = re.compile(r"(?<![\w.)-])-(?=\d)")
UNBROKEN = re.compile(r"(?<=\bp) (?=[<=])|(?<=[<=]) (?=\d)|(?<=temperature) (?=\d)|(?<=\d) (?=points|samples)")
NO_BREAK = "\N{NO-BREAK SPACE}"
# They join letters in Persian and Hindi, and people in emoji.
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"


def percent(share: float) -> str:
    r"""A share in percent, or a dash if there is none.

    Example:
        >>> print(ascii(percent(0.1234)), percent(float("nan")))
        '12.34\xa0%' –
    """
    return "\N{EN DASH}" if math.isnan(share) else f"{100 * share:.2f}{NO_BREAK}%"


def sentence(text: str) -> str:
    """A sentence with true minus signs, and no line break inside "p < 0.001", "temperature 1.74" and "3.1 points".

    Example:
        >>> sentence("a gap of -0.5 points").split()
        ['a', 'gap', 'of', '−0.5', 'points']
        >>> len(sentence("a gap of -0.5 points").split(" "))
        4
    """
    return UNBROKEN.sub(NO_BREAK, MINUS.sub("\N{MINUS SIGN}", text))


def bare_p(value: float) -> str:
    """A p-value without the letter.

    Example:
        >>> bare_p(0.0001), bare_p(0.25)
        ('< 0.001', '0.250')
    """
    return p_value(value).removeprefix("p ").removeprefix("= ")


def clean(name: str) -> str:
    r"""A name without characters that are invisible or change how others are shown.

    Control characters and line ends become spaces, characters that change the direction of writing are removed, and
    those that UTF-8 or XML cannot encode become a replacement character.

    Example:
        >>> clean("resnet\u202e\x1b[31m\n50"), clean("\u202e")
        ('resnet [31m 50', 'unnamed')
    """
    return " ".join("".join(map(_visible, name)).split()) or "unnamed"


def shortened(name: str, most: int) -> str:
    """A name of at most so many characters, cut with an ellipsis.

    Example:
        >>> print(shortened("resnet-50", 7), shortened("resnet", 7))
        resnet… resnet
    """
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def as_sentence(text: object) -> str:
    """What a result prints as, with a capital letter and a full stop.

    Example:
        >>> as_sentence("no change is detected")
        'No change is detected.'
    """
    words = str(text)
    return f"{words[0].upper()}{words[1:]}."


def _visible(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    if category == "Cs" or ord(character) & 0xFFFE == 0xFFFE:
        return "\N{REPLACEMENT CHARACTER}"
    return "" if category == "Cf" and character not in JOINERS else character
