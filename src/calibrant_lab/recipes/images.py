"""Images: MNIST, CIFAR and ImageNet-100 as in the ESD paper, and embedded digits for a first try and tests."""

from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from calibrant_lab.data.cifar import load_cifar10, load_cifar100
from calibrant_lab.data.digits import load_digits
from calibrant_lab.data.imagefolder import MEAN, STD, load_image_folder
from calibrant_lab.data.images import ImageData, ImageSamples
from calibrant_lab.data.mnist import load_mnist
from calibrant_lab.data.samples import Data, DatasetSamples
from calibrant_lab.models import build_image_model
from calibrant_lab.models.weights import load_weights
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.settings import FilePath, Settings

Positive = Annotated[float, Field(gt=0)]


class ImageSettings(Settings):
    """Settings of recipes of images in memory."""

    model: str = Field("lenet5", description="Name of the network: lenet5, resnet20, resnet18-cifar, ...")
    mean: tuple[float, ...] = Field((0.0,), description="Mean of pixels in 0 to 1, for all channels or each.")
    std: tuple[Positive, ...] = Field((1.0,), description="Standard deviation of pixels, for all channels or each.")
    crop_padding: int = Field(0, ge=0, description="Black pixels added around a training image before a random crop.")
    flip: bool = Field(False, description="Flip training images horizontally with probability 0.5.")
    initial_weights: FilePath | None = Field(None, description="File with the weights to start from.")


class DigitsSettings(ImageSettings):
    """Settings of the recipe digits."""

    noise: float = Field(0.3, ge=0, description="Standard deviation of the noise added to the 8 x 8 pixels.")


class MnistSettings(ImageSettings):
    """Settings of the recipe mnist."""

    image_size: int = Field(32, ge=1, description="Side length in pixels that images are scaled to.")


class FolderSettings(Settings):
    """Settings of recipes of images on disk."""

    model: str = Field("resnet18", description="Name of the network, such as resnet18.")
    image_size: int = Field(224, ge=1, description="Side length of network inputs in pixels.")
    mean: tuple[float, float, float] = Field(MEAN, description="Mean of pixels in 0 to 1, for each channel.")
    std: tuple[Positive, Positive, Positive] = Field(STD, description="Standard deviation of pixels, for each channel.")
    flip: bool = Field(True, description="Flip training images horizontally with probability 0.5.")
    class_list: FilePath | None = Field(None, description="File with the class folders to use, one per line.")
    workers: int = Field(4, ge=0, description="Processes that decode images; each has its own random numbers.")
    initial_weights: FilePath | None = Field(None, description="File with the weights to start from.")


def _in_memory(found: ImageData, settings: ImageSettings) -> Data:
    pixels: dict[str, Any] = {"mean": settings.mean, "std": settings.std}
    train = ImageSamples(found.train, **pixels, crop_padding=settings.crop_padding, flip=settings.flip)
    return Data(train, ImageSamples(found.test, **pixels), classes=found.classes)


def _digits(settings: DigitsSettings, folder: Path | None) -> Data:
    if folder is not None:
        raise ValueError("digits are embedded: leave out --data-dir")
    return _in_memory(load_digits(settings.noise), settings)


def _folder(settings: FolderSettings, folder: Path | None) -> Data:
    classes = None if settings.class_list is None else Path(settings.class_list)
    found = load_image_folder(
        folder, size=settings.image_size, mean=settings.mean, std=settings.std, flip=settings.flip, classes=classes
    )
    train = DatasetSamples(found.train_unaugmented, augmented=found.train, workers=settings.workers)
    return Data(train, DatasetSamples(found.test, workers=settings.workers), classes=found.classes)


def _network(data: Data, settings: ImageSettings | FolderSettings) -> nn.Module:
    channels = data.train.images.pixels.shape[1] if isinstance(data.train, ImageSamples) else 3
    model = build_image_model(settings.model, classes=data.classes, channels=channels)
    if settings.initial_weights is not None:
        load_weights(model, settings.initial_weights)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


digits = Recipe(_digits, _network, settings=DigitsSettings, shift=True, epochs=40, batch_size=128)
mnist = Recipe(
    lambda settings, folder: _in_memory(load_mnist(folder, settings.image_size), settings), _network,
    settings=MnistSettings, shift=True,
)  # fmt: skip
_CIFAR: dict[str, Any] = {"crop_padding": 4, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
cifar10 = Recipe(
    lambda settings, folder: _in_memory(load_cifar10(folder), settings), _network,
    settings=ImageSettings, shift="CIFAR-10-C", model="resnet50-cifar", **_CIFAR,
)  # fmt: skip
cifar100 = Recipe(
    lambda settings, folder: _in_memory(load_cifar100(folder), settings), _network,
    settings=ImageSettings, shift="CIFAR-100-C", model="resnet34-cifar", **_CIFAR,
)  # fmt: skip
imagenet100 = Recipe(_folder, _network, settings=FolderSettings, epochs=90, weight_decay=1e-4)
