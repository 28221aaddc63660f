"""Draws of data that might have been: labels drawn by the model itself, and samples drawn again from the samples.

Metrics of the pairs see only the residuals of the tie groups, correctness minus confidence summed over samples of
equal confidence. A draw changes those and nothing else, so one sort serves all draws: they come as the rows of
matrices, some rows at a time, and a row statistic turns each row into one number.
"""

from collections.abc import Callable, Iterator

import numpy as np

from calibrant.known_gradient import Array, IndexArray
from calibrant.metrics.binned import ConventionName, _rule, _slots
from calibrant.metrics.predictions import ROWS, Predictions
from calibrant.metrics.sorting import TieGroups

# (draws, groups) residuals to (draws,) values.
RowStatistic = Callable[[Array], Array]
# Told how many draws are done, and how many there will be.
Progress = Callable[[int, int], None]
# Numbers held at a time: a few matrices of them stay in a core's own cache.
CELLS = 1 << 15


def block_sizes(draws: int, width: int) -> Iterator[int]:
    """How many draws to make at a time when each is a row of ``width`` numbers."""
    rows = max(1, CELLS // max(width, 1))
    for start in range(0, draws, rows):
        yield min(rows, draws - start)


def observed_residuals(groups: TieGroups) -> Array:
    """The residuals of the data themselves, as one row."""
    return (groups.right - groups.samples * groups.confidence)[np.newaxis]


def consistent_residuals(groups: TieGroups, draws: int, seed: int) -> Iterator[Array]:
    """Blocks of residuals of a calibrated model with these confidences: right with just that probability.

    Uniform numbers have 53 bits, so a confidence of 0.99999 is wrong as often as it should be, and one of 1 never.
    Each kind of draw has its own stream, read row by row: the size of the blocks does not change the draws.
    """
    alone, together = np.random.default_rng(seed).spawn(2)
    tied = np.flatnonzero(groups.samples > 1)
    sizes, chances = groups.samples[tied].astype(np.int64), groups.confidence[tied]
    expected = groups.samples * groups.confidence
    for rows in block_sizes(draws, len(expected)):
        uniform = alone.random((rows, len(expected)))
        residual = np.subtract(uniform < groups.confidence, expected, out=uniform)
        if len(tied):
            residual[:, tied] = together.binomial(sizes, chances, (rows, len(tied))) - expected[tied]
        yield residual


def consistent_predictions(given: Predictions, draws: int, seed: int, *, of_classes: bool) -> Iterator[Predictions]:
    """The same one at a time as predictions, for metrics of any kind; of all classes if asked and if they are known."""
    generator = np.random.default_rng(seed)
    if not of_classes or given.probabilities is None or given.target is None:
        for _ in range(draws):
            yield Predictions(given.confidence, generator.random(len(given)) < given.confidence)
        return
    scores = given.probabilities if given.logits is None else given.logits
    predicted = scores.argmax(1)
    shares = given.probabilities.cumsum(1, dtype=np.float64)
    shares /= shares[:, -1:]
    for _ in range(draws):
        uniform = generator.random((len(given), 1))
        blocks = (slice(start, start + ROWS) for start in range(0, len(given), ROWS))
        target = np.concatenate([(shares[block] <= uniform[block]).sum(1) for block in blocks])
        yield Predictions(given.confidence, predicted == target, given.probabilities, given.logits, target)


def bootstrap_indices(samples: int, draws: int, seed: int) -> Iterator[IndexArray]:
    """Blocks of rows of samples drawn with replacement."""
    generator = np.random.default_rng(seed)
    for rows in block_sizes(draws, samples):
        yield generator.integers(0, samples, (rows, samples))


def bootstrap_counts(chosen: IndexArray) -> Array:
    """How often each sample was drawn: (draws, samples)."""
    rows, samples = chosen.shape
    cells = chosen + np.arange(0, rows * samples, samples)[:, np.newaxis]
    return np.bincount(cells.ravel(), minlength=rows * samples).reshape(rows, samples).astype(np.float64)


def bootstrap_residuals(given: Predictions) -> Callable[[Array], Array]:
    """A function from counts of samples, in the order given, to residuals of the tie groups."""
    order = np.argsort(given.confidence, kind="stable")
    residual = given.correct[order] - given.confidence[order].astype(np.float64)
    sizes = given.groups.samples.astype(np.intp)
    starts = sizes.cumsum() - sizes

    def residuals(counts: Array) -> Array:
        rows: Array = counts.take(order, axis=1) * residual
        return rows if len(starts) == len(order) else np.add.reduceat(rows, starts, axis=1)

    return residuals


def take(given: Predictions, chosen: IndexArray) -> Predictions:
    """The predictions of some samples."""
    return Predictions(
        given.confidence[chosen],
        given.correct[chosen],
        None if given.probabilities is None else given.probabilities[chosen],
        None if given.logits is None else given.logits[chosen],
        None if given.target is None else given.target[chosen],
    )


def esd_rows(groups: TieGroups) -> RowStatistic:
    r"""ESD of each row.

    With :math:`R_g` the residual of a group of :math:`n_g` samples, :math:`E_g` the sum of residuals up to and with it
    and :math:`s_g` the number of samples below, :math:`\sum_i A_i^2` is the sum of
    :math:`n_g E_g^2 - 2 E_g R_g + Q_g`, and :math:`\sum_i B_i` that of :math:`(N - 1 - s_g) Q_g`. Their squares sum to
    :math:`Q_g = (1 - 2 z_g) R_g + n_g z_g (1 - z_g)`, which is linear in :math:`R_g`, as correctness is 0 or 1.
    """
    z, samples, _ = groups
    n = float(samples.sum())
    above = n - 2 - (samples.cumsum() - samples)
    slope = (1 - 2 * z) * above
    constant = float((samples * z * (1 - z) * above).sum())

    def value(residual: Array) -> Array:
        ends = residual.cumsum(1)
        pairs = ends * samples
        pairs -= residual
        pairs -= residual
        total: Array = np.einsum("ij,ij->i", ends, pairs) - np.einsum("ij,j->i", residual, slope)
        return (total - constant) / (n * (n - 1) * (n - 2))

    return value


def ks_rows(groups: TieGroups) -> RowStatistic:
    """KS error of each row: the largest sum of residuals up to a group, in absolute value."""
    n = float(groups.samples.sum())

    def value(residual: Array) -> Array:
        ends = residual.cumsum(1)
        largest: Array = np.maximum(ends.max(1), -ends.min(1))
        return largest / n

    return value


def ece_rows(given: Predictions, bins: int | None, convention: ConventionName) -> RowStatistic:
    """ECE of each row: groups of one bin stand next to each other."""
    rule, count = _rule(convention, bins)
    # Edges are compared in the type of the confidences as given.
    confidence = given.groups.confidence.astype(given.confidence.dtype)
    slot = _slots(confidence, rule.edges_like(confidence, count), rule)
    outside = int(np.searchsorted(slot, 0))
    starts = np.flatnonzero(np.diff(slot[outside:], prepend=-1))

    def value(residual: Array) -> Array:
        if not len(starts):
            return np.zeros(len(residual))
        gaps = np.add.reduceat(residual[:, outside:], starts, axis=1)
        total: Array = np.abs(gaps, out=gaps).sum(1)
        return total / len(given)

    return value


def mmce_rows(groups: TieGroups, bandwidth: float = 0.4) -> RowStatistic:
    r"""Unbiased squared MMCE of each row, from :math:`2\sum_{g<h} R_g R_h k_{gh} + \sum_g (R_g^2 - Q_g)`."""
    z, samples, _ = groups
    n = float(samples.sum())
    up = np.exp((z - 0.5) / bandwidth)
    slope, constant = 1 - 2 * z, float((samples * z * (1 - z)).sum())

    def value(residual: Array) -> Array:
        grown = residual * up
        below = grown.cumsum(1)
        below -= grown
        below /= up
        total: Array = 2 * np.einsum("ij,ij->i", residual, below) + np.einsum("ij,ij->i", residual, residual)
        return (total - np.einsum("ij,j->i", residual, slope) - constant) / (n * (n - 1))

    return value


def gap_rows(groups: TieGroups) -> RowStatistic:
    """Signed gap of each row."""
    n = float(groups.samples.sum())
    return lambda residual: -residual.sum(1) / n
