"""Resampled data: correctness drawn from a calibrated model, and samples drawn with replacement.

Draws for metrics of the pairs are residuals of the ties, made in blocks of rows; draws for any other metric are
predictions. Each purpose has its own stream of random numbers, read row by row, so that the size of the blocks does not
change the draws. A sample of weight 2 is drawn as two; 0.3 is drawn with this probability.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.predictions import ROWS, Predictions
from calibrant.metrics.registry import Chosen, Metric, find_metric, label
from calibrant.metrics.ties import SortedRows, Ties

# Called with the number of draws done, and the total number.
Progress = Callable[[int, int], None]
# Numbers in memory at a time: a few matrices of this size fit in a core's cache.
CELLS = 1 << 15
# Names of the streams of random numbers that belong to one seed.
CONSISTENCY, BOOTSTRAP = 0, 1


def asked_metric(metric: Chosen, draws: int, seed: int, bins: int | None, convention: ConventionName) -> Metric:
    """The metric of a test or an interval, after a check of its draws and seed."""
    inputs.check_count("draws", draws)
    inputs.check_count("seed", seed, low=0)
    return find_metric(metric, bins, convention)


def check_level(level: float) -> None:
    """Raise ValueError unless a confidence level is between 0 and 1."""
    inputs.check_range("level", level, low=0, high=1, open_low=True, open_high=True)


def single(data: Predictions) -> Predictions:
    """The predictions, unless they have several labels: those of one sample depend on each other."""
    if data.task == "multi-label" and data.classes != 1:
        raise ValueError(
            f"inference treats pairs as independent, and the {data.classes} labels of a sample are not: take the "
            "labels one by one, predictions.of_class(k)"
        )
    return data


def finite_value(data: Predictions, measure: Metric) -> float:
    """The metric of the data; functions of the user's own may return anything."""
    value = measure.value(data)
    if not math.isfinite(value):
        raise ValueError(f"{label(measure.key)} must be a finite number, got {value} for the data: correct the metric")
    return value


