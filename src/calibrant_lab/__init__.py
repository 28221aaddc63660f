"""The laboratory: recipes, methods and sweeps of training runs, and the ESD paper's tables and figures."""

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
