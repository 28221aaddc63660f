"""Merging a calibrator into the layer before it."""

import torch
from torch import Tensor, nn

from calibrant.posthoc.fitted import Fitted
from calibrant.posthoc.notices import counted


def check_layer(linear: nn.Linear, calibrator: Fitted) -> None:
    """Raise unless ``linear`` is a layer whose outputs are the logits the calibrator was fitted on."""
    name = type(calibrator).__name__
    if not isinstance(linear, nn.Linear):
        raise TypeError(
            f"{name} folds into a torch.nn.Linear, got {type(linear).__name__}: pass the model's last layer"
        )
    calibrator.require_fitted()
    classes = calibrator.class_count_
    if linear.out_features != classes and not (linear.out_features == 1 and classes == 2):
        raise ValueError(
            f"{name} was fitted on {classes} classes, got a layer with "
            f"{counted(linear.out_features, 'output')}: pass the layer that makes the logits"
        )


def layer_like(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a new layer with these weights, and with the dtype, device and frozen state of the old one."""
    old = linear.weight
    # Without the usual initialisation, which would draw from the user's random numbers.
    layer: nn.Linear = nn.utils.skip_init(
        nn.Linear, linear.in_features, linear.out_features, bias is not None, device=old.device, dtype=old.dtype
    )
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
            layer.bias.requires_grad_((old if linear.bias is None else linear.bias).requires_grad)
    layer.weight.requires_grad_(old.requires_grad)
    return layer.train(linear.training)
