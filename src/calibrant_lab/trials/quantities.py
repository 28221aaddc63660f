"""Quantities in readable form."""

import math


def percent(share: float) -> str:
    """A share as percent with two decimals; empty for NaN.

    Example:
        >>> percent(0.98765), percent(float("nan"))
        ('98.77', '')
    """
    return "" if math.isnan(share) else f"{100 * share:.2f}"


def duration(seconds: float) -> str:
    """A duration in readable form.

    Example:
        >>> [duration(seconds) for seconds in (3.21, 42, 75, 3700, 200000)]
        ['3.2 s', '42 s', '1 min 15 s', '1 h 1 min', '2 d 7 h']
    """
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"


def size(count: int) -> str:
    """A number of bytes in readable form.

    Example:
        >>> [size(count) for count in (999, 25_400, 3_200_000_000)]
        ['999 B', '25 kB', '3.2 GB']
    """
    amount, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 999.5 and len(units) > 1:
        amount /= 1000
        del units[0]
    return f"{amount:.1f} {units[0]}" if amount < 10 and units[0] != "B" else f"{amount:.0f} {units[0]}"
