"""Scores: independent values, what cannot be fitted, and the table."""

import io
import math

import numpy as np
import pytest
import torch
from rich.console import Console

from calibrant_lab.catalogue import list_recipes, show_recipe
from calibrant_lab.score_table import mean_and_spread, print_whole, score_table
from calibrant_lab.scores import KEPT, Predicted, best_temperature, column, scores_of
from tests.lab.synthetic import scores

COLUMNS = [column(key) for key in KEPT]


def predicted(samples: int, seed: int, scale: float = 3.0) -> Predicted:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(samples, 4, generator=generator)
    target = torch.distributions.Categorical(logits=truth).sample()
    return Predicted(scale * truth, target)


def test_scores_are_the_papers_row() -> None:
    torch.manual_seed(0)
    validation, test = predicted(4000, 1), predicted(4000, 2)
    found = scores_of(validation, test)
    probabilities = test.logits.double().softmax(1).numpy()
    confidence, right = probabilities.max(1), probabilities.argmax(1) == test.target.numpy()
    bins = np.ceil(confidence * 20).astype(int)
    ece = sum(abs((right[bins == b] - confidence[bins == b]).sum()) for b in np.unique(bins)) / 4000
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["ece"] == pytest.approx(ece, abs=1e-9)
    assert found["nll"] == pytest.approx(torch.nn.functional.cross_entropy(test.logits, test.target).item(), rel=1e-5)
    assert best_temperature(validation) == pytest.approx(3.0, rel=0.1)
    assert found["ece+temperature"] < 0.03 < 0.1 < found["ece"]
    assert found["ece+vector"] < 0.03
    assert found["accuracy+vector"] == pytest.approx(found["accuracy"], abs=0.02)


def test_what_cannot_be_fitted_is_left_out_and_the_rest_is_kept() -> None:
    target = torch.arange(40) % 4
    perfect = Predicted(10.0 * torch.eye(4)[target], target)
    found = scores_of(perfect, predicted(500, 3))
    assert math.isnan(found["ece+temperature"])
    assert math.isfinite(found["ece"])
    screen = io.StringIO()
    Console(file=screen, width=100).print(score_table({"NLL": [found]}, COLUMNS, title="t"))
    assert "nan" not in screen.getvalue()


def test_the_best_of_each_column_is_bold() -> None:
    low, high = scores(0.90, 0.05, 0.3, 0.02, 0.91, 0.02), scores(0.92, 0.06, 0.3, 0.01, 0.90, math.nan)
    table = score_table({"a": [low], "b": [high]}, COLUMNS, title="t")
    cells = [list(column.cells) for column in table.columns]
    assert cells[1] == ["90.00", "[bold]92.00[/]"]
    assert cells[2] == ["[bold]5.00[/]", "6.00"]
    assert cells[3] == ["[bold]0.3000[/]", "[bold]0.3000[/]"]
    assert cells[6] == ["[bold]2.00[/]", "-"]


def test_a_single_seed_shows_no_deviation() -> None:
    assert mean_and_spread([1.0]) == "1.00"
    assert mean_and_spread([1.0, 3.0]) == "2.00±1.41"
    assert mean_and_spread([1.0, math.nan]) == "-"


def test_a_narrow_terminal_cuts_no_numbers() -> None:
    rows = [scores(0.9911, 0.1424, 0.3, 0.1312, 0.9867, 0.1595), scores(0.97, 0.12, 0.3, 0.11, 0.96, 0.14)]
    screen = io.StringIO()
    print_whole(Console(file=screen, width=80), score_table({"NLL + SB-ECE": rows, "NLL": rows}, COLUMNS, title="t"))
    assert "…" not in screen.getvalue()


@pytest.mark.parametrize(("key", "message"), [("ece+magic", "unknown post-hoc method 'magic'"), ("eze", "eze")])
def test_a_column_that_there_is_not_is_refused(key: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        column(key)


def test_recipes_and_their_settings_are_listed() -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=120)
    list_recipes(console)
    show_recipe("digits", console)
    shown = screen.getvalue()
    for text in ("imagenet100", "margin-label-smoothing", "--noise", "--calibration-fraction", "package.module:name"):
        assert text in shown
    assert shown.index("--noise") < shown.index("--epochs")  # its own settings first
