"""Maps as modules of torch, and folded into the last layer of a network."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    import torch
    from torch import Tensor, nn
except ImportError:
    raise ImportError("modules and layers need torch: pip install 'calibrant[torch]'") from None

from calibrant.inputs import counted
from calibrant.posthoc.map import Affine, Curves, Logits, Map, Mixed

if TYPE_CHECKING:
    from calibrant.posthoc.fit import Fitted


class CalibratorModule(nn.Module):
    """A fitted calibrator whose arrays are buffers, which move with the model it is a part of."""

    def __init__(self, calibrator: "Fitted") -> None:
        super().__init__()
        self.calibrator = calibrator
        for name, array in calibrator.map_.split()[1].items():
            self.register_buffer(name.replace(".", "_"), torch.from_numpy(np.array(array)))

    def _bound(self) -> Any:
        """The calibrator with the buffers as the arrays of its map."""
        bound = copy.copy(self.calibrator)
        bound.in_numpy = False
        bound.map_ = bound.map_.rebuilt(lambda name, _: getattr(self, name.replace(".", "_")))
        return bound

    def forward(self, logits: Tensor, places: Tensor | None = None) -> Tensor:
        """What calling the calibrator returns; the sets of groups take their positions in ``groups_``."""
        return self._bound()(logits, *(() if places is None else (places,)))  # type: ignore[no-any-return]

    def predict_proba(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities."""
        return self._bound().predict_proba(logits)  # type: ignore[no-any-return]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move buffers to other devices, but never lose precision."""

        def careful(buffer: Tensor) -> Tensor:
            there = fn(buffer.new_empty(0, dtype=torch.float32))
            if there.device.type == "mps" and buffer.dtype == torch.float64:
                buffer = buffer.float()
            return buffer.to(there.device)

        return super()._apply(careful, recurse)  # type: ignore[no-untyped-call]

    def extra_repr(self) -> str:
        """Show the calibrator."""
        return repr(self.calibrator)


def folded(calibrator: "Fitted", linear: nn.Linear) -> nn.Module:
    """A new layer with the affine part of the map that comes first, and the rest as a module; see ``fold_into``."""
    name, classes = type(calibrator).__name__, calibrator.class_count_
    if not isinstance(linear, nn.Linear):
        raise TypeError(
            f"{name} folds into a torch.nn.Linear, got {type(linear).__name__}: pass the model's last layer"
        )
    outputs = linear.out_features
    if outputs != classes and not (outputs == 1 and classes == 2):
        raise ValueError(
            f"{name} was fitted on {classes} classes, got a layer with {counted(outputs, 'output')}: pass the layer "
            "that makes the logits"
        )
    affine, rest = _split(calibrator.map_)
    if affine is None:
        raise TypeError(
            f"{name} cannot be folded into {type(linear).__name__}: use TemperatureScaling(strict=True), or put "
            "calibrator.module() behind the model"
        )
    matrix, shift = affine.matrix * np.eye(classes) if affine.matrix.ndim < 2 else affine.matrix, affine.shift
    shift = shift + np.zeros(classes)
    if outputs == 1:  # the logit of class 0 is 0 before, and its logit is subtracted after
        matrix, shift = matrix[1:, 1:] - matrix[:1, 1:], shift[1:] - shift[:1]
    old = linear.weight.detach()
    weight = torch.from_numpy(matrix) @ old.double().cpu()
    bias = None if linear.bias is None and not shift.any() else torch.from_numpy(shift)
    if bias is not None and linear.bias is not None:
        bias = bias + torch.from_numpy(matrix) @ linear.bias.detach().double().cpu()
    layer = _layer_like(linear, weight, bias)
    if isinstance(rest, Logits) or (isinstance(rest, Mixed) and isinstance(rest.of, Logits)):
        return layer
    after = copy.copy(calibrator)
    after.map_ = rest
    return nn.Sequential(layer, CalibratorModule(after))


def _split(part: Map) -> tuple[Affine | None, Map]:
    """The affine map of the logits that comes first, and the map of its result."""
    if isinstance(part, Affine) and isinstance(part.of, Logits):
        return (None, part) if part.of_log_probabilities else (part, Logits())
    if isinstance(part, Logits):
        return Affine(np.array(1.0), np.array(0.0)), part
    if not hasattr(part, "of") or isinstance(part, Curves):
        return None, part
    affine, inner = _split(part.of)
    return affine, replace(part, of=inner)  # type: ignore[call-arg]


def _layer_like(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A new layer with these weights, and with the dtype, device and frozen state of the old one."""
    old = linear.weight
    # Without the usual initialisation, which would draw from the user's random numbers.
    layer: nn.Linear = torch.nn.utils.skip_init(
        nn.Linear, linear.in_features, linear.out_features, bias is not None, device=old.device, dtype=old.dtype
    )
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
            layer.bias.requires_grad_((old if linear.bias is None else linear.bias).requires_grad)
    layer.weight.requires_grad_(old.requires_grad)
    return layer.train(linear.training)
