"""Tests of calibration with a known law, which need no draws: Spiegelhalter, Kolmogorov-Smirnov, Kuiper."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from calibrant.frames import Array
from calibrant.metrics import notebook
from calibrant.metrics.brownian import exceeds_distance, exceeds_range, upper_tail
from calibrant.metrics.predictions import Given, Predictions, Values, predictions
from calibrant.metrics.sorting import TieGroups
from calibrant.metrics.verdicts import Tested, p_value


@notebook.shown
@dataclass(frozen=True)
class AnalyticTest(Tested):
    """Test of the hypothesis that the probabilities are calibrated, by the law of its statistic for many samples.

    Attributes:
        name: Name of the test.
        statistic: Its statistic, in standard deviations.
        p_value: Probability that calibrated probabilities give a statistic at least as large.
    """

    name: str
    statistic: float
    p_value: float

    def __str__(self) -> str:
        return f"{self.name} {self.statistic:z.2f}, {p_value(self.p_value)}"


def spiegelhalter_test(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> AnalyticTest:
    r"""Spiegelhalter's test: is the Brier score what the probabilities themselves promise?

    .. math:: Z = \frac{\sum_i (c_i - z_i)(1 - 2 z_i)}{\sqrt{\sum_i (1 - 2 z_i)^2 z_i (1 - z_i)}}

    is nearly standard normal for calibrated probabilities. Above 0 they are too extreme, below 0 too moderate. It does
    not see an error that is the same on both sides of one half, and nothing at one half itself.

    Args:
        confidence: Probability of the event, or confidence in the prediction, ``(N,)``.
        correct: 1 or True where it came true, ``(N,)``.
        **given: ``logits=`` or ``probabilities=`` with ``target=``: the top label is tested.

    References:
        Spiegelhalter, "Probabilistic prediction in patient management and clinical trials", Statistics in Medicine
        1986.

    Example:
        >>> from calibrant import metrics
        >>> print(metrics.spiegelhalter_test([0.9, 0.8, 0.7, 0.9, 0.8, 0.9], [0, 1, 0, 1, 0, 0]))
        Spiegelhalter's z 3.53, p < 0.001
    """
    data = predictions(confidence, correct, name="Spiegelhalter's test", **given)
    z, weight = data.confidence.astype(np.float64), _weight(data)
    lean = 1 - 2 * z
    total = float((weight * (data.correct - z) * lean).sum())
    spread = math.sqrt(float((weight**2 * lean**2 * z * (1 - z)).sum()))
    value = _in_deviations(total, spread)
    return AnalyticTest("Spiegelhalter's z", value, 2 * upper_tail(abs(value)))


def ks_test(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> AnalyticTest:
    r"""Kolmogorov-Smirnov test: the largest cumulative residual, in standard deviations of their sum.

    .. math:: D = \max_t \Big| \sum_{i:\, z_i \le t} (c_i - z_i) \Big| \Big/ \sqrt{\sum_i z_i (1 - z_i)}

    It is the KS error, scaled so that for calibrated probabilities it has the law of the largest distance of Brownian
    motion from 0. With few expected events, or few distinct probabilities, that law makes the test reject less often
    than it should; :func:`calibration_test` with ``metric="ks_error"`` is exact there.

    Args:
        confidence: Probability of the event, or confidence in the prediction, ``(N,)``.
        correct: 1 or True where it came true, ``(N,)``.
        **given: ``logits=`` or ``probabilities=`` with ``target=``: the top label is tested.

    References:
        Arrieta-Ibarra, Gujral, Tannen, Tygert, Xu, "Metrics of calibration for probabilistic predictions", JMLR 2022.

    Example:
        >>> from calibrant import metrics
        >>> print(metrics.ks_test([0.9, 0.8, 0.7, 0.9, 0.8, 0.9], [0, 1, 0, 1, 0, 0]))
        Kolmogorov-Smirnov 3.35, p = 0.002
    """
    data = predictions(confidence, correct, name="the Kolmogorov-Smirnov test", **given)
    return _cumulative_test("Kolmogorov-Smirnov", data, lambda path: np.abs(path).max(), exceeds_distance)


def kuiper_test(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> AnalyticTest:
    r"""Kuiper's test: the largest sum of residuals over any range of probabilities, in standard deviations.

    .. math:: \max_{s < t} \Big| \sum_{i:\, s < z_i \le t} (c_i - z_i) \Big| \Big/ \sqrt{\sum_i z_i (1 - z_i)}

    For calibrated probabilities it has the law of the range of Brownian motion. It sees errors that change their sign
    better than :func:`ks_test`; the caveat there holds here too.

    Args:
        confidence: Probability of the event, or confidence in the prediction, ``(N,)``.
        correct: 1 or True where it came true, ``(N,)``.
        **given: ``logits=`` or ``probabilities=`` with ``target=``: the top label is tested.

    References:
        Kuiper, "Tests concerning random points on a circle", 1960; Arrieta-Ibarra, Gujral, Tannen, Tygert, Xu,
        "Metrics of calibration for probabilistic predictions", JMLR 2022; Feller, "The asymptotic distribution of the
        range of sums of independent random variables", Annals of Mathematical Statistics 1951.

    Example:
        >>> from calibrant import metrics
        >>> print(metrics.kuiper_test([0.9, 0.8, 0.7, 0.9, 0.8, 0.9], [0, 1, 0, 1, 0, 0]))
        Kuiper 3.35, p = 0.003
    """
    data = predictions(confidence, correct, name="Kuiper's test", **given)
    return _cumulative_test("Kuiper", data, lambda path: max(path.max(), 0) - min(path.min(), 0), exceeds_range)


def kuiper_of_groups(groups: TieGroups) -> AnalyticTest:
    """:func:`kuiper_test` of samples without weights, from groups of equal confidence."""
    z, samples, right = groups
    path = (right - samples * z).cumsum()
    spread = math.sqrt(float((samples * z * (1 - z)).sum()))
    value = _in_deviations(float(max(path.max(), 0) - min(path.min(), 0)), spread)
    return AnalyticTest("Kuiper", value, exceeds_range(value))


def _cumulative_test(
    name: str, data: Predictions, size: Callable[[Array], float], exceeds: Callable[[float], float]
) -> AnalyticTest:
    order = np.argsort(data.confidence, kind="stable")
    z, weight = data.confidence[order].astype(np.float64), _weight(data)[order]
    path = (weight * (data.correct[order] - z)).cumsum()
    ends = np.append(np.flatnonzero(z[1:] != z[:-1]), len(z) - 1)  # within a tie the order is arbitrary
    spread = math.sqrt(float((weight**2 * z * (1 - z)).sum()))
    value = _in_deviations(float(size(path[ends])), spread)
    return AnalyticTest(name, value, exceeds(value))


def _in_deviations(total: float, spread: float) -> float:
    """A sum in its standard deviations; infinite if probabilities of 0 and 1 alone are wrong."""
    if spread > 0:
        return total / spread
    return math.copysign(math.inf, total) if total else 0.0


def _weight(data: Predictions) -> Array:
    return np.ones(len(data)) if data.weight is None else data.weight
