"""The paper's six pairs of data and model with its settings, and digits, which needs no download."""

from calibrant.experiments.configuration import Configuration, RecipeName
from calibrant.experiments.data.imagefolder import MEAN, STD

_CIFAR_PIXELS = (0.5, 0.5, 0.5)

# Where the paper is silent (the pixels of MNIST, those of ImageNet) stands what is usual.
RECIPES: dict[RecipeName, Configuration] = {
    "digits": Configuration("digits", "lenet5", epochs=40, batch_size=128),
    "mnist": Configuration("mnist", "lenet5"),
    "cifar10": Configuration("cifar10", "resnet50-cifar", crop_padding=4, mean=_CIFAR_PIXELS, std=_CIFAR_PIXELS),
    "cifar100": Configuration("cifar100", "resnet34-cifar", crop_padding=4, mean=_CIFAR_PIXELS, std=_CIFAR_PIXELS),
    "imagenet100": Configuration(
        "imagenet100", "resnet18", epochs=90, weight_decay=1e-4, image_size=224, mean=MEAN, std=STD, workers=4
    ),
    "snli": Configuration("snli", "bert-base-uncased", epochs=15, learning_rate=1e-5, max_length=158),
    "anli": Configuration("anli", "roberta-base", epochs=15, learning_rate=1e-5, max_length=128),
}
