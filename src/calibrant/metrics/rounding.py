"""Rows of probabilities that were rounded, so that they do not sum to 1."""

import numpy as np

from calibrant.frames import Array
from calibrant.inputs import TOLERANCE

# Distance of a sum from 1 that rounding of float32 explains, and that is not worth a notice.
EXACT = 1e-4
# Digits that rounded probabilities have.
FEWEST_DIGITS, MOST_DIGITS = 2, 6


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
