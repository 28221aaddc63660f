"""Which samples make up each batch of a pass, and where the randomness of a pass comes from."""

import math

import torch
from torch import Tensor


def generator_of_pass() -> torch.Generator:
    """A generator of its own for one pass over the data, seeded by one draw from torch's global generator.

    As in ``torch.utils.data.DataLoader``: restoring the global state before a pass repeats the pass, and a pass
    given up half-way has taken no more from the global state than one that ran to its end.
    """
    seed = int(torch.empty((), dtype=torch.int64).random_().item())
    return torch.Generator().manual_seed(seed)


class Batching:
    """Cuts a set of samples into batches.

    Args:
        samples: How many samples there are.
        batch_size: How many make up a batch.
        indices: Those to use, in the order to use them; all when not given.
        shuffle: Take them in a new random order at each pass.

    Example:
        >>> batching = Batching(10, 4, indices=torch.arange(0, 10, 2))
        >>> len(batching)
        2
        >>> [batch.tolist() for batch in batching.batches(batching.order(None))]
        [[0, 2, 4, 6], [8]]
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        *,
        indices: Tensor | None = None,
        shuffle: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.indices = torch.arange(samples) if indices is None else _checked(indices, samples)
        self.batch_size = batch_size
        self.shuffle = shuffle
        if not len(self.indices):
            raise ValueError("0 samples make no batch: give at least one")

    def __len__(self) -> int:
        return math.ceil(len(self.indices) / self.batch_size)

    def order(self, generator: torch.Generator | None) -> Tensor:
        """The samples in the order of one pass; without shuffling no generator is needed."""
        if not self.shuffle:
            return self.indices
        return self.indices[torch.randperm(len(self.indices), generator=generator)]

    def batches(self, values: Tensor) -> tuple[Tensor, ...]:
        """Cut something that has a value for each sample of a pass into a part for each batch."""
        parts: tuple[Tensor, ...] = values.split(self.batch_size)
        return parts


def _checked(indices: Tensor, samples: int) -> Tensor:
    if indices.dim() != 1 or indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise TypeError(
            f"indices must be a 1-d tensor of whole numbers, got {indices.dtype} of shape {tuple(indices.shape)}"
        )
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < samples:
        raise ValueError(
            f"indices must lie in 0..{samples - 1}, got {int(indices.min())}..{int(indices.max())}: "
            "were they made for another set?"
        )
    return indices.long()
