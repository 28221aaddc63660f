"""The demo: its table, its paired tests, the files it leaves, and the data whose truth is known."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from calibrant import metrics
from calibrant.files import read_predictions
from calibrant_lab import demo
from calibrant_lab.recipes.made import draw_rows, error_of_p, true_probabilities, true_test_probabilities
from calibrant_lab.scores import column

Ran = tuple[demo.Scores, str, Path]
SMALL = {"epochs": 2, "rows": 500, "test_rows": 1000}


def run(folder: Path, *, seeds: int) -> Ran:
    screen = io.StringIO()
    scores = demo.run_demo(folder, Console(file=screen, width=80), SMALL, seeds=seeds, workers=1)
    return scores, screen.getvalue(), folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("demo"), seeds=2)


@pytest.mark.slow
def test_the_table_names_methods_and_data_and_fits_a_terminal(ran: Ran) -> None:
    scores, screen, _ = ran
    assert {name: len(seeds) for name, seeds in scores.items()} == {
        "NLL": 2, "NLL + temperature": 2, "NLL + ESD": 2, "CalibratedLoss": 2, "the true probabilities": 1,
    }  # fmt: skip
    assert all(words in screen for words in ("error_of_p", "Synthetic data", "500 training rows", "of 2 seeds"))
    assert max(map(len, screen.split("labels are drawn")[0].splitlines())) <= 80


@pytest.mark.slow
def test_no_method_beats_the_truth_and_temperature_changes_no_prediction(ran: Ran) -> None:
    truth, scores = ran[0]["the true probabilities"][0], [one for name in demo.ROWS for one in ran[0][name]]
    assert truth["calibrant_lab.recipes.made:error_of_p"] == pytest.approx(0, abs=1e-12)
    assert all(truth["log_loss"] < one["log_loss"] for one in scores)
    for plain, scaled in zip(ran[0]["NLL"], ran[0]["NLL + temperature"], strict=True):
        assert plain["accuracy"] == scaled["accuracy"]
        assert plain["log_loss"] != scaled["log_loss"]


@pytest.mark.slow
def test_it_keeps_the_first_seeds_predictions_and_a_report_that_opens_with_the_difference(ran: Ran) -> None:
    scores, screen, folder = ran
    assert f"calibrant evaluate {folder}/nll.npz {folder}/loop.npz" in screen
    found = metrics.evaluate(read_predictions(folder / "loop.npz"), bins=20)
    assert found.ece == pytest.approx(scores["CalibratedLoss"][0]["ece"])
    page = (folder / "report.html").read_text()
    assert all(name in page for name in demo.ROWS)
    for other in ("NLL + temperature", "NLL + ESD", "NLL"):
        assert page.index(f"CalibratedLoss against {other}: accuracy") < page.index("Verdict")


def test_labels_follow_the_true_probabilities_and_the_teacher_is_fixed() -> None:
    rows = draw_rows(20_000, seed=3)
    assert torch.equal(rows.truth, true_probabilities(rows.x))
    found = metrics.evaluate(logits=rows.truth.log(), target=rows.target, bins=20)
    assert found.ece < 0.02
    assert found.accuracy == pytest.approx(0.75, abs=0.01)
    assert torch.equal(draw_rows(10, seed=3).x, draw_rows(10, seed=3).x)


def test_the_error_of_the_probabilities_is_that_of_the_predicted_class() -> None:
    truth = true_test_probabilities(500)
    uniform = metrics.predictions(logits=torch.zeros(500, 5), target=torch.zeros(500, dtype=torch.long))
    assert error_of_p(uniform) == pytest.approx(float((truth[:, 0] - 0.2).abs().mean()))  # ties go to the first class


def test_differences_are_tested_in_pairs_over_seeds() -> None:
    columns = [column(key) for key in demo.COMPARED]
    ours = [{"accuracy": 0.6, "ece": 0.02, "log_loss": 1.0 + seed / 10} for seed in range(4)]
    theirs = [{"accuracy": 0.6, "ece": 0.02 + (-1) ** seed / 100, "log_loss": 1.2 + seed / 9} for seed in range(4)]
    sentence, note = demo.differences({"a": ours, "b": theirs}, columns, "a", ["b"])
    assert f"{columns[2].heading} 0.217 lower (p < 0.001, lower in 4 of 4 seeds)" in sentence
    assert "accuracy the same" in sentence
    assert "0.125" in note  # the least p of an exact test of four
    theirs[0]["ece"] = float("nan")  # as after a temperature that could not be fitted
    sentence, _ = demo.differences({"a": ours, "b": theirs}, columns, "a", ["b"])
    assert "ECE" not in sentence
    assert "accuracy the same" in sentence
