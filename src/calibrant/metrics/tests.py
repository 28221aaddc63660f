r"""Tests of calibration: by consistency resampling, of all views with Holm's correction, and with a closed-form law.

Cumulative residuals of a calibrated model, divided by their standard deviation, are a random walk that tends to
Brownian motion B on [0, 1]. The laws of its largest distance from 0 and of its range each have two series, one that
converges quickly for small values and one for large ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.cumulative import esd_rows
from calibrant.metrics.predictions import Confidence, Correct, Given, Predictions, View, predictions, views
from calibrant.metrics.registry import Chosen, Metric, label, number
from calibrant.metrics.resampling import (
    Progress,
    asked_metric,
    consistent_residuals,
    draw_null,
    observed_residuals,
    single,
)
from calibrant.metrics.ties import Ties

# Draws that equal the data up to rounding are as extreme as the data.
ROUNDING = 1e-12
# Draws per view of a family: with fewer than 20, no view could be rejected after the correction.
DRAWS_EACH = 40
# A view of a family with so many draws as bad as the data needs no more of them.
ENOUGH = 20
# Beyond doubt: Kuiper's p-value, with enough expected events that its law holds roughly so far out.
BEYOND_DOUBT, EVENTS = 1e-9, 10.0
LEAST_DRAWS = 100
# Terms of either series beyond which nothing changes in float64, on its own side of CROSSING.
TERMS = 12
CROSSING = 2.0


def p_value(value: float) -> str:
    """Format a p-value.

    Example:
        >>> p_value(0.000999), p_value(0.0123), p_value(0.4128)
        ('p < 0.001', 'p = 0.012', 'p = 0.413')
    """
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


class Tested:
    """A test of the hypothesis of calibration."""

    p_value: float

    def rejected(self, level: float = 0.05) -> bool:
        """Whether the hypothesis of calibration is rejected at this level."""
        inputs.check_range("level", level, low=0, high=1, open_low=True, open_high=True)
        return self.p_value <= level


@dataclass(frozen=True)
class CalibrationTest(Tested):
    """Test of the hypothesis that the model is calibrated.

    Attributes:
        metric: Name of the metric.
        statistic: Its value on the data; the gap with its sign.
        p_value: Share of the draws, including the data as one, that are at least as badly calibrated.
        draws: Number of data sets drawn from a calibrated model.
        null_mean: Mean of the metric over the draws, which a calibrated model scores by chance; for the gap, of its
            absolute value.
        critical_value: Value that a calibrated model exceeds in 5 % of the draws; for the gap, in absolute value.

    Example:
        >>> print(CalibrationTest("esd", 6.34e-4, 0.002, 1000, 0.0, 1.9e-4))
        ESD 6.34e-04, p = 0.002 (1,000 draws): the hypothesis that the model is calibrated is rejected at 5 %
    """

    metric: str
    statistic: float
    p_value: float
    draws: int
    null_mean: float
    critical_value: float

    def __str__(self) -> str:
        found = f"{label(self.metric)} {number(self.metric, self.statistic)}, {p_value(self.p_value)}"
        rejected = "rejected" if self.rejected() else "not rejected"
        return f"{found} ({self.draws:,} draws): the hypothesis that the model is calibrated is {rejected} at 5 %"


def calibration_test(
    confidence: Confidence = None,
    correct: Correct = None,
    *,
    metric: Chosen = "esd",
    draws: int = 1000,
    seed: int = 0,
    bins: int | None = None,
    convention: ConventionName = "paper",
    **given: Unpack[Given],
) -> CalibrationTest:
    r"""Test the hypothesis that the model is calibrated, by consistency resampling.

    A calibrated model with these confidences would be right with exactly those probabilities. The test draws
    correctness that way many times, computes the metric of each draw, and counts how many are as bad as the data:

    .. math:: p = \frac{1 + \#\{\text{draws with a metric} \ge \text{that of the data}\}}{1 + \#\text{draws}}.

    The test is exact for any metric, at any number of samples: a calibrated model is rejected at level 0.05 in 5 % of
    cases. For ESD, KS, ECE, MMCE and the gap one sort serves all draws. For metrics of all classes, and for your own
    functions, targets are drawn from the class probabilities if those are known.

    For some metrics a deviation in either direction shows miscalibration. The gap counts by its absolute value. Brier,
    log loss, accuracy and AURC are compared with the values that the confidences predict: a model that is right more
    often than it says has a lower log loss than predicted, yet is not calibrated. Their p is twice the smaller of the
    two sides.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``; or checked predictions.
        correct: 1 or True where the prediction is right, same shape.
        metric: Name of a function of :mod:`calibrant.metrics`, such as ``"ece"`` or ``"smooth_ece"``; the keys of
            ``metrics.METRICS`` list all. Or the function itself; or your own function of
            :class:`~calibrant.metrics.Predictions` that grows as calibration gets worse.
        draws: Number of data sets to draw. The smallest possible p-value is ``1 / (1 + draws)``.
        seed: Seed of the draws: the same seed gives the same result.
        bins: Number of bins of the binned metrics; by default the convention's, or 15 of equal mass.
        convention: Convention of the equal-width bins, as in :func:`calibrant.metrics.ece`.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    References:
        Bröcker, Smith, "Increasing the Reliability of Reliability Diagrams", Weather and Forecasting 2007;
        Vaicenavicius, Widmann, Andersson, Lindsten, Roll, Schön, "Evaluating model calibration in classification",
        AISTATS 2019.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics
        >>> generator = np.random.default_rng(0)
        >>> confidence = generator.uniform(0.5, 1, 2000)
        >>> right = generator.random(2000) < confidence - 0.05
        >>> print(metrics.calibration_test(confidence, right))
        ESD 3.47e-04, p = 0.002 (1,000 draws): the hypothesis that the model is calibrated is rejected at 5 %
    """
    measure = asked_metric(metric, draws, seed, bins, convention)
    data = single(predictions(confidence, correct, minimum=measure.minimum, name=label(measure.key), **given))
    return test_against_draws(measure, *draw_null(data, measure, draws, seed))


def test_against_draws(measure: Metric, observed: float, null: Array) -> CalibrationTest:
    """The test of a metric's value against its values on draws from a calibrated model."""
    draws = len(null)
    size = abs(observed) if measure.signed else observed
    null = np.abs(null) if measure.signed else null
    slack = ROUNDING * max(abs(observed), float(np.abs(null).max()))
    p_value = (1 + int((null >= size - slack).sum())) / (1 + draws)
    if not measure.only_calibration:
        p_value = min(2 * min(p_value, (1 + int((null <= size + slack).sum())) / (1 + draws)), 1.0)
    return CalibrationTest(measure.key, observed, p_value, draws, float(null.mean()), float(np.quantile(null, 0.95)))


@dataclass(frozen=True, eq=False)
class Judgement:
    """Test of one view.

    Attributes:
        view: What was tested.
        test: Test of the hypothesis that its probabilities are calibrated, with ESD.
        p_value: Its p-value, corrected for the number of classes or labels that were tested.
    """

    view: View
    test: CalibrationTest
    p_value: float

    @property
    def rejected(self) -> bool:
        """Whether the hypothesis is rejected at 5 %, after the correction."""
        return self.p_value <= 0.05


def judge(
    given: Predictions, *, draws: int = 1000, seed: int = 0, progress: Progress | None = None, early: bool = False
) -> tuple[Judgement, ...]:
    """Test each view of the predictions (see :func:`calibrant.metrics.predictions.views`) with ESD.

    Confidences, the top label and the risk of two classes are tested as by :func:`calibration_test`. Classes and labels
    are families: their p-values are corrected by Holm's method, so that at most 5 % of calibrated models have any class
    or label rejected. Each of m views gets at least ``40 m`` draws, but they end early

    - once 20 draws are as bad as the data: the p-value is 20 over the number of draws (Besag and Clifford), which is
      valid;
    - after 100 draws if :func:`kuiper_test` finds a p-value below 1e-9 with ten expected events or more, which is then
      used.

    Args:
        given: Checked predictions, of 3 samples or more.
        draws: Number of data sets to draw for each view.
        seed: Seed of the draws.
        progress: Called with the number of views done and their number.
        early: Whether draws of confidences, the top label and the risk end early too; their p-values are then coarser.

    References:
        Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 1979; Besag,
        Clifford, "Sequential Monte Carlo p-values", Biometrika 1991.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics
        >>> generator = np.random.default_rng(0)
        >>> p = generator.dirichlet([2, 2, 2], 3000)
        >>> p[:, :2] = p[:, [1, 0]] + 0.1 * (p[:, [0, 1]] - p[:, [1, 0]])  # two classes are mixed up
        >>> target = (generator.random((3000, 1)) > p[:, [1, 0, 2]].cumsum(1)[:, :2]).sum(1)
        >>> found = metrics.judge(metrics.predictions(probabilities=p, target=target))
        >>> [(str(each.view), each.rejected) for each in found[1:]]
        [('probability of class 0', True), ('probability of class 1', True), ('probability of class 2', False)]
    """
    found = views(predictions(given, minimum=3, name="judge"))
    return judge_views(found, draws=draws, seed=seed, progress=progress, early=early)


def judge_views(
    found: Sequence[View], *, draws: int, seed: int, progress: Progress | None = None, early: bool = False
) -> tuple[Judgement, ...]:
    """The tests of :func:`judge` of these views."""
    inputs.check_count("draws", draws)
    family = [view for view in found if view.kind in ("class", "label")]
    tests = []
    for done, view in enumerate(found, 1):
        alone = view.kind not in ("class", "label") or len(family) == 1
        tests.append(
            calibration_test(view.pairs, draws=draws, seed=seed)
            if alone and not early
            else sequential_test(view.pairs, draws, seed)
            if alone
            else sequential_test(view.pairs, max(draws, DRAWS_EACH * len(family)), seed)
        )
        if progress is not None:
            progress(done, len(found))
    alone_first = len(found) - len(family)
    corrected = [test.p_value for test in tests[:alone_first]]
    corrected += holm([test.p_value for test in tests[alone_first:]])
    return tuple(Judgement(*each) for each in zip(found, tests, corrected, strict=True))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for multiple testing (Holm, Scandinavian Journal of Statistics 6, 1979).

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    ascending = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values, dtype=np.float64)[ascending] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[ascending] = np.minimum(np.maximum.accumulate(scaled), 1) if len(scaled) else scaled
    return corrected.tolist()


