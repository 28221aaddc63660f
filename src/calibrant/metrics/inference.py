"""A test of calibration, confidence intervals, and the comparison of two models on the same samples."""

import math
import numbers
from collections.abc import Iterable
from statistics import NormalDist
from typing import Unpack

import numpy as np

from calibrant import inputs
from calibrant.arrays import Array
from calibrant.metrics import jackknife, resampling
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.jackknife import Difference, normal_difference
from calibrant.metrics.predictions import Given, Predictions, Values, predictions
from calibrant.metrics.resampling import Progress
from calibrant.metrics.rows import RowStatistic
from calibrant.metrics.table import Chosen, Metric, find_metric
from calibrant.metrics.verdicts import CalibrationTest, Comparison, Interval, label

__all__ = [
    "CalibrationTest",
    "Comparison",
    "Interval",
    "calibration_test",
    "compare",
    "confidence_interval",
]

# Draws that equal the data up to rounding are as extreme as the data.
ROUNDING = 1e-12


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
    measure = _measure(metric, draws, seed, bins, convention)
    data = _observations(predictions(confidence, correct, minimum=measure.minimum, name=label(measure.key), **given))
    return _null(data, measure, draws, seed, progress)


def _null(data: Predictions, measure: Metric, draws: int, seed: int, progress: Progress | None) -> CalibrationTest:
    return judged(measure, *_draw_null(data, measure, draws, seed, progress))


def judged(measure: Metric, observed: float, null: Array) -> CalibrationTest:
    """The test of a metric's value against its values on draws from a calibrated model."""
    draws = len(null)
    size = abs(observed) if measure.signed else observed
    null = np.abs(null) if measure.signed else null
    slack = ROUNDING * max(abs(observed), float(np.abs(null).max()))
    p_value = (1 + int((null >= size - slack).sum())) / (1 + draws)
    if measure.two_sided:
        p_value = min(2 * min(p_value, (1 + int((null <= size + slack).sum())) / (1 + draws)), 1.0)
    return CalibrationTest(measure.key, observed, p_value, draws, float(null.mean()), float(np.quantile(null, 0.95)))


def _draw_null(
    data: Predictions, measure: Metric, draws: int, seed: int, progress: Progress | None
) -> tuple[float, Array]:
    """The metric of the data, and of draws from a calibrated model with the same confidences."""
    observed = _value(data, measure)
    if measure.rows is not None:
        value = measure.rows(data)
        null = null_of_rows(value, resampling.consistent_residuals(data, draws, seed), draws, progress)
        # By the same sums as the draws: a draw that equals the data must tie with it.
        return float(value(resampling.observed_residuals(data.groups))[0]), _check_draws(null, measure)
    null = np.empty(draws)
    drawn = resampling.consistent_predictions(data, draws, seed, of_classes=measure.of_classes)
    for done, each in enumerate(drawn, 1):
        null[done - 1] = measure.value(each)
        if progress is not None:
            progress(done, draws)
    return observed, _check_draws(null, measure)


def null_of_rows(value: RowStatistic, residuals: Iterable[Array], draws: int, progress: Progress | None) -> Array:
    """The values of a metric on blocks of drawn residuals."""
    null = np.empty(draws)
    done = 0
    for block in residuals:
        null[done : done + len(block)] = value(block)
        done += len(block)
        if progress is not None:
            progress(done, draws)
    return null


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
    measure = _measure(metric, draws, seed, bins, convention)
    _check_level(level)
    name = f"an interval of {label(measure.key)}"
    data = _observations(predictions(confidence, correct, **given), minimum=measure.minimum + 1, name=name)
    if measure.jackknife is not None:
        found = measure.jackknife(data)
        low, high = np.clip(jackknife.interval(found, level), *measure.span).tolist()
        return Interval(measure.key, found.value, low, high, level, "jackknife")
    value = _value(data, measure)
    parts = 2 if measure.vanishes else 1
    (drawn,) = _bootstrap((data,), measure, draws, seed, _part(progress, 0, parts))
    reach = NormalDist().inv_cdf((1 + level) / 2) * float(drawn.std())
    ends = 2 * value - float(drawn.mean()) - reach, float(np.quantile(drawn, (1 + level) / 2))
    low, high = np.clip((min(ends), ends[1]), *measure.span).tolist()
    if measure.vanishes and _null(data, measure, draws, seed, _part(progress, 1, parts)).p_value > (1 - level) / 2:
        low = 0.0
    return Interval(measure.key, value, low, high, level, "bootstrap")


