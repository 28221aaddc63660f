"""ImageNet-100 with ResNet18, as in the ESD paper; any folder of pictures laid out as ImageNet is."""

from pathlib import Path

from pydantic import Field

from calibrant_lab.data import load_image_folder
from calibrant_lab.data.imagefolder import MEAN, STD
from calibrant_lab.data.samples import Data, DatasetSamples
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.recipes.images import Positive, build_network
from calibrant_lab.settings import FilePath, Settings


class FolderSettings(Settings):
    """Settings of recipes of pictures on disk."""

    model: str = Field("resnet18", description="Name of the network, such as resnet18.")
    image_size: int = Field(224, ge=1, description="Pixels a side that the network takes.")
    mean: tuple[float, float, float] = Field(MEAN, description="Subtracted from pixels in 0 to 1, for each channel.")
    std: tuple[Positive, Positive, Positive] = Field(STD, description="Pixels are divided by this, for each channel.")
    flip: bool = Field(True, description="Mirror every other training picture, at random.")
    class_list: FilePath | None = Field(None, description="File with the class folders to use, one a line.")
    workers: int = Field(4, ge=0, description="Processes that decode pictures; they have random numbers of their own.")
    initial_weights: FilePath | None = Field(None, description="File with the weights to start from.")


def load(settings: FolderSettings, folder: Path | None) -> Data:
    """Find the pictures in a folder, or on the Hugging Face hub."""
    classes = None if settings.class_list is None else Path(settings.class_list)
    found = load_image_folder(
        folder, size=settings.image_size, mean=settings.mean, std=settings.std, flip=settings.flip, classes=classes
    )
    train = DatasetSamples(
        found.train_unaugmented, augmented=found.train, labels=found.labels, workers=settings.workers
    )
    return Data(train, DatasetSamples(found.test, workers=settings.workers), classes=found.classes)


imagenet100 = Recipe(load, build_network, settings=FolderSettings, epochs=90, weight_decay=1e-4)
