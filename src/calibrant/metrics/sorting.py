"""Confidence and correctness in one sortable integer, and the tie groups of the sorted integers.

A confidence in [0, 1] is a non-negative float, and the bits of those sort like the numbers. Shifted left by
one they leave a bit for the correctness, so that sorting N pairs costs as much as sorting N numbers: there is
no permutation to store, and a sample takes 4 bytes. Samples of equal confidence are then one group. A metric
only needs its confidence, the number of samples and the number of right ones: with weights, their sums of weights.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from calibrant.frames import Array, IndexArray, Marks

# uint32 for float32 confidences, uint64 for float64.
Keys = np.ndarray[tuple[int, ...], np.dtype[np.unsignedinteger[Any]]]
# Samples per block: a few arrays of this length fit in a core's cache.
BLOCK = 1 << 15


class TieGroups(NamedTuple):
    """Samples of equal confidence, in ascending order: everything as float64, ready to accumulate.

    Attributes:
        confidence: Confidence of the samples of a group.
        samples: Number of samples, or their weight.
        right: Number of right predictions, or their weight.
    """

    confidence: Array
    samples: Array
    right: Array


class Block(TieGroups):
    """Some tie groups that follow each other, and what metrics derive from them; no metric may change it."""

    @cached_property
    def residual(self) -> Array:
        """Correctness minus confidence, summed over the samples of a group."""
        return self.right - self.samples * self.confidence

    @cached_property
    def squares(self) -> Array:
        """Squared residuals, summed over the samples of a group."""
        return self.right * (1 - self.confidence) ** 2 + (self.samples - self.right) * self.confidence**2

    @cached_property
    def below(self) -> Array:
        """Number of samples in lower groups of this block."""
        if (self.samples == 1).all():
            return np.arange(len(self.samples), dtype=np.float64)  # a sum of ones takes ten times as long
        return self.samples.cumsum() - self.samples

    @cached_property
    def sums(self) -> tuple[float, float, float]:
        """Number of samples, sum of their confidences, and number of right ones."""
        right = float(self.right.sum())
        return float(self.samples.sum()), right - float(self.residual.sum()), right


def pack(confidence: Array, correct: Marks) -> Keys:
    """One unsigned integer per pair that sorts by confidence, wrong before right.

    Example:
        >>> keys = np.sort(pack(np.float32([0.75, 0.5, 0.75]), np.array([1, 1, 0])))
        >>> [group.tolist() for group in tie_groups(keys)]
        [[0.5, 0.75], [1.0, 2.0], [1.0, 1.0]]
    """
    kind = np.uint32 if confidence.dtype == np.float32 else np.uint64
    keys: Keys = np.abs(confidence).view(kind)  # the absolute value turns -0.0, which has another bit, into 0.0
    keys <<= kind(1)
    keys |= correct.astype(bool, copy=False)
    return keys


def key_blocks(keys: Keys) -> Iterator[Block]:
    """The tie groups of sorted keys in blocks; no group is split between two."""
    start = 0
    while start < len(keys):
        stop = int(ends_of_tie_groups(keys, np.array([min(start + BLOCK, len(keys))]))[0])
        yield tie_groups(keys[start:stop])
        start = stop


def ends_of_tie_groups(keys: Keys, cuts: IndexArray) -> IndexArray:
    """Each cut of sorted keys, moved up to the end of the tie group that it would split."""
    one = keys.dtype.type(1)
    inside = np.flatnonzero((cuts > 0) & (cuts < len(keys)))
    last = keys[cuts[inside] - 1] | one
    split = keys[cuts[inside]] <= last
    moved = cuts.copy()
    moved[inside[split]] = np.searchsorted(keys, last[split], side="right")
    return moved


def tie_groups(keys: Keys) -> Block:
    """All tie groups of sorted keys."""
    one, kind = keys.dtype.type(1), np.float32 if keys.dtype == np.uint32 else np.float64
    bits, marks = keys >> one, keys & one
    differs = bits[1:] != bits[:-1]
    if differs.all():
        return Block(bits.view(kind).astype(np.float64), np.ones(len(keys)), marks.astype(np.float64))
    last = np.append(np.flatnonzero(differs), len(keys) - 1)
    samples, right = np.diff(last, prepend=-1), np.diff(marks.cumsum(dtype=keys.dtype)[last], prepend=0)
    return Block(bits[last].view(kind).astype(np.float64), samples.astype(np.float64), right.astype(np.float64))


def weighted_tie_groups(confidence: Array, correct: Marks, weight: Array) -> TieGroups:
    """The tie groups of samples with weights; a sample of weight 0 is left out."""
    order, first = weighted_order(confidence, weight)
    weight = weight[order]
    right = np.add.reduceat(weight * correct[order], first)
    return TieGroups(confidence[order[first]].astype(np.float64), np.add.reduceat(weight, first), right)


def weighted_order(confidence: Array, weight: Array | None) -> tuple[IndexArray, IndexArray]:
    """Samples of positive weight in stable order of confidence, and where each tie group starts among them."""
    rows = np.arange(len(confidence)) if weight is None else np.flatnonzero(weight)
    order = rows[np.argsort(confidence[rows], kind="stable")]
    ascending = confidence[order]
    return order, np.concatenate(([0], np.flatnonzero(ascending[1:] != ascending[:-1]) + 1))


def blocks_of(groups: TieGroups) -> Iterator[Block]:
    """Tie groups in blocks."""
    for start in range(0, len(groups.samples), BLOCK):
        yield Block(*(field[start : start + BLOCK] for field in groups))
