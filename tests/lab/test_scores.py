"""Scores by column, as trained or after post-hoc scaling, and their table in the terminal."""

import io
import math
from pathlib import Path

import pytest
import torch
from rich.console import Console

import calibrant as cal
from calibrant_lab.catalogue import list_recipes, show_recipe
from calibrant_lab.score_table import mean_and_spread, print_whole, score_table
from calibrant_lab.scores import KEPT, MetricError, Predicted, best_temperature, column, score, scores_of
from tests.lab.stores import ece, noisy, scores

VALIDATION, TEST = (noisy(400, 3, target_seed=seed, seed=seed) for seed in (1, 2))
PERFECT = Predicted(20 * torch.eye(3), torch.arange(3))
COLUMNS = [column(key) for key in KEPT]


def test_the_kept_columns_are_those_of_the_paper() -> None:
    found = scores_of(VALIDATION, TEST)
    assert tuple(found) == KEPT
    logits, target = TEST
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == target).float().mean()))
    assert found["ece"] == pytest.approx(ece(logits.double().softmax(1).numpy(), target.numpy()), abs=1e-9)
    assert found["nll"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits.double(), target)))
    scaled = cal.posthoc.TemperatureScaling(strict=True).fit(*VALIDATION)(logits)
    assert found["ece+temperature"] == pytest.approx(score("ece", Predicted(scaled, target)))
    assert found["ece+temperature"] < found["ece"]  # the network is over-confident


def test_log_loss_is_the_nll() -> None:
    found = scores_of(VALIDATION, TEST, ["log_loss", "nll", "log_loss+temperature"])
    assert found["log_loss"] == found["nll"] > found["log_loss+temperature"]


def test_without_a_best_temperature_the_score_is_missing() -> None:
    assert math.isnan(best_temperature(PERFECT))
    found = scores_of(PERFECT, TEST)
    assert found["ece"] == score("ece", TEST)
    assert math.isnan(found["ece+temperature"])
    assert printed({"NLL": [found]}).count("nan") == 0


def test_a_metric_of_ones_own_is_a_column_and_its_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def samples(predictions):\n    return float(len(predictions.target))\n"
        "def bad(predictions):\n    return predictions.nothing\ndef none(predictions):\n    return None\n"
    )
    column(f"{path}:samples+temperature")
    assert scores_of(VALIDATION, TEST, [f"{path}:samples"]) == {f"{path}:samples": 400.0}
    with pytest.raises(MetricError, match=r"mine\.py:bad .*AttributeError.*line 4"):
        scores_of(VALIDATION, TEST, [f"{path}:bad"])
    with pytest.raises(MetricError, match=r"mine\.py:none .*TypeError.*NoneType"):
        scores_of(VALIDATION, TEST, [f"{path}:none"])


def printed(rows: dict[str, list[dict[str, float]]]) -> str:
    screen = io.StringIO()
    print_whole(Console(file=screen, width=80), score_table(rows, COLUMNS, title="t"))
    return screen.getvalue()


def test_the_best_of_each_column_is_bold() -> None:
    low, high = scores(0.90, 0.05, 0.3, 0.02, 0.91, 0.02), scores(0.92, 0.06, 0.3, 0.01, 0.90, math.nan)
    table = score_table({"a": [low], "b": [high]}, COLUMNS, title="t")
    cells = [list(column.cells) for column in table.columns]
    assert cells[1] == ["90.00", "[bold]92.00[/]"]
    assert cells[2] == ["[bold]5.00[/]", "6.00"]
    assert cells[3] == ["[bold]0.3000[/]", "[bold]0.3000[/]"]
    assert cells[6] == ["[bold]2.00[/]", "-"]


def test_a_cell_has_mean_and_deviation_and_a_narrow_terminal_cuts_none() -> None:
    assert [mean_and_spread(values) for values in ([1.0], [1.0, 3.0], [1.0, math.nan])] == ["1.00", "2.00±1.41", "-"]
    rows = [scores(0.9911, 0.1424, 0.3, 0.1312, 0.9867, 0.1595), scores(0.97, 0.12, 0.3, 0.11, 0.96, 0.14)]
    assert "…" not in printed({"NLL + SB-ECE": rows, "NLL": rows})


def test_recipes_and_their_settings_are_listed() -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=120)
    list_recipes(console)
    show_recipe("digits", console)
    shown = screen.getvalue()
    for text in ("imagenet100", "margin-label-smoothing", "--noise", "--calibration-fraction", "package.module:name"):
        assert text in shown
    assert shown.index("--noise") < shown.index("--epochs")  # its own settings first
