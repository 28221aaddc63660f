"""A class that is called with a batch says how to call it, and is otherwise as any module."""

import copy
import inspect
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import calibrant as cal

LOSSES: dict[str, type[nn.Module]] = {name: getattr(cal, name) for name in cal.__all__ if name.endswith("Loss")}
LOGITS, TARGET = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


@pytest.mark.parametrize("name", LOSSES)
def test_a_class_called_with_a_batch_says_how_to_call_it(name: str) -> None:
    message = rf"^{name} takes settings, got a {{}}: write {name}\(\)\(logits, target\)$"
    for batch in ((LOGITS, TARGET), (LOGITS,)):
        with pytest.raises(TypeError, match=message.format("Tensor")):
            LOSSES[name](*batch)
    with pytest.raises(TypeError, match=message.format("ndarray")):
        LOSSES[name](np.zeros((8, 3)), np.zeros(8))
    with pytest.raises(TypeError, match=message.format("SimpleNamespace")):
        LOSSES[name](SimpleNamespace(logits=LOGITS), TARGET)


@pytest.mark.parametrize("name", LOSSES)
def test_help_shows_the_settings(name: str) -> None:
    settings = inspect.signature(LOSSES[name]).parameters
    assert "ignore_index" in settings
    assert not {"args", "kwargs", "self"} & set(settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.usefixtures("fresh_compiler")
def test_copies_and_compiled_modules_give_the_same_value(name: str) -> None:
    module = LOSSES[name]()
    value = module(LOGITS, TARGET)
    loaded = LOSSES[name]()
    loaded.load_state_dict(module.state_dict())
    copies: list[Any] = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded]  # noqa: S301
    copies.append(torch.compile(module, backend="eager"))
    for one in copies:
        torch.testing.assert_close(one(LOGITS, TARGET), value, rtol=0, atol=0)


def test_a_subclass_with_settings_of_its_own_is_checked_too() -> None:
    class Doubled(cal.FocalLoss):
        def __init__(self, factor: float = 2.0) -> None:
            super().__init__(gamma=factor)

    assert Doubled(1.0).gamma == 1
    with pytest.raises(TypeError, match="Doubled takes settings, got a Tensor"):
        Doubled(LOGITS, TARGET)  # type: ignore[arg-type, call-arg]
