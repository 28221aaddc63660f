"""Is it real? A test of calibration, confidence intervals, and the comparison of two models on the same samples."""

import numbers
from statistics import NormalDist
from typing import Unpack

import numpy as np

from calibrant import inputs
from calibrant.known_gradient import Array
from calibrant.metrics import jackknife, resampling
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.jackknife import Difference, normal_difference
from calibrant.metrics.named import Metric, MetricName, Statistic, statistic
from calibrant.metrics.predictions import Given, Predictions, Values, predictions
from calibrant.metrics.resampling import Progress
from calibrant.metrics.verdicts import CalibrationTest, Comparison, Interval, label

__all__ = [
    "CalibrationTest",
    "Comparison",
    "Interval",
    "Metric",
    "MetricName",
    "calibration_test",
    "compare",
    "confidence_interval",
]

# Draws that equal the data but for rounding are as extreme as the data.
ROUNDING = 1e-12


def calibration_test(
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
    *,
    metric: Metric = "esd",
    draws: int = 1000,
    seed: int = 0,
    bins: int | None = None,
    convention: ConventionName = "paper",
    progress: Progress | None = None,
    **given: Unpack[Given],
) -> CalibrationTest:
    r"""Test the hypothesis that the model is calibrated, by consistency resampling.

    A calibrated model with these very confidences would be right with just those probabilities. So draw correctness
    that way many times, compute the metric of each draw, and see how many are as bad as the data:

    .. math:: p = \frac{1 + \#\{\text{draws with a metric} \ge \text{that of the data}\}}{1 + \#\text{draws}}.

    The test is exact for any metric, at any number of samples: a calibrated model is rejected at level 0.05 in 5 % of
    cases. For ESD, KS, ECE, MMCE and the gap one sort serves all draws. Metrics that see all classes, and functions
    of your own, get targets drawn from the class probabilities where those are known.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``; or predictions already checked.
        correct: 1 or True where the prediction is right, same shape.
        metric: One of ``"esd"``, ``"ks"``, ``"ece"``, ``"mmce"``, ``"gap"`` (its size), ``"smooth_ece"``,
            ``"ece_equal_mass"``, ``"ece_sweep"``, ``"debiased_l2"``, ``"mce"``, ``"classwise_ece"``, ``"brier"``,
            ``"nll"``; or a function of :class:`~calibrant.metrics.Predictions` that grows as calibration gets worse.
        draws: How many data sets to draw. The smallest possible p-value is ``1 / (1 + draws)``.
        seed: Of the draws: the same seed gives the same result.
        bins: Of the binned metrics; by default the convention's, or 15 of equal mass.
        convention: Of the equal-width ones, as for :func:`calibrant.metrics.ece`.
        progress: Called now and then with the number of draws done and ``draws``.
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
        ESD 3.47e-04, p = 0.002 (1,000 draws): calibrated is rejected at 5 %
    """
    measure = _measure(metric, draws, seed, bins, convention)
    data = predictions(confidence, correct, minimum=measure.minimum, name=label(measure.key), **given)
    return _null(data, measure, draws, seed, progress)


def _null(data: Predictions, measure: Statistic, draws: int, seed: int, progress: Progress | None) -> CalibrationTest:
    observed, null = _draw_null(data, measure, draws, seed, progress)
    if measure.signed:
        observed, null = abs(observed), np.abs(null)
    extreme = null >= observed - ROUNDING * max(abs(observed), float(np.abs(null).max()))
    p_value = (1 + int(extreme.sum())) / (1 + draws)
    return CalibrationTest(measure.key, observed, p_value, draws, float(null.mean()), float(np.quantile(null, 0.95)))


def _draw_null(
    data: Predictions, measure: Statistic, draws: int, seed: int, progress: Progress | None
) -> tuple[float, Array]:
    """The metric of the data, and of what a calibrated model with the same confidences draws."""
    null = np.empty(draws)
    done = 0
    if measure.rows is not None:
        value = measure.rows(data)
        for block in resampling.consistent_residuals(data.groups, draws, seed):
            null[done : done + len(block)] = value(block)
            done += len(block)
            if progress is not None:
                progress(done, draws)
        return float(value(resampling.observed_residuals(data.groups))[0]), null
    for drawn in resampling.consistent_predictions(data, draws, seed, of_classes=measure.of_classes):
        null[done] = measure.value(drawn)
        done += 1
        if progress is not None:
            progress(done, draws)
    return measure.value(data), null


