"""The temperature in the loop of a model that computes its own loss: a hook divides its logits as they are made."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from calibrant.training.last_layer import find_layer
from calibrant.training.outputs import logits_in, with_logits


class DividedLogits:
    """Divides the logits a module makes by a temperature until it is removed.

    Args:
        module: Returns the logits, or an object with ``.logits``.

    Attributes:
        module: The module.
        latest: Logits of the latest forward pass, divided.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> before, divided = layer(torch.ones(1, 2)), DividedLogits(layer)
        >>> divided.set(2.0)
        >>> torch.equal(layer(torch.ones(1, 2)), before / 2)
        True
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.latest: Tensor | None = None
        # A tensor: a number that changes would be a reason to compile the model again.
        self._temperature = torch.ones((), dtype=torch.float64)
        self._is_on = True
        self._handle: RemovableHandle | None = module.register_forward_hook(self._divide)

    def set(self, temperature: float) -> None:
        """Divide by another temperature from now on."""
        self._temperature = torch.tensor(temperature, dtype=torch.float64)

    @contextmanager
    def raw(self) -> Iterator[None]:
        """Leave the logits as they are."""
        self._is_on = False
        try:
            yield
        finally:
            self._is_on = True

    def remove(self) -> None:
        """Leave the logits as they are from now on."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = self.latest = None

    def _divide(self, module: nn.Module, given: Any, output: Any) -> Any:
        del module, given
        if not self._is_on:
            return output
        logits = logits_in(output) / self._temperature
        self.latest = logits.detach()
        return with_logits(output, logits)


def find_maker(model: nn.Module, run: Callable[[], Tensor]) -> nn.Module:
    """Return the layer that makes the logits, or the innermost module that returns them where no layer does.

    Args:
        model: Any module.
        run: Runs the model on a batch and returns its logits.
    """
    layer = find_layer(model, run)
    if layer is not None:
        return layer
    made: list[tuple[nn.Module, Tensor]] = []

    def keep(module: nn.Module, _: Any, output: Any) -> None:
        logits = getattr(output, "logits", output)
        if isinstance(logits, Tensor):
            made.append((module, logits.detach()))

    hooks = [module.register_forward_hook(keep) for module in model.modules()]
    try:
        with torch.no_grad():
            logits = run().detach()
    finally:
        for hook in hooks:
            hook.remove()
    same = (module for module, output in made if output.shape == logits.shape and torch.equal(output, logits))
    return next(same, model)
