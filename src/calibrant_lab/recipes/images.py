"""What recipes of images have in common."""

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from calibrant_lab.data import ImageData, ImageSamples
from calibrant_lab.data.samples import Data
from calibrant_lab.models import build_image_model
from calibrant_lab.models.weights import load_weights
from calibrant_lab.settings import FilePath, Settings

Positive = Annotated[float, Field(gt=0)]


class ImageSettings(Settings):
    """Settings of recipes of images in memory."""

    model: str = Field("lenet5", description="Name of the network: lenet5, resnet20, resnet18-cifar, ...")
    mean: tuple[float, ...] = Field((0.0,), description="Subtracted from pixels in 0 to 1, for all channels or each.")
    std: tuple[Positive, ...] = Field((1.0,), description="Pixels are divided by this, for all channels or each.")
    crop_padding: int = Field(0, ge=0, description="Black pixels around a training image before a random crop.")
    flip: bool = Field(False, description="Mirror every other training image, at random.")
    initial_weights: FilePath | None = Field(None, description="File with the weights to start from.")


def image_data(found: ImageData, settings: ImageSettings) -> Data:
    """Images in memory, cropped and flipped for training as the settings say."""
    pixels: dict[str, Any] = {"mean": settings.mean, "std": settings.std}
    train = ImageSamples(found.train, **pixels, crop_padding=settings.crop_padding, flip=settings.flip)
    return Data(train, ImageSamples(found.test, **pixels), classes=found.classes)


def build_network(data: Data, settings: ImageSettings) -> nn.Module:
    """The network that the settings name."""
    channels = data.train.images.pixels.shape[1] if isinstance(data.train, ImageSamples) else 3
    model = build_image_model(settings.model, classes=data.classes, channels=channels)
    if settings.initial_weights is not None:
        load_weights(model, settings.initial_weights)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
