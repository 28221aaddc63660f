"""Recipes of images: in memory, or in a folder."""

from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from calibrant_lab.data.imagefolder import MEAN, STD, load_image_folder
from calibrant_lab.data.images import ImageData, ImageSamples
from calibrant_lab.data.samples import Data
from calibrant_lab.models import build_image_model
from calibrant_lab.models.weights import load_weights
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


def in_memory(found: ImageData, settings: ImageSettings) -> Data:
    """Normalise images, and augment those for training."""
    pixels: dict[str, Any] = {"mean": settings.mean, "std": settings.std}
    train = ImageSamples(found.train, **pixels, crop_padding=settings.crop_padding, flip=settings.flip)
    return Data(train, ImageSamples(found.test, **pixels), classes=found.classes)


def image_folder(settings: FolderSettings, folder: Path | None) -> Data:
    """Images in ``train/CLASS`` and ``val/CLASS`` of a folder; without one, ImageNet-100 is downloaded."""
    classes = None if settings.class_list is None else Path(settings.class_list)
    return load_image_folder(
        folder, size=settings.image_size, mean=settings.mean, std=settings.std, flip=settings.flip, classes=classes,
        workers=settings.workers,
    )  # fmt: skip


def image_network(data: Data, settings: ImageSettings | FolderSettings) -> nn.Module:
    """The network of the settings, with its initial weights."""
    channels = data.train.images.pixels.shape[1] if isinstance(data.train, ImageSamples) else 3
    model = build_image_model(settings.model, classes=data.classes, channels=channels)
    if settings.initial_weights is not None:
        load_weights(model, settings.initial_weights)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
