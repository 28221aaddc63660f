"""Calibration errors of a smooth curve, by cosine transforms on a grid: smooth ECE and the calibration index."""

import math
from typing import Unpack

import numpy as np

from calibrant.frames import Array
from calibrant.metrics.predictions import Confidence, Correct, Keywords, Predictions, predictions
from calibrant.metrics.ties import Block, sums_of

# Cells of [0, 1]. Halving their width changes the golden values by less than 1e-6.
CELLS = 4096
SMALLEST_WIDTH = 1e-3


def smooth_ece(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    r"""Smooth ECE: residuals smoothed by a reflected Gaussian, integrated in absolute value.

    .. math:: \mathrm{smECE}_\sigma = \int_0^1 \Big| \frac1N \sum_i K_\sigma(t, z_i)\,(z_i - c_i) \Big| dt

    falls as :math:`\sigma` rises; the value returned is the one at which the two are equal, so there is no bin width to
    choose (Błasiok, Nakkiran, ICLR 2024). The Gaussian reflected at 0 and 1 is diagonal in cosines, so smoothing is one
    multiplication between two cosine transforms of the residuals on a grid of 4,096 cells. The width is at least 0.001:
    where the two would be equal below it, the value is that of this width.
    """
    from scipy.fft import dct, idct

    data = predictions(confidence, correct, **keywords)
    spectrum = dct(sums_of(data, ResidualGrid).cells / data.total, type=2)

    def error(width: float) -> float:
        return float(np.abs(idct(spectrum * _damping(width), type=2)).sum())

    low, high = SMALLEST_WIDTH, 1.0
    if error(low) <= low:
        return error(low)
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return error(high)


def integrated_calibration_index(
    confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]
) -> float:
    r"""Integrated calibration index (ICI): the mean of :math:`|z_i - \hat c(z_i)|` over the samples.

    The calibration curve :math:`\hat c(z)` is z plus the residuals :math:`c_i - z_i`, averaged with a Gaussian kernel
    that is reflected at 0 and 1 (Nadaraya-Watson), of width :math:`1.06\, s\, n^{-1/5}` (Scott's rule, s the standard
    deviation of z, and at least 0.001). The residuals are smoothed rather than the outcomes, so that smoothing adds no
    error of its own to a calibrated model. Austin and Steyerberg (Statistics in Medicine 2019) smooth with loess, whose
    numbers differ slightly.

    Like ECE it is above 0 for a calibrated model by chance; ``calibration_test(metric="integrated_calibration_index")``
    says by how much.
    """
    from scipy.fft import dct, idct

    data = predictions(confidence, correct, **keywords)
    z, samples, _ = data.ties
    variance = float(samples @ z**2) / data.total - (float(samples @ z) / data.total) ** 2
    damping = _damping(max(1.06 * math.sqrt(max(variance, 0.0)) * data.total**-0.2, SMALLEST_WIDTH))
    held: Array = np.zeros(CELLS)
    _share_out(held, z, samples)
    smooth_held, smooth_residual = (
        idct(dct(cells, type=2) * damping, type=2) for cells in (held, sums_of(data, ResidualGrid).cells)
    )
    inside = held > 0
    error = np.abs(smooth_residual[inside] / smooth_held[inside])
    return float((held[inside] * error).sum() / data.total)


def _damping(width: float) -> Array:
    """What a Gaussian of this width leaves of each cosine."""
    with np.errstate(under="ignore"):
        found: Array = np.exp(-0.5 * (np.pi * width * np.arange(CELLS)) ** 2)
    return found


class ResidualGrid:
    """Each group's residual, correctness minus confidence, shared between the two nearest cell centres."""

    def __init__(self, _: Predictions) -> None:
        self.cells: Array = np.zeros(CELLS)

    def add(self, ties: Block) -> None:
        """Add the next block."""
        _share_out(self.cells, ties.confidence, ties.residual)


def _share_out(cells: Array, z: Array, values: Array) -> None:
    """Add values at ascending places in [0, 1] to the two nearest cell centres."""
    place = z * CELLS - 0.5
    if place[0] < 0 or place[-1] >= CELLS - 1:
        place = np.clip(place, 0, CELLS - 1)
    left = place.astype(np.intp)
    np.minimum(left, CELLS - 2, out=left)
    place -= left
    place *= values
    first = int(left[0])  # a block fills few cells
    left -= first
    for offset, share in ((first, values - place), (first + 1, place)):
        sums = np.bincount(left, weights=share)
        cells[offset : offset + len(sums)] += sums
