"""scikit-learn's digits with LeNet5: embedded data, for a first try and for tests."""

from pathlib import Path

from pydantic import Field

from calibrant_lab.data import load_digits
from calibrant_lab.data.samples import Data
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.recipes.images import ImageSettings, build_network, image_data


class DigitsSettings(ImageSettings):
    """Settings of the recipe digits."""

    noise: float = Field(0.3, ge=0, description="Standard deviation of the noise added to the 8 x 8 pixels.")


def load(settings: DigitsSettings, folder: Path | None) -> Data:
    """Load the digits."""
    if folder is not None:
        raise ValueError("digits are embedded: leave out --data-dir")
    return image_data(load_digits(settings.noise), settings)


digits = Recipe(load, build_network, settings=DigitsSettings, shift=True, epochs=40, batch_size=128)
