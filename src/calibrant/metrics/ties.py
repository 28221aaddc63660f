"""Sorted pairs: confidence and correctness in one sortable integer, and the groups of tied samples.

The bits of non-negative floats sort like the numbers; shifted left by one they leave a bit for the correctness. The
sums that metrics need are added up block by block, in ascending order of confidence, and kept with the predictions.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from calibrant.frames import Array, IndexArray, Marks

if TYPE_CHECKING:
    from calibrant.metrics.predictions import Predictions

# uint32 for float32 confidences, uint64 for float64.
Keys = np.ndarray[tuple[int, ...], np.dtype[np.unsignedinteger[Any]]]
# Samples per block: a few arrays of this length fit in a core's cache.
BLOCK = 1 << 15


class Ties(NamedTuple):
    """Groups of samples of equal confidence, ascending: their confidence, and weights of samples and of right ones."""

    confidence: Array
    samples: Array
    right: Array


class Block(Ties):
    """Some groups that follow each other, and what metrics derive from them; no metric may change it.

    Or all groups in many draws at once: then the last field, or the last two, are ``(draws, groups)``.
    """

    @cached_property
    def residual(self) -> Array:
        """Correctness minus confidence, summed over the samples of a group: R."""
        return self.right - self.samples * self.confidence

    @cached_property
    def squares(self) -> Array:
        """Squared residuals, summed over the samples of a group: Q."""
        return self.right * (1 - self.confidence) ** 2 + (self.samples - self.right) * self.confidence**2

    @cached_property
    def below(self) -> Array:
        """Number of samples in lower groups of this block."""
        if (self.samples == 1).all():
            return np.arange(len(self.samples), dtype=np.float64)  # a sum of ones takes ten times as long
        return self.samples.cumsum(-1) - self.samples


class TieSums(Protocol):
    """Sums over ties, started from the predictions by a class or by options that can be called."""

    def add(self, ties: Block) -> None:
        """Add the next block."""


# A metric of many draws at once, ``(draws,)``. Draws have the same confidences, so one sort serves them all.
DrawsMetric = Callable[[Block], Array]
AnySums = TypeVar("AnySums", bound=TieSums)


def collect(data: "Predictions", starts: "set[Callable[[Predictions], TieSums]]") -> None:
    """Make the sums that are missing in one pass."""
    started = {start: start(data) for start in starts if start not in data.sums}
    if not started:
        return
    with np.errstate(under="ignore"):  # a kernel of samples far apart is 0
        for ties in data.blocks():
            for sums in started.values():
                sums.add(ties)
    data.sums.update(started)


def sums_of(data: "Predictions", start: "Callable[[Predictions], AnySums]") -> AnySums:
    """The sums that this starts, made if they are missing."""
    collect(data, {start})
    made: AnySums = data.sums[start]
    return made


def pack(confidence: Array, correct: Marks) -> Keys:
    """One unsigned integer per pair that sorts by confidence, wrong before right."""
    kind = np.uint32 if confidence.dtype == np.float32 else np.uint64
    keys: Keys = np.abs(confidence).view(kind)  # the absolute value turns -0.0, which has another bit, into 0.0
    keys <<= kind(1)
    keys |= correct.astype(bool, copy=False)
    return keys


def key_blocks(keys: Keys) -> Iterator[Block]:
    """The ties of sorted keys in blocks; no group is split between two."""
    start = 0
    while start < len(keys):
        stop = int(ends_of_ties(keys, np.array([min(start + BLOCK, len(keys))]))[0])
        yield ties_of_keys(keys[start:stop])
        start = stop


def ends_of_ties(keys: Keys, cuts: IndexArray) -> IndexArray:
    """Each cut of sorted keys, moved up to the end of the group that it would split."""
    one = keys.dtype.type(1)
    inside = np.flatnonzero((cuts > 0) & (cuts < len(keys)))
    last = keys[cuts[inside] - 1] | one
    split = keys[cuts[inside]] <= last
    moved = cuts.copy()
    moved[inside[split]] = np.searchsorted(keys, last[split], side="right")
    return moved


def ties_of_keys(keys: Keys) -> Block:
    """All ties of sorted keys."""
    one = keys.dtype.type(1)
    marks = keys & one
    differs = (keys[1:] ^ keys[:-1]) > one
    if differs.all():
        return Block(confidence_of(keys), np.ones(len(keys)), marks.astype(np.float64))
    last = np.append(np.flatnonzero(differs), len(keys) - 1)
    samples, right = np.diff(last, prepend=-1), np.diff(marks.cumsum(dtype=keys.dtype)[last], prepend=0)
    return Block(confidence_of(keys[last]), samples.astype(np.float64), right.astype(np.float64))


def confidence_of(keys: Keys) -> Array:
    """The confidences in keys, in float64."""
    kind = np.float32 if keys.dtype == np.uint32 else np.float64
    return (keys >> keys.dtype.type(1)).view(kind).astype(np.float64)


class SortedRows:
    """Rows of predictions in order of confidence, those of weight 0 left out, and where each group of ties starts."""

    def __init__(self, given: "Predictions") -> None:
        rows = np.arange(len(given)) if given.weight is None else np.flatnonzero(given.weight)
        self.order: IndexArray = rows[np.argsort(given.confidence[rows], kind="stable")]
        self.confidence: Array = given.confidence[self.order].astype(np.float64)
        self.correct: Marks = given.correct[self.order]
        self.weight: Array = given.counts[self.order]
        differs = self.confidence[1:] != self.confidence[:-1]
        self.first: IndexArray = np.concatenate(([0], np.flatnonzero(differs) + 1))

    @property
    def ties(self) -> Ties:
        """Their ties."""
        samples, right = np.add.reduceat([self.weight, self.weight * self.correct], self.first, axis=1)
        return Ties(self.confidence[self.first], samples, right)

    @property
    def residual(self) -> Array:
        """Correctness minus confidence of each row."""
        return self.correct - self.confidence
