"""Draws for tests and intervals: data sets of a calibrated model, and samples drawn again with replacement."""

import math
import numbers
from collections.abc import Iterable

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics import resampling
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.predictions import Predictions
from calibrant.metrics.resampling import Progress
from calibrant.metrics.rows import RowStatistic
from calibrant.metrics.table import Chosen, Metric, find_metric
from calibrant.metrics.verdicts import CalibrationTest, label

# Draws that equal the data up to rounding are as extreme as the data.
ROUNDING = 1e-12


def asked_metric(metric: Chosen, draws: int, seed: int, bins: int | None, convention: ConventionName) -> Metric:
    """The metric of a test or an interval, after a check of its draws and seed."""
    inputs.check_count("draws", draws)
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise TypeError(f"seed must be a whole number, got {type(seed).__name__}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    return find_metric(metric, bins, convention)


def single(data: Predictions) -> Predictions:
    """The predictions, unless they have several labels: those of one sample depend on each other."""
    if data.task == "multi-label" and data.classes != 1:
        raise ValueError(
            f"inference treats pairs as independent, and the {data.classes} labels of a sample are not: take the "
            "labels one by one, predictions.of_class(k)"
        )
    return data


def observations(data: Predictions, minimum: int = 1, name: str = "this test") -> Predictions:
    """The samples that count: those of weight 0 would be drawn and left out like others."""
    if data.weight is not None and not data.weight.all():
        data = resampling.take(data, np.flatnonzero(data.weight))
    if len(data) < minimum:
        of_weight = "" if data.weight is None else " of positive weight"
        raise ValueError(f"{name} needs at least {minimum} sample{'s'[: minimum > 1]}{of_weight}, got {len(data)}")
    return data


def finite_value(data: Predictions, measure: Metric) -> float:
    """The metric of the data; functions of the user's own may return anything."""
    value = measure.value(data)
    if not math.isfinite(value):
        raise ValueError(f"{label(measure.key)} must be a finite number, got {value} for the data: correct the metric")
    return value


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


def draw_null(
    data: Predictions, measure: Metric, draws: int, seed: int, progress: Progress | None
) -> tuple[float, Array]:
    """The metric of the data, and of draws from a calibrated model with the same confidences."""
    observed = finite_value(data, measure)
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


def bootstrap(
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


def _check_draws(drawn: Array, measure: Metric) -> Array:
    if not np.isfinite(drawn).all():
        bad = int((~np.isfinite(drawn)).sum())
        raise ValueError(
            f"{label(measure.key)} must be a finite number for every draw, got {bad:,} of {len(drawn):,} that are not: "
            "use more samples or fewer bins, or correct the metric"
        )
    return drawn


def part_of(progress: Progress | None, part: int, parts: int) -> Progress | None:
    """Progress of one of several parts with the same number of draws, reported as progress of the whole."""
    if progress is None:
        return None
    return lambda done, draws: progress(part * draws + done, parts * draws)


def check_level(level: float) -> None:
    """Raise ValueError unless a confidence level is between 0 and 1."""
    inputs.check_range("level", level, low=0, high=1, open_low=True, open_high=True)
