"""Confidence and correctness in one sortable integer, and the tie groups of the sorted integers.

A confidence in [0, 1] is a non-negative float, and the bits of those sort like the numbers. Shifted left by
one they leave a bit for the correctness, so that sorting N pairs costs as much as sorting N numbers: there is
no permutation to store, and a sample takes 4 bytes. Samples of equal confidence are then one group. A metric
only needs its confidence, the number of samples and the number of right ones.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from calibrant.arrays import Array, Marks

# uint32 for float32 confidences, uint64 for float64.
Keys = np.ndarray[tuple[int, ...], np.dtype[np.unsignedinteger[Any]]]
# Samples per block: a few arrays of this length fit in a core's cache.
BLOCK = 1 << 15


class TieGroups(NamedTuple):
    """Samples of equal confidence, in ascending order: everything as float64, ready to accumulate.

    Attributes:
        confidence: Confidence of the samples of a group.
        samples: Number of samples.
        right: Number of right predictions.
    """

    confidence: Array
    samples: Array
    right: Array


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


def blocks(keys: Keys) -> Iterator[tuple[int, Keys]]:
    """Sorted keys in blocks, each with the index it starts at; no tie group is split between two."""
    start = 0
    while start < len(keys):
        stop = _end_of_tie_group(keys, min(start + BLOCK, len(keys)))
        yield start, keys[start:stop]
        start = stop


def _end_of_tie_group(keys: Keys, stop: int) -> int:
    """The first index at or after ``stop`` at which a new confidence begins."""
    if stop == len(keys):
        return stop
    last = keys[stop - 1] | keys.dtype.type(1)
    return stop if keys[stop] > last else stop + int(np.searchsorted(keys[stop:], last, side="right"))


def tie_groups(keys: Keys) -> TieGroups:
    """All tie groups of sorted keys."""
    bits, right_so_far = keys >> keys.dtype.type(1), (keys & keys.dtype.type(1)).cumsum(dtype=np.int64)
    last = np.append(np.flatnonzero(bits[1:] != bits[:-1]), len(keys) - 1)
    kind = np.float32 if keys.dtype == np.uint32 else np.float64
    confidence = bits[last].view(kind).astype(np.float64)
    samples, right = np.diff(last, prepend=-1), np.diff(right_so_far[last], prepend=0)
    return TieGroups(confidence, samples.astype(np.float64), right.astype(np.float64))
