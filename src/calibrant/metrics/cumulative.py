r"""Errors of the cumulative residuals, without bins: ESD and the Kolmogorov-Smirnov error.

With :math:`R_g` the residual of a group of :math:`n_g` ties, :math:`Q_g` the sum of its squared residuals,
:math:`E_g` the sum of residuals up to and with it and :math:`s_g` the number of samples below, ESD's
:math:`\sum_i A_i^2` is the sum of :math:`n_g E_g^2 - 2 E_g R_g + Q_g`, and :math:`\sum_i B_i` that of
:math:`(N - 1 - s_g) Q_g`: each :math:`d_j^2` counts once for every other sample at or above it.
"""

from collections.abc import Callable, Iterable
from typing import Unpack

import numpy as np

from calibrant.frames import Array
from calibrant.metrics.predictions import Confidence, Correct, Keywords, Predictions, predictions
from calibrant.metrics.ties import Block, sums_of

# A metric of many draws at once: from residuals of the ties, ``(draws, groups)``, to values, ``(draws,)``. Draws that
# keep the confidences change nothing else, so one sort serves them all.
RowStatistic = Callable[[Array], Array]


class CumulativeSums:
    """Sums over ties in ascending order that give ESD, the KS error and the Brier score."""

    def __init__(self, _: Predictions | None = None) -> None:
        self.samples = self.end = self.high = self.low = self.triples = self.squares = 0.0

    def add(self, ties: Block) -> None:
        """Add the next block."""
        ends = ties.residual.cumsum()
        ends += self.end
        self.end = float(ends[-1])
        self.high, self.low = max(self.high, float(ends.max())), min(self.low, float(ends.min()))
        total = float(ties.squares.sum())
        self.triples += float(_products(ties.samples, ties.residual, ends)) + self.samples * total
        self.triples += float(np.einsum("i,i->", ties.squares, ties.below))
        self.squares += total
        self.samples += ties.sums[0]

    @property
    def esd(self) -> float:
        """The expected squared difference."""
        n = self.samples
        return (self.triples - (n - 2) * self.squares) / (n * (n - 1) * (n - 2)) if n > 2 else np.nan

    @property
    def ks(self) -> float:
        """The KS error."""
        return max(self.high, -self.low) / self.samples if self.samples else np.nan


def _products(samples: Array, residual: Array, ends: Array) -> Array:
    """The sum of n E^2 - 2 E R over ties."""
    pairs = ends * samples
    pairs -= residual
    pairs -= residual
    # einsum rather than a BLAS product, whose threads wait for each other on a busy machine.
    total: Array = np.einsum("...i,...i->...", pairs, ends)
    return total


def cumulative(blocks: Iterable[Block]) -> CumulativeSums:
    """The sums of blocks, in ascending order."""
    sums = CumulativeSums()
    for ties in blocks:
        sums.add(ties)
    return sums


def esd_rows(given: Predictions) -> RowStatistic:
    """ESD of each row; Q is linear in R, as correctness is 0 or 1: :math:`Q = (1 - 2 z) R + n z (1 - z)`."""
    z, samples, _ = given.ties
    n = given.total
    above = n - 2 - (samples.cumsum() - samples)
    slope = (1 - 2 * z) * above
    constant = float((samples * z * (1 - z) * above).sum())

    def value(residual: Array) -> Array:
        total = _products(samples, residual, residual.cumsum(1)) - np.einsum("ij,j->i", residual, slope)
        found: Array = (total - constant) / (n * (n - 1) * (n - 2))
        return found

    return value


def ks_rows(given: Predictions) -> RowStatistic:
    """KS error of each row."""

    def value(residual: Array) -> Array:
        ends = residual.cumsum(1)
        largest: Array = np.maximum(ends.max(1), -ends.min(1))
        return largest / given.total

    return value


def esd(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    r"""Expected squared difference (ESD), unbiased: the measure of the paper (Yoon et al., ICLR 2023), ties included.

    The same number as :func:`calibrant.functional.esd`, weights included, without gradient, in one sort of packed
    integers: ten million samples take about three times as long as sorting them. It has mean 0 on calibrated data and
    is therefore often negative. It needs 3 samples.
    """
    return sums_of(predictions(confidence, correct, minimum=3, name="ESD", **keywords), CumulativeSums).esd


def ks_error(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    r"""Kolmogorov-Smirnov calibration error: the largest gap between cumulative correctness and confidence.

    .. math:: \mathrm{KS} = \max_t \frac1N \Big| \sum_{i:\, z_i \le t} (c_i - z_i) \Big|

    The maximum is taken at the ends of tie groups only, so that the order of samples does not matter (Gupta et al.,
    ICLR 2021).
    """
    return sums_of(predictions(confidence, correct, **keywords), CumulativeSums).ks
