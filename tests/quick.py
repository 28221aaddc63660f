"""Parameters of which ``make test`` takes the first alone, because they take long and differ little."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_of(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return the values as parameters, all but the first so many marked slow."""
    return [
        value
        if place < count
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for place, value in enumerate(values)
    ]
