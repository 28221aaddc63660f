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
        ("mmce", {"root": "maybe"}, "root.*boolean.*'maybe'"),
        ("loop", {"loss": "esd"}, "esd"),
        ("loop", {"loss": "focall"}, "focal"),
    ],
)
def test_errors_of_options(name: str, options: dict[str, Any], token: str) -> None:
    with pytest.raises(ValueError, match=token):
        made(name, **options)


class Own(nn.Module):
    """An objective of one's own, with options of several types."""

    def __init__(self, power: float = 2.0, kind: str = "squared", count: int = 10, scale: object = None) -> None:
        super().__init__()
        self.given = (power, kind, count, scale)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return logits.abs().mean()


OPTIONS = {"exponent": -1.0, "kind": "squared", "count": 10, "scale": None}
own = Method("own", Own, options=OPTIONS, keywords={"exponent": "power"}, searched={"exponent": 2.0})


def test_a_method_of_ones_own_has_options_with_the_types_of_their_defaults() -> None:
    name = f"{__name__}:own"
    assert method(name).defaults == {"weight": 1.0} | OPTIONS
    assert made(name).objective.given == (-1.0, "squared", 10, None)  # type: ignore[union-attr]
    options = {"kind": "absolute", "exponent": "-0.5", "count": "12", "scale": "2"}
    chosen = configure("digits", name, options=options)
    assert chosen.of_method.build(dict(chosen.options)).objective.given == (-0.5, "absolute", 12, 2)  # type: ignore[union-attr]
    assert from_dict(json.loads(json.dumps(chosen.to_dict()))) == chosen
    assert configure("digits", name, options={"count": 12.0}).option("count") == 12  # as from a grid
    assert method(f"{__name__}:Own").build({"weight": 1.0}).objective.given[0] == 2.0  # type: ignore[index, union-attr]


@pytest.mark.parametrize(("option", "value"), [("exponent", "wide"), ("count", "many"), ("weight", -1), ("kind", 3)])
def test_an_option_of_another_type_is_refused(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{option} .*got {value!r}"):
        configure("digits", f"{__name__}:own", options={option: value})
