"""Numbers and names as the page shows them."""

import math
import re

from markupsafe import Markup

from calibrant.metrics import Interval
from calibrant.metrics.verdicts import p_value
from calibrant.posthoc.samples import counted as counted

SIGNED_ZERO = re.compile(r"[+-]0\.0+( %)?")
POWER = re.compile(r"(-?[\d.]+)e([+-]\d+)")
MINUS = re.compile(r"(?<![\w.)-])-(?=\d)")
UNBROKEN = re.compile(r"(?<=\bp) (?=[<=])|(?<=[<=]) (?=\d)|(?<=temperature) (?=\d)|(?<=\d) (?=points|samples)")
NO_BREAK = "\N{NO-BREAK SPACE}"


def number(text: str) -> Markup:
    """Format a number: with a true minus, powers of ten, and no sign if it rounds to 0.

    Example:
        >>> print(number("-2.34e-03"), number("0.1274"), number("-0.00"))
        −2.34 × 10<sup>−3</sup> 0.1274 0.00
    """
    if SIGNED_ZERO.fullmatch(text):
        text = text[1:]
    parts = POWER.fullmatch(text)
    if parts is not None:
        return Markup("{} × 10<sup>{}</sup>").format(_minus(parts[1]), _minus(str(int(parts[2]))))  # noqa: RUF001
    return Markup("{}").format(_minus(text).replace(" %", f"{NO_BREAK}%"))


def percent(share: float) -> str:
    r"""A share in percent, or a dash if there is none.

    Example:
        >>> print(ascii(percent(0.1234)), percent(float("nan")))
        '12.34\xa0%' –
    """
    return "\N{EN DASH}" if math.isnan(share) else f"{100 * share:.2f}{NO_BREAK}%"


def points(share: float) -> str:
    """A difference of shares in points, with its sign.

    Example:
        >>> print(points(0.0123), points(-0.004), points(0.0))
        +1.23 −0.40 0.00
    """
    return str(number(f"{100 * share:+z.2f}"))


def ends(gap: Interval) -> str:
    """The interval of a gap in points.

    Example:
        >>> print(ends(Interval("gap", 0.01, -0.001, 0.021, 0.95, "jackknife")))
        −0.10 to 2.10
    """
    return f"{number(f'{100 * gap.low:z.2f}')} to {number(f'{100 * gap.high:z.2f}')}"


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


def isolated(name: str) -> Markup:
    """A name whose writing direction does not affect the text around it.

    Example:
        >>> print(isolated("a & b"))
        <bdi>a &amp; b</bdi>
    """
    return Markup("<bdi>{}</bdi>").format(name)


def _minus(text: str) -> str:
    return f"\N{MINUS SIGN}{text[1:]}" if text.startswith("-") else text
