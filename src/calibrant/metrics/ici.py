"""Integrated calibration index: the mean distance between stated probabilities and a smooth calibration curve."""

import math
from typing import Unpack

import numpy as np

from calibrant.frames import Array
from calibrant.metrics.predictions import Given, Predictions, Values, predictions

# Cells of [0, 1].
CELLS = 4096
SMALLEST_WIDTH = 1e-3


def integrated_calibration_index(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> float:
    r"""Integrated calibration index (ICI): the mean of :math:`|z_i - \hat c(z_i)|` over the samples.

    The calibration curve :math:`\hat c(z)` is z plus the residuals :math:`c_i - z_i`, averaged with a Gaussian kernel
    that is reflected at 0 and 1 (Nadaraya-Watson), of width :math:`1.06\, s\, n^{-1/5}` (Scott's rule, s the standard
    deviation of z, and at least 0.001). The residuals are smoothed rather than the outcomes, so that smoothing adds no
    error of its own to a calibrated model. Austin and Steyerberg smooth with loess, whose numbers differ slightly.

    Like ECE it is above 0 for a calibrated model by chance; ``calibration_test(metric="integrated_calibration_index")``
    says by how much.

    Args:
        confidence: Probability of the event, or confidence in the prediction, ``(N,)``.
        correct: 1 or True where it came true, ``(N,)``.
        **given: ``logits=`` or ``probabilities=`` with ``target=``: the top label is judged.

    References:
        Austin, Steyerberg, "The Integrated Calibration Index (ICI) and related metrics for quantifying the calibration
        of logistic regression models", Statistics in Medicine 2019.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics
        >>> generator = np.random.default_rng(1)
        >>> risk = generator.uniform(0.1, 0.9, 100_000)
        >>> event = generator.random(100_000) < risk + 0.08
        >>> round(metrics.integrated_calibration_index(risk, event), 2)
        0.08
    """
    from scipy.fft import dct, idct

    data = predictions(confidence, correct, name="the integrated calibration index", **given)
    z = data.confidence.astype(np.float64)
    share = (np.ones(len(z)) if data.weight is None else data.weight) / data.total
    spread = math.sqrt(max(float(share @ z**2) - float(share @ z) ** 2, 0.0))
    width = max(1.06 * spread * data.total**-0.2, SMALLEST_WIDTH)
    with np.errstate(under="ignore"):
        damping = np.exp(-0.5 * (np.pi * width * np.arange(CELLS)) ** 2)
    mass, residual = _on_grid(z, share), _on_grid(z, share * (data.correct - z))
    smooth_mass, smooth_residual = (idct(dct(grid, type=2) * damping, type=2) for grid in (mass, residual))
    held = mass > 0
    return float((mass[held] * np.abs(smooth_residual[held] / smooth_mass[held])).sum())


def _on_grid(z: Array, values: Array) -> Array:
    """Sums of the values by cell, each shared between the two nearest cell centres."""
    place = np.clip(z * CELLS - 0.5, 0, CELLS - 1)
    left = np.minimum(place.astype(np.intp), CELLS - 2)
    right = place - left
    grid: Array = np.zeros(CELLS)
    grid += np.bincount(left, weights=values * (1 - right), minlength=CELLS)
    grid += np.bincount(left + 1, weights=values * right, minlength=CELLS)
    return grid
