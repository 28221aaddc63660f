"""Is it real? A test of calibration, confidence intervals, and the comparison of two models on the same samples."""

from statistics import NormalDist
from typing import Unpack

import numpy as np

from calibrant import inputs
from calibrant.known_gradient import Array
from calibrant.metrics import resampling
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.jackknife import standard_error
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
        ESD 5.62e-04, p < 0.001 (1,000 draws): calibrated is rejected at 5 %
    """
    measure = _measure(metric, draws, seed, bins, convention)
    data = predictions(confidence, correct, minimum=measure.minimum, name=label(measure.key), **given)
    observed, null = _null(data, measure, draws, seed, progress)
    if measure.signed:
        observed, null = abs(observed), np.abs(null)
    extreme = null >= observed - ROUNDING * max(abs(observed), float(np.abs(null).max()))
    p_value = (1 + int(extreme.sum())) / (1 + draws)
    return CalibrationTest(measure.key, observed, p_value, draws, float(null.mean()), float(np.quantile(null, 0.95)))


def _null(
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
    observed = measure.value(data)
    for drawn in resampling.consistent_predictions(data, draws, seed, of_classes=measure.of_classes):
        null[done] = measure.value(drawn)
        done += 1
        if progress is not None:
            progress(done, draws)
    return observed, null


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
    r"""Confidence interval of a metric: by the jackknife for ESD, MMCE and the gap, by the bootstrap for the rest.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``; or predictions already checked.
        correct: 1 or True where the prediction is right, same shape.
        metric: As for :func:`calibration_test`; the gap keeps its sign.
        level: Probability with which such intervals should hold the value of the population.
        draws: Of the bootstrap.
        seed: Of the bootstrap.
        bins: As for :func:`calibration_test`.
        convention: As for :func:`calibration_test`.
        progress: Called now and then with the number of draws done and ``draws``.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.
    """
    measure = _measure(metric, draws, seed, bins, convention)
    _check_level(level)
    jackknife = measure.without_each is not None
    data = predictions(
        confidence, correct, minimum=_minimum(measure), name=f"an interval of {label(measure.key)}", **given
    )
    value = measure.value(data)
    if measure.without_each is not None:
        centre, spread = value, standard_error(measure.without_each(data))
    else:
        (drawn,) = _bootstrap((data,), measure, draws, seed, progress)
        centre, spread = 2 * value - float(drawn.mean()), float(drawn.std())
    reach = _quantile(level) * spread
    floor = 0.0 if measure.positive else -np.inf
    low, high = max(centre - reach, floor), max(centre + reach, floor)
    return Interval(measure.key, value, low, high, level, "jackknife" if jackknife else "bootstrap")


def _bootstrap(
    models: tuple[Predictions, ...], measure: Statistic, draws: int, seed: int, progress: Progress | None
) -> tuple[Array, ...]:
    """The metric of each model on the same samples, drawn with replacement."""
    values = tuple(np.empty(draws) for _ in models)
    done = 0
    rows = None
    if measure.rows is not None:
        rows = [(measure.rows(model), resampling.bootstrap_residuals(model)) for model in models]
    for chosen in resampling.bootstrap_indices(len(models[0]), draws, seed):
        block = slice(done, done + len(chosen))
        if rows is not None:
            counts = resampling.bootstrap_counts(chosen)
            for into, (value, residuals) in zip(values, rows, strict=True):
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

    Args:
        a: Predictions of one model, as :func:`calibrant.metrics.predictions` makes them.
        b: Predictions of the other, of the same samples in the same order.
        metric: As for :func:`calibration_test`.
        level: Of the interval of the difference.
        draws: Of the bootstrap.
        seed: Of the bootstrap.
        bins: As for :func:`calibration_test`.
        convention: As for :func:`calibration_test`.
        progress: Called now and then with the number of draws done and ``draws``.
    """
    measure = _measure(metric, draws, seed, bins, convention)
    _check_level(level)
    _check_pair(a, b)
    for model in (a, b):
        predictions(model, minimum=_minimum(measure), name=f"a comparison of {label(measure.key)}")
    size = np.abs if measure.signed else np.asarray
    first, second = float(size(measure.value(a))), float(size(measure.value(b)))
    difference = first - second
    if measure.without_each is not None:
        method = "jackknife"
        centre, spread = difference, standard_error(size(measure.without_each(a)) - size(measure.without_each(b)))
    else:
        method = "bootstrap"
        of_a, of_b = _bootstrap((a, b), measure, draws, seed, progress)
        drawn = of_a - of_b
        centre, spread = 2 * difference - float(drawn.mean()), float(drawn.std())
    reach = _quantile(level) * spread
    # If nothing varies, the models are the same where it counts, and the data cannot tell them apart.
    p_value = 2 * NormalDist().cdf(-abs(centre) / spread) if spread > 0 else float(centre == 0)
    return Comparison(measure.key, first, second, difference, centre - reach, centre + reach, p_value, level, method)


def _measure(metric: Metric, draws: int, seed: int, bins: int | None, convention: ConventionName) -> Statistic:
    inputs.check_count("draws", draws)
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return statistic(metric, bins, convention)


def _check_level(level: float) -> None:
    inputs.check_range("level", level, low=0, high=1, open_low=True, open_high=True)


def _minimum(measure: Statistic) -> int:
    """Leaving one sample out must leave enough."""
    return measure.minimum + 1


def _check_pair(a: Predictions, b: Predictions) -> None:
    for name, model in (("a", a), ("b", b)):
        if not isinstance(model, Predictions):
            raise TypeError(
                f"{name} must be Predictions, got {type(model).__name__}: call metrics.predictions(...) first"
            )
    if len(a) != len(b):
        raise ValueError(f"a and b must be predictions of the same samples, got {len(a)} and {len(b)}")
    if a.target is not None and b.target is not None and not np.array_equal(a.target, b.target):
        differ = int((a.target != b.target).sum())
        raise ValueError(f"a and b must have the same target, got {differ} that differ: bring both into the same order")


def _quantile(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)
