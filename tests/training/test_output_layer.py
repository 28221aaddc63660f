"""The layer that makes the logits is found by what it makes, not by its name."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant.training.output_layer import can_be_scaled, divide, find_output, scale_output


class TwoHeads(nn.Module):
    """The layer that is defined last is not the one that makes the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.classifier = nn.Linear(6, 3)
        self.auxiliary = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        hidden = self.body(x).relu()
        self.auxiliary(hidden)
        return SimpleNamespace(logits=self.classifier(hidden))


def test_the_layer_whose_output_is_the_logits_is_found() -> None:
    model, x = TwoHeads(), torch.randn(5, 4)
    assert find_output(model, x) is model.classifier


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(4, 3)), (5, 4)),
        (nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), (5, 4)),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1)), (2, 2, 8, 8)),
    ],
)
def test_binary_and_dense_logits_have_a_layer_too(model: nn.Sequential, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    before = model(x)
    layer = find_output(model, x)
    assert can_be_scaled(model, layer)
    divide(model, layer, 4.0)
    assert torch.allclose(model(x), before / 4, atol=1e-7)


def test_no_layer_is_found_where_something_follows_it() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.randn(5, 4)
    assert find_output(model, x) is model[1]


def test_shared_and_parametrised_weights_are_not_divided() -> None:
    tied = nn.ModuleDict({"embedding": nn.Embedding(7, 4), "head": nn.Linear(4, 7, bias=False)})
    tied["head"].weight = tied["embedding"].weight
    assert not can_be_scaled(tied, tied["head"])
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
    assert not can_be_scaled(normed, normed[0])
    assert can_be_scaled(nn.Sequential(nn.Linear(4, 3)), nn.Linear(4, 3)) is False  # not a part of the model


def test_a_scale_of_its_own_is_part_of_the_state_and_multiplies() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.randn(5, 4)
    before = model(x)
    scale_output(model, 2.0)
    scale_output(model, 3.0)
    assert torch.allclose(model(x), before / 6)
    other = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    scale_output(other)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))


def test_a_scale_reaches_logits_inside_an_object() -> None:
    model, x = TwoHeads(), torch.randn(5, 4)
    before = model(x).logits
    scale_output(model, 2.0)
    assert torch.allclose(model(x).logits, before / 2)
