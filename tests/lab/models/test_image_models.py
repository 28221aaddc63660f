"""Every image model by its name, and LeNet5: the classic's parameters and function."""

import pytest
import torch
from torch import nn

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


@pytest.mark.slow
def test_lenet_can_be_exported_for_any_batch_size() -> None:
    model, x = LeNet5().eval(), torch.rand(3, 1, 32, 32)
    batch = torch.export.Dim("batch")
    exported = torch.export.export(model, (x[:2],), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(exported.module()(x), model(x))


def test_pooling_before_relu_is_the_same_function_and_gradient() -> None:
    torch.manual_seed(0)
    model = LeNet5().double()
    # Rows of equal pixels make ties within the pooling windows.
    x = torch.rand(8, 1, 32, 1, dtype=torch.float64).expand(8, 1, 32, 32).contiguous()
    x[:4] = torch.rand(4, 1, 32, 32, dtype=torch.float64)
    layers = list(model)
    layers[1], layers[2], layers[4], layers[5] = layers[2], layers[1], layers[5], layers[4]
    outputs = []
    for network in (model, nn.Sequential(*layers)):
        model.zero_grad()
        output = network(x)
        nn.functional.cross_entropy(output, torch.arange(8)).backward()
        outputs.append((output, [parameter.grad for parameter in model.parameters()]))
    (one, gradients), (other, others) = outputs
    assert torch.equal(one, other)
    for gradient, expected in zip(gradients, others, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-15)