def sequential_test(pairs: Predictions, draws: int, seed: int) -> CalibrationTest:
    """Test of calibration with ESD that ends as soon as its answer is known."""
    ties = pairs.ties
    value = esd_rows(ties)
    observed = float(value(observed_residuals(ties))[0])
    events = float((ties.samples * ties.confidence * (1 - ties.confidence)).sum())
    analytic = kuiper_test(pairs).p_value if events >= EVENTS else 1.0
    if analytic < BEYOND_DOUBT:
        draws = min(draws, LEAST_DRAWS)
    drawn: list[Array] = []
    worse = made = 0
    for block in consistent_residuals(ties, draws, seed):
        null = value(block)
        slack = ROUNDING * max(abs(observed), float(np.abs(null).max()))
        as_bad = np.flatnonzero(null >= observed - slack)
        drawn.append(null)
        if worse + len(as_bad) >= ENOUGH:
            made += int(as_bad[ENOUGH - worse - 1]) + 1
            worse = ENOUGH
            break
        worse, made = worse + len(as_bad), made + len(null)
    null = np.concatenate(drawn)[:made]
    p_value = ENOUGH / made if worse >= ENOUGH else (1 + worse) / (1 + made)
    test = CalibrationTest("esd", observed, p_value, made, float(null.mean()), float(np.quantile(null, 0.95)))
    return replace(test, p_value=analytic) if analytic < BEYOND_DOUBT and worse == 0 else test


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


