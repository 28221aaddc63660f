"""The global batch: a differentiable gather across ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

# Sent in place of a batch size by a rank that was given bad input.
FAILED = 2**62


def is_distributed() -> bool:
    """Whether a process group of more than one rank is initialised."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class _AllGather(torch.autograd.Function):
    """Gather equally shaped tensors along a new first dimension.

    Every rank computes the same objective of the gathered batch. So the gradient is its own slice times the world size,
    and the average of DistributedDataParallel leaves the gradient of one global objective.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, tensor)
        return torch.stack(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0][dist.get_rank()] * dist.get_world_size()


def gather_samples(columns: tuple[Tensor, ...], mask: Tensor | None) -> tuple[tuple[Tensor, ...], Tensor]:
    """Gather columns as :func:`gather_columns` does; and which samples count, not those that are padding."""
    counts = torch.ones_like(columns[0]) if mask is None else mask
    *everywhere, counts = gather_columns((*columns, counts))
    return tuple(everywhere), counts > 0.5


def gather_columns(columns: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Gather columns, each ``(..., N)`` of one shape, from all ranks, in the dtype of the first; 0 where padded.

    N may differ by rank: the largest is exchanged first, by a CPU backend if the group has one.
    """
    local = torch.stack([column.to(columns[0].dtype) for column in columns])
    padding = _largest_across_ranks(local.shape[-1]) - local.shape[-1]
    gathered: Tensor = _AllGather.apply(F.pad(local, (0, padding)))  # type: ignore[no-untyped-call]
    return torch.cat(gathered.unbind(0), dim=-1).unbind(0)


def sum_across_ranks(tensor: Tensor) -> Tensor:
    """Sum a tensor of one shape over all ranks, with the gradient convention of :func:`gather_samples`."""
    _largest_across_ranks(1)
    gathered: Tensor = _AllGather.apply(tensor)  # type: ignore[no-untyped-call]
    return gathered.sum(0)


@contextmanager
def failing_together() -> Iterator[None]:
    """Let the other ranks know when this one fails before its gather, so that none waits for it or runs ahead."""
    try:
        yield
    except (TypeError, ValueError):
        _exchange_largest(FAILED)
        raise


def _largest_across_ranks(size: int) -> int:
    largest = _exchange_largest(size)
    if largest == FAILED:
        raise RuntimeError("another rank of the process group was given bad input: see the error of that rank")
    return largest


def _exchange_largest(size: int) -> int:
    on_cpu = "cpu:" in str(dist.get_backend_config())
    device = torch.device("cpu") if on_cpu else torch.accelerator.current_accelerator()
    largest = torch.tensor(size, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)