def block_sizes(draws: int, width: int) -> Iterator[int]:
    """Numbers of draws to make at a time if each is a row of ``width`` numbers."""
    rows = max(1, CELLS // max(width, 1))
    for start in range(0, draws, rows):
        yield min(rows, draws - start)


def observed_residuals(ties: Ties) -> Array:
    """The residuals of the data themselves, as one row."""
    return (ties.right - ties.samples * ties.confidence)[np.newaxis]


def consistent_residuals(ties: Ties, draws: int, seed: int) -> Iterator[Array]:
    """Blocks of residuals of a calibrated model with these confidences: right with exactly that probability.

    Uniform numbers have 53 bits, so a confidence of 0.99999 is wrong as often as it should be, and one of 1 never.
    """
    alone, together, fractions = np.random.default_rng((seed, CONSISTENCY)).spawn(3)
    z, samples, _ = ties
    whole = np.floor(samples)
    if (whole < samples).any():
        for rows in block_sizes(draws, len(z)):
            counts = whole + (fractions.random((rows, len(z))) < samples - whole)
            yield together.binomial(counts.astype(np.int64), z) - counts * z
        return
    tied = np.flatnonzero(samples > 1)
    sizes, chances, expected = samples[tied].astype(np.int64), z[tied], samples * z
    for rows in block_sizes(draws, len(z)):
        uniform = alone.random((rows, len(z)))
        residual = np.subtract(uniform < z, expected, out=uniform)
        if len(tied):
            residual[:, tied] = together.binomial(sizes, chances, (rows, len(tied))) - expected[tied]
        yield residual


def consistent_predictions(given: Predictions, draws: int, seed: int, *, of_classes: bool) -> Iterator[Predictions]:
    """The same as predictions, one at a time, for any metric; with ``of_classes``, of all classes if they are known."""
    generator = np.random.default_rng((seed, CONSISTENCY))
    given = given if of_classes and given.probabilities is not None else given.pairs
    for _ in range(draws):
        yield _drawn(_unweighted(given, generator), generator)


def _unweighted(given: Predictions, generator: np.random.Generator) -> Predictions:
    """Samples as often as their weights say; of a fraction, by chance."""
    weight = given.sample_weight
    if weight is None:
        return given
    whole = np.floor(weight)
    return given.repeated(whole + (generator.random(len(weight)) < weight - whole))


def _drawn(given: Predictions, generator: np.random.Generator) -> Predictions:
    if given.probabilities is None or given.target is None:
        return Predictions(given.confidence, generator.random(len(given)) < given.confidence)
    if given.task == "multi-label":  # of a single label, see `single`
        correct = generator.random(len(given)) < given.confidence
        return replace(given, correct=correct, target=correct.astype(np.intp)[:, np.newaxis])
    shares = given.probabilities.cumsum(1, dtype=np.float64)
    shares /= shares[:, -1:]
    uniform = generator.random((len(given), 1))
    blocks = (slice(start, start + ROWS) for start in range(0, len(given), ROWS))
    target = np.concatenate([(shares[block] <= uniform[block]).sum(1) for block in blocks])
    scores = given.probabilities if given.logits is None else given.logits
    return replace(given, correct=scores.argmax(1) == target, target=target)


def draw_null(data: Predictions, measure: Metric, draws: int, seed: int) -> tuple[float, Array]:
    """The metric of the data, and of draws from a calibrated model with the same confidences."""
    observed = finite_value(data, measure)
    if measure.rows is not None:
        value = measure.rows(data)
        # By the same sums as the draws: a draw that equals the data must tie with it.
        observed = float(value(observed_residuals(data.ties))[0])
        null = np.concatenate([value(block) for block in consistent_residuals(data.ties, draws, seed)])
    else:
        drawn = consistent_predictions(data, draws, seed, of_classes=measure.of_classes)
        null = np.array([measure.value(each) for each in drawn])
    return observed, _check_draws(null, measure)


def bootstrap(models: tuple[Predictions, ...], measure: Metric, draws: int, seed: int) -> tuple[Array, ...]:
    """The metric of each model on the same samples, drawn with replacement."""
    on_counts = [_of_counts(model, measure) for model in models]
    blocks = [[value(counts) for value in on_counts] for counts in _bootstrap_counts(models[0], draws, seed)]
    return tuple(_check_draws(np.concatenate(each), measure) for each in zip(*blocks, strict=True))


def _of_counts(given: Predictions, measure: Metric) -> Callable[[Array], Array]:
    """The metric of samples drawn, by how often each was drawn: (draws, samples)."""
    if measure.rows is None:
        return lambda counts: np.array([measure.value(given.repeated(row)) for row in counts])
    value, residuals = measure.rows(given), _residuals_of_counts(given)
    return lambda counts: value(residuals(counts))


def _bootstrap_counts(given: Predictions, draws: int, seed: int) -> Iterator[Array]:
    """Blocks of how often each sample is drawn: (draws, samples)."""
    generator = np.random.default_rng((seed, BOOTSTRAP))
    weight, samples = given.sample_weight, given.samples
    for rows in block_sizes(draws, samples):
        if weight is None:
            cells = generator.integers(0, samples, (rows, samples))
            cells += np.arange(0, rows * samples, samples)[:, np.newaxis]
            counts = np.bincount(cells.ravel(), minlength=rows * samples).reshape(rows, samples)
        else:
            counts = generator.multinomial(round(given.total), weight / weight.sum(), size=rows)
        yield counts.astype(np.float64)


def _residuals_of_counts(given: Predictions) -> Callable[[Array], Array]:
    """A function from counts of samples, in the order given, to residuals of the ties."""
    rows = SortedRows(given)
    residual = rows.residual * (given.total / round(given.total))

    def residuals(counts: Array) -> Array:
        each: Array = counts.take(rows.order, axis=1) * residual
        return each if len(rows.first) == len(rows.order) else np.add.reduceat(each, rows.first, axis=1)

    return residuals


def _check_draws(drawn: Array, measure: Metric) -> Array:
    if not np.isfinite(drawn).all():
        bad = int((~np.isfinite(drawn)).sum())
        raise ValueError(
            f"{label(measure.key)} must be a finite number for every draw, got {bad:,} of {len(drawn):,} that are not: "
            "use more samples or fewer bins, or correct the metric"
        )
    return drawn
