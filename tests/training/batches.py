"""Batches of tensors in memory, and losses with other settings of the loop."""

import math
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]
T = TypeVar("T")


class Batches:
    """Shuffled batches of a data set, again and again."""

    def __init__(self, data: Batch, size: int) -> None:
        self.data, self.size = data, size

    def __iter__(self) -> Iterator[Batch]:
        for rows in torch.randperm(len(self.data[1])).split(self.size):
            yield self.data[0][rows], self.data[1][rows]

    def __len__(self) -> int:
        return math.ceil(len(self.data[1]) / self.size)


def with_settings(made: T, **settings: Any) -> T:
    """A temperature loop, or a loss with one, whose settings are others; with ``patience=0`` T moves at once."""
    for name, value in settings.items():
        setattr(getattr(made, "loop", made), name, value)
    return made
