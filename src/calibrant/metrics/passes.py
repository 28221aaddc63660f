"""One pass over the tie groups for all metrics of the pairs.

A *part* adds up what some metrics need, block by block, in ascending order of confidence. A *kind* of part starts one:
a class, or options that can be called. Parts are kept with the predictions, so that metrics which need the same sums
share them, and :func:`collect` makes several in one pass: a block stays in the cache for all of them.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from calibrant.metrics.predictions import Predictions
from calibrant.metrics.sorting import Block


class Part(Protocol):
    """Sums over tie groups."""

    def add(self, groups: Block) -> None:
        """Add the next block of groups."""


Kind = Callable[[Predictions], Part]
AnyPart = TypeVar("AnyPart", bound=Part)


def collect(data: Predictions, kinds: set[Kind]) -> None:
    """Make the parts that are missing in one pass."""
    started = {kind: kind(data) for kind in kinds if kind not in data.parts}
    if not started:
        return
    with np.errstate(under="ignore"):  # a kernel of samples far apart is 0
        for groups in data.blocks():
            for part in started.values():
                part.add(groups)
    data.parts.update(started)


def part_of(data: Predictions, kind: Callable[[Predictions], AnyPart]) -> AnyPart:
    """The part of this kind, made if it is missing."""
    collect(data, {kind})
    made: AnyPart = data.parts[kind]
    return made
