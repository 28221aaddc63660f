"""LeNet5: the classic's parameters, and the classic's function whatever the order of pooling and ReLU."""

import re

import pytest
import torch
from torch import nn

from calibrant_lab.models.lenet import LeNet5


def test_lenet_has_the_parameters_of_the_classic() -> None:
    assert sum(parameter.numel() for parameter in LeNet5().parameters()) == 61_706


@pytest.mark.parametrize("shape", [(2, 1, 28, 28), (2, 1, 64, 32), (1, 32, 32)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"of shape \(N, channels, 32, 32\), got {re.escape(str(shape))}: resize"):
        LeNet5()(torch.zeros(shape))


@pytest.mark.slow
def test_it_can_be_exported_for_any_batch_size() -> None:
    model, x = LeNet5().eval(), torch.rand(3, 1, 32, 32)
    batch = torch.export.Dim("batch")
    exported = torch.export.export(model, (x[:2],), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(exported.module()(x), model(x))


def test_other_channels_and_classes() -> None:
    assert LeNet5(classes=7, channels=3)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_pooling_before_relu_is_the_same_function_and_gradient() -> None:
    torch.manual_seed(0)
    model = LeNet5().double()
    # Rows of equal pixels make ties within the pooling windows.
    x = torch.rand(8, 1, 32, 1, dtype=torch.float64).expand(8, 1, 32, 32).contiguous()
    x[:4] = torch.rand(4, 1, 32, 32, dtype=torch.float64)
    layers = list(model)
    layers[1], layers[2], layers[4], layers[5] = layers[2], layers[1], layers[5], layers[4]
    usual = nn.Sequential(*layers)
    outputs = []
    for network in (model, usual):
        model.zero_grad()
        output = network(x)
        nn.functional.cross_entropy(output, torch.arange(8)).backward()
        outputs.append((output, [parameter.grad for parameter in model.parameters()]))
    (one, gradients), (other, others) = outputs
    assert torch.equal(one, other)
    for gradient, expected in zip(gradients, others, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-15)
