"""Held-out samples, and their folds, which depend on the samples and not on their order."""

import sys
from typing import Any, NamedTuple

import numpy as np

from calibrant.frames import Array, IndexArray

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio
CHUNK = 2**18  # elements


class HeldOut(NamedTuple):
    """Checked held-out samples.

    Attributes:
        logits: ``(N, C)``, float32 or float64, finite.
        target: Class indices, ``(N,)``.
        weight: ``(N,)`` in float64, all positive; None if all are 1.
    """

    logits: Array
    target: IndexArray
    weight: Array | None

    @property
    def count(self) -> float:  # type: ignore[override]
        """Number of samples, of which each counts as often as its weight says."""
        return len(self.target) if self.weight is None else float(self.weight.sum())

    @property
    def share(self) -> Array:
        """Weights that sum to 1, ``(N,)``."""
        return np.full(len(self.target), 1 / len(self.target)) if self.weight is None else self.weight / self.count

    def take(self, rows: IndexArray | Array) -> "HeldOut":
        """Some of the samples, by index or mask."""
        return HeldOut(self.logits[rows], self.target[rows], None if self.weight is None else self.weight[rows])


def random_words(seed: int, count: int) -> IndexArray:
    """Random 64-bit numbers by SplitMix64: the same with every version of every library."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(seed % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return (state ^ (state >> np.uint64(31))).view(np.int64)


def canonical_order(data: HeldOut) -> IndexArray:
    """A permutation of the samples, the same sequence in whatever order they came.

    They are sorted by class, and then by a fixed random projection of their logits: the last bits of the logits, which
    depend on the processor, can only exchange neighbours that are nearly equal.
    """
    factors = random_words(0, data.logits.shape[1]) / 2.0**63
    step = max(1, CHUNK // data.logits.shape[1])
    position = np.empty(len(data.target))
    for start in range(0, len(position), step):
        part = data.logits[start : start + step].astype(np.float64)
        below = np.maximum(part - part.max(1, keepdims=True), -1e30)
        # Term by term: the order of other sums, and so their last bit, depends on the processor.
        position[start : start + step] = (below * factors).cumsum(1)[:, -1]
    weight = () if data.weight is None else (data.weight,)
    return np.lexsort((*weight, position, data.target))


def fold_of(data: HeldOut, folds: int) -> IndexArray:
    """Fold of each sample: every class is spread evenly, and the order of the samples does not matter.

    A sample is in one fold, whatever its weight: if a part of it were fitted and another predicted, a weight that is no
    count of independent samples would make every method look better the closer it fits.
    """
    fold = np.empty(len(data.target), dtype=np.int64)
    fold[canonical_order(data)] = np.arange(len(fold)) % folds
    return fold


def row_hash(rows: Any, seed: int) -> Any:
    """A whole number below 2^32 for each row of an array or a tensor, which depends only on its bits and the seed.

    Multilinear hashing: the words of a row, each times a random number, are summed modulo 2^64, and the upper half of
    the sum is used. Over the seeds it is uniform, and independent for any two rows that differ (Lemire and
    Kaser, "Strongly Universal String Hashing is Fast", The Computer Journal, 2014). For one seed, rows at equal
    distances would still have numbers at equal distances: shifts and products that permute the 32 bits prevent that.

    Args:
        rows: ``(N, C)``, float32 or float64.
        seed: Seed of the random numbers.
    """
    rows = rows + 0.0  # since the two zeros have different bits
    if isinstance(rows, np.ndarray):
        words = np.ascontiguousarray(rows).view(np.int32).astype(np.int64)
        factors = random_words(seed, words.shape[1] + 1)
    else:
        words = rows.contiguous().view(sys.modules["torch"].int32).long()
        factors = words.new_tensor(random_words(seed, words.shape[1] + 1).tolist())
    low = 2**32 - 1
    half = ((words * factors[1:]).sum(1) + factors[0]) >> 32 & low
    for _ in range(3):
        half = ((half ^ (half >> 15)) * 2654435769) & low  # an odd number near 2^32 over the golden ratio
    return half ^ (half >> 15)
