"""From a batch to the logits of any model, and the loss of logits."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant import inputs
from calibrant.inputs import Classification
from calibrant.numerics import readable
from calibrant.training.ignored import zero_of


def logits_of(model: Callable[..., Any], batch: Any) -> Tensor:
    """Run a model and return its logits.

    Args:
        model: Returns logits, or an object or mapping with ``logits``, as models of Hugging Face do.
        batch: A tensor, or a mapping of keyword arguments of the model.
    """
    if isinstance(batch, np.ndarray):
        raise TypeError("the inputs are a NumPy array: pass torch.as_tensor(x)")
    return logits_in(model(**batch) if isinstance(batch, Mapping) else model(batch))


def logits_in(output: Any) -> Tensor:
    """Logits in what a model returned."""
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model must return logits, or an object or mapping with logits, got {type(output).__name__}: wrap it "
            "in a module that returns the logits alone"
        )
    return logits


def with_logits(output: Any, logits: Tensor) -> Any:
    """What a model returned, with other logits."""
    if isinstance(output, Tensor):
        return logits
    if isinstance(output, tuple) and hasattr(output, "_replace"):
        return output._replace(logits=logits)
    changed = copy.copy(output)
    if isinstance(output, MutableMapping):
        changed["logits"] = logits  # a ModelOutput of transformers sets its attribute with it
    else:
        changed.logits = logits
    return changed


def unwrapped(model: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` has wrapped, or the model itself."""
    return getattr(model, "_orig_mod", model)


PROBABILITIES = (
    "the model's outputs look like probabilities, or their logarithms: remove the softmax, sigmoid or log-softmax at "
    "its end, since the loss takes logits"
)


def looks_like_probabilities(logits: Tensor) -> bool:
    """Whether ``(N, C)`` logits, 8 or more, sum to 1, or their exponentials do."""
    if len(logits) < 8:
        return False
    sums = logits.sum(1) if bool((logits >= 0).all()) else logits.logsumexp(1) + 1
    return bool(((sums - 1).abs() < 1e-3).all())


@contextmanager
def evaluating(model: nn.Module, *, dropout: bool = False) -> Iterator[None]:
    """Run forward passes in evaluation mode, then put every module back into the mode it was in.

    BatchNorm goes by its running statistics and leaves them alone.

    Args:
        model: Any module.
        dropout: Keep dropout as it is in training.
    """
    modes = [(module, module.training) for module in model.modules()]
    for module, training in modes:
        is_dropout = isinstance(module, nn.modules.dropout._DropoutNd)
        module.training = training and dropout and is_dropout
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def has_dropout(model: nn.Module) -> bool:
    """Whether dropout makes a model another one in training mode."""
    return any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in model.modules())


def flattened(logits: Tensor, target: Tensor, *, multi_label: bool = False, ignore_index: int = -100) -> Classification:
    """Check a batch and bring it to ``(N, C)`` logits; every label of a multi-label batch is a binary sample."""
    if not multi_label:
        return inputs.classification(logits, target, None, ignore_index)
    if target.shape != logits.shape:
        raise ValueError(
            f"a multi-label target must have the shape of the logits, {tuple(logits.shape)}, got {tuple(target.shape)}"
        )
    return inputs.classification(logits.reshape(-1), target.reshape(-1).long(), None, ignore_index)


def in_unit_interval(logits: Tensor) -> bool:
    """Whether ``(N, 2)`` logits are those of binary outputs in [0, 1], as a sigmoid makes them."""
    return logits.shape[1] == 2 and bool(
        (logits[:, 0] == 0).all() and ((logits[:, 1] >= 0) & (logits[:, 1] <= 1)).all()
    )


def binary_labels(target: Tensor) -> Tensor:
    """Targets 0.0 and 1.0 of a binary loss as class indices."""
    if readable(target) and not bool(((target == 0) | (target == 1)).all()):
        raise ValueError("a floating-point target of binary logits must be 0 or 1: round it, or pass class indices")
    return target.long()


def finite(
    logits: Tensor, target: Tensor, ignore_index: int, *, multi_label: bool = False
) -> tuple[Tensor, Tensor, int]:
    """Let samples whose logits are infinite or NaN be ignored, and say how many of those that count there are."""
    if logits.numel() == 0 or math.isfinite(float(logits.detach().abs().max())):
        return logits, target, 0
    bad = ~logits.isfinite()
    if not multi_label and target.shape != logits.shape:
        bad = (bad if logits.dim() == 1 else bad.any(1)).reshape(target.shape)
    count = int((bad & (target != ignore_index)).sum())
    return logits.nan_to_num(0.0, 0.0, 0.0), target.masked_fill(bad, ignore_index), count


def cross_entropy(data: Classification, sample_weight: Tensor | None = None) -> Tensor:
    """Mean NLL of the samples that count; 0, with a zero gradient, where there are none.

    Args:
        data: A checked batch.
        sample_weight: ``(N,)`` non-negative weights.
    """
    # Not by indexing with the mask, for whose result an accelerator would have to be waited for.
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


def spread(weight: Tensor | None, count: int) -> Tensor | None:
    """One weight for each of ``count`` places, of weights for each place or for each sample with several of them."""
    if weight is None:
        return None
    if weight.numel() != count and (weight.dim() != 1 or not len(weight) or count % len(weight)):
        raise ValueError(
            f"expected one weight for each of the samples, got {tuple(weight.shape)} for {count} predictions"
        )
    if readable(weight) and bool(((weight < 0) | ~weight.isfinite()).any()):
        raise ValueError("weights must be finite and not negative")
    return weight.reshape(-1) if weight.numel() == count else weight.repeat_interleave(count // len(weight))


def mean_nll(logits: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """Cross entropy of ``(N, C, ...)`` logits as torch has it, but 0 where every sample is ignored, not NaN.

    A shorter way than :func:`cross_entropy`, for every step of a training loop: shapes and labels are checked by torch.
    """
    if logits.device.type != "cpu" or torch.compiler.is_compiling():  # no looking at values there
        total = F.cross_entropy(logits, target, ignore_index=ignore_index, reduction="sum")
        return total / (target != ignore_index).sum().clamp_min(1)
    loss = F.cross_entropy(logits, target, ignore_index=ignore_index)
    return zero_of(logits) if bool(loss.isnan()) and bool((target == ignore_index).all()) else loss
