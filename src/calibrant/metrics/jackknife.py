r"""All leave-one-out values of a U-statistic in one sort, and the intervals they give: :doc:`/inference`.

ESD and squared MMCE estimate a squared length, with a variance nearly proportional to the V-statistic, which is the
U-statistic plus a bias b. So with a constant a the interval holds every :math:`\theta` with
:math:`(U - \theta)^2 \le z^2 a (\theta + b)`. A row of weight 2 is the row twice: one of the two is left out at a time.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from calibrant.frames import Array
from calibrant.metrics.predictions import Predictions
from calibrant.metrics.proper import decided_right
from calibrant.metrics.ties import SortedRows


@dataclass(frozen=True)
class Jackknife:
    """A statistic and its leave-one-out values."""

    value: float
    without_each: Array  # for every row in the given order
    weight: Array  # how often each row counts
    least_spread: float  # of the standard error, however similar the leave-one-out values are
    biased: float | None = None  # the V-statistic, positive unless the data have no error; None for a mean

    @property
    def spread(self) -> float:
        """The standard error."""
        n = float(self.weight.sum())
        centred = self.without_each - float(self.weight @ self.without_each) / n
        return max(math.sqrt((n - 1) / n * float(self.weight @ np.square(centred))), self.least_spread)

    def interval(self, level: float) -> tuple[float, float]:
        """Confidence interval of the statistic."""
        reach = NormalDist().inv_cdf((1 + level) / 2) * self.spread
        if self.biased is None:
            return self.value - reach, self.value + reach
        # If V is below its chance level b, its small size says nothing about the variance.
        scale = max(self.biased, self.biased - self.value)
        if scale <= 0:
            return self.value, self.value
        shift = reach**2 / (2 * scale)
        reach = math.sqrt(shift**2 + 2 * shift * max(self.biased, 0.0))
        return self.value + shift - reach, self.value + shift + reach


class Difference(NamedTuple):
    """A confidence interval of a difference, and the p-value of the hypothesis that it is 0."""

    low: float
    high: float
    p_value: float


def esd_jackknife(given: Predictions) -> Jackknife:
    r"""ESD with all N leave-one-out values in :math:`O(N \log N)`, ties included.

    With :math:`S = \sum_i (A_i^2 - B_i)`, removing m removes its own term, and changes :math:`A_i, B_i` of every other
    sample at or above it to :math:`A_i - d_m, B_i - d_m^2`. With :math:`n_m` the number of those and :math:`R_m` the
    sum of their :math:`A_i`,

    .. math:: S_{(m)} = S - (A_m^2 - B_m) - 2 d_m (R_m - d_m n_m).
    """
    rows = _JackknifeRows(given)
    n, w, d = rows.total, rows.weight, rows.residual
    below = rows.at_or_below(w * d) - d
    own = below**2 - (rows.at_or_below(w * d**2) - d**2)
    above, heavier = rows.at_or_above(w * below) - below, rows.at_or_above(w)
    total = float((w * own).sum())
    without = total - own - 2 * d * (above - d * (heavier - 1))
    # Pairs of samples; each counts by the share of samples at or above both.
    chance = w * rows.variance
    of_same_row = np.maximum(w * (w - 1) / 2, 0) * rows.variance**2
    pairs = 2 * float(((heavier / n) ** 2 * (chance * (chance.cumsum() - chance) + of_same_row)).sum())
    biased = float((w * below**2).sum()) / (n * (n - 1) ** 2)
    values = total / (n * (n - 1) * (n - 2)), without / ((n - 1) * (n - 2) * (n - 3))
    return rows.result(*values, rows.least_spread(pairs, biased), biased)


def mmce_jackknife(given: Predictions, bandwidth: float = 0.4) -> Jackknife:
    """Unbiased squared MMCE with all its leave-one-out values: the pairs without m are all pairs minus those with m."""
    rows = _JackknifeRows(given)
    n, w, d = rows.total, rows.weight, rows.residual
    pairs = d * (rows.kernel_sums(w * d, bandwidth) - d)
    total = float((w * pairs).sum())
    squared_kernel = rows.kernel_sums(w * rows.variance, bandwidth / 2)
    chance = float((w * rows.variance * (squared_kernel - rows.variance)).sum())
    biased = (total + float((w * d**2).sum())) / n**2
    values = total / (n * (n - 1)), (total - 2 * pairs) / ((n - 1) * (n - 2))
    return rows.result(*values, rows.least_spread(chance, biased), biased)


def gap_jackknife(given: Predictions) -> Jackknife:
    """The signed gap with all its leave-one-out values."""
    rows = _JackknifeRows(given)
    return rows.mean(-rows.residual)


def accuracy_jackknife(given: Predictions) -> Jackknife:
    """The share of right samples, or of right labels, with all its leave-one-out values."""
    rows = _JackknifeRows(given)
    return rows.mean(decided_right(given)[rows.order].astype(np.float64))


class _JackknifeRows(SortedRows):
    """Rows in order of confidence: the samples that are left out one by one."""

    def __init__(self, given: Predictions) -> None:
        super().__init__(given)
        self.given, self.total = given, given.total
        sizes = np.diff(self.first, append=len(self.order))
        self.group = np.repeat(np.arange(len(sizes)), sizes)

    def at_or_below(self, values: Array) -> Array:
        of_ties: Array = np.add.reduceat(values, self.first)
        return of_ties.cumsum()[self.group]

    def at_or_above(self, values: Array) -> Array:
        of_ties: Array = np.add.reduceat(values, self.first)
        return of_ties[::-1].cumsum()[::-1][self.group]

    def kernel_sums(self, values: Array, bandwidth: float) -> Array:
        """Sums over all rows, times the Laplace kernel of the distance between their confidence and that of each."""
        of_ties: Array = np.add.reduceat(values, self.first)
        up: Array = np.exp((self.confidence[self.first] - 0.5) / bandwidth)
        below = np.append(0.0, (of_ties * up).cumsum()[:-1]) / up
        above = np.append((of_ties / up)[:0:-1].cumsum()[::-1], 0.0) * up
        found: Array = (below + of_ties + above)[self.group]
        return found

    @property
    def variance(self) -> Array:
        """Variance of the correctness of a calibrated sample."""
        return self.confidence * (1 - self.confidence)

    @property
    def unseen(self) -> float:
        """Variance of the mean by the confidences if all samples are right or all wrong, which shows none; else 0."""
        if self.correct.all() or not self.correct.any():
            return float((self.weight * self.variance).sum()) / self.total**2
        return 0.0

    def least_spread(self, pairs: float, biased: float) -> float:
        """The standard error of a squared length if the model is calibrated, from the squared parts of its pairs."""
        # If all are right or all wrong, which shows no spread, add the largest that a length of this size can have.
        return math.sqrt(2 * max(pairs, 0.0) / self.total**4 + 4 * max(biased, 0.0) * self.unseen)

    def mean(self, each: Array) -> Jackknife:
        total = float((self.weight * each).sum())
        return self.result(total / self.total, (total - each) / (self.total - 1), math.sqrt(self.unseen))

    def result(self, value: float, without: Array, least_spread: float, biased: float | None = None) -> Jackknife:
        each, weight = np.zeros((2, len(self.given)))
        each[self.order], weight[self.order] = without, self.weight
        return Jackknife(value, each, weight, least_spread, biased)


def difference(a: Jackknife, b: Jackknife, level: float, *, sign: float = -1.0) -> Difference:
    """Confidence interval and test of the difference of two models' statistics; with a sign of 1, of their sum."""
    # It matters if both are calibrated and one is far more confident: leave-one-out values are then too similar.
    least = abs(a.least_spread + sign * b.least_spread)
    found = Jackknife(a.value + sign * b.value, a.without_each + sign * b.without_each, a.weight, least)
    return normal_difference(found.value, found.spread, level)


def difference_of_sizes(a: Jackknife, b: Jackknife, level: float) -> Difference:
    """The same for the absolute values of statistics that have a sign."""
    # It is max(min(d, s), min(-d, -s)) of the difference and the sum: 0 only if one of the two is.
    d, s = difference(a, b, level), difference(a, b, level, sign=1.0)
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
