"""Samples in order of confidence, ready to be cut into any number of bins of equal mass."""

from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from calibrant.frames import Array, IndexArray
from calibrant.metrics import notebook
from calibrant.metrics.predictions import Predictions
from calibrant.metrics.sorting import BLOCK, Keys, ends_of_tie_groups

# Samples between two marks; a block holds a whole number of strides.
STRIDE = 64


class BinTable(NamedTuple):
    """Sums of the samples in each bin: all that the binned metrics and a reliability diagram need.

    Attributes:
        lower: Lower edges.
        upper: Upper edges.
        samples: Number of samples in each bin, or their weight.
        confidence: Sum of their confidences.
        right: Number of right predictions among them, or their weight.
    """

    lower: Array
    upper: Array
    samples: Array
    confidence: Array
    right: Array

    @property
    def gaps(self) -> Array:
        """Mean confidence minus accuracy of each bin; 0 for empty bins."""
        return (self.confidence - self.right) / np.where(self.samples > 0, self.samples, 1)

    def _repr_html_(self) -> str:
        columns = self._asdict() | {"gap": self.gaps}
        return notebook.several(f"{len(self.lower)} bins", {name: each.tolist() for name, each in columns.items()})


def mass_of(given: Predictions, split_ties: bool = False) -> "KeyMass | GroupMass":
    """The samples, ready to be cut; without weights and split ties once for all metrics."""
    if split_ties or given.weight is not None:
        return GroupMass(given, split_ties)
    if KeyMass not in given.parts:
        given.parts[KeyMass] = KeyMass(given.keys)
    mass: KeyMass = given.parts[KeyMass]
    return mass


class KeyMass:
    """Sorted keys, and the number of right ones before every 64th: no other array is as long as the keys."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.marks = np.zeros(len(keys) // STRIDE + 1, dtype=np.int64)
        for start in range(0, len(keys), BLOCK):
            block = keys[start : start + BLOCK] & keys.dtype.type(1)
            counts = block[: len(block) // STRIDE * STRIDE].reshape(-1, STRIDE).sum(1)
            self.marks[start // STRIDE + 1 :][: len(counts)] = counts
        np.cumsum(self.marks, out=self.marks)

    @cached_property
    def most(self) -> int:
        """Number of tie groups."""
        starts = range(0, len(self.keys), BLOCK)
        blocks = (self.keys[at : at + BLOCK + 1] for at in starts)
        return 1 + sum(int(np.count_nonzero((block[1:] ^ block[:-1]) > 1)) for block in blocks)

    def right(self, cuts: IndexArray) -> IndexArray:
        """Number of right samples before each cut."""
        stride, rest = np.divmod(cuts, STRIDE)
        places = np.minimum(stride[:, np.newaxis] * STRIDE + np.arange(STRIDE), len(self.keys) - 1)
        found = (self.keys[places] & self.keys.dtype.type(1)).astype(bool)
        found &= np.arange(STRIDE) < rest[:, np.newaxis]
        before: IndexArray = self.marks[stride] + found.sum(1)
        return before

    def cuts(self, bins: int) -> IndexArray:
        """Where the bins begin and end; a cut inside a tie group moves to its end."""
        inside = ends_of_tie_groups(self.keys, even_cuts(len(self.keys), bins).astype(np.intp))
        return np.unique(np.concatenate(([0], inside, [len(self.keys)])))

    def accuracy(self, bins: int) -> Array:
        """Accuracy of each bin."""
        cuts = self.cuts(bins)
        accuracy: Array = np.diff(self.right(cuts)) / np.diff(cuts)
        return accuracy

    def table(self, bins: int) -> BinTable:
        """The bins."""
        cuts = self.cuts(bins)
        sums = [self._confidence(start, stop) for start, stop in pairwise(cuts)]
        ends = self._values(self.keys[np.stack((cuts[:-1], cuts[1:] - 1))])
        samples, right = np.diff(cuts).astype(np.float64), np.diff(self.right(cuts)).astype(np.float64)
        return BinTable(ends[0], ends[1], samples, np.array(sums), right)

    def _confidence(self, start: int, stop: int) -> float:
        starts = range(start, stop, BLOCK)
        return sum(float(self._values(self.keys[at : min(at + BLOCK, stop)]).sum()) for at in starts)

    def _values(self, keys: Keys) -> Array:
        kind = np.float32 if keys.dtype == np.uint32 else np.float64
        return (keys >> keys.dtype.type(1)).view(kind).astype(np.float64)


class GroupMass:
    """Tie groups with weights, or single samples, and their running sums."""

    def __init__(self, given: Predictions, split_ties: bool) -> None:
        if split_ties:
            order = np.argsort(given.confidence, kind="stable")
            weight: Array = np.ones(len(order)) if given.weight is None else given.weight[order]
            self.confidence: Array = given.confidence[order].astype(np.float64)
            right = weight * given.correct[order]
        else:
            self.confidence, weight, right = given.groups
        self.split_ties = split_ties
        self.whole = given.weight is None or bool((given.weight == np.rint(given.weight)).all())
        self.most = len(self.confidence)
        self.sums = np.zeros((3, self.most + 1))
        for row, values in zip(self.sums, (weight, weight * self.confidence, right), strict=True):
            np.cumsum(values, out=row[1:])

    def cuts(self, bins: int) -> Array:
        """Where the bins begin and end, as numbers of samples; a cut inside a tie group moves to its end."""
        samples = self.sums[0]
        # Whole-number weights count as repeated samples. Others are cut into equal shares, whatever their scale.
        inside = even_cuts(samples[-1], bins) if self.whole else np.arange(1, bins) * (samples[-1] / bins)
        if not self.split_ties:
            inside = samples[np.searchsorted(samples, inside, side="left")]
        return np.unique(np.concatenate(([0.0], inside, samples[-1:])))

    def accuracy(self, bins: int) -> Array:
        """Accuracy of each bin."""
        cuts = self.cuts(bins)
        accuracy: Array = np.diff(np.interp(cuts, self.sums[0], self.sums[2])) / np.diff(cuts)
        return accuracy

    def table(self, bins: int) -> BinTable:
        """The bins."""
        cuts = self.cuts(bins)
        confidence, right = (np.diff(np.interp(cuts, self.sums[0], row)) for row in self.sums[1:])
        lower = self.confidence[np.searchsorted(self.sums[0], cuts[:-1], side="right") - 1]
        upper = self.confidence[np.searchsorted(self.sums[0], cuts[1:], side="left") - 1]
        return BinTable(lower, upper, np.diff(cuts), confidence, right)


def even_cuts(samples: float, bins: int) -> Array:
    """Cuts between bins of equally many samples; the first few hold one more."""
    size, larger = divmod(samples, bins)
    cut = np.arange(1, bins)
    return cut * size + np.minimum(cut, larger)