def _bootstrap(
    models: tuple[Predictions, ...], measure: Metric, draws: int, seed: int, progress: Progress | None
) -> tuple[Array, ...]:
    """The metric of each model on the same samples, drawn with replacement."""
    values = tuple(np.empty(draws) for _ in models)
    on_rows = measure.rows and [(measure.rows(model), resampling.bootstrap_residuals(model)) for model in models]
    done = 0
    for chosen in resampling.bootstrap_indices(len(models[0]), draws, seed):
        block = slice(done, done + len(chosen))
        if on_rows:
            counts = resampling.bootstrap_counts(chosen)
            for into, (value, residuals) in zip(values, on_rows, strict=True):
                into[block] = value(residuals(counts))
        else:
            for into, model in zip(values, models, strict=True):
                into[block] = [measure.value(resampling.take(model, row)) for row in chosen]
        done += len(chosen)
        if progress is not None:
            progress(done, draws)
    return tuple(_check_draws(drawn, measure) for drawn in values)


def compare(
    a: Predictions,
    b: Predictions,
    *,
    metric: Chosen = "esd",
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    bins: int | None = None,
    convention: ConventionName = "paper",
    progress: Progress | None = None,
) -> Comparison:
    """Compare two models on the same samples.

    A sample that is hard for one model is often hard for the other, so their errors are correlated, and the difference
    is known better than either value. For ESD, MMCE, accuracy and the gap, paired leave-one-out values give its
    standard error. The absolute values of two gaps differ only if both their difference and their sum are not 0: the
    p-value is the larger of those two.

    For other metrics both models are bootstrapped with the same samples. ECE and similar metrics are biased upward, and
    more so for the less confident model. Their interval covers those of the bootstrap's percentiles, of the difference,
    and of the difference minus the bias of calibrated models with these confidences; the p-value is the largest one.

    Args:
        a: Predictions of one model, as :func:`calibrant.metrics.predictions` makes them.
        b: Predictions of the other, of the same samples in the same order.
        metric: As in :func:`calibration_test`; for the gap, its absolute value.
        level: Confidence level of the interval of the difference, ``a - b``.
        draws: Number of draws of the bootstrap and of each calibrated model. The smallest p-value is
            ``2 / (1 + draws)``.
        seed: Seed of the bootstrap: the same seed gives the same result.
        bins: As in :func:`calibration_test`.
        convention: As in :func:`calibration_test`.
        progress: Called now and then with the number of draws done and the total number.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics
        >>> generator = np.random.default_rng(0)
        >>> confidence = generator.uniform(0.5, 0.9, 2000)
        >>> right = generator.random(2000) < confidence
        >>> over, honest = metrics.predictions(confidence + 0.1, right), metrics.predictions(confidence, right)
        >>> metrics.compare(over, honest).better
        'b'
    """
    measure = _measure(metric, draws, seed, bins, convention)
    _check_level(level)
    _check_pair(a, b)
    name = f"a comparison of {label(measure.key)}"
    a, b = (_observations(model, minimum=measure.minimum + 1, name=name) for model in (a, b))
    if measure.jackknife is not None:
        of_a, of_b = measure.jackknife(a), measure.jackknife(b)
        first, second = (abs(of.value) if measure.signed else of.value for of in (of_a, of_b))
        difference = jackknife.difference_of_sizes if measure.signed else jackknife.difference
        found, method = difference(of_a, of_b, level), "jackknife"
    else:
        first, second = _value(a, measure), _value(b, measure)
        parts = 3 if measure.vanishes else 1
        drawn_a, drawn_b = _bootstrap((a, b), measure, draws, seed, _part(progress, 0, parts))
        bias = float(drawn_a.mean() - drawn_b.mean()) - (first - second)
        if measure.vanishes:
            _, null_a = _draw_null(a, measure, draws, seed, _part(progress, 1, parts))
            _, null_b = _draw_null(b, measure, draws, seed, _part(progress, 2, parts))
            bias = float(null_a.mean() - null_b.mean())
        found, method = _bootstrap_difference(first - second, drawn_a - drawn_b, bias, level), "bootstrap"
    return Comparison(measure.key, first, second, first - second, found.low, found.high, found.p_value, level, method)


