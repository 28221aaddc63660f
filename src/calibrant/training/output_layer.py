"""The output layer, which makes the logits: found, and scaled so that the model itself gives calibrated logits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from calibrant.torch_private import Convolution
from calibrant.training.forward import evaluating, logits_in, logits_of, with_logits
from calibrant.training.interleave import kept_random_state

Layer = nn.Linear | Convolution
BUFFER = "calibrant_temperature"


def eagerly() -> Any:
    """Run without compilation, in a ``with`` statement: code that is already compiled does not see a new hook."""
    return torch.compiler.set_stance("force_eager")


@torch.no_grad()
def find_output(model: nn.Module, x: Any) -> nn.Module:
    """Return the linear or convolutional layer that makes the logits, or the innermost module that returns them."""
    made: list[tuple[nn.Module, Tensor]] = []  # innermost first

    def keep(module: nn.Module, _: Any, output: Any) -> None:
        found = getattr(output, "logits", output)
        if isinstance(found, Tensor):
            made.append((module, found))

    hooks = [module.register_forward_hook(keep) for module in model.modules()]
    try:
        with kept_random_state(), evaluating(model), eagerly():
            logits = logits_of(model, x)
    finally:
        for hook in hooks:
            hook.remove()
    for module, output in reversed(made):
        # The output of the layer may have an extra dimension of size 1, or another precision.
        is_candidate = isinstance(module, Layer) and output.numel() == logits.numel()
        if is_candidate and torch.equal(output.reshape(-1).to(logits.dtype), logits.reshape(-1)):
            return module
    same = (module for module, output in made if output.shape == logits.shape and torch.equal(output, logits))
    return next(same, model)


@contextmanager
def arguments_of(layer: nn.Module) -> Iterator[list[Any]]:
    """Collect the positional arguments of every call of a layer."""
    seen: list[Any] = []
    hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given))
    try:
        with eagerly():
            yield seen
    finally:
        hook.remove()


def through_layer(layer: nn.Module, model: nn.Module, x: Any) -> Tensor:
    """Logits of a model, whose gradient reaches the layer that makes them and stops there."""
    with torch.no_grad(), arguments_of(layer) as seen:
        logits = logits_of(model, x)
    made: Tensor = layer(seen[-1][0].detach())
    return made.reshape(logits.shape)


def can_be_scaled(model: nn.Module, layer: nn.Module | None) -> bool:
    """Whether a layer's weights can be divided without changing anything but its output."""
    if not isinstance(layer, Layer) or parametrize.is_parametrized(layer):
        return False
    mine = {id(weights) for weights in layer.parameters(recurse=False)}
    shared = [weights for _, weights in model.named_parameters(remove_duplicate=False) if id(weights) in mine]
    # The older weight_norm and spectral_norm keep the weight as a plain tensor, recomputed at every step.
    return len(shared) == len(mine) and isinstance(layer.weight, nn.Parameter)


@torch.no_grad()
def divide(model: nn.Module, layer: nn.Module | None, temperature: float, output: nn.Module | None = None) -> Tensor:
    """Divide the layer that makes a model's logits, or else its output; return the weights or buffer that changed."""
    if layer is not None and can_be_scaled(model, layer):
        for weights in layer.parameters(recurse=False):
            weights.div_(temperature)
        return cast(Tensor, layer.weight)
    scaled = model if output is None else output
    scale_output(scaled, temperature)
    return cast(Tensor, getattr(scaled, BUFFER))


def scale_output(model: nn.Module, temperature: float = 1.0) -> None:
    """Make a model, whose logits no linear layer makes, divide them by a temperature, in a buffer of its state.

    To load that state into a new model, call ``scale_output(new_model)`` first.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        >>> before = model(torch.ones(1, 2))
        >>> scale_output(model, 2.0)
        >>> torch.equal(model(torch.ones(1, 2)), before / 2), list(model.state_dict())[0]
        (True, 'calibrant_temperature')
    """
    known = getattr(model, BUFFER, None)
    if known is not None:
        known.mul_(temperature)
        return
    first = next(model.parameters(), torch.empty(0))
    model.register_buffer(BUFFER, torch.tensor(temperature, dtype=torch.float32, device=first.device))
    model.register_forward_hook(_divide)
    torch.compiler.reset()  # what is compiled does not see a new hook


def _divide(module: nn.Module, _: Any, output: Any) -> Any:
    logits = logits_in(output)
    return with_logits(output, logits / getattr(module, BUFFER).to(logits.dtype))


class DividedLogits:
    """Divides the logits of a module by a temperature until it is removed; ``latest`` holds those of the last pass."""

    def __init__(self, module: nn.Module) -> None:
        self.latest: Tensor | None = None
        self.sees: Callable[[Tensor], None] | None = None  # is given the logits of every pass
        # A tensor, since a number that changes would make torch.compile recompile the model.
        self._temperature = torch.ones((), dtype=torch.float64)
        self._handle = module.register_forward_hook(self._divide)

    def set(self, temperature: float) -> None:
        """Divide by another temperature from now on."""
        self._temperature = torch.tensor(temperature, dtype=torch.float64)

    def take(self, target: Any) -> tuple[Tensor, Tensor] | None:
        """The logits of the last pass, once, with a target if it holds one class for each of them."""
        logits, self.latest = self.latest, None
        if logits is None or not isinstance(target, Tensor) or target.is_floating_point() or not target.dim():
            return None
        return (logits, target) if logits.shape[:1] + logits.shape[2:] == target.shape else None

    def remove(self) -> None:
        """Leave the logits as they are from now on."""
        self._handle.remove()
        self.latest = None

    def _divide(self, module: nn.Module, given: Any, output: Any) -> Any:
        logits = logits_in(output) / self._temperature
        if self.sees is not None:
            self.sees(logits)
        self.latest = logits.detach()
        return with_logits(output, logits)
