r"""Every leave-one-out value of a U-statistic in one sort, and the intervals they give.

ESD and squared MMCE estimate a squared length, and near calibration, where that length is 0, the plain jackknife
interval :math:`U \pm z \cdot \mathrm{se}` fails: when U comes out small, so does its standard error. But the variance
is nearly proportional to the V-statistic, :math:`\mathrm{se}^2 = a V`, where V is U plus the bias b that U is rid of.
So an interval holds those :math:`\theta` that U is within z standard errors *of their own* from,
:math:`(U - \theta)^2 \le z^2 a (\theta + b)`, as Wilson's interval does for a proportion. And two models are compared
by the lengths, the roots of V, whose errors are nearly normal and do not depend on how long they are.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from calibrant.known_gradient import Array, IndexArray, laplace_sums_of_array, tie_bounds_of_array
from calibrant.metrics.predictions import Predictions

# Points on an ellipse whose extreme values are sought: enough for six digits.
ANGLES = np.linspace(0, 2 * np.pi, 2048, endpoint=False)


class Jackknife(NamedTuple):
    """A statistic, and what its leave-one-out values tell.

    Attributes:
        value: The U-statistic U.
        without_each: Its value on all samples but m, for every m in the order given.
        biased: The V-statistic V, positive but for data without any error; None for a mean, whose error is normal.
    """

    value: float
    without_each: Array
    biased: float | None = None


class Difference(NamedTuple):
    """A confidence interval of a difference, and the p-value of the hypothesis that it is 0."""

    low: float
    high: float
    p_value: float


def esd_jackknife(given: Predictions) -> Jackknife:
    r"""ESD with all N leave-one-out values in :math:`O(N \log N)`, ties included.

    With :math:`S = \sum_i (A_i^2 - B_i)`, taking m away takes its own term, and turns :math:`A_i, B_i` of every other
    sample at or above it into :math:`A_i - d_m, B_i - d_m^2`. With :math:`n_m` the number of those and :math:`R_m` the
    sum of their :math:`A_i`,

    .. math:: S_{(m)} = S - (A_m^2 - B_m) - 2 d_m (R_m - d_m n_m).
    """
    n = len(given)
    order, ascending, residual = _sorted_residuals(given)
    first, last = tie_bounds_of_array(ascending)
    squares = residual**2
    below = residual.cumsum()[last] - residual
    own = below**2 - (squares.cumsum()[last] - squares)
    above = below[::-1].cumsum()[::-1][first] - below
    total = float(own.sum())
    without = np.empty(n)
    without[order] = total - own - 2 * residual * (above - residual * (n - 1 - first))
    return Jackknife(
        total / (n * (n - 1.0) * (n - 2.0)),
        without / ((n - 1.0) * (n - 2.0) * (n - 3.0)),
        float(np.square(below).sum()) / (n * (n - 1.0) ** 2),
    )


def mmce_jackknife(given: Predictions, bandwidth: float = 0.4) -> Jackknife:
    """Unbiased squared MMCE with all its leave-one-out values: the pairs without m are all pairs less those with m."""
    n = len(given)
    order, ascending, residual = _sorted_residuals(given)
    below, tied, above = laplace_sums_of_array(ascending, residual, bandwidth)
    pairs = residual * (below + tied + above - residual)
    total = float(pairs.sum())
    without = np.empty(n)
    without[order] = total - 2 * pairs
    return Jackknife(
        total / (n * (n - 1.0)),
        without / ((n - 1.0) * (n - 2.0)),
        (total + float(np.square(residual).sum())) / n**2,
    )


def gap_jackknife(given: Predictions) -> Jackknife:
    """The signed gap with all its leave-one-out values."""
    residual: Array = given.confidence.astype(np.float64) - given.correct
    total = float(residual.sum())
    return Jackknife(total / len(given), (total - residual) / (len(given) - 1.0))


def _sorted_residuals(given: Predictions) -> tuple[IndexArray, Array, Array]:
    order = np.argsort(given.confidence, kind="stable")
    ascending = given.confidence[order].astype(np.float64)
    return order, ascending, given.correct[order] - ascending


def covariance(*without_each: Array) -> Array:
    """The jackknife's covariance matrix of statistics, from the leave-one-out values of each."""
    values = np.stack(without_each)
    values -= values.mean(1, keepdims=True)
    n = values.shape[1]
    found: Array = np.einsum("im,jm->ij", values, values) * ((n - 1) / n)
    return found


def interval(found: Jackknife, level: float) -> tuple[float, float]:
    """Confidence interval of a statistic."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    reach = z * math.sqrt(covariance(found.without_each)[0, 0])
    if not found.biased:
        return found.value - reach, found.value + reach
    shift = reach**2 / (2 * found.biased)
    reach = math.hypot(shift, reach)
    return max(found.value + shift - reach, 0.0), max(found.value + shift + reach, 0.0)


def difference(a: Jackknife, b: Jackknife, level: float) -> Difference:
    """Confidence interval and test of the difference of two models' statistics; of sizes, if they have a sign.

    Squared lengths are lifted by the mean of their biases, so that the difference stays what it is, and rooted. The
    test asks whether the two lengths differ. The interval holds the differences of squares over all pairs of lengths
    in the ellipse that their standard errors and correlation draw, so the two agree on whether it can be 0.
    """
    if a.biased is None or b.biased is None:
        spread = math.sqrt(covariance(np.abs(a.without_each) - np.abs(b.without_each))[0, 0])
        return normal_difference(abs(a.value) - abs(b.value), spread, level)
    lift = (a.biased - a.value + b.biased - b.value) / 2
    lengths = np.sqrt(np.maximum([a.value + lift, b.value + lift], 0.0))
    errors = covariance(*(of.without_each * _slope_of_root(of) for of in (a, b)))
    spread = math.sqrt(max(errors[0, 0] + errors[1, 1] - 2 * errors[0, 1], 0.0))
    _, _, p_value = normal_difference(float(lengths[0] - lengths[1]), spread, level)
    scales, axes = np.linalg.eigh(errors)
    z = NormalDist().inv_cdf((1 + level) / 2)
    circle = z * np.sqrt(np.maximum(scales, 0.0))[:, np.newaxis] * np.stack((np.cos(ANGLES), np.sin(ANGLES)))
    ellipse = np.maximum(lengths[:, np.newaxis] + np.einsum("ij,jk->ik", axes, circle), 0.0)
    differences = ellipse[0] ** 2 - ellipse[1] ** 2
    return Difference(float(differences.min()), float(differences.max()), p_value)


def _slope_of_root(found: Jackknife) -> float:
    return 0.5 / math.sqrt(found.biased) if found.biased else 0.0


def normal_difference(centre: float, spread: float, level: float) -> Difference:
    """Interval and p-value of a difference with a normal error."""
    normal = NormalDist()
    reach = normal.inv_cdf((1 + level) / 2) * spread
    # What does not vary at all is known: two models that are the same do not differ.
    p_value = 2 * normal.cdf(-abs(centre) / spread) if spread > 0 else float(centre == 0)
    return Difference(centre - reach, centre + reach, p_value)
