"""Every name makes its module, with its own settings and no others."""

from typing import Any, get_args

import pytest
import torch

import calibrant as cal
from calibrant_lab.configuration import ObjectiveName
from calibrant_lab.objectives import ADDED, REPLACING, losses
from calibrant_lab.recipes import RECIPES


def made(**changes: Any) -> Any:
    return losses(RECIPES["digits"].replaced(changes))


@pytest.mark.parametrize("name", get_args(ObjectiveName))
def test_every_name_is_an_objective_a_loss_or_the_nll(name: str) -> None:
    loss, objective = made(objective=name)
    assert (loss is not None, objective is not None) == (name in REPLACING, name in ADDED)
    module = loss or objective or torch.nn.CrossEntropyLoss()
    logits = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    value = module(logits, torch.arange(8) % 4)
    value.backward()
    assert value.isfinite()


def test_settings_reach_the_module() -> None:
    mmce = made(objective="mmce", bandwidth=0.2, root=False).objective
    assert isinstance(mmce, cal.MMCELoss)
    assert (mmce.bandwidth, mmce.root) == (0.2, False)
    assert made(objective="sb-ece", softness=0.1).objective.temperature == 0.1
    assert made(objective="s-avuc", softness=0.2).objective.temperature == 0.2
    assert made(objective="focal", gamma=2.0).loss.gamma == 2.0
    assert made(objective="label-smoothing", smoothing=0.2).loss.smoothing == 0.2


@pytest.mark.parametrize(
    ("objective", "setting", "owners"),
    [
        ("esd", {"bandwidth": 0.3}, "mmce and weighted-mmce"),
        ("nll", {"gamma": 1.0}, "focal and dual-focal"),
        ("sb-ece", {"root": False}, "esd"),
        ("mmce", {"softness": 0.1}, "sb-ece and s-avuc"),
    ],
)
def test_a_setting_of_another_objective_is_refused(objective: str, setting: dict[str, Any], owners: str) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(setting))} is a setting of {owners}.*, not of {objective}"):
        made(objective=objective, **setting)
