"""Scores by column: a metric, as trained or after post-hoc scaling."""

import math
from pathlib import Path

import pytest
import torch

import calibrant as cal
from calibrant_lab.plugins import UnknownNameError
from calibrant_lab.scores import KEPT, MetricError, Predicted, best_temperature, column, score, scores_of
from tests.lab.synthetic import noisy

VALIDATION, TEST = (noisy(400, 3, target_seed=seed, seed=seed) for seed in (1, 2))
PERFECT = Predicted(20 * torch.eye(3), torch.arange(3))


def test_the_columns_that_are_kept() -> None:
    found = scores_of(VALIDATION, TEST)
    assert tuple(found) == KEPT
    logits, target = TEST
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == target).double().mean()))
    assert found["nll"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits.double(), target)))
    scaled = cal.posthoc.TemperatureScaling(strict=True).fit(*VALIDATION)(logits)
    assert found["ece+temperature"] == pytest.approx(score("ece", Predicted(scaled, target)))
    assert found["ece+temperature"] < found["ece"]  # the network is over-confident


def test_the_ece_has_twenty_bins() -> None:
    confidence, correct = TEST.logits.double().softmax(1).max(1).values, TEST.logits.argmax(1) == TEST.target
    bins = (confidence * 20).ceil().clamp(1, 20)
    parts = [confidence[bins == one] - correct[bins == one].double() for one in range(1, 21)]
    assert score("ece", TEST) == pytest.approx(float(sum(part.sum().abs() for part in parts)) / len(confidence))


def test_log_loss_is_the_nll() -> None:
    found = scores_of(VALIDATION, TEST, ["log_loss", "nll", "log_loss+temperature"])
    assert found["log_loss"] == found["nll"] > found["log_loss+temperature"]


def test_a_metric_of_ones_own_is_a_column(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def samples(predictions):\n    return float(len(predictions.target))\n")
    name = f"{tmp_path / 'mine.py'}:samples"
    column(f"{name}+temperature")
    assert scores_of(VALIDATION, TEST, [name]) == {name: 400.0}


def test_where_no_temperature_can_be_fitted_there_is_no_score() -> None:
    assert math.isnan(best_temperature(PERFECT))
    found = scores_of(PERFECT, TEST, ["ece", "ece+temperature"])
    assert found["ece"] == score("ece", TEST)
    assert math.isnan(found["ece+temperature"])


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("ece+isotonic", ValueError, "unknown post-hoc method 'isotonic'"),
        ("elegance", ValueError, "elegance"),
        ("/somewhere/else.py:mine", UnknownNameError, "cannot be loaded"),
    ],
)
def test_a_column_that_there_is_not_is_refused(key: str, error: type[ValueError], message: str) -> None:
    with pytest.raises(error, match=message):
        column(key)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("predictions.nothing", r"AttributeError: .*nothing.* in .*mine\.py, line 2\)"),
        ("None", r"TypeError: float\(\) argument .*NoneType.\)"),
    ],
)
def test_a_metric_of_ones_own_that_raises_is_named_with_its_line(body: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"def bad(predictions):\n    return {body}\n")
    with pytest.raises(MetricError, match=rf"the metric mine\.py:bad failed \({said}: correct it"):
        scores_of(VALIDATION, TEST, [f"{tmp_path / 'mine.py'}:bad"])
