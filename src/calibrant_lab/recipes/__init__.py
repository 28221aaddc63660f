"""Recipes: data, a network, and the settings of both. To use one of your own, give its import path."""

from calibrant_lab import plugins
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.recipes.cifar import cifar10, cifar100
from calibrant_lab.recipes.digits import digits
from calibrant_lab.recipes.imagenet100 import imagenet100
from calibrant_lab.recipes.made import made
from calibrant_lab.recipes.mnist import mnist
from calibrant_lab.recipes.nli import anli, snli

RECIPES: dict[str, Recipe] = {
    "made": made, "digits": digits, "mnist": mnist, "cifar10": cifar10, "cifar100": cifar100,
    "imagenet100": imagenet100, "snli": snli, "anli": anli,
}  # fmt: skip


def recipe(reference: str) -> Recipe:
    """Return a recipe by name, ``package.module:name`` or ``./file.py:name``."""
    found = plugins.find(reference, "recipe", RECIPES)
    if not isinstance(found, Recipe):
        raise ValueError(f"{reference} must be a calibrant_lab.Recipe, got {type(found).__name__}")
    return found
