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

SMALL = {"epochs": 2, "rows": 500, "test_rows": 1000}


@pytest.mark.slow
def test_the_demo_compares_methods_with_the_truth_and_keeps_the_first_seed(tmp_path: Path) -> None:
    screen = io.StringIO()
    scores = demo.run_demo(tmp_path, Console(file=screen, width=80), SMALL, seeds=2, workers=1)
    assert {name: len(seeds) for name, seeds in scores.items()} == dict.fromkeys(demo.ROWS, 2) | {demo.TRUTH: 1}
    shown = screen.getvalue()
    assert all(words in shown for words in ("error_of_p", "Synthetic data", "500 training rows", "of 2 seeds"))
    assert max(map(len, shown.split("labels are drawn")[0].splitlines())) <= 80
    [truth] = scores[demo.TRUTH]
    assert truth["calibrant_lab.recipes.made:error_of_p"] == pytest.approx(0, abs=1e-12)
    assert all(truth["log_loss"] < one["log_loss"] for name in demo.ROWS for one in scores[name])
    for plain, scaled in zip(scores["NLL"], scores["NLL + temperature"], strict=True):
        assert plain["accuracy"] == scaled["accuracy"]
        assert plain["log_loss"] != scaled["log_loss"]
    assert f"calibrant evaluate {tmp_path}/nll.npz {tmp_path}/loop.npz" in shown
    found = metrics.evaluate(read_predictions(tmp_path / "loop.npz"), bins=20)
    assert found.ece == pytest.approx(scores[demo.LOOP][0]["ece"])
    page = (tmp_path / "report.html").read_text()
    for other in demo.OTHERS:
        assert page.index(f"{demo.LOOP} against {other}: accuracy") < page.index("Verdict")


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
