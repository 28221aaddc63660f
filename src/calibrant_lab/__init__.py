"""The laboratory: recipes, methods and sweeps of training runs, and the ESD paper's tables and figures."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant_lab.data.samples import Data, DatasetSamples, Samples, TensorSamples
    from calibrant_lab.data.text import Pairs, TextData
    from calibrant_lab.methods import Method
    from calibrant_lab.recipes.base import Recipe
    from calibrant_lab.recipes.images import FolderSettings, image_folder
    from calibrant_lab.recipes.nli import PairSettings, text_pairs
    from calibrant_lab.settings import Settings

__all__ = [
    "Data", "DatasetSamples", "FolderSettings", "Method", "PairSettings", "Pairs", "Recipe", "Samples", "Settings",
    "TensorSamples", "TextData", "image_folder", "text_pairs",
]  # fmt: skip

_HOMES = {
    "data.samples": ("Data", "DatasetSamples", "Samples", "TensorSamples"),
    "data.text": ("Pairs", "TextData"),
    "methods": ("Method",),
    "recipes.base": ("Recipe",),
    "recipes.images": ("FolderSettings", "image_folder"),
    "recipes.nli": ("PairSettings", "text_pairs"),
    "settings": ("Settings",),
}


def __getattr__(name: str) -> Any:
    # The commands, in calibrant_lab.cli, name the extra that is missing; they could not if this import needed it.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"calibrant_lab.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
