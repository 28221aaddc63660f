"""Sums over sorted samples of NumPy arrays, with ties."""

import numpy as np

from calibrant.frames import Array, IndexArray


def tie_bounds_of_array(ascending: Array) -> tuple[IndexArray, IndexArray]:
    """Like :func:`calibrant.numerics.tie_bounds`, for a one-dimensional NumPy array."""
    differs = ascending[1:] != ascending[:-1]
    if differs.all():
        each_alone = np.arange(len(ascending))
        return each_alone, each_alone
    edges = np.concatenate(([0], np.flatnonzero(differs) + 1, [len(ascending)]))
    sizes = np.diff(edges)
    return np.repeat(edges[:-1], sizes), np.repeat(edges[1:] - 1, sizes)


def laplace_sums_of_array(position: Array, weight: Array, bandwidth: float) -> tuple[Array, Array, Array]:
    """Kernel-weighted sums over the samples below, tied with and above each one, positions ascending."""
    first, last = tie_bounds_of_array(position)
    up = np.exp((position - 0.5) / bandwidth)
    down = 1 / up
    growing, shrinking = np.zeros((2, len(position) + 1))
    np.cumsum(weight * up, out=growing[1:])
    shrinking[:-1] = (weight * down)[::-1].cumsum()[::-1]
    if first is last:  # there are no ties
        return down * growing[:-1], weight, up * shrinking[1:]
    prefix = np.zeros(len(position) + 1)
    np.cumsum(weight, out=prefix[1:])
    return down * growing[first], prefix[last + 1] - prefix[first], up * shrinking[last + 1]
