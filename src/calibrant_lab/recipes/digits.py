"""Digits of scikit-learn, embedded, for a first try and tests."""

from pathlib import Path

from pydantic import Field

from calibrant_lab.data.digits import load_digits
from calibrant_lab.data.samples import Data
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.recipes.images import ImageSettings, image_network, in_memory


class DigitsSettings(ImageSettings):
    """Settings of the recipe digits."""

    noise: float = Field(0.3, ge=0, description="Standard deviation of the noise added to the 8 x 8 pixels.")


def _load(settings: DigitsSettings, folder: Path | None) -> Data:
    if folder is not None:
        raise ValueError("digits are embedded: leave out --data-dir")
    return in_memory(load_digits(settings.noise), settings)


digits = Recipe(_load, image_network, settings=DigitsSettings, shift=True, epochs=40, batch_size=128)
