"""A doubtful fit says what is doubtful, with numbers and a remedy, at the line that calls it."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from calibrant.frames import Array, IndexArray
from calibrant.posthoc import (
    AutoCalibration,
    ConformalClassifier,
    FitWarning,
    IsotonicCalibration,
    MultiLabelCalibration,
    PriorShift,
    TemperatureScaling,
    VectorScaling,
    fit,
    logits_from_probabilities,
)
from calibrant.posthoc.registry import METHODS
from tests.posthoc.data import notices, overconfident
from tests.real_data import real

pytestmark = pytest.mark.filterwarnings("always::calibrant.posthoc.FitWarning")


@pytest.mark.parametrize("name", METHODS)
def test_enough_good_data_say_nothing(name: str) -> None:
    # A fall of the accuracy by two standard errors has a notice: one in twenty draws has one by chance, as seed 0.
    logits, target = overconfident(3000, 2, 2.0, seed=1)
    assert notices(METHODS[name](), logits, target) == []


def test_one_sample_is_few_for_a_temperature() -> None:
    found = notices(TemperatureScaling(), torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([1]))
    assert any("1 sample of 3 classes is few" in text for text in found)
    assert any("chance" in text and "is used" in text for text in found)


def test_an_uncertain_temperature_has_its_interval() -> None:
    logits, target = overconfident(20, 3, 1.0, seed=0)
    (text,) = [text for text in notices(TemperatureScaling(), logits, target) if "uncertain" in text]
    assert "from 20 samples" in text


def test_a_temperature_without_optimum_is_bounded_and_mixed() -> None:
    logits, _ = overconfident(200, 5, 1.0, seed=4)
    right = TemperatureScaling()
    assert any("temperature is 0" in text for text in notices(right, logits, logits.argmax(1)))
    assert right.predict_proba(logits).amax(1).max() == pytest.approx(1 - 0.8 / 201)
    chance = TemperatureScaling()
    assert any("is infinite" in text for text in notices(chance, logits, logits.argmin(1)))
    torch.testing.assert_close(chance.predict_proba(logits), torch.full_like(logits, 0.2), atol=1e-3, rtol=0)
    equal = TemperatureScaling()
    assert any("all equal" in text for text in notices(equal, torch.zeros(60, 3), torch.arange(60) % 3))
    assert equal.temperature_ == 1


def test_probabilities_in_place_of_logits_are_noticed() -> None:
    logits, target = overconfident(500, 4, 2.0, seed=2)
    fitted = TemperatureScaling()
    assert notices(fitted, logits_from_probabilities(logits.softmax(1)), target) == []
    with pytest.warns(FitWarning, match="like probabilities"):
        fitted.predict_proba(logits.softmax(1))
    for given, labels in ((logits.softmax(1), target), (logits[:, 0].sigmoid(), target.clamp_max(1))):
        assert any("logits_from_probabilities" in text for text in notices(TemperatureScaling(), given, labels))


def test_one_sample_is_not_called_samples() -> None:
    logits, target = overconfident(60, 4, 2.0, seed=2)
    found: list[str] = []
    for fresh in (*(method() for method in METHODS.values()), ConformalClassifier()):
        found += notices(fresh, logits[:1, :2], target[:1] % 2)
    found += notices(VectorScaling(), logits[:1], target[:1], sample_weight=torch.tensor([0.01]))
    with pytest.warns(FitWarning, match="1 sample is few"):
        PriorShift(None, "temperature").fit(logits, target).adapt(logits[:1])
    assert not [text for text in found if re.search(r"\b1 (samples|classes|groups|labels|values)\b", text)]


def test_absent_classes_are_named() -> None:
    logits, target = overconfident(500, 4, 2.0, seed=3)
    assert notices(TemperatureScaling(), logits, target.clamp_max(2)) == []
    for method in (VectorScaling(), AutoCalibration()):
        (text,) = notices(method, logits, target.clamp_max(2))
        assert "1 of 4 classes" in text
    names = np.array(["cat", "dog", "owl", "rat"])
    kept = target < 3
    (text,) = notices(VectorScaling(), logits[kept].numpy(), names[target[kept]], classes=names)
    assert "(rat)" in text


def test_few_rows_and_harm_are_told_with_numbers() -> None:
    logits, target = overconfident(60, 8, 1.0, seed=5)
    found = notices(IsotonicCalibration(), logits, target)
    (harm,) = [text for text in found if "worse than" in text]
    assert "60 samples" in harm
    assert "accuracy" in harm
    assert any("60 samples of 8 classes" in text for text in notices(VectorScaling(), logits, target))


def test_weights_that_sum_to_little_are_noticed() -> None:
    logits, target = overconfident(500, 3, 2.0, seed=6)
    found = notices(TemperatureScaling(), logits, target, sample_weight=torch.full((500,), 0.001))
    assert any("weights of 500 samples" in text and "0.5" in text for text in found)


@pytest.mark.parametrize("rows", [10, 30])
def test_a_densenet_loses_no_accuracy_from_a_few_rows_by_default(rows: int) -> None:
    data = np.load(real("logits/nncal_densenet40_c10.npz"))
    test, target = data["test_logits"], data["test_labels"]
    before = (test.argmax(1) == target).mean()
    for start in range(0, 300, rows):
        some = slice(start, start + rows)
        auto = AutoCalibration()
        notices(auto, data["val_logits"][some], data["val_labels"][some].astype(np.int64))
        assert (auto.predict_proba(test).argmax(1) == target).mean() == before


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", METHODS)
def test_columns_in_another_order_are_noticed(name: str) -> None:
    logits, _ = overconfident(800, 4, 1.0, seed=7)
    names = np.array(["ant", "bee", "cat", "dog"])
    found = notices(METHODS[name](), logits.numpy(), names[logits.argmin(1)])
    assert any("chance" in text for text in found)
    assert any("all" in text and "right" in text for text in notices(METHODS[name](), logits, logits.argmax(1)))


def test_notices_of_several_labels_name_the_label() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 3, generator=generator)
    target = (torch.rand(500, 3, generator=generator) < logits.sigmoid()).long()
    target[:, 1] = 0
    tagger = MultiLabelCalibration("platt")
    found = notices(tagger, logits, target, classes=["beach", "night", "people"])
    assert found
    assert all(text.startswith("MultiLabelCalibration: label night: ") for text in found)
    assert tagger.notices_ == [text.removeprefix("MultiLabelCalibration: ") for text in found]
    assert notices(MultiLabelCalibration("platt"), logits, target)[0].startswith("MultiLabelCalibration: label 1: ")


def test_a_label_that_cannot_be_fitted_is_named() -> None:
    target = torch.ones(20, 2, dtype=torch.long)
    target[:, 1] = -100
    with pytest.raises(ValueError, match="label night: "):
        MultiLabelCalibration("platt").fit(torch.randn(20, 2), target, classes=["beach", "night"])


def test_one_sample_less_is_not_worse_than_doing_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # 267 of 400 right before, 266 after, where 267 / 400 - 1 / 400 is rounded up.
    logits, target = overconfident(400, 3, 6.0, seed=0)
    chosen = next(k for k in range(400) if logits[k].argmax() == target[k])

    found = fit.out_of_fold

    def one_less(*given: Any) -> tuple[Array, IndexArray]:
        rows, places = found(*given)
        place = np.flatnonzero(places == chosen)
        rows[place] = np.roll(rows[place], 1, axis=1)
        return rows, places

    monkeypatch.setattr(fit, "out_of_fold", one_less)
    assert TemperatureScaling().fit(logits, target).worse_than_nothing(logits, target) is None
