"""A recipe: how to load data, how to build a network, and their settings."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field, create_model
from torch import nn

from calibrant_lab.data.samples import Data
from calibrant_lab.settings import Settings


class Recipe:
    """How to load data and build a network, with the settings of both and of training.

    ``load`` and ``build`` are called with those of the arguments below that are in their signatures.

    Args:
        load: Function that returns a :class:`Data`. May take ``settings``; ``folder``, the ``--data-dir`` of the
            command line or None; and ``seed``, for data that are sampled.
        build: Function that returns a network, which maps a batch of inputs to logits. May take ``data``, the result of
            ``load``, and ``settings``.
        settings: Settings of the recipe, a subclass of :class:`Settings`.
        shift: Whether the samples are images that can be corrupted for Figure 6; or the name of the published set of
            corrupted images, such as ``"CIFAR-10-C"``. Such a recipe needs
            :class:`~calibrant_lab.data.images.ImageSamples`, normalised by the settings ``mean`` and ``std``.
        **defaults: Defaults that differ from those of ``settings``. An unknown name becomes a new setting with the type
            of its default.

    Example:
        >>> import torch
        >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
        >>> recipe = Recipe(
        ...     load=lambda: Data((x[:40], y[:40]), (x[40:], y[40:])),
        ...     build=lambda data, settings: nn.Linear(4, data.classes, bias=settings.bias),
        ...     epochs=5, bias=False,
        ... )
        >>> settings = recipe.settings.checked({"learning_rate": "0.01"})
        >>> settings.epochs, settings.bias, settings.learning_rate
        (5, False, 0.01)
        >>> recipe.build(recipe.load(settings, None), settings)
        Linear(in_features=4, out_features=3, bias=False)
    """

    def __init__(
        self,
        load: Callable[..., Data],
        build: Callable[..., nn.Module],
        *,
        settings: type[Settings] = Settings,
        shift: bool | str = False,
        **defaults: Any,
    ) -> None:
        self._load = load
        self._build = build
        self.settings = _with_defaults(settings, defaults) if defaults else settings
        self.shift = shift

    def load(self, settings: Settings, folder: Path | None, seed: int = 0) -> Data:
        """Load the data."""
        found = _called(self._load, settings=settings, folder=folder, seed=seed)
        if not isinstance(found, Data):
            raise TypeError(f"load must return calibrant_lab.Data, got {type(found).__name__}")
        return found

    def build(self, data: Data, settings: Settings) -> nn.Module:
        """Build a network with its initial weights."""
        found = _called(self._build, data=data, settings=settings)
        if not isinstance(found, nn.Module):
            raise TypeError(f"build must return a torch.nn.Module, got {type(found).__name__}")
        return found


def _with_defaults(settings: type[Settings], defaults: dict[str, Any]) -> type[Settings]:
    fields: dict[str, Any] = {}
    for name, default in defaults.items():
        known = settings.model_fields.get(name)
        if known is None:
            fields[name] = (Any if default is None else type(default), default)
        else:
            field: Any = Field(default, description=known.description)
            field.metadata = list(known.metadata)  # its bounds
            fields[name] = (known.annotation, field)
    return create_model(settings.__name__, __base__=settings, __doc__=settings.__doc__, **fields)


def _called(function: Callable[..., Any], **offered: Any) -> Any:
    taken = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in taken.values()):
        return function(**offered)
    return function(**{name: value for name, value in offered.items() if name in taken})
