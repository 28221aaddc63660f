"""Every image model by its name, and LeNet5: the classic's parameters and function."""

import pytest
import torch

from calibrant_lab.models import IMAGE_MODELS, build_image_model
from calibrant_lab.models.lenet import LeNet5


@pytest.mark.slow_after(8)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_every_model_takes_any_classes_and_channels(name: str, channels: int) -> None:
    with torch.device("meta"):  # shapes without the arithmetic
        model = build_image_model(name, classes=7, channels=channels)
        assert model(torch.zeros(2, channels, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "classes", "channels", "token"),
    [("resnet9", 10, 3, "resnet9.*resnet56"), ("lenet5", 0, 3, "classes"), ("lenet5", 10, 0, "channels")],
)
def test_errors(name: str, classes: int, channels: int, token: str) -> None:
    with pytest.raises(ValueError, match=token):
        build_image_model(name, classes=classes, channels=channels)


@pytest.mark.parametrize("shape", [(2, 1, 28, 28), (2, 1, 64, 32), (1, 32, 32)])
def test_lenet_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="resize"):
        LeNet5()(torch.zeros(shape))


def test_lenet_has_the_parameters_of_the_classic() -> None:
    assert sum(parameter.numel() for parameter in LeNet5().parameters()) == 61_706
