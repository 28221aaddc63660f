"""Everything that decides the result of a training run, and nothing else."""

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from calibrant.files import FileError

RecipeName = Literal["digits", "mnist", "cifar10", "cifar100", "imagenet100", "snli", "anli"]
ObjectiveName = Literal[
    "nll", "esd", "mmce", "weighted-mmce", "sb-ece", "s-avuc", "avuc", "ece", "mdca", "dca", "ece-kde",
    "focal", "dual-focal", "label-smoothing", "margin-label-smoothing", "brier", "bsce-gra", "adafocal", "cals",
    "logit-norm",
]  # fmt: skip
TEXT: tuple[RecipeName, ...] = ("snli", "anli")
# What is a setting of some recipes only.
PIXELS = {"crop_padding", "flip", "mean", "std", "validation_fraction", "initial_weights"}
OF_RECIPE: dict[RecipeName, set[str]] = {
    "digits": PIXELS | {"noise"},
    "mnist": PIXELS | {"image_size"},
    "cifar10": PIXELS,
    "cifar100": PIXELS,
    "imagenet100": PIXELS - {"crop_padding"} | {"image_size", "workers", "class_list"},
    "snli": {"max_length"},
    "anli": {"max_length"},
}


@dataclass(frozen=True)
class Configuration:
    """One training run. Two equal configurations give, on one machine's CPU, identical networks.

    Args:
        recipe: Data, and where the other values come from that are not given.
        model: lenet5, resnet18-cifar, resnet34-cifar, resnet50-cifar, resnet18, resnet20, resnet32, resnet44 or
            resnet56; for text the name or folder of a Hugging Face model.
        objective: What is minimised besides the NLL on the held-out part; focal, dual-focal, label-smoothing,
            margin-label-smoothing, brier, bsce-gra, adafocal, cals and logit-norm replace the NLL instead, and nll is
            the NLL alone. adafocal and cals are updated from the validation set after every epoch.
        weight: Of the objective beside the NLL.
        method: What the held-out data do: temperature divides the logits by a temperature that they set, head lets
            their loss reach the last layer only, and published adds the objective, as without a method. The first two
            take the objectives that hold nothing out, such as nll.
        seed: Of split, initialisation, order and augmentation.
        epochs: Passes over the training data.
        batch_size: Of the NLL.
        calibration_fraction: Share of the training data held out for the objective.
        calibration_batch_size: Of the objective; that of the NLL when not given.
        calibration_every: Add the objective at every k-th step only.
        reduced_split: Let the losses that hold nothing out see no more data than those that do.
        batchnorm: Whether the calibration batch enters BatchNorm's running statistics, as published, or not.
        learning_rate: Of AdamW.
        weight_decay: Of AdamW.
        root: Of esd and mmce, as published; otherwise their squared values.
        bandwidth: Of mmce, weighted-mmce and ece-kde.
        softness: Temperature T of sb-ece and s-avuc.
        gamma: Of focal and dual-focal.
        smoothing: Of label-smoothing.
        validation_fraction: Share of the training data set aside to fit temperatures and choose between runs; text
            brings its own.
        image_size: Pixels a side.
        crop_padding: Pixels of black around a training image before a random crop.
        flip: Mirror every other training image.
        mean: Subtracted from pixels in 0 to 1; one value, or one for each channel.
        std: Divided by.
        noise: Of digits.
        max_length: Tokens a pair of sentences is cut to.
        initial_weights: File with the weights to start from.
        class_list: File with the names of the class folders to use, one a line: ImageNet-100 is a part of ImageNet.
        workers: Processes that decode pictures; they have random numbers of their own.
    """

    recipe: RecipeName
    model: str
    objective: ObjectiveName = "nll"
    weight: float = 1.0
    seed: int = 0
    epochs: int = 250
    batch_size: int = 512
    calibration_fraction: float = 0.1
    calibration_batch_size: int | None = None
    calibration_every: int = 1
    reduced_split: bool = False
    batchnorm: Literal["update", "freeze"] = "update"
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    root: bool = True
    bandwidth: float | None = None
    softness: float | None = None
    gamma: float | None = None
    smoothing: float | None = None
    validation_fraction: float = 0.1
    image_size: int = 32
    crop_padding: int = 0
    flip: bool = False
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    noise: float = 0.3
    max_length: int = 128
    initial_weights: str | None = None
    class_list: str | None = None
    workers: int = 0
    method: Literal["temperature", "head", "published"] | None = None

    def __post_init__(self) -> None:
        self._require("seed", self.seed < 2**63, "below 2^63")
        self._require("mean", all(math.isfinite(value) for value in self.mean), "finite")
        self._require("std", all(0 < value < math.inf for value in self.std), "finite and above 0")
        self._require("max_length", self.max_length >= 8, "at least 8: the tokens around a pair take some")
        for name in ("epochs", "batch_size", "calibration_every", "image_size"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("seed", "workers", "crop_padding", "weight", "weight_decay", "noise"):
            self._require(name, 0 <= getattr(self, name) < math.inf, "a finite number of 0 or more")
        self._require("learning_rate", 0 < self.learning_rate < math.inf, "a finite number above 0")
        for name in ("calibration_fraction", "validation_fraction"):
            self._require(name, 0 < getattr(self, name) < 1, "between 0 and 1")
        size = self.calibration_batch_size
        self._require("calibration_batch_size", size is None or size >= 1, "at least 1")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ValueError(f"{name.replace('_', '-')} must be {expected}, got {getattr(self, name)}")

    def replaced(self, changes: Mapping[str, Any]) -> Self:
        """This configuration with some values changed, their names and types checked."""
        types = _types()
        for name, value in changes.items():
            if name not in types:
                raise ValueError(f"there is no setting {name!r}: there are {', '.join(types)}")
            if not _fits(value, types[name]):
                raise ValueError(f"{name} must be {_described(types[name])}, got {value!r}")
        return dataclasses.replace(self, **{name: _as_given(value) for name, value in changes.items()})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON keeps them; without a method that is not given, as files from before there was one."""
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        if self.method is None:
            del values["method"]
        return values


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Configuration)


def read_settings(path: Path) -> dict[str, Any]:
    """Settings from a TOML or JSON file, such as the ``config.json`` of an earlier run."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except OSError as error:
        raise FileError(path, f"cannot be read ({error.strerror}): give a .toml or .json file of settings") from error
    except ValueError as error:
        raise FileError(
            path, f"is not valid {'JSON' if path.suffix.lower() == '.json' else 'TOML'}: {error}"
        ) from error
    if not isinstance(found, dict):
        raise FileError(path, "must hold settings by name")
    return {str(name).replace("-", "_"): value for name, value in found.items()}


def _as_given(value: Any) -> Any:
    return tuple(float(number) for number in value) if isinstance(value, list | tuple) else value


def _fits(value: Any, expected: Any) -> bool:
    origin = get_origin(expected)
    if origin in (Union, UnionType):
        return any(_fits(value, choice) for choice in get_args(expected))
    if origin is Literal:
        return value in get_args(expected)
    if origin is tuple:
        return isinstance(value, list | tuple) and bool(value) and all(_fits(number, float) for number in value)
    if isinstance(value, bool) or expected is bool:
        return isinstance(value, bool) and expected is bool
    return isinstance(value, int | float if expected is float else expected)


def _described(expected: Any) -> str:
    origin = get_origin(expected)
    if origin in (Union, UnionType):
        return " or ".join(_described(choice) for choice in get_args(expected) if choice is not NoneType)
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(expected)))}"
    if origin is tuple:
        return "a list of numbers"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[expected]


if TYPE_CHECKING:
    Overrides = Configuration
else:
    # The same settings, none of them given: what a command line changes of a recipe.
    Overrides = dataclasses.make_dataclass(
        "Overrides",
        [(name, kind | None, None) for name, kind in get_type_hints(Configuration).items() if name != "recipe"],
        frozen=True,
        kw_only=True,
        namespace={"__doc__": Configuration.__doc__},
    )
    Overrides.__module__ = __name__  # where those who inspect it look up its types
