"""Every method makes its modules, with its own options and no others."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calibrant as cal
from calibrant_lab.methods import METHODS, Losses, Method, method
from calibrant_lab.trials.configuration import configure, from_dict


def made(name: str, **options: Any) -> Losses:
    configuration = configure("digits", name, options=options)
    return configuration.of_method.build(dict(configuration.options))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_makes_an_objective_a_loss_or_neither(name: str) -> None:
    chosen = METHODS[name]
    loss, objective = made(name)
    assert (loss is not None, objective is not None) == (chosen.loss is not None, chosen.objective is not None)
    assert ("weight" in chosen.defaults) == (objective is not None or chosen.training == "head")
    module = loss or objective or nn.CrossEntropyLoss()
    logits = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    value = module(logits, torch.arange(8) % 4)
    value.backward()
    assert value.isfinite()
    assert logits.grad is not None


def test_options_reach_the_module() -> None:
    mmce = made("mmce", bandwidth="0.2", root="false").objective
    assert isinstance(mmce, cal.MMCELoss)
    assert (mmce.bandwidth, mmce.root) == (0.2, False)
    assert made("sb-ece", softness=0.1).objective.temperature == 0.1  # type: ignore[union-attr]
    assert made("s-avuc", softness=0.2).objective.temperature == 0.2  # type: ignore[union-attr]
    assert made("focal", gamma=2).loss.gamma == 2.0  # type: ignore[union-attr]
    assert made("label-smoothing", smoothing=0.2).loss.smoothing == 0.2  # type: ignore[union-attr]
    assert isinstance(made("loop", loss="focal").loss, cal.FocalLoss)
    assert made("esd-raw").objective.root is False  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "options", "token"),
    [
        ("esd", {"bandwidth": 0.3}, "bandwidth.*weight"),
        ("nll", {"weight": 1.0}, "weight.*none"),
        ("esd", {"weight": "much"}, "weight.*number.*'much'"),
        ("esd", {"weight": -1}, "weight.*got -1"),
        ("esd", {"weight": float("nan")}, "weight.*nan"),
        ("mmce", {"root": "maybe"}, "root.*boolean.*'maybe'"),
        ("mmce", {"bandwidth": "-0.1"}, "bandwidth.*'-0.1'"),
        ("loop", {"loss": "esd"}, "esd"),
        ("loop", {"loss": "focall"}, "focal"),
    ],
)
def test_errors_of_options(name: str, options: dict[str, Any], token: str) -> None:
    with pytest.raises(ValueError, match=token):
        made(name, **options)


class Squared(nn.Module):
    """An objective of one's own with an option."""

    def __init__(self, power: float = 2.0) -> None:
        super().__init__()
        self.power = power

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return logits.abs().mean() ** self.power


own = Method("squared", Squared, options={"exponent": None}, keywords={"exponent": "power"}, searched={"exponent": 2.0})


def test_a_method_of_ones_own_has_options_of_its_own() -> None:
    chosen = method(f"{__name__}:own")
    assert chosen.defaults == {"weight": 1.0, "exponent": None}
    assert made(f"{__name__}:own", exponent=3).objective.power == 3.0  # type: ignore[union-attr]
    assert made(f"{__name__}:own").objective.power == 2.0  # type: ignore[union-attr]
    assert method(f"{__name__}:Squared").build({"weight": 1.0}).objective.power == 2.0  # type: ignore[union-attr]


class Kinded(nn.Module):
    """An objective with options of several types."""

    def __init__(self, kind: str, margin: float, count: int, scale: object = None) -> None:
        super().__init__()
        self.given = (kind, margin, count, scale)


kinded = Method("kinded", Kinded, options={"kind": "squared", "margin": -1.0, "count": 10, "scale": None})


def test_options_have_the_types_of_their_defaults() -> None:
    name = f"{__name__}:kinded"
    assert made(name).objective.given == ("squared", -1.0, 10, None)  # type: ignore[union-attr]
    options = {"kind": "absolute", "margin": "-0.5", "count": "12", "scale": "2"}
    chosen = configure("digits", name, options=options)
    assert chosen.of_method.build(dict(chosen.options)).objective.given == ("absolute", -0.5, 12, 2)  # type: ignore[union-attr]
    assert from_dict(json.loads(json.dumps(chosen.to_dict()))) == chosen
    assert configure("digits", name, options={"count": 12.0}).option("count") == 12  # as from a grid
    for option, value in {"margin": "wide", "count": "many", "weight": -1, "kind": 3}.items():
        with pytest.raises(ValueError, match=f"^{option} should be .*got {value!r}"):
            configure("digits", name, options={option: value})
