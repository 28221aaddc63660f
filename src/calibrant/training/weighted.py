"""Objectives of held-out samples with weights."""

import inspect
from typing import Any

from torch import Tensor, nn

from calibrant.torch_private import unwrapped
from calibrant.training.forward import spread
from calibrant.training.ignored import Loss


def weighted_objective(objective: Loss, logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return an objective of samples with weights, one per prediction, or one per sample of a dense batch.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits, target = torch.randn(4, 3, 5), torch.ones(4, 5).long()
        >>> value = weighted_objective(cal.ESDLoss(), logits, target, torch.tensor([1.0, 1.0, 2.0, 0.0]))
    """
    plain = unwrapped(objective) if isinstance(objective, nn.Module) else objective  # torch.compile hides the arguments
    takes = inspect.signature(plain.forward if isinstance(plain, nn.Module) else plain).parameters
    if "sample_weight" not in takes and not any(each.kind is each.VAR_KEYWORD for each in takes.values()):
        name = getattr(plain, "__name__", type(plain).__name__)
        raise TypeError(
            f"{name} takes no sample_weight: leave out held_out_weight, or use ESDLoss, MMCELoss or ECELoss, which "
            "take weights"
        )
    shape = logits.shape[:1] + logits.shape[2:]
    of_samples: Any = spread(weight, shape.numel())
    return objective(logits, target, sample_weight=of_samples.reshape(shape))  # type: ignore[call-arg]
