r"""All leave-one-out values of a U-statistic in one sort, and the intervals they give.

ESD and squared MMCE estimate a squared length, and near calibration, where that length is 0, the plain jackknife
interval :math:`U \pm z \cdot \mathrm{se}` fails: when U is small, so is its standard error. But the variance is nearly
proportional to the V-statistic, :math:`\mathrm{se}^2 = a V`, where V is U plus a bias b. So the interval contains
every :math:`\theta` whose distance to U is at most z standard errors *at* :math:`\theta`,
:math:`(U - \theta)^2 \le z^2 a (\theta + b)`, as Wilson's interval does for a proportion.

Two models are compared by the plain difference of U, never by roots: the errors of one network at two temperatures are
nearly the same curve plus a constant, so their roots move together, and a difference of roots hides their uncertainty.

With weights, a sample is still one observation. So the statistic here averages over pairs and triples of *different*
samples, by the product of their weights: it is unbiased, and does not depend on the scale of the weights. The metric
itself also has pairs of a sample with its own repetitions.
"""

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from calibrant.arrays import laplace_sums_of_array, tie_bounds_of_array
from calibrant.frames import Array
from calibrant.metrics.predictions import Predictions
from calibrant.metrics.sorting import weighted_order


class Jackknife(NamedTuple):
    """A statistic and its leave-one-out values.

    Attributes:
        value: The U-statistic U.
        without_each: Its value on all samples but m, for every m of positive weight in the given order.
        least_spread: Lower bound of the standard error, however similar the leave-one-out values are.
        biased: The V-statistic V, positive unless the data have no error; None for a mean, whose error is normal.
    """

    value: float
    without_each: Array
    least_spread: float
    biased: float | None = None


class Difference(NamedTuple):
    """A confidence interval of a difference, and the p-value of the hypothesis that it is 0."""

    low: float
    high: float
    p_value: float


def esd_jackknife(given: Predictions) -> Jackknife:
    r"""ESD with all N leave-one-out values in :math:`O(N \log N)`, ties included.

    With :math:`a_i = w_i d_i` and :math:`S = \sum_i w_i (A_i^2 - B_i)`, removing m removes its own term, and changes
    :math:`A_i, B_i` of every other sample at or above it to :math:`A_i - a_m, B_i - a_m^2`. With :math:`n_m` the weight
    of those and :math:`R_m` the sum of their :math:`w_i A_i`,

    .. math:: S_{(m)} = S - w_m (A_m^2 - B_m) - 2 a_m (R_m - a_m n_m).
    """
    rows = _Rows(given)
    w, a = rows.weight, rows.weight * rows.residual
    first, last = tie_bounds_of_array(rows.confidence)
    squares = a**2
    below = a.cumsum()[last] - a
    own = w * (below**2 - (squares.cumsum()[last] - squares))
    above = (w * below)[::-1].cumsum()[::-1][first] - w * below
    heavier = w[::-1].cumsum()[::-1][first]
    total = float(own.sum())
    without = total - own - 2 * a * (above - a * (heavier - w))
    chance = rows.chance
    # Weight of a pair of samples: the share of samples at or above both.
    pairs = 2 * float((chance * (heavier / rows.total) ** 2 * (chance.cumsum() - chance)).sum())
    biased = float((w * np.square(below)).sum() / (w * (rows.total - w) ** 2).sum())
    one, two, three = (float((w**power).sum()) for power in (1, 2, 3))
    left = one - w, two - w**2, three - w**3
    return Jackknife(
        total / _triples(one, two, three),
        rows.as_given(without / _triples(*left)),
        rows.least_spread(pairs, biased),
        biased,
    )


def _triples(one: Any, two: Any, three: Any) -> Any:
    """Products of the weights of three different samples, summed, from the sums of their powers."""
    return one**3 - 3 * one * two + 2 * three


def mmce_jackknife(given: Predictions, bandwidth: float = 0.4) -> Jackknife:
    """Unbiased squared MMCE with all its leave-one-out values: the pairs without m are all pairs minus those with m."""
    rows = _Rows(given)
    w, a = rows.weight, rows.weight * rows.residual
    below, tied, above = laplace_sums_of_array(rows.confidence, a, bandwidth)
    pairs = a * (below + tied + above - a)
    total = float(pairs.sum())
    chance = rows.chance
    squared_kernel = laplace_sums_of_array(rows.confidence, chance, bandwidth / 2)
    biased = (total + float(np.square(a).sum())) / rows.total**2
    all_pairs = rows.total**2 - float(np.square(w).sum())
    return Jackknife(
        total / all_pairs,
        rows.as_given((total - 2 * pairs) / (all_pairs - 2 * w * (rows.total - w))),
        rows.least_spread(float((chance * (sum(squared_kernel) - chance)).sum()), biased),
        biased,
    )


