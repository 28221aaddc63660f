"""Pools of adjacent violators: the blocks of isotonic regressions, of all rows at once."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
# Means that differ by less are equal but for rounding.
ROUNDING = 1e-12


class Pools(NamedTuple):
    """Groups of tied scores, one row after the other and each row in ascending order, and their blocks.

    ``row``, ``position``, ``mass``, ``hits`` and ``block`` have one entry per group: the row it belongs to, its score,
    the number or weight of its samples, that of its hits, and the number of its block, counted through all rows. In a
    block the isotonic regression is constant, and from one to the next it rises.
    """

    rows: int
    row: Indices
    position: npt.NDArray[np.floating]
    mass: Floats
    hits: Floats
    block: Indices

    @property
    def firsts(self) -> Indices:
        """First group of each block."""
        return np.flatnonzero(np.diff(self.block, prepend=-1))

    @property
    def lasts(self) -> Indices:
        """Last group of each block."""
        return np.append(self.firsts[1:], len(self.block)) - 1

    @property
    def levels(self) -> Floats:
        """Rate of hits of each block: the values of the isotonic regression."""
        return _sums(self.hits, self.firsts) / _sums(self.mass, self.firsts)

    @property
    def centres(self) -> Floats:
        """Weighted mean score of each block."""
        return _sums(self.mass * self.position, self.firsts) / _sums(self.mass, self.firsts)

    def mirrored(self) -> "Pools":
        """The same for negated scores and exchanged labels; the order of the rows is reversed too."""
        return Pools(
            self.rows,
            self.rows - 1 - self.row[::-1],
            -self.position[::-1],
            self.mass[::-1],
            (self.mass - self.hits)[::-1],
            self.block[-1] - self.block[::-1],
        )


def pools(position: Tensor, hits: Tensor, weight: Tensor | None) -> Pools:
    """Sort each row, group its ties, and pool the groups.

    Args:
        position: Scores, ``(rows, N)``.
        hits: 0 or 1, ``(rows, N)``, float64.
        weight: ``(N,)`` weights of the samples, or None.
    """
    scores, happened = position.cpu().numpy(), hits.cpu().numpy()
    rows, samples = scores.shape
    order = scores.argsort(axis=1)
    ascending = np.take_along_axis(scores, order, axis=1)
    happened = np.take_along_axis(happened, order, axis=1)
    new = np.ones(ascending.shape, dtype=bool)
    np.not_equal(ascending[:, 1:], ascending[:, :-1], out=new[:, 1:])
    starts = np.flatnonzero(new)
    if weight is None:
        mass = np.diff(starts, append=rows * samples).astype(np.float64)
    else:
        each = weight.cpu().numpy()[order]
        happened = happened * each
        mass = _sums(each.ravel(), starts)
    grouped = happened.ravel() if len(starts) == rows * samples else _sums(happened.ravel(), starts)
    row = starts // samples
    return Pools(rows, row, ascending.ravel()[starts], mass, grouped, _blocks(row, mass, grouped))


def _blocks(row: Indices, mass: Floats, hits: Floats) -> Indices:
    """Number of the block of each group."""
    from scipy.optimize import isotonic_regression  # scikit-learn's takes a second to import

    # One regression for all rows: levels of different rows are apart by 1 or more, and are never pooled.
    firsts = isotonic_regression(hits / mass + 2 * row, weights=mass).blocks[:-1]
    exact = _sums(hits, firsts) / _sums(mass, firsts)
    rises = (np.diff(exact, prepend=-1.0) > ROUNDING) | (np.diff(row[firsts], prepend=-1) > 0)
    begins = np.zeros(len(row), dtype=np.int64)
    begins[firsts[rises]] = 1
    return np.asarray(begins.cumsum() - 1)


def _sums(values: npt.NDArray[np.floating], firsts: Indices) -> Floats:
    """Sums of the runs that begin at ``firsts``."""
    return np.add.reduceat(values, firsts, dtype=np.float64)


def table(rows: int, row: Indices, values: npt.NDArray[np.floating], like: Tensor, least: int = 1) -> Tensor:
    """Values of all rows, one after the other, as ``(rows, width)``; short rows repeat their last value.

    Args:
        rows: Number of rows, each with at least one value.
        row: Row of each value, ascending.
        values: Values.
        like: Tensor whose dtype and device the table has.
        least: Smallest width.
    """
    counts = np.bincount(row, minlength=rows)
    starts = counts.cumsum() - counts
    column = np.arange(max(least, int(counts.max())))
    places = starts[:, None] + np.minimum(column, counts[:, None] - 1)
    return torch.from_numpy(values[places]).to(like)