def confidence_interval(
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
    *,
    metric: Metric = "esd",
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    bins: int | None = None,
    convention: ConventionName = "paper",
    progress: Progress | None = None,
    **given: Unpack[Given],
) -> Interval:
    r"""Confidence interval of a metric: how far chance may have moved it from its value for the population.

    ESD, MMCE and the gap have all their leave-one-out values in closed form: the jackknife takes as long as one
    sort. For ESD and MMCE the interval allows for a variance that grows with the value (as Wilson's does for a
    proportion), which keeps it honest near 0, where the plain one covers 80 % instead of 95 %.

    The rest is bootstrapped. Metrics such as ECE and KS are biased upward, by an amount between none and what the
    bootstrap adds once more. So the lower end takes that bias off; the upper end, the bootstrap's own quantile, does
    not; and the lower end is 0 unless :func:`calibration_test` rejects at ``(1 - level) / 2``. The value itself, being
    biased, may then lie outside.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``; or predictions already checked.
        correct: 1 or True where the prediction is right, same shape.
        metric: As for :func:`calibration_test`; here the gap keeps its sign.
        level: Probability with which such intervals should hold the value of the population.
        draws: Of the bootstrap, and of the test.
        seed: Of the draws: the same seed gives the same result.
        bins: As for :func:`calibration_test`.
        convention: As for :func:`calibration_test`.
        progress: Called now and then with the number of draws done and the number of all draws.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

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
    data = predictions(confidence, correct, minimum=measure.minimum + 1, name=name, **given)
    if measure.jackknife is not None:
        found = measure.jackknife(data)
        return Interval(measure.key, found.value, *jackknife.interval(found, level), level, "jackknife")
    value = measure.value(data)
    total = 2 * draws if measure.vanishes else draws
    (drawn,) = _bootstrap((data,), measure, draws, seed, progress and (lambda done, _: progress(done, total)))
    high = float(np.quantile(drawn, (1 + level) / 2))
    reach = NormalDist().inv_cdf((1 + level) / 2) * float(drawn.std())
    low = min(2 * value - float(drawn.mean()) - reach, high)
    if measure.vanishes:
        null = _null(data, measure, draws, seed, progress and (lambda done, _: progress(draws + done, total)))
        low = 0.0 if null.p_value > (1 - level) / 2 else max(low, 0.0)
    return Interval(measure.key, value, low, high, level, "bootstrap")


def _bootstrap(
    models: tuple[Predictions, ...], measure: Statistic, draws: int, seed: int, progress: Progress | None
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
    return values


def compare(
    a: Predictions,
    b: Predictions,
    *,
    metric: Metric = "esd",
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    bins: int | None = None,
    convention: ConventionName = "paper",
    progress: Progress | None = None,
) -> Comparison:
    """Compare two models on the same samples: is one better calibrated, or can the data not tell?

    What makes a sample hard makes it hard for both models, so their errors are alike, and the difference is known
    better than either value. For ESD, MMCE and the gap leave-one-out values of both, sample by sample, give its
    standard error; for the rest both models are bootstrapped with the same samples. ECE and its kin are biased upward,
    and more so for the less confident model: there the interval holds the difference with the bias taken off and with
    the bias left in, and the p-value is the larger one.

    Args:
        a: Predictions of one model, as :func:`calibrant.metrics.predictions` makes them.
        b: Predictions of the other, of the same samples in the same order.
        metric: As for :func:`calibration_test`; of the gap, its size.
        level: Of the interval of the difference, ``a - b``.
        draws: Of the bootstrap.
        seed: Of the bootstrap: the same seed gives the same result.
        bins: As for :func:`calibration_test`.
        convention: As for :func:`calibration_test`.
        progress: Called now and then with the number of draws done and ``draws``.

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
    for model in (a, b):
        predictions(model, minimum=measure.minimum + 1, name=f"a comparison of {label(measure.key)}")
    if measure.jackknife is not None:
        of_a, of_b = measure.jackknife(a), measure.jackknife(b)
        first, second = (abs(of.value) if measure.signed else of.value for of in (of_a, of_b))
        found, method = jackknife.difference(of_a, of_b, level), "jackknife"
    else:
        first, second = measure.value(a), measure.value(b)
        drawn_a, drawn_b = _bootstrap((a, b), measure, draws, seed, progress)
        found, method = _bootstrap_difference(first - second, drawn_a - drawn_b, level), "bootstrap"
    return Comparison(measure.key, first, second, first - second, found.low, found.high, found.p_value, level, method)


def _bootstrap_difference(observed: float, drawn: Array, level: float) -> Difference:
    """Interval and p-value that hold whether the bias of the difference is none or what the bootstrap adds."""
    spread = float(drawn.std())
    as_is = normal_difference(observed, spread, level)
    corrected = normal_difference(2 * observed - float(drawn.mean()), spread, level)
    low, high = min(as_is.low, corrected.low), max(as_is.high, corrected.high)
    agree = observed * (2 * observed - float(drawn.mean())) > 0
    return Difference(low, high, max(as_is.p_value, corrected.p_value) if agree else 1.0)


def _measure(metric: Metric, draws: int, seed: int, bins: int | None, convention: ConventionName) -> Statistic:
    inputs.check_count("draws", draws)
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise TypeError(f"seed must be a whole number, got {type(seed).__name__}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    return statistic(metric, bins, convention)


def _check_level(level: float) -> None:
    inputs.check_range("level", level, low=0, high=1, open_low=True, open_high=True)


def _check_pair(a: Predictions, b: Predictions) -> None:
    for name, model in (("a", a), ("b", b)):
        if not isinstance(model, Predictions):
            got = type(model).__name__
            raise TypeError(f"{name} must be Predictions, got {got}: call metrics.predictions(...) first")
    if len(a) != len(b):
        raise ValueError(f"a and b must be predictions of the same samples, got {len(a)} and {len(b)} of them")
    if a.target is not None and b.target is not None and not np.array_equal(a.target, b.target):
        differ = int((a.target != b.target).sum())
        raise ValueError(
            f"a and b must have the same target, got {differ} of {len(a)} that differ: bring both into the same order"
        )