def gap_jackknife(given: Predictions) -> Jackknife:
    """The signed gap with all its leave-one-out values."""
    rows = _Rows(given)
    return _mean(-rows.residual, rows)


def accuracy_jackknife(given: Predictions) -> Jackknife:
    """The share of right samples, or of right labels, with all its leave-one-out values."""
    rows = _Rows(given)
    right = (rows.confidence > 0.5) == rows.correct if given.task == "multi-label" else rows.correct
    return _mean(right.astype(np.float64), rows)


def _mean(each: Array, rows: "_Rows") -> Jackknife:
    total = float((rows.weight * each).sum())
    without = (total - rows.weight * each) / (rows.total - rows.weight)
    return Jackknife(total / rows.total, rows.as_given(without), math.sqrt(rows.untold))


class _Rows:
    """Samples of positive weight in order of confidence: the observations that are left out one by one."""

    def __init__(self, given: Predictions) -> None:
        order, _ = weighted_order(given.confidence, given.weight)
        self.place = np.argsort(order)
        self.confidence = given.confidence[order].astype(np.float64)
        self.correct = given.correct[order]
        self.residual = self.correct - self.confidence
        self.weight = np.ones(len(order)) if given.weight is None else given.weight[order]
        self.total = float(self.weight.sum())

    @property
    def chance(self) -> Array:
        """Variance of a calibrated sample's weighted correctness."""
        return self.weight**2 * self.confidence * (1 - self.confidence)

    @property
    def untold(self) -> float:
        """Variance of the mean by the confidences if all samples are right or all wrong, which shows none; else 0."""
        if self.correct.all() or not self.correct.any():
            return float(self.chance.sum()) / self.total**2
        return 0.0

    def least_spread(self, pairs: float, biased: float) -> float:
        r"""The standard error of a squared length if the model is calibrated.

        It is :math:`\sqrt{2 \sum_{i \ne j} h_{ij}^2} / N^2`, where :math:`h_{ij}` is the part of a pair of samples. If
        all are right or all wrong, which shows no spread, the largest spread that a length of this size can have is
        added.
        """
        return math.sqrt(2 * max(pairs, 0.0) / self.total**4 + 4 * max(biased, 0.0) * self.untold)

    def as_given(self, each: Array) -> Array:
        """Numbers in order of confidence, back in the order given."""
        return each[self.place]


def spread(without_each: Array, least: float) -> float:
    """The jackknife's standard error of a statistic, from its leave-one-out values; at least ``least``."""
    n = len(without_each)
    return max(math.sqrt((n - 1) / n * float(np.square(without_each - without_each.mean()).sum())), least)


def interval(found: Jackknife, level: float) -> tuple[float, float]:
    """Confidence interval of a statistic."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    reach = z * spread(found.without_each, found.least_spread)
    if found.biased is None:
        return found.value - reach, found.value + reach
    # If V is below its chance level b, its small size says nothing about the variance.
    scale = max(found.biased, found.biased - found.value)
    if scale <= 0:
        return found.value, found.value
    shift = reach**2 / (2 * scale)
    reach = math.sqrt(shift**2 + 2 * shift * max(found.biased, 0.0))
    return found.value + shift - reach, found.value + shift + reach


def difference(a: Jackknife, b: Jackknife, level: float) -> Difference:
    """Confidence interval and test of the difference of two models' statistics.

    The standard error of a difference is at least the difference of the standard errors. That matters if both models
    are calibrated and one is much more confident: the leave-one-out values are then too similar.
    """
    least = abs(a.least_spread - b.least_spread)
    return normal_difference(a.value - b.value, spread(a.without_each - b.without_each, least), level)


def difference_of_sizes(a: Jackknife, b: Jackknife, level: float) -> Difference:
    r"""The same for the absolute values of statistics that have a sign.

    With d and s the difference and the sum of a and b,

    .. math:: |a| - |b| = \max(\min(d, s), \min(-d, -s)).

    So it is 0 only if d or s is, and the p-value is the larger of the two (an intersection-union test). The interval
    covers all d and s in their intervals, so it agrees with the p-value on whether the difference can be 0.

    References:
        Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics 1982.
    """
    d = difference(a, b, level)
    of_sum = spread(a.without_each + b.without_each, a.least_spread + b.least_spread)
    s = normal_difference(a.value + b.value, of_sum, level)
    high = max(min(d.high, s.high), min(-d.low, -s.low))
    low = -max(min(d.high, -s.low), min(-d.low, s.high))
    return Difference(low, high, max(d.p_value, s.p_value))


def normal_difference(centre: float, spread: float, level: float) -> Difference:
    """Interval and p-value of a difference with a normal error."""
    normal = NormalDist()
    reach = normal.inv_cdf((1 + level) / 2) * spread
    # A difference without variance is known: two identical models do not differ.
    p_value = 2 * normal.cdf(-abs(centre) / spread) if spread > 0 else float(centre == 0)
    return Difference(centre - reach, centre + reach, p_value)
