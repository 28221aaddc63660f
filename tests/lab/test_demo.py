"""The demo: its table, its paired tests, the files it writes, and that it repeats itself."""

import io
import math
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
from rich.console import Console

from calibrant import metrics
from calibrant.files import read_predictions
from calibrant_lab import demo
from calibrant_lab.demo_table import DemoScores, differences, score
from calibrant_lab.made_data import draw_rows, true_probabilities

Ran = tuple[dict[str, list[DemoScores]], str, Path]


def run(folder: Path, *, seeds: int = 1, epochs: int = 2, rows: int = 1000, workers: int = 1, width: int = 80) -> Ran:
    screen = io.StringIO()
    scores = demo.run_demo(
        seeds=seeds, epochs=epochs, rows=rows, test_rows=1000, out=folder, workers=workers,
        console=Console(file=screen, width=width),
    )  # fmt: skip
    return scores, screen.getvalue(), folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("demo"), seeds=2)


def test_the_table_names_methods_and_data_and_fits_a_terminal(ran: Ran) -> None:
    scores, screen, _ = ran
    assert {name: len(runs) for name, runs in scores.items()} == {
        "NLL": 2, "NLL + temperature": 2, "NLL + ESD, weight 1": 2, "CalibratedLoss": 2, "the true probabilities": 2,
    }  # fmt: skip
    assert all(words in screen for words in ("error of p", "Made data", "2 seeds", "900 training rows", "of 2 seeds"))
    assert "\x1b" not in screen
    table = screen.split("20 features")[0].splitlines()
    assert max(map(len, table)) <= 80


def test_the_truth_is_a_row_that_no_method_beats(ran: Ran) -> None:
    scores, _, _ = ran
    for seed, truth in enumerate(scores["the true probabilities"]):
        assert truth.error == pytest.approx(0, abs=1e-12)
        assert all(truth.log_loss < runs[seed].log_loss for name, runs in scores.items() if name in demo.NAMES.values())


def test_temperature_changes_no_prediction(ran: Ran) -> None:
    scores, _, _ = ran
    plain, scaled = scores["NLL"], scores["NLL + temperature"]
    assert [one.accuracy for one in plain] == [one.accuracy for one in scaled]
    assert [one.log_loss for one in plain] != [one.log_loss for one in scaled]


def test_the_demo_keeps_the_first_seeds_predictions_and_a_report(ran: Ran) -> None:
    scores, screen, folder = ran
    assert f"calibrant evaluate {folder}/nll.npz {folder}/calibrated.npz" in screen
    assert {path.name for path in folder.iterdir()} == {
        "report.html", "nll-held-out.npz", *(f"{stem}.npz" for stem in demo.NAMES),
    }  # fmt: skip
    found = metrics.evaluate(read_predictions(folder / "calibrated.npz"), bins=20)
    assert found.ece == pytest.approx(scores["CalibratedLoss"][0].ece)
    assert all(name in (folder / "report.html").read_text() for name in demo.NAMES.values())


def test_the_demo_repeats_itself_exactly(ran: Ran, tmp_path: Path) -> None:
    first = {name: runs[:1] for name, runs in ran[0].items()}
    scores, screen, _ = run(tmp_path)
    assert repr(scores) == repr(first)
    assert "One seed" in screen


def test_several_processes_give_the_same(ran: Ran, tmp_path: Path) -> None:
    scores, _, _ = run(tmp_path, seeds=2, workers=2)
    for name, runs in ran[0].items():  # but for the rounding of one thread against several
        assert [one.log_loss for one in scores[name]] == pytest.approx([one.log_loss for one in runs], rel=0.02)


def test_a_failing_network_stops_the_others(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="calibration"):
        run(tmp_path, rows=5, workers=2)
    assert not active_children()


def test_labels_follow_the_true_probabilities_and_the_teacher_is_fixed() -> None:
    rows = draw_rows(20_000, seed=3)
    assert torch.equal(rows.truth, true_probabilities(rows.x))
    found = metrics.evaluate(logits=rows.truth.log(), target=rows.target, bins=20)
    assert found.ece < 0.02
    assert found.accuracy == pytest.approx(0.75, abs=0.01)
    assert torch.equal(draw_rows(10, seed=3).x, draw_rows(10, seed=3).x)


def test_the_error_of_the_probabilities_is_that_of_the_predicted_class() -> None:
    rows = draw_rows(500, seed=0)
    uniform = score(torch.zeros(500, 5), rows)  # ties go to the first class
    assert uniform.error == pytest.approx(float((rows.truth[:, 0] - 0.2).abs().mean()))
    assert uniform.log_loss == pytest.approx(math.log(5))


def test_differences_are_tested_in_pairs_over_seeds() -> None:
    ours = [DemoScores(0.60, 0.02, 1.00 + seed / 10, 0.1) for seed in range(4)]
    theirs = [DemoScores(0.60, 0.02 + (-1) ** seed / 100, 1.20 + seed / 9, 0.1) for seed in range(4)]
    sentence, note = differences({"a": ours, "b": theirs}, "a", ["b"])
    assert "log loss 0.217 lower (p < 0.001, lower in 4 of 4 seeds)" in sentence
    assert "accuracy the same" in sentence
    assert "Holm" in note
