"""How options are validated: numbers in an interval, counts, choices. Used as ``inputs.check_range`` and so on."""

import numbers


def check_range(
    name: str, value: float, *, low: float, high: float = 1e12, open_low: bool = False, open_high: bool = False
) -> float:
    """Return the number ``value`` as a float; raise unless it lies in the interval."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not ((value > low if open_low else value >= low) and (value < high if open_high else value <= high)):
        above = f"above {low:g}" if open_low else f"at least {low:g}"
        raise ValueError(f"{name} must be {above} and {'below' if open_high else 'at most'} {high:g}, got {value}")
    return float(value)


def check_count(name: str, value: int) -> int:
    """Return the count ``value``; raise unless it is a whole number from 1 to a million."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {type(value).__name__}")
    if not 1 <= value <= 10**6:
        raise ValueError(f"{name} must be at least 1 and at most 1000000, got {value}")
    return int(value)


def check_ignore_index(value: int | None) -> int | None:
    """Return the label ``value``; raise unless it is a whole number or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Integral)):
        raise TypeError(f"ignore_index must be a whole number or None, got {value!r}")
    if value is not None and not -(2**63) <= value < 2**63:
        raise ValueError(f"ignore_index must fit in 64 bits, got {value}")
    return None if value is None else int(value)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
