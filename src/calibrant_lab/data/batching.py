"""Batches of a pass over the data, and the random generator of a pass."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def generator_of_pass() -> torch.Generator:
    """Return a generator for one pass over the data, seeded by one draw from torch's global generator.

    As in ``torch.utils.data.DataLoader``, restoring the global state before a pass repeats the pass, and an interrupted
    pass changes the global state as much as a complete one.
    """
    return torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))


class Batches:
    """A loader of all samples, or of those at ``indices``, in order; with ``shuffle`` in a new order each pass.

    ``batch`` returns inputs and labels of some rows. Without shuffling, torch's global generator is not used. With
    ``even``, the sizes of batches differ by at most one, and none is much smaller than ``batch_size``.
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        batch: Callable[[Tensor], tuple[Any, Tensor]],
        *,
        indices: Tensor | None = None,
        shuffle: bool = False,
        even: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self._indices = torch.arange(samples) if indices is None else _checked(indices, samples)
        self._batch_size = batch_size
        self._batch = batch
        self._shuffle = shuffle
        self._even = even
        if not len(self._indices):
            raise ValueError("there are no samples to batch: give at least one")

    def __len__(self) -> int:
        return math.ceil(len(self._indices) / self._batch_size)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        order = self._order(generator_of_pass() if self._shuffle else None)
        return map(self._batch, self._parts(order))

    def _parts(self, rows: Tensor) -> Sequence[Tensor]:
        return rows.tensor_split(len(self)) if self._even else rows.split(self._batch_size)

    def _order(self, generator: torch.Generator | None) -> Tensor:
        if not self._shuffle:
            return self._indices
        return self._indices[torch.randperm(len(self._indices), generator=generator)]


def _checked(indices: Tensor, samples: int) -> Tensor:
    if indices.dim() != 1 or indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise TypeError(
            f"indices must be a 1-d tensor of whole numbers, got {indices.dtype} of shape {tuple(indices.shape)}"
        )
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < samples:
        raise ValueError(
            f"indices must lie in 0..{samples - 1}, got {int(indices.min())}..{int(indices.max())}: "
            "are they for another set?"
        )
    return indices.long()
