"""CIFAR-10 with ResNet50 and CIFAR-100 with ResNet34, as in the ESD paper."""

from typing import Any

from calibrant_lab.data.cifar import load_cifar10, load_cifar100
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.recipes.images import ImageSettings, image_network, in_memory

_COMMON: dict[str, Any] = {"settings": ImageSettings, "crop_padding": 4, "mean": (0.5,) * 3, "std": (0.5,) * 3}
cifar10 = Recipe(
    lambda settings, folder: in_memory(load_cifar10(folder), settings), image_network,
    shift="CIFAR-10-C", model="resnet50-cifar", **_COMMON,
)  # fmt: skip
cifar100 = Recipe(
    lambda settings, folder: in_memory(load_cifar100(folder), settings), image_network,
    shift="CIFAR-100-C", model="resnet34-cifar", **_COMMON,
)  # fmt: skip
