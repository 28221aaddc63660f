"""ImageNet-100 with ResNet18, as in the ESD paper."""

from calibrant_lab.recipes.base import Recipe
from calibrant_lab.recipes.images import FolderSettings, image_folder, image_network

imagenet100 = Recipe(image_folder, image_network, settings=FolderSettings, epochs=90, weight_decay=1e-4)
