"""Batches of tensors in memory."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]


class Batches:
    """Shuffled batches of a data set, again and again."""

    def __init__(self, data: Batch, size: int) -> None:
        self.data, self.size = data, size

    def __iter__(self) -> Iterator[Batch]:
        for rows in torch.randperm(len(self.data[1])).split(self.size):
            yield self.data[0][rows], self.data[1][rows]

    def __len__(self) -> int:
        return math.ceil(len(self.data[1]) / self.size)
