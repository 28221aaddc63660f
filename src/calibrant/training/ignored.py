"""Losses of batches in which some labels, or all, are ignored."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.distributed import is_distributed
from calibrant.losses.checks import Classification
from calibrant.numerics import readable

Loss = Callable[[Tensor, Tensor], Tensor]
ENOUGH = 3  # samples for every objective of this package, where the one in use is not known


def loss_or_zero(loss: Loss, logits: Tensor, target: Tensor, *, minimum: int = 1) -> Tensor:
    """Return the loss of a batch, or a zero with zero gradients if ignored labels leave fewer than ``minimum`` samples.

    The zero is connected to the logits, so that ``backward()`` works and every rank of ``DistributedDataParallel``
    takes part in it. If a batch is too small without any ignored label, the loss itself raises an error. The loss has
    an attribute ``ignore_index`` if that is not -100.

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
    # Do not wait for the accelerator: if there are too few samples, this is the loss of zeros, times zero.
    return loss(torch.where(enough, logits, 0.0), torch.where(enough, target, 0)) * enough


def objective_or_zero(objective: Loss, logits: Tensor, target: Tensor) -> Tensor:
    """Return :func:`loss_or_zero` of a calibration objective, which may need several samples."""
    if is_distributed():  # the objective is that of the global batch, so one rank's labels do not decide
        return objective(logits, target)
    return loss_or_zero(objective, logits, target, minimum=minimum_samples(objective))


def minimum_samples(objective: object) -> int:
    """Fewest samples an objective is defined for, from its ``minimum_samples()``; 1 if it has none, or is None."""
    minimum = getattr(objective, "minimum_samples", None)
    return int(minimum()) if callable(minimum) else 1


def zero_of(logits: Tensor) -> Tensor:
    """Return a zero that is connected to the logits; they may hold anything, NaN included."""
    return torch.where(torch.zeros_like(logits, dtype=torch.bool), logits, 0.0).sum()


def cross_entropy(data: Classification, sample_weight: Tensor | None = None) -> Tensor:
    """Mean NLL of the samples that count; 0, with a zero gradient, where there are none."""
    # Indexing with the mask would have to wait for an accelerator.
    target = data.target if data.mask is None else torch.where(data.mask, data.target, -100)
    if sample_weight is None and data.mask is None:
        return F.cross_entropy(data.logits, target)
    each = F.cross_entropy(data.logits, target, ignore_index=-100, reduction="none")
    if sample_weight is None:
        return each.sum() / (target != -100).sum().clamp_min(1)
    weight = sample_weight.to(each.dtype)
    if data.mask is not None:
        weight = torch.where(data.mask, weight, 0.0)
    return (each * weight).sum() / weight.sum().clamp_min(torch.finfo(each.dtype).tiny)


def mean_nll(logits: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """Cross entropy of ``(N, C, ...)`` logits as in torch, but 0 instead of NaN if every sample is ignored.

    Faster than :func:`cross_entropy`, for every step of a training loop: torch checks shapes and labels.
    """
    if logits.device.type != "cpu" or torch.compiler.is_compiling():  # values cannot be inspected there
        total = F.cross_entropy(logits, target, ignore_index=ignore_index, reduction="sum")
        return total / (target != ignore_index).sum().clamp_min(1)
    loss = F.cross_entropy(logits, target, ignore_index=ignore_index)
    return zero_of(logits) if bool(loss.isnan()) and bool((target == ignore_index).all()) else loss
