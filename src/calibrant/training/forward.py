"""Forward passes of any model: its mode, the logits of a batch, and the samples of logits and target."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.losses import checks
from calibrant.losses.checks import Classification
from calibrant.numerics import readable
from calibrant.torch_private import BatchNorm, Dropout


@contextmanager
def evaluating(model: nn.Module, *, dropout: bool = False) -> Iterator[None]:
    """Run forward passes in evaluation mode, optionally with ``dropout``, then restore the mode of every module."""
    modes = [(module, module.training) for module in model.modules()]
    for module, training in modes:
        module.training = training and dropout and isinstance(module, Dropout)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def has_dropout(model: nn.Module) -> bool:
    """Whether a model has dropout that is active in training mode."""
    return any(isinstance(module, Dropout) and module.p > 0 for module in model.modules())


@contextmanager
def freeze_batchnorm_statistics(model: nn.Module) -> Iterator[None]:
    """Run forward passes that leave BatchNorm's running statistics as they are.

    In the published recipe the calibration batch is a second pass in training mode: it is normalised by its own mean
    and variance, and these also enter the running statistics that evaluation will use. Inside this context it is
    normalised in the same way, but the running statistics stay those of the batches the NLL sees. Gradients are not
    affected.

    Args:
        model: Any module; without BatchNorm nothing changes.

    Example:
        >>> import torch
        >>> model = nn.BatchNorm1d(2)
        >>> with freeze_batchnorm_statistics(model):
        ...     _ = model(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> model.running_mean, int(model.num_batches_tracked)
        (tensor([0., 0.]), 0)
    """
    layers = [layer for layer in model.modules() if isinstance(layer, BatchNorm) and layer.track_running_stats]
    try:
        for layer in layers:
            # A layer in evaluation mode uses its running statistics and does not change them.
            layer.track_running_stats = not layer.training
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


def logits_of(model: Callable[..., Any], batch: Any) -> Tensor:
    """Run a model on a tensor or a mapping of keyword arguments, and return its logits."""
    if isinstance(batch, np.ndarray):
        raise TypeError("the inputs are a NumPy array: pass torch.as_tensor(x)")
    return logits_in(model(**batch) if isinstance(batch, Mapping) else model(batch))


def pair_of(batch: Any, what: str = "a batch") -> tuple[Any, Any]:
    """Inputs and target of a batch."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, list | tuple) else ""
        raise TypeError(
            f"{what} must be (inputs, target), got {type(batch).__name__}{size}: give the loader a collate_fn that "
            "makes such pairs"
        )
    return batch[0], batch[1]


def device_of(model: nn.Module) -> torch.device:
    """Device of a model's weights; the CPU if it has none."""
    return next((weights.device for weights in model.parameters()), torch.device("cpu"))


def logits_in(output: Any) -> Tensor:
    """Logits of a model's output."""
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        found = f"only {', '.join(output)}" if isinstance(output, Mapping) else type(output).__name__
        raise TypeError(
            f"the model must return logits, or an object or mapping with logits, got {found}: use a model with a "
            "classification head, or wrap it in a module that returns the logits alone"
        )
    return logits


def with_logits(output: Any, logits: Tensor) -> Any:
    """A model's output with other logits."""
    if isinstance(output, Tensor):
        return logits
    if isinstance(output, tuple) and hasattr(output, "_replace"):
        return output._replace(logits=logits)
    changed = copy.copy(output)
    if isinstance(output, MutableMapping):
        changed["logits"] = logits  # also sets the attribute of a ModelOutput of transformers
    else:
        changed.logits = logits
    return changed


PROBABILITIES = (
    "the model's outputs look like probabilities or log-probabilities: remove the softmax, sigmoid or log-softmax at "
    "its end, since the loss takes logits"
)


def looks_like_probabilities(logits: Tensor) -> bool:
    """Whether ``(N, C)`` logits, at least 8 rows, or their exponentials, sum to 1."""
    if len(logits) < 8:
        return False
    sums = logits.sum(1) if bool((logits >= 0).all()) else logits.logsumexp(1) + 1
    return bool(((sums - 1).abs() < 1e-3).all())


def looks_like_sigmoid(logits: Tensor) -> bool:
    """Whether binary logits, which have a column of zeros, are all in [0, 1]; those of a trained network are not."""
    if logits.shape[1] != 2 or not len(logits) or bool(logits[:, 0].any()):
        return False
    return bool(((logits[:, 1] >= 0) & (logits[:, 1] <= 1)).all())


def flattened(logits: Tensor, target: Tensor, *, multi_label: bool = False, ignore_index: int = -100) -> Classification:
    """Check a batch and bring it to ``(N, C)`` logits; every label of a multi-label batch is a binary sample."""
    if not multi_label:
        return checks.classification(logits, target, None, ignore_index)
    if target.shape != logits.shape:
        raise ValueError(
            f"a multi-label target must have the shape of the logits, {tuple(logits.shape)}, got {tuple(target.shape)}"
        )
    return checks.classification(logits.reshape(-1), target.reshape(-1).long(), None, ignore_index)


def binary_labels(target: Tensor) -> Tensor:
    """Targets 0.0 and 1.0 of a binary loss as class indices."""
    if readable(target) and not bool(((target == 0) | (target == 1)).all()):
        raise ValueError("a floating-point target of binary logits must be 0 or 1: round it, or pass class indices")
    return target.long()


def finite(
    logits: Tensor, target: Tensor, ignore_index: int, *, multi_label: bool = False
) -> tuple[Tensor, Tensor, int]:
    """Ignore samples with infinite or NaN logits, and return how many there are among those that count."""
    if logits.numel() == 0 or math.isfinite(float(logits.detach().abs().max())):
        return logits, target, 0
    bad = ~logits.isfinite()
    if not multi_label and target.shape != logits.shape:
        bad = (bad if logits.dim() == 1 else bad.any(1)).reshape(target.shape)
    count = int((bad & (target != ignore_index)).sum())
    return logits.nan_to_num(0.0, 0.0, 0.0), target.masked_fill(bad, ignore_index), count


def spread(weight: Tensor | None, count: int) -> Tensor | None:
    """One weight for each of ``count`` predictions, from weights per prediction or per sample."""
    if weight is None:
        return None
    if weight.numel() != count and (weight.dim() != 1 or not len(weight) or count % len(weight)):
        raise ValueError(f"expected one weight per sample, got {tuple(weight.shape)} for {count} predictions")
    if readable(weight) and bool(((weight < 0) | ~weight.isfinite()).any()):
        raise ValueError("weights must be finite and not negative")
    return weight.reshape(-1) if weight.numel() == count else weight.repeat_interleave(count // len(weight))
