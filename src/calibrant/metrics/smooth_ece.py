"""Smooth ECE: the calibration error of residuals, smoothed with a kernel as wide as the error."""

from typing import Unpack

import numpy as np

from calibrant.frames import Array
from calibrant.metrics.passes import part_of
from calibrant.metrics.predictions import Given, Predictions, Values, predictions
from calibrant.metrics.sorting import Block

# Cells of [0, 1]. Halving their width changes the golden values by less than 1e-6.
CELLS = 4096
SMALLEST_WIDTH = 1e-3


def smooth_ece(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> float:
    r"""Smooth ECE: residuals smoothed by a reflected Gaussian, integrated in absolute value.

    .. math:: \mathrm{smECE}_\sigma = \int_0^1 \Big| \frac1N \sum_i K_\sigma(t, z_i)\,(z_i - c_i) \Big| dt

    falls as :math:`\sigma` rises; the value returned is the one at which the two are equal, so there is no bin
    width to choose. The Gaussian reflected at 0 and 1 is diagonal in cosines, so smoothing is one multiplication
    between two cosine transforms of the residuals on a grid of 4,096 cells. The width is at least 0.001: where the two
    would be equal below it, the value is that of this width.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    References:
        Błasiok, Nakkiran, "Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing", ICLR 2024.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.smooth_ece([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]), 3)
        0.304
    """
    from scipy.fft import dct, idct

    data = predictions(confidence, correct, name="smooth ECE", **given)
    spectrum = dct(part_of(data, ResidualGrid).cells / data.total, type=2)

    def error(width: float) -> float:
        with np.errstate(under="ignore"):
            damped = spectrum * np.exp(-0.5 * (np.pi * width * np.arange(CELLS)) ** 2)
        return float(np.abs(idct(damped, type=2)).sum())

    low, high = SMALLEST_WIDTH, 1.0
    if error(low) <= low:
        return error(low)
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return error(high)


class ResidualGrid:
    """Each tie group's residual, confidence minus right, shared between the two nearest cell centres."""

    def __init__(self, _: Predictions) -> None:
        self.cells: Array = np.zeros(CELLS)

    def add(self, groups: Block) -> None:
        """Add the next block of groups."""
        place = groups.confidence * CELLS - 0.5
        if place[0] < 0 or place[-1] >= CELLS - 1:
            place = np.clip(place, 0, CELLS - 1)
        left = place.astype(np.intp)
        np.minimum(left, CELLS - 2, out=left)
        place -= left
        place *= groups.residual
        first = int(left[0])  # groups ascend, so a block fills few cells
        left -= first
        for offset, share in ((first, groups.residual - place), (first + 1, place)):
            sums = np.bincount(left, weights=share)
            self.cells[offset : offset + len(sums)] -= sums
