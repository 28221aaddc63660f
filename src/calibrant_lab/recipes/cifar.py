"""CIFAR-10 with ResNet50 and CIFAR-100 with ResNet34, as in the ESD paper."""

from calibrant_lab.data import load_cifar10, load_cifar100
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.recipes.images import ImageSettings, build_network, image_data

_DEFAULTS = {"crop_padding": 4, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}

cifar10 = Recipe(
    lambda settings, folder: image_data(load_cifar10(folder), settings), build_network,
    settings=ImageSettings, shift="CIFAR-10-C", model="resnet50-cifar", **_DEFAULTS,
)  # fmt: skip
cifar100 = Recipe(
    lambda settings, folder: image_data(load_cifar100(folder), settings), build_network,
    settings=ImageSettings, shift="CIFAR-100-C", model="resnet34-cifar", **_DEFAULTS,
)  # fmt: skip
