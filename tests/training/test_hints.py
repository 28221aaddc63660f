"""Common mistakes are recognised by what they look like."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

import calibrant as cal
from calibrant.training import InterleavedModule
from tests.cases import random_logits

LOGITS, TARGET = random_logits(16, 3, seed=0)


def test_a_class_in_place_of_an_object_is_named() -> None:
    wrong: Any = cal.ESDLoss
    with pytest.raises(TypeError, match=r"objective .*write ESDLoss\(\)$"):
        InterleavedModule(nn.Linear(4, 3), wrong)
    wrong = cal.FocalLoss
    with pytest.raises(TypeError, match=r"loss .*write FocalLoss\(\)$"):
        InterleavedModule(nn.Linear(4, 3), cal.ESDLoss(), loss=wrong)


def test_the_trainer_of_transformers_names_it_too() -> None:
    pytest.importorskip("transformers")
    from calibrant.training import InterleavedTrainer

    wrong: Any = cal.ESDLoss
    with pytest.raises(TypeError, match=r"objective .*write ESDLoss\(\)$"):
        InterleavedTrainer(calibration_dataset=[1, 2, 3], objective=wrong)


@pytest.mark.parametrize("output", [SimpleNamespace(logits=LOGITS), {"logits": LOGITS}], ids=["object", "dict"])
def test_metrics_say_so_too(output: Any) -> None:
    with pytest.raises(TypeError, match=r"pass outputs\.logits"):
        cal.metrics.ece(logits=output, target=TARGET)
    frame = pytest.importorskip("pandas").DataFrame(LOGITS.numpy(), columns=["logits", "b", "c"])
    assert cal.metrics.ece(logits=frame, target=TARGET) == cal.metrics.ece(logits=LOGITS, target=TARGET)
