"""MNIST with LeNet5, as in the ESD paper."""

from pydantic import Field

from calibrant_lab.data.mnist import load_mnist
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.recipes.images import ImageSettings, image_network, in_memory


class MnistSettings(ImageSettings):
    """Settings of the recipe mnist."""

    image_size: int = Field(32, ge=1, description="Side length in pixels that images are scaled to.")


mnist = Recipe(
    lambda settings, folder: in_memory(load_mnist(folder, settings.image_size), settings), image_network,
    settings=MnistSettings, shift=True,
)  # fmt: skip
