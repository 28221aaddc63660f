"""The paper's six pairs of data and model with its settings, and digits, which needs no download."""

from pathlib import Path

from calibrant.files import naming
from calibrant_lab.configuration import OF_RECIPE, Configuration, Overrides, RecipeName, read_settings
from calibrant_lab.data.imagefolder import MEAN, STD
from calibrant_lab.objectives import ADDED

_CIFAR_PIXELS = (0.5, 0.5, 0.5)

# Where the paper is silent (the pixels of MNIST, those of ImageNet) stands what is usual.
RECIPES: dict[RecipeName, Configuration] = {
    "digits": Configuration("digits", "lenet5", epochs=40, batch_size=128),
    "mnist": Configuration("mnist", "lenet5"),
    "cifar10": Configuration("cifar10", "resnet50-cifar", crop_padding=4, mean=_CIFAR_PIXELS, std=_CIFAR_PIXELS),
    "cifar100": Configuration("cifar100", "resnet34-cifar", crop_padding=4, mean=_CIFAR_PIXELS, std=_CIFAR_PIXELS),
    "imagenet100": Configuration(
        "imagenet100",
        "resnet18",
        epochs=90,
        weight_decay=1e-4,
        image_size=224,
        flip=True,
        mean=MEAN,
        std=STD,
        workers=4,
    ),
    "snli": Configuration("snli", "bert-base-uncased", epochs=15, learning_rate=1e-5, max_length=158),
    "anli": Configuration("anli", "roberta-base", epochs=15, learning_rate=1e-5, max_length=128),
}


def resolve(recipe: RecipeName | None, settings: Overrides, config: Path | None) -> Configuration:
    """The configuration that a recipe, a file of settings and options come to."""
    found = {} if config is None else read_settings(config)
    name = recipe or found.get("recipe")
    if name is None:
        raise ValueError(f"give a --recipe: one of {', '.join(RECIPES)}")
    if not isinstance(name, str) or name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}: there are {', '.join(RECIPES)}")
    base = RECIPES[name]
    changed = base
    if config is not None:
        with naming(config):
            changed = base.replaced({key: value for key, value in found.items() if key != "recipe"})
            _check_that_it_matters(changed, base)
    changed = changed.replaced({key: value for key, value in vars(settings).items() if value is not None})
    _check_that_it_matters(changed, base)
    return changed


def _check_that_it_matters(changed: Configuration, base: Configuration) -> None:
    """Refuse settings that would change nothing: who gives them expects something else."""
    of_some = set().union(*OF_RECIPE.values())
    without_effect = dict.fromkeys(of_some - OF_RECIPE[base.recipe], f"the recipe {base.recipe}")
    if changed.method in ("temperature", "head"):
        names = ["batchnorm", "weight"] if changed.method == "temperature" else ["batchnorm"]
        without_effect |= dict.fromkeys(names, f"the method {changed.method}")
    elif changed.objective not in ADDED:
        names = ["weight", "calibration_batch_size", "calibration_every", "batchnorm"]
        names += [] if changed.reduced_split else ["calibration_fraction"]
        without_effect |= dict.fromkeys(names, f"the objective {changed.objective}")
    for name, owner in without_effect.items():
        if getattr(changed, name) != getattr(base, name):
            raise ValueError(f"{name.replace('_', '-')} is not a setting of {owner}: leave it out")
