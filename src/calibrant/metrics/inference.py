"""A test of calibration, and confidence intervals."""

from statistics import NormalDist
from typing import Unpack

import numpy as np

from calibrant.metrics import jackknife
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.draws import (
    asked_metric,
    bootstrap,
    check_level,
    draw_null,
    finite_value,
    judged,
    observations,
    part_of,
    single,
)
from calibrant.metrics.predictions import Given, Predictions, Values, predictions
from calibrant.metrics.resampling import Progress
from calibrant.metrics.table import Chosen, Metric
from calibrant.metrics.verdicts import CalibrationTest, Interval, label

__all__ = ["CalibrationTest", "Interval", "calibration_test", "confidence_interval"]


def calibration_test(
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
    *,
    metric: Chosen = "esd",
    draws: int = 1000,
    seed: int = 0,
    bins: int | None = None,
    convention: ConventionName = "paper",
    progress: Progress | None = None,
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
    NLL, accuracy and AURC are compared with the values that the confidences predict: a model that is right more often
    than it says has a lower NLL than predicted, yet is not calibrated. Their p is twice the smaller of the two sides.

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
        progress: Called now and then with the number of draws done and ``draws``.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct;
            ``sample_weight=``: a sample is drawn once, and counts by its weight.

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
    data = observations(data)
    return _null(data, measure, draws, seed, progress)


def _null(data: Predictions, measure: Metric, draws: int, seed: int, progress: Progress | None) -> CalibrationTest:
    return judged(measure, *draw_null(data, measure, draws, seed, progress))


def confidence_interval(
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
    *,
    metric: Chosen = "esd",
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    bins: int | None = None,
    convention: ConventionName = "paper",
    progress: Progress | None = None,
    **given: Unpack[Given],
) -> Interval:
    r"""Confidence interval of the population value of a metric.

    ESD, MMCE and the gap have all their leave-one-out values in closed form: the jackknife takes as long as one
    sort. For ESD and MMCE the interval allows for a variance that grows with the value (as Wilson's does for a
    proportion), which keeps its coverage near 0, where the plain one covers 80 % instead of 95 %. It is cut off at 0.
    No interval is narrower than chance alone would make that of a calibrated model, even if all samples are equal.

    Other metrics are bootstrapped. Metrics such as ECE and KS are biased upward, by at most the bias that the bootstrap
    adds. So the lower end is corrected for that bias; the upper end, a quantile of the bootstrap, is not. The lower end
    is 0 unless :func:`calibration_test` rejects at ``(1 - level) / 2``. The value itself is biased and may lie outside.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``; or checked predictions.
        correct: 1 or True where the prediction is right, same shape.
        metric: As in :func:`calibration_test`; here the gap keeps its sign.
        level: Probability with which such intervals should contain the population value.
        draws: Number of draws of the bootstrap, and of the test.
        seed: Seed of the draws: the same seed gives the same result.
        bins: As in :func:`calibration_test`.
        convention: As in :func:`calibration_test`.
        progress: Called now and then with the number of draws done and the total number.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct;
            ``sample_weight=``: a sample is one observation, whatever its weight. The ESD and MMCE of an interval
            average over different samples, and differ from the metric, which counts a sample of weight 2 as two.

    References:
        Arvesen, "Jackknifing U-statistics", Annals of Mathematical Statistics 1969; Wilson, "Probable inference, the
        law of succession, and statistical inference", JASA 1927; Efron, Tibshirani, "An Introduction to the
        Bootstrap", 1993.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics
        >>> generator = np.random.default_rng(0)
        >>> confidence = generator.uniform(0.5, 1, 2000)
        >>> right = generator.random(2000) < confidence - 0.05
        >>> print(metrics.confidence_interval(confidence, right, metric="gap"))
        gap 3.55 % (95 % interval 1.66 % to 5.43 %, jackknife)
    """
    measure = asked_metric(metric, draws, seed, bins, convention)
    check_level(level)
    name = f"an interval of {label(measure.key)}"
    data = single(predictions(confidence, correct, **given))
    data = observations(data, minimum=measure.minimum + 1, name=name)
    if measure.jackknife is not None:
        found = measure.jackknife(data)
        low, high = np.clip(jackknife.interval(found, level), *measure.span).tolist()
        return Interval(measure.key, found.value, low, high, level, "jackknife")
    value = finite_value(data, measure)
    parts = 2 if measure.vanishes else 1
    (drawn,) = bootstrap((data,), measure, draws, seed, part_of(progress, 0, parts))
    reach = NormalDist().inv_cdf((1 + level) / 2) * float(drawn.std())
    ends = 2 * value - float(drawn.mean()) - reach, float(np.quantile(drawn, (1 + level) / 2))
    low, high = np.clip((min(ends), ends[1]), *measure.span).tolist()
    if measure.vanishes and _null(data, measure, draws, seed, part_of(progress, 1, parts)).p_value > (1 - level) / 2:
        low = 0.0
    return Interval(measure.key, value, low, high, level, "bootstrap")
