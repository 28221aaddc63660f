"""The mode a network runs in: evaluation, with or without dropout, and what a batch does to BatchNorm."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from calibrant.torch_private import BatchNorm, Dropout


@contextmanager
def evaluating(model: nn.Module, *, dropout: bool = False) -> Iterator[None]:
    """Run forward passes in evaluation mode, but for ``dropout`` if asked, then put every module's mode back."""
    modes = [(module, module.training) for module in model.modules()]
    for module, training in modes:
        module.training = training and dropout and isinstance(module, Dropout)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def has_dropout(model: nn.Module) -> bool:
    """Whether dropout makes a model another one in training mode."""
    return any(isinstance(module, Dropout) and module.p > 0 for module in model.modules())


@contextmanager
def freeze_batchnorm_statistics(model: nn.Module) -> Iterator[None]:
    """Run forward passes that leave BatchNorm's running statistics as they are.

    In the published recipe the calibration batch is a second pass in training mode: it is normalised by its own mean
    and variance, and these also enter the running statistics that evaluation will use. Inside this context it is
    normalised in the same way, and the running statistics stay those of the batches the NLL sees. Weights receive
    their gradients as ever.

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
            # A layer in evaluation mode goes by its running statistics, which it keeps, and changes nothing anyway.
            layer.track_running_stats = not layer.training
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