def _bootstrap_difference(observed: float, drawn: Array, bias: float, level: float) -> Difference:
    """Interval and p-value that hold by the percentiles, and with this bias of the difference as without."""
    spread = float(drawn.std())
    found = (
        _percentiles(drawn, level),
        normal_difference(observed, spread, level),
        normal_difference(observed - bias, spread, level),
    )
    low, high = min(each.low for each in found), max(each.high for each in found)
    # If they disagree on which is larger, there is no evidence of a difference.
    agree = len({math.copysign(1, centre) for centre in (float(np.median(drawn)), observed, observed - bias)}) == 1
    return Difference(low, high, max(each.p_value for each in found) if agree else 1.0)


def _percentiles(drawn: Array, level: float) -> Difference:
    """Interval and p-value by the share of draws on either side of 0, with the data counted once more on each side.

    They hold for any increasing function of the metric. So it does not matter if the errors of two models differ by a
    constant and move together.
    """
    ascending, draws = np.sort(drawn), len(drawn)
    fewer = min(int((ascending <= 0).sum()), int((ascending >= 0).sum()))
    rank = math.floor((1 - level) / 2 * (1 + draws)) - 1
    low, high = float(ascending[max(rank, 0)]), float(ascending[draws - 1 - max(rank, 0)])
    if rank < 0:  # so few draws cannot exclude 0
        low, high = min(low, 0.0), max(high, 0.0)
    return Difference(low, high, min(2 * (1 + fewer) / (1 + draws), 1.0))


def _observations(data: Predictions, minimum: int = 1, name: str = "this test") -> Predictions:
    """The samples that count: those of weight 0 would be drawn and left out like others."""
    if data.weight is not None and not data.weight.all():
        data = resampling.take(data, np.flatnonzero(data.weight))
    if len(data) < minimum:
        of_weight = "" if data.weight is None else " of positive weight"
        raise ValueError(f"{name} needs at least {minimum} sample{'s'[: minimum > 1]}{of_weight}, got {len(data)}")
    return data


def _value(data: Predictions, measure: Metric) -> float:
    value = measure.value(data)
    if not math.isfinite(value):
        raise ValueError(f"{label(measure.key)} must be a finite number, got {value} for the data: correct the metric")
    return value


def _check_draws(drawn: Array, measure: Metric) -> Array:
    if not np.isfinite(drawn).all():
        bad = int((~np.isfinite(drawn)).sum())
        raise ValueError(
            f"{label(measure.key)} must be a finite number for every draw, got {bad:,} of {len(drawn):,} that are not: "
            "use more samples or fewer bins, or correct the metric"
        )
    return drawn


def _part(progress: Progress | None, part: int, parts: int) -> Progress | None:
    """Progress of one of several parts with the same number of draws, reported as progress of the whole."""
    if progress is None:
        return None
    return lambda done, draws: progress(part * draws + done, parts * draws)


def _measure(metric: Chosen, draws: int, seed: int, bins: int | None, convention: ConventionName) -> Metric:
    inputs.check_count("draws", draws)
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise TypeError(f"seed must be a whole number, got {type(seed).__name__}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    return find_metric(metric, bins, convention)


def _check_level(level: float) -> None:
    inputs.check_range("level", level, low=0, high=1, open_low=True, open_high=True)


def _check_pair(a: Predictions, b: Predictions) -> None:
    for name, model in (("a", a), ("b", b)):
        if not isinstance(model, Predictions):
            got = type(model).__name__
            raise TypeError(f"{name} must be Predictions, got {got}: call metrics.predictions(...) first")
    if len(a) != len(b):
        raise ValueError(f"a and b must be predictions of the same samples, got {len(a)} and {len(b)} of them")
    first, second = (np.ones(len(each)) if each.weight is None else each.weight for each in (a, b))
    if not np.array_equal(first, second):
        raise ValueError("a and b must have the same sample_weight: give both the same weights, or none")
    if a.target is not None and b.target is not None and not np.array_equal(a.target, b.target):
        differ = int((a.target != b.target).sum())
        raise ValueError(
            f"a and b must have the same target, got {differ} of {len(a)} that differ: bring both into the same order"
        )
