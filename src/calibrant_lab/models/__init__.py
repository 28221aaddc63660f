"""Networks of the experiments; each returns logits."""

from collections.abc import Callable
from functools import partial

from torch import nn

from calibrant_lab.models.lenet import LeNet5
from calibrant_lab.models.resnet import BasicBlock, Bottleneck, ResNet
from calibrant_lab.models.resnet_he import NarrowResNet

# Each is called with ``classes`` and ``channels``. All are for 32 x 32 images, except resnet18, which is for ImageNet.
IMAGE_MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet5": LeNet5,
    "resnet18-cifar": partial(ResNet, BasicBlock, (2, 2, 2, 2), stem="cifar"),
    "resnet34-cifar": partial(ResNet, BasicBlock, (3, 4, 6, 3), stem="cifar"),
    "resnet50-cifar": partial(ResNet, Bottleneck, (3, 4, 6, 3), stem="cifar"),
    "resnet18": partial(ResNet, BasicBlock, (2, 2, 2, 2), stem="imagenet"),
    **{f"resnet{depth}": partial(NarrowResNet, depth) for depth in (20, 32, 44, 56)},
}


def build_image_model(name: str, *, classes: int, channels: int) -> nn.Module:
    """Build an image network with random weights, by its name in :data:`IMAGE_MODELS`."""
    if name not in IMAGE_MODELS:
        raise ValueError(f"unknown image model {name!r}: choose from {', '.join(IMAGE_MODELS)}")
    for what, count in (("classes", classes), ("channels", channels)):
        if count < 1:
            raise ValueError(f"{what} must be at least 1, got {count}")
    return IMAGE_MODELS[name](classes=classes, channels=channels)
