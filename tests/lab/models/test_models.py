"""Every image model by its name."""

import pytest
import torch

from calibrant_lab.models import IMAGE_MODELS, build_image_model

NAMES = [
    "lenet5", "resnet18-cifar", "resnet34-cifar", "resnet50-cifar", "resnet18", "resnet20", "resnet32", "resnet44",
    "resnet56",
]  # fmt: skip


def test_the_names_are_those_promised() -> None:
    assert list(IMAGE_MODELS) == NAMES


@pytest.mark.slow_after(8)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_model_takes_any_classes_and_channels(name: str, channels: int) -> None:
    with torch.device("meta"):  # shapes without the arithmetic
        model = build_image_model(name, classes=7, channels=channels)
        assert model(torch.zeros(2, channels, 32, 32)).shape == (2, 7)


def test_an_unknown_name_gets_the_list() -> None:
    with pytest.raises(
        ValueError, match=r"unknown image model 'resnet9': choose from lenet5, resnet18-cifar, .*, resnet56"
    ):
        build_image_model("resnet9", classes=10, channels=3)


@pytest.mark.parametrize(("classes", "channels", "which"), [(0, 3, "classes"), (10, 0, "channels")])
def test_counts_below_one_are_refused(classes: int, channels: int, which: str) -> None:
    with pytest.raises(ValueError, match=f"{which} must be at least 1, got 0"):
        build_image_model("lenet5", classes=classes, channels=channels)
