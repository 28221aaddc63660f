"""Outcomes: independent figures, what cannot be fitted, and the table."""

import io
import math

import numpy as np
import pytest
import torch
from rich.console import Console

from calibrant_lab.outcome import Outcome, Predicted, judge
from calibrant_lab.table import mean_and_spread, outcome_table


def predicted(samples: int, seed: int, scale: float = 3.0) -> Predicted:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(samples, 4, generator=generator)
    target = torch.distributions.Categorical(logits=truth).sample()
    return Predicted(scale * truth, target)


def test_an_outcome_is_the_papers_row() -> None:
    torch.manual_seed(0)
    validation, test = predicted(4000, 1), predicted(4000, 2)
    outcome = judge(validation, test)
    probabilities = test.logits.double().softmax(1).numpy()
    confidence, right = probabilities.max(1), probabilities.argmax(1) == test.target.numpy()
    bins = np.ceil(confidence * 20).astype(int)
    ece = sum(abs((right[bins == b] - confidence[bins == b]).sum()) for b in np.unique(bins)) / 4000
    assert outcome.accuracy == pytest.approx(right.mean())
    assert outcome.ece == pytest.approx(ece, abs=1e-9)
    assert outcome.nll == pytest.approx(torch.nn.functional.cross_entropy(test.logits, test.target).item(), rel=1e-5)
    assert outcome.temperature == pytest.approx(3.0, rel=0.1)
    assert outcome.ece_temperature < 0.03 < 0.1 < outcome.ece
    assert outcome.ece_vector < 0.03
    assert outcome.accuracy_vector == pytest.approx(outcome.accuracy, abs=0.02)


def test_what_cannot_be_fitted_is_left_out_and_the_rest_is_kept() -> None:
    target = torch.arange(40) % 4
    perfect = Predicted(10.0 * torch.eye(4)[target], target)
    outcome = judge(perfect, predicted(500, 3))
    assert math.isfinite(outcome.ece)
    screen = io.StringIO()
    Console(file=screen, width=100).print(outcome_table({"NLL": [outcome]}, title="t"))
    assert "nan" not in screen.getvalue()


def test_the_best_of_each_column_is_bold() -> None:
    low = Outcome(0.90, 0.05, 0.3, 1.5, 0.02, 0.91, 0.02)
    high = Outcome(0.92, 0.06, 0.3, 1.5, 0.01, 0.90, math.nan)
    table = outcome_table({"a": [low], "b": [high]}, title="t")
    cells = [list(column.cells) for column in table.columns]
    assert cells[1] == ["90.00", "[bold]92.00[/]"]
    assert cells[2] == ["[bold]5.00[/]", "6.00"]
    assert cells[5] == ["[bold]2.00[/]", "-"]
    assert cells[6] == ["1.50", "1.50"]


def test_a_single_seed_shows_no_deviation() -> None:
    assert mean_and_spread([1.0]) == "1.00"
    assert mean_and_spread([1.0, 3.0]) == "2.00±1.41"
    assert mean_and_spread([1.0, math.nan]) == "-"


def test_the_widest_table_fits_a_terminal() -> None:
    outcomes = [
        Outcome(0.9911, 0.1424, 0.3, 11.35, 0.1312, 0.9867, 0.1595),
        Outcome(0.97, 0.12, 0.3, 10.1, 0.11, 0.96, 0.14),
    ]
    screen = io.StringIO()
    Console(file=screen, width=80).print(outcome_table({"NLL + SB-ECE": outcomes, "NLL": outcomes}, title="t"))
    assert "…" not in screen.getvalue()
