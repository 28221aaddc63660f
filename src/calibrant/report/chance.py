"""95 % points of shares and averages under chance alone."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.metrics.predictions import Predictions

Array = npt.NDArray[Any]

# Two-sided 95 % of a normal distribution, in standard errors.
ERRORS = 1.959964


def chance_gap(predictions: Predictions) -> float:
    """Largest average gap that chance alone gives a calibrated model."""
    confidence = predictions.confidence.astype(np.float64)
    weight = np.ones(len(confidence)) if predictions.weight is None else predictions.weight
    return ERRORS * math.sqrt(float((weight**2 * confidence * (1 - confidence)).sum())) / predictions.total


def observations(predictions: Predictions) -> float:
    """Number of independent observations that a weight of 1 stands for, by Kish's effective sample size.

    Example:
        >>> from calibrant import metrics
        >>> observations(metrics.predictions([0.9, 0.8, 0.6], [1, 0, 1], sample_weight=[2, 2, 2]))
        0.5
    """
    if predictions.weight is None:
        return 1.0
    return predictions.total / float(np.square(predictions.weight).sum())


def wilson_interval(right: Array, samples: Array) -> tuple[Array, Array]:
    """Interval of a share, from counts.

    Example:
        >>> low, high = wilson_interval(np.array([10.0]), np.array([10.0]))
        >>> round(float(low[0]), 3), float(high[0])
        (0.722, 1.0)
    """
    share, square = right / samples, ERRORS**2 / samples
    centre = (share + square / 2) / (1 + square)
    half = np.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return np.clip(centre - half, 0, share), np.clip(centre + half, share, 1)
