"""Ways to change the last layer of a trained network: a scale, a scale and bias for each class, or all its weights."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.posthoc import VectorScaling
from calibrant.posthoc.likelihood import Vector, chunks, minimise, nll_and_residual
from calibrant.posthoc.temperature import temperature_or_one
from calibrant.training.last_layer import divide

# Penalties of the head, the strongest first. They are relative to the mean NLL, with features of mean square 1.
PENALTIES = (1.0, 0.1, 0.01, 1e-3, 1e-4)
# Features with up to this many elements are kept in float64: 128 MB.
WHOLE = 2**24


class Samples(NamedTuple):
    """Outputs of a network on labelled data, on the CPU."""

    logits: Tensor
    target: Tensor
    features: Tensor | None  # inputs of the last layer; None where it is not a linear layer that makes the logits

    def take(self, rows: Tensor) -> "Samples":
        """Some of the samples."""
        features = None if self.features is None else self.features[rows]
        return Samples(self.logits[rows], self.target[rows], features)


class Head(NamedTuple):
    """New weights of the last layer."""

    weight: Tensor
    bias: Tensor


Recalibration = float | VectorScaling | Head  # the float is a temperature


def logits_after(change: Recalibration, samples: Samples) -> Tensor:
    """New logits of samples."""
    if isinstance(change, float):
        return samples.logits.double() / change
    if isinstance(change, VectorScaling):
        return torch.as_tensor(change(samples.logits.double()))
    assert samples.features is not None  # noqa: S101 (the head was fitted on features)
    made = samples.features.double() @ change.weight.T + change.bias
    return torch.cat((torch.zeros_like(made), made), 1) if made.shape[1] == 1 else made


@torch.no_grad()
def apply(change: Recalibration, model: nn.Module, layer: nn.Module | None) -> None:
    """Change the model's last layer, which may get a bias, or scale its output if no layer can be changed."""
    if isinstance(change, float):
        divide(model, layer, change)
        return
    assert isinstance(layer, nn.Linear)  # noqa: S101 (features are there only with such a layer)
    new = change.fold_into(layer) if isinstance(change, VectorScaling) else change
    layer.weight.copy_(new.weight)
    if layer.bias is None:
        layer.bias = nn.Parameter(new.bias.detach().to(layer.weight), requires_grad=layer.weight.requires_grad)
    else:
        layer.bias.copy_(new.bias)


def fit_heads(samples: Samples, layer: nn.Linear, penalties: Sequence[float] = PENALTIES) -> Iterator[Head]:
    r"""Fit the last layer by the penalised NLL, once for each penalty.

    .. math:: \mathrm{NLL} + \tfrac{\lambda}{2} \lVert (W - W_0 / T) S \rVert^2 + \tfrac{\lambda}{2} \lVert b - b_0/T
        \rVert^2

    with T the best temperature and S the root mean squares of the features: a strong penalty gives temperature
    scaling. The problem is convex and is solved by L-BFGS; every fit starts from the one before, so penalties go from
    strong to weak.
    """
    assert samples.features is not None  # noqa: S101 (checked by the caller)
    features = samples.features
    temperature = temperature_or_one(samples.logits, samples.target)
    first = layer.weight.detach().cpu().double() / temperature
    bias = torch.zeros(len(first)).double() if layer.bias is None else layer.bias.detach().cpu().double() / temperature
    sizes = features.double().square().mean(0).sqrt()
    sizes = sizes.clamp_min(1e-6 * float(sizes.max())).clamp_min(1e-12)
    # In float64, as in every step of the search, unless that takes too much memory.
    scaled = features.double() / sizes if features.numel() <= WHOLE else (features / sizes).float()
    given = torch.cat([part @ first.T + bias for part, _ in chunks(features, samples.target)])
    shift = np.zeros(first.numel() + len(first))
    for penalty in penalties:
        shift = _fit_shift(given, scaled, samples.target, penalty, shift)
        moved, moved_bias = _split(torch.from_numpy(shift), len(first))
        yield Head(first + moved / sizes, bias + moved_bias)


def _fit_shift(given: Tensor, features: Tensor, target: Tensor, penalty: float, start: Vector) -> Vector:
    """The best change of weights and bias, in addition to given logits."""
    outputs = given.shape[1]

    def objective(position: Vector) -> tuple[float, Vector]:
        shift = torch.from_numpy(position)
        weight, bias = _split(shift, outputs)
        value, gradient, bias_gradient, row = 0.0, torch.zeros_like(weight), torch.zeros_like(bias), 0
        for part, labels in chunks(features, target):
            logits = torch.addmm(given[row : row + len(part)] + bias, part, weight.T)
            row += len(part)
            if outputs == 1:
                logits = torch.cat((torch.zeros_like(logits), logits), 1)
            nll, residual = nll_and_residual(logits, labels)
            residual = residual[:, 1:] if outputs == 1 else residual
            value += nll
            gradient += residual.T @ part
            bias_gradient += residual.sum(0)
        whole = torch.cat((gradient.flatten(), bias_gradient)) / len(features)
        value = value / len(features) + penalty / 2 * float(shift @ shift)
        return value, (whole + penalty * shift).numpy()

    return minimise(objective, start, np.ones_like(start), gradient_tolerance=1e-5, steps=200)


def _split(shift: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
    """Weights ``(outputs, D)`` and bias ``(outputs,)`` of a vector of both."""
    return shift[:-outputs].view(outputs, -1), shift[-outputs:]
