"""Batches in which all labels, or all but a few, are ignored."""

from collections.abc import Callable

import torch
from torch import Tensor

from calibrant.distributed import is_distributed
from calibrant.numerics import readable

Loss = Callable[[Tensor, Tensor], Tensor]


def loss_or_zero(loss: Loss, logits: Tensor, target: Tensor, *, minimum: int = 1) -> Tensor:
    """Return the loss of a batch, or a zero with zero gradients if ignored labels leave fewer than ``minimum`` samples.

    The zero is connected to the logits, so that ``backward()`` works and every rank of ``DistributedDataParallel``
    takes part in it. A batch that is too small without any ignored label is the loss's own to refuse.

    Args:
        loss: Function of ``(logits, target)``, with an attribute ``ignore_index`` if that is not -100.
        logits: Logits of the batch, as ``loss`` takes them.
        target: Class indices of the batch.
        minimum: Fewest samples ``loss`` is defined for.

    Example:
        >>> logits = torch.ones(2, 3, requires_grad=True)
        >>> loss = loss_or_zero(torch.nn.functional.cross_entropy, logits, torch.tensor([-100, -100]))
        >>> loss.backward()
        >>> loss.item(), logits.grad.abs().sum().item()
        (0.0, 0.0)
    """
    ignore_index = getattr(loss, "ignore_index", -100)
    if ignore_index is None or target.numel() < minimum:
        return loss(logits, target)
    enough = (target != ignore_index).sum() >= minimum
    if readable(enough):
        return loss(logits, target) if enough else zero_of(logits)
    # The answer is on an accelerator that must not be waited for: if it is no, this is the loss of zeros, times zero.
    return loss(torch.where(enough, logits, 0.0), torch.where(enough, target, 0)) * enough


def objective_or_zero(objective: Loss, logits: Tensor, target: Tensor) -> Tensor:
    """Return :func:`loss_or_zero` of a calibration objective, which may need several samples.

    With several ranks the objective is that of the global batch, so that one rank's labels do not decide.
    """
    if is_distributed():
        return objective(logits, target)
    return loss_or_zero(objective, logits, target, minimum=minimum_samples_of(objective))


def minimum_samples_of(objective: object) -> int:
    """Return the fewest samples an objective is defined for: what it says itself, 1 if it says nothing."""
    minimum = getattr(objective, "minimum_samples", None)
    return int(minimum()) if callable(minimum) else 1


def zero_of(logits: Tensor) -> Tensor:
    """Return a zero that is connected to the logits; they may hold anything, NaN included."""
    return torch.where(torch.zeros_like(logits, dtype=torch.bool), logits, 0.0).sum()
