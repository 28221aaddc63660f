"""MNIST with LeNet5, as in the ESD paper."""

from pathlib import Path

from pydantic import Field

from calibrant_lab.data import load_mnist
from calibrant_lab.data.samples import Data
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.recipes.images import ImageSettings, build_network, image_data


class MnistSettings(ImageSettings):
    """Settings of the recipe mnist."""

    image_size: int = Field(32, ge=1, description="Pixels a side that images are padded or scaled to.")


def load(settings: MnistSettings, folder: Path | None) -> Data:
    """Load MNIST from its official files, or from the Hugging Face hub."""
    return image_data(load_mnist(folder, settings.image_size), settings)


mnist = Recipe(load, build_network, settings=MnistSettings, shift=True)
