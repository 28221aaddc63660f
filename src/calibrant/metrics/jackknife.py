"""Every leave-one-out value of a U-statistic in one sort, and the standard error they give."""

import math

import numpy as np

from calibrant.known_gradient import Array, laplace_sums_of_array, tie_bounds_of_array
from calibrant.metrics.predictions import Predictions


def esd_without_each(given: Predictions) -> Array:
    r"""ESD of all samples but m, for every m in the order given: N values in :math:`O(N \log N)`.

    With :math:`S = \sum_i (A_i^2 - B_i)`, taking m away takes its own term, and turns :math:`A_i, B_i` of every other
    sample at or above it into :math:`A_i - d_m, B_i - d_m^2`. With n of those and R the sum of their :math:`A_i`,

    .. math:: S_{(m)} = S - (A_m^2 - B_m) - 2 d_m (R_m - d_m n_m).
    """
    n = len(given)
    order = np.argsort(given.confidence, kind="stable")
    ascending = given.confidence[order].astype(np.float64)
    residual = given.correct[order] - ascending
    first, last = tie_bounds_of_array(ascending)
    squares = residual**2
    below = residual.cumsum()[last] - residual
    own = below**2 - (squares.cumsum()[last] - squares)
    above = below[::-1].cumsum()[::-1][first] - below
    without = own.sum() - own - 2 * residual * (above - residual * (n - 1 - first))
    values = np.empty(n)
    values[order] = without / ((n - 1.0) * (n - 2.0) * (n - 3.0))
    return values


def mmce_without_each(given: Predictions, bandwidth: float = 0.4) -> Array:
    """Unbiased squared MMCE of all samples but m, for every m in the order given."""
    n = len(given)
    order = np.argsort(given.confidence, kind="stable")
    ascending = given.confidence[order].astype(np.float64)
    residual = given.correct[order] - ascending
    with_others = residual * (sum(laplace_sums_of_array(ascending, residual, bandwidth)) - residual)
    values = np.empty(n)
    values[order] = (with_others.sum() - 2 * with_others) / ((n - 1.0) * (n - 2.0))
    return values


def gap_without_each(given: Predictions) -> Array:
    """Signed gap of all samples but m, for every m in the order given."""
    residual: Array = given.confidence.astype(np.float64) - given.correct
    return (float(residual.sum()) - residual) / (len(given) - 1.0)


def standard_error(without_each: Array) -> float:
    """The jackknife's estimate of the standard deviation of a statistic, from its leave-one-out values."""
    n = len(without_each)
    return math.sqrt((n - 1) / n * float(np.square(without_each - without_each.mean()).sum()))
