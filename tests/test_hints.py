"""Common mistakes are recognised by what they look like."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import calibrant as cal
import calibrant.functional as F
from calibrant.losses import checks
from calibrant.training import InterleavedModule
from tests.cases import MODULES, random_logits

LOGITS, TARGET = random_logits(16, 3, seed=0)
LABELS = torch.tensor([[1, 0, 1], [0, 0, 0]] * 8)


def test_a_class_in_place_of_an_object_is_named() -> None:
    wrong: Any = cal.ESDLoss
    with pytest.raises(TypeError, match=r"^objective must be an object, got the class ESDLoss: write ESDLoss\(\)$"):
        InterleavedModule(nn.Linear(4, 3), wrong)
    wrong = cal.FocalLoss
    with pytest.raises(TypeError, match=r"^loss must be an object, got the class FocalLoss: write FocalLoss\(\)$"):
        InterleavedModule(nn.Linear(4, 3), cal.ESDLoss(), loss=wrong)


def test_the_trainer_of_transformers_names_it_too() -> None:
    pytest.importorskip("transformers")
    from calibrant.training import InterleavedTrainer

    wrong: Any = cal.ESDLoss
    with pytest.raises(TypeError, match=r"^objective must be an object, got the class ESDLoss: write ESDLoss\(\)$"):
        InterleavedTrainer(calibration_dataset=[1, 2, 3], objective=wrong)


@pytest.mark.parametrize("output", [SimpleNamespace(logits=LOGITS), {"logits": LOGITS}], ids=["object", "dict"])
@pytest.mark.parametrize("name", MODULES)
def test_the_output_of_a_model_is_not_its_logits(name: str, output: Any) -> None:
    with pytest.raises(TypeError, match=r"logits must be a torch.Tensor, got \w+: pass outputs\.logits"):
        MODULES[name]()(output, TARGET)


def test_the_output_of_transformers_is_not_its_logits() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs").SequenceClassifierOutput(logits=LOGITS)
    with pytest.raises(TypeError, match=r"got SequenceClassifierOutput: pass outputs\.logits$"):
        F.brier(outputs, TARGET)
    with pytest.raises(TypeError, match=r"got SequenceClassifierOutput: pass outputs\.logits$"):
        cal.ESDLoss(view="multi-label")(outputs, LABELS)
    with pytest.raises(
        TypeError, match=r"logits must be an array, got SequenceClassifierOutput: pass outputs\.logits$"
    ):
        cal.metrics.evaluate(logits=outputs, target=TARGET)


@pytest.mark.parametrize("output", [SimpleNamespace(logits=LOGITS), {"logits": LOGITS}], ids=["object", "dict"])
def test_metrics_say_so_too(output: Any) -> None:
    with pytest.raises(TypeError, match=r"logits must be an array, got \w+: pass outputs\.logits"):
        cal.metrics.ece(logits=output, target=TARGET)
    frame = pytest.importorskip("pandas").DataFrame(LOGITS.numpy(), columns=["logits", "b", "c"])
    assert cal.metrics.ece(logits=frame, target=TARGET) == cal.metrics.ece(logits=LOGITS, target=TARGET)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_a_one_hot_target_is_recognised(dtype: torch.dtype) -> None:
    one_hot = torch.eye(3)[TARGET].to(dtype)
    with pytest.raises(ValueError, match=r"got \(16, 3\): it looks one-hot, pass target.argmax\(dim=1\)$"):
        cal.ESDLoss()(LOGITS, one_hot)
    assert cal.ESDLoss()(LOGITS, one_hot.long().argmax(dim=1)) == cal.ESDLoss()(LOGITS, TARGET)
    with pytest.raises(TypeError, match=r"target.argmax\(dim=1\) if it is one-hot"):
        cal.ESDLoss()(LOGITS, one_hot.float())


@pytest.mark.parametrize("ignored", [False, True])
def test_a_multi_label_target_is_recognised(ignored: bool) -> None:
    labels = LABELS.clone()
    labels[4, 1] = -100 if ignored else 0
    hint = (
        'it looks multi-label, which view="multi-label" of ESDLoss, MMCELoss and ECELoss handles, and multi_label=True'
    )
    with pytest.raises(ValueError, match=rf"got \(16, 3\): {hint}"):
        cal.MMCELoss()(LOGITS, labels)
    with pytest.raises(TypeError, match=f"got torch.float32: {hint}"):
        cal.FocalLoss()(LOGITS, labels.float())
    assert cal.MMCELoss(view="multi-label")(LOGITS, labels).isfinite()


def test_other_targets_of_that_shape_get_no_hint() -> None:
    with pytest.raises(ValueError, match=r"got \(16, 3\)$"):
        cal.ESDLoss()(LOGITS, torch.full((16, 3), 2))
    with pytest.raises(TypeError, match=r"call target.long\(\), or target.argmax\(dim=1\) if it"):
        cal.ESDLoss()(LOGITS, LOGITS.softmax(1))


@pytest.fixture
def not_yet_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_warned_of_probabilities", False)


PROBABILITIES = LOGITS.softmax(1)
LOOKS_LIKE = (
    r"^these logits look like probabilities \(rows sum to 1\): remove the softmax at the end of the model, "
    r"or pass probabilities\.log\(\)$"
)


@pytest.mark.usefixtures("not_yet_warned")
def test_probabilities_in_place_of_logits_are_noticed_once_per_process() -> None:
    with pytest.warns(UserWarning, match=LOOKS_LIKE):
        cal.ESDLoss()(PROBABILITIES, TARGET)
    cal.ESDLoss()(PROBABILITIES, TARGET)
    cal.FocalLoss()(PROBABILITIES, TARGET)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.usefixtures("not_yet_warned")
def test_probabilities_are_noticed_behind_ignored_samples(dtype: torch.dtype) -> None:
    spoiled = PROBABILITIES.to(dtype, copy=True)
    spoiled[0] = torch.nan
    with pytest.warns(UserWarning, match=LOOKS_LIKE):
        cal.BrierLoss()(spoiled, TARGET, mask=torch.arange(16) > 0)


@pytest.mark.usefixtures("not_yet_warned")
def test_what_need_not_be_probabilities_is_not_warned_of() -> None:
    cal.ESDLoss()(LOGITS, TARGET)
    cal.ESDLoss()(PROBABILITIES[:7], TARGET[:7])  # so few may sum to 1 by chance
    cal.ESDLoss()(torch.where(torch.arange(16)[:, None] < 15, PROBABILITIES, LOGITS), TARGET)
    cal.ESDLoss()(PROBABILITIES.log(), TARGET)
    cal.ESDLoss()(torch.cat((PROBABILITIES + 1, PROBABILITIES - 4 / 3), dim=1) / 2, TARGET)
    cal.ESDLoss()(torch.ones(16), TARGET % 2)  # binary logits have no rows to sum
    cal.ESDLoss(view="multi-label")(PROBABILITIES, LABELS)
    torch.vmap(cal.ESDLoss())(PROBABILITIES[None], TARGET[None])


def test_a_column_of_labels_is_to_be_squeezed() -> None:
    with pytest.raises(ValueError, match=r"got \(4, 1\): pass target.squeeze\(1\)"):
        cal.ESDLoss()(torch.zeros(4, 3), torch.zeros(4, 1, dtype=torch.long))
