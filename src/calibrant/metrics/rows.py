"""Metrics of many draws at once.

A metric of the pairs sees only the residuals of the tie groups: correctness minus confidence, summed over samples of
equal confidence. Draws that keep the confidences change nothing else, so one sort serves them all. Each function here
takes what the draws share and returns a function from residuals, ``(draws, groups)``, to values, ``(draws,)``.
"""

from collections.abc import Callable

import numpy as np

from calibrant.frames import Array
from calibrant.metrics.binned import ConventionName, rule_of, slots_of
from calibrant.metrics.predictions import Predictions
from calibrant.metrics.sorting import TieGroups

RowStatistic = Callable[[Array], Array]


def esd_rows(groups: TieGroups) -> RowStatistic:
    r"""ESD of each row.

    With :math:`R_g` the residual of a group of :math:`n_g` samples, :math:`E_g` the sum of residuals up to and with it
    and :math:`s_g` the number of samples below, :math:`\sum_i A_i^2` is the sum of
    :math:`n_g E_g^2 - 2 E_g R_g + Q_g`, and :math:`\sum_i B_i` that of :math:`(N - 1 - s_g) Q_g`. Here
    :math:`Q_g = (1 - 2 z_g) R_g + n_g z_g (1 - z_g)` is the sum of the group's squared residuals, linear in
    :math:`R_g` because correctness is 0 or 1.
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
    """ECE of each row: groups of one bin are adjacent."""
    rule, count = rule_of(convention, bins)
    # Edges are compared in the dtype of the given confidences.
    confidence = given.groups.confidence.astype(given.confidence.dtype)
    slot = slots_of(confidence, rule.edges_like(confidence, count), rule)
    starts = np.flatnonzero(np.diff(slot, prepend=-1))

    def value(residual: Array) -> Array:
        gaps = np.add.reduceat(residual, starts, axis=1)
        total: Array = np.abs(gaps, out=gaps).sum(1)
        return total / given.total

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
        below *= 2
        below += residual
        total: Array = np.einsum("ij,ij->i", residual, below) - np.einsum("ij,j->i", residual, slope)
        return (total - constant) / (n * (n - 1))

    return value


def gap_rows(groups: TieGroups) -> RowStatistic:
    """Signed gap of each row."""
    n = float(groups.samples.sum())

    def value(residual: Array) -> Array:
        total: Array = residual.sum(1)
        return -total / n

    return value
