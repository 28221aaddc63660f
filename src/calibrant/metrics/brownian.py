r"""Laws of Brownian motion on [0, 1]: its largest distance from 0, and its range.

Cumulative residuals of a calibrated model, divided by their standard deviation, are a random walk that tends to
Brownian motion B. Each law has two series, one that converges quickly for small values and one for large ones.
"""

import math

# Terms of either series beyond which nothing changes in float64, on its own side of CROSSING.
TERMS = 12
CROSSING = 2.0


def upper_tail(x: float) -> float:
    """Probability that a standard normal variable exceeds ``x``."""
    return math.erfc(x / math.sqrt(2)) / 2


def exceeds_distance(x: float) -> float:
    r""":math:`P(\max |B| \ge x)`.

    Example:
        >>> round(exceeds_distance(2.2414), 4)
        0.05
    """
    if x <= 0:
        return 1.0
    if x > CROSSING:
        return 4 * sum((-1.0) ** k * upper_tail((2 * k + 1) * x) for k in range(TERMS))
    odd = range(1, 2 * TERMS, 2)
    below = sum((-1.0) ** (k // 2) / k * math.exp(-((k * math.pi / x) ** 2) / 8) for k in odd)
    return max(0.0, 1 - 4 / math.pi * below)


def exceeds_range(x: float) -> float:
    r""":math:`P(\max B - \min B \ge x)`, both over times from 0, where B is 0 (Feller 1951).

    Example:
        >>> round(exceeds_range(2.497), 3)
        0.05
    """
    if x <= 0:
        return 1.0
    if x > CROSSING:
        return 8 * sum((-1.0) ** (k - 1) * k * upper_tail(k * x) for k in range(1, TERMS))
    halves = [(k - 0.5) * math.pi for k in range(1, TERMS)]
    below = sum((8 / x**2 + 2 / h**2) * math.exp(-2 * (h / x) ** 2) for h in halves)
    return max(0.0, 1 - below)
