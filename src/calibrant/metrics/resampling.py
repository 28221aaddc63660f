"""Resampled data: correctness drawn from a calibrated model, and samples drawn with replacement.

Draws for metrics of the pairs are residuals of the tie groups (see :mod:`calibrant.metrics.rows`), made in blocks of
rows; draws for any other metric are predictions. Each purpose has its own stream of random numbers, read row by row,
so that the size of the blocks does not change the draws.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from calibrant.frames import Array, IndexArray
from calibrant.metrics.predictions import ROWS, Predictions
from calibrant.metrics.sorting import TieGroups, weighted_order

# Called with the number of draws done, and the total number.
Progress = Callable[[int, int], None]
# Numbers in memory at a time: a few matrices of this size fit in a core's cache.
CELLS = 1 << 15
# Names of the streams of random numbers that belong to one seed.
CONSISTENCY, BOOTSTRAP = 0, 1


def block_sizes(draws: int, width: int) -> Iterator[int]:
    """Numbers of draws to make at a time if each is a row of ``width`` numbers."""
    rows = max(1, CELLS // max(width, 1))
    for start in range(0, draws, rows):
        yield min(rows, draws - start)


def observed_residuals(groups: TieGroups) -> Array:
    """The residuals of the data themselves, as one row."""
    return (groups.right - groups.samples * groups.confidence)[np.newaxis]


def consistent_residuals(given: Predictions, draws: int, seed: int) -> Iterator[Array]:
    """Blocks of residuals of a calibrated model with these confidences: right with exactly that probability.

    Uniform numbers have 53 bits, so a confidence of 0.99999 is wrong as often as it should be, and one of 1 never.
    With weights, a sample is drawn once and counts by its weight.
    """
    if given.weight is None:
        return consistent_group_residuals(given.groups, draws, seed)
    return _weighted_residuals(given, given.weight, draws, seed)


def consistent_group_residuals(groups: TieGroups, draws: int, seed: int) -> Iterator[Array]:
    """The same from tie groups of samples without weights."""
    alone, together = np.random.default_rng((seed, CONSISTENCY)).spawn(2)
    tied = np.flatnonzero(groups.samples > 1)
    sizes, chances = groups.samples[tied].astype(np.int64), groups.confidence[tied]
    expected = groups.samples * groups.confidence
    for rows in block_sizes(draws, len(expected)):
        uniform = alone.random((rows, len(expected)))
        residual = np.subtract(uniform < groups.confidence, expected, out=uniform)
        if len(tied):
            residual[:, tied] = together.binomial(sizes, chances, (rows, len(tied))) - expected[tied]
        yield residual


def _weighted_residuals(given: Predictions, weight: Array, draws: int, seed: int) -> Iterator[Array]:
    generator = np.random.default_rng((seed, CONSISTENCY))
    order, first = weighted_order(given.confidence, weight)
    confidence, weight = given.confidence[order].astype(np.float64), weight[order]
    for rows in block_sizes(draws, len(order)):
        uniform = generator.random((rows, len(order)))
        residual = np.subtract(uniform < confidence, confidence, out=uniform)
        residual *= weight
        yield np.add.reduceat(residual, first, axis=1)


def consistent_predictions(given: Predictions, draws: int, seed: int, *, of_classes: bool) -> Iterator[Predictions]:
    """The same as predictions, one at a time, for any metric; with ``of_classes``, of all classes if they are known."""
    generator = np.random.default_rng((seed, CONSISTENCY))
    if of_classes and given.task == "multi-label":  # of a single label: see `inference`
        for _ in range(draws):
            correct = generator.random(len(given)) < given.confidence
            yield replace(given, correct=correct, target=correct.astype(np.intp)[:, np.newaxis])
        return
    if not of_classes or given.probabilities is None or given.target is None:
        for _ in range(draws):
            correct = generator.random(len(given)) < given.confidence
            yield Predictions(given.confidence, correct, weight=given.weight)
        return
    scores = given.probabilities if given.logits is None else given.logits
    predicted = scores.argmax(1)
    shares = given.probabilities.cumsum(1, dtype=np.float64)
    shares /= shares[:, -1:]
    for _ in range(draws):
        uniform = generator.random((len(given), 1))
        blocks = (slice(start, start + ROWS) for start in range(0, len(given), ROWS))
        target = np.concatenate([(shares[block] <= uniform[block]).sum(1) for block in blocks])
        yield replace(given, correct=predicted == target, target=target)


def bootstrap_indices(samples: int, draws: int, seed: int) -> Iterator[IndexArray]:
    """Blocks of rows of samples drawn with replacement."""
    generator = np.random.default_rng((seed, BOOTSTRAP))
    for rows in block_sizes(draws, samples):
        yield generator.integers(0, samples, (rows, samples))


def bootstrap_counts(chosen: IndexArray) -> Array:
    """How often each sample was drawn: (draws, samples)."""
    rows, samples = chosen.shape
    cells = chosen + np.arange(0, rows * samples, samples)[:, np.newaxis]
    return np.bincount(cells.ravel(), minlength=rows * samples).reshape(rows, samples).astype(np.float64)


def bootstrap_residuals(given: Predictions) -> Callable[[Array], Array]:
    """A function from counts of samples, in the order given, to residuals of the tie groups.

    With weights, the weights drawn do not sum to those of the data: the residuals are scaled as if they did.
    """
    order, first = weighted_order(given.confidence, given.weight)
    residual = given.correct[order] - given.confidence[order].astype(np.float64)
    if given.weight is not None:
        residual *= given.weight[order]

    def residuals(counts: Array) -> Array:
        rows: Array = counts.take(order, axis=1) * residual
        if given.weight is not None:
            rows *= (given.total / (counts @ given.weight))[:, np.newaxis]
        return rows if len(first) == len(order) else np.add.reduceat(rows, first, axis=1)

    return residuals


def take(given: Predictions, chosen: IndexArray) -> Predictions:
    """The predictions of some samples."""
    return given[chosen]