def spiegelhalter_test(confidence: Confidence = None, correct: Correct = None, **given: Unpack[Given]) -> AnalyticTest:
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
    z, samples, right = data.ties
    slope = 1 - 2 * z
    total = float(((right - samples * z) * slope).sum())
    spread = math.sqrt(float((samples * slope**2 * z * (1 - z)).sum()))
    value = _in_deviations(total, spread)
    return AnalyticTest("Spiegelhalter's z", value, 2 * upper_tail(abs(value)))


def ks_test(confidence: Confidence = None, correct: Correct = None, **given: Unpack[Given]) -> AnalyticTest:
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
    path, spread = _path(data.ties)
    value = _in_deviations(float(np.abs(path).max()), spread)
    return AnalyticTest("Kolmogorov-Smirnov", value, exceeds_distance(value))


def kuiper_test(confidence: Confidence = None, correct: Correct = None, **given: Unpack[Given]) -> AnalyticTest:
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
    path, spread = _path(data.ties)
    value = _in_deviations(float(np.ptp(path)), spread)
    return AnalyticTest("Kuiper", value, exceeds_range(value))


def _path(ties: Ties) -> tuple[Array, float]:
    """Cumulative residuals, from 0, and their standard deviation at the end."""
    z, samples, right = ties
    path = np.append(0.0, (right - samples * z).cumsum())
    return path, math.sqrt(float((samples * z * (1 - z)).sum()))


def _in_deviations(total: float, spread: float) -> float:
    """A sum in its standard deviations; infinite if probabilities of 0 and 1 alone are wrong."""
    if spread > 0:
        return total / spread
    return math.copysign(math.inf, total) if total else 0.0


def upper_tail(x: float) -> float:
    """Probability that a standard normal variable exceeds ``x``."""
    return math.erfc(x / math.sqrt(2)) / 2


def exceeds_distance(x: float) -> float:
    r""":math:`P(\max |B| \ge x)`.

    Example:
        >>> round(exceeds_distance(2.2414), 4)
        0.05
    """
    if x <= 0:
        return 1.0
    if x > CROSSING:
        return 4 * sum((-1.0) ** k * upper_tail((2 * k + 1) * x) for k in range(TERMS))
    odd = range(1, 2 * TERMS, 2)
    below = sum((-1.0) ** (k // 2) / k * math.exp(-((k * math.pi / x) ** 2) / 8) for k in odd)
    return max(0.0, 1 - 4 / math.pi * below)


def exceeds_range(x: float) -> float:
    r""":math:`P(\max B - \min B \ge x)`, both over times from 0, where B is 0 (Feller 1951).

    Example:
        >>> round(exceeds_range(2.497), 3)
        0.05
    """
    if x <= 0:
        return 1.0
    if x > CROSSING:
        return 8 * sum((-1.0) ** (k - 1) * k * upper_tail(k * x) for k in range(1, TERMS))
    halves = [(k - 0.5) * math.pi for k in range(1, TERMS)]
    below = sum((8 / x**2 + 2 / h**2) * math.exp(-2 * (h / x) ** 2) for h in halves)
    return max(0.0, 1 - below)
