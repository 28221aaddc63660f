"""The temperature in the loop of a model that computes its own loss: a hook divides its logits as they are made."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

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
