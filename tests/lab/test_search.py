"""The weight with the lowest mean ECE among those that lose little accuracy, whatever fails or is interrupted."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import calibrant as cal
from calibrant_lab.search import SearchResult, search

# By weight and seed: accuracy and ECE. Weight 3 has the lowest ECE but loses 1.5 points; 2 has the next.
TABLE: dict[float, list[tuple[float, float]]] = {
    0: [(0.94, 0.08), (0.96, 0.10)],
    1: [(0.95, 0.05), (0.95, 0.06)],
    2: [(0.935, 0.01), (0.937, 0.05)],
    3: [(0.93, 0.01), (0.94, 0.01)],
}


class Runs:
    def __init__(
        self, table: dict[float, list[tuple[float, float]]] = TABLE, failing: Any = (), most: int = 100
    ) -> None:
        self.table, self.failing, self.most = table, failing, most
        self.done: list[tuple[float, int]] = []

    def __call__(self, weight: float, seed: int) -> dict[str, float]:
        if (weight, seed) in self.failing:
            raise ArithmeticError("the loss\nis NaN")
        if len(self.done) == self.most:
            raise KeyboardInterrupt
        self.done.append((weight, seed))
        accuracy, ece = self.table[weight][seed]
        return {"accuracy": accuracy, "ece": ece}


def test_the_rule_of_the_paper_over_means() -> None:
    runs = Runs()
    result = search(runs, [3, 1, 2, 0], seeds=2)
    assert result.weight == 2
    assert [each.weight for each in result.qualified] == [1, 2]
    assert runs.done == [(weight, seed) for weight in (0, 1, 2, 3) for seed in (0, 1)]
    second = result.candidates[1]
    assert (second.weight, second.ece, second.accuracy) == (2, (0.01, 0.05), (0.935, 0.937))
    assert (second.mean_ece, second.ece_spread) == pytest.approx((0.03, statistics.stdev([0.01, 0.05])))
    assert (result.baseline.mean_accuracy, result.baseline.accuracy_spread) == pytest.approx((0.95, 0.014142136))
    assert search(Runs(), [1, 2, 3], seeds=2, accuracy_tolerance=0.02).weight == 3
    assert search(Runs(), [1, 2, 3], seeds=[1]).weight == 1
    with pytest.raises(AttributeError):
        result.weight = 3  # type: ignore[misc]


def test_the_table_says_why() -> None:
    lines = str(search(Runs(failing=[(2, 1)]), [1, 2, 3], seeds=2)).splitlines()
    assert [" ".join(line.split()) for line in lines[1:5]] == [
        "0 95.00 ± 1.41 9.00 ± 1.41 baseline",
        "1 95.00 ± 0.00 5.50 ± 0.71 chosen",
        "2 93.50 1.00 discarded: seed 1 failed with ArithmeticError: the loss is NaN",
        "3 93.50 ± 0.71 1.00 ± 0.00 loses 1.50 points of accuracy",
    ]
    assert lines[-1].startswith("Weight 1 has the lowest mean ECE of those that lose less than 1.5 points")
    assert "one seed" in str(search(Runs(), [1], seeds=1))
    worse: dict[float, list[tuple[float, float]]] = {0: [(0.9, 0.01)], 1: [(0.9, 0.02)]}
    assert "Its ECE is not below that of the baseline." in str(search(Runs(worse), [1], seeds=1))


def test_if_no_weight_qualifies_the_baseline_stays() -> None:
    result = search(Runs(failing=[(1, 0)]), [1, 3], seeds=2)
    assert result.weight == 0
    assert result.qualified == ()
    assert "the baseline stays" in str(result)


def test_a_baseline_that_fails_is_an_error() -> None:
    with pytest.raises(ArithmeticError, match="the loss"):
        search(Runs(failing=[(0, 1)]), [1], seeds=2)


def test_logits_are_scored_as_the_metrics_do() -> None:
    draw = np.random.default_rng(0)
    logits, target = draw.normal(size=(100, 3)), draw.integers(3, size=100)
    result = search(lambda *_: (torch.tensor(logits), torch.tensor(target)), [1], seeds=1)
    assert result.baseline.mean_accuracy == cal.metrics.accuracy(logits=logits, target=target)
    assert result.baseline.mean_ece == cal.metrics.ece(logits=logits, target=target, bins=20, convention="paper")


def test_an_interrupted_search_goes_on(tmp_path: Path) -> None:
    store = tmp_path / "search.json"
    with pytest.raises(KeyboardInterrupt):
        search(Runs(most=3), [1, 2, 3], seeds=2, store=store)
    assert len(json.loads(store.read_text())["runs"]) == 3
    later = Runs()
    result = search(later, [1, 2, 3], seeds=2, store=store)
    assert later.done == [(1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert result == search(Runs(), [1, 2, 3], seeds=2)
    again = Runs()
    assert search(again, [1, 2, 3], seeds=2, store=store) == result
    assert again.done == []
    assert [path.name for path in tmp_path.iterdir()] == ["search.json"]


def test_failed_runs_are_tried_again(tmp_path: Path) -> None:
    store = tmp_path / "search.json"
    assert search(Runs(failing=[(2, 1)]), [1, 2], seeds=2, store=store).weight == 1
    repaired = Runs()
    assert search(repaired, [1, 2], seeds=2, store=store).weight == 2
    assert repaired.done == [(2, 1)]


@pytest.mark.parametrize(("table", "ending"), [("usual", "png"), ("failing", "svg"), ("one seed", "pdf")])
def test_a_figure_is_drawn(table: str, ending: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'report'")
    path = tmp_path / f"search.{ending}"
    runs = Runs(failing=[(weight, 0) for weight in (1, 2, 3)] if table == "failing" else ())
    search(runs, [1, 2, 3], seeds=1 if table == "one seed" else 2, figure=path)
    assert path.stat().st_size > 4000


def test_the_figure_shows_the_means_and_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = pytest.importorskip("matplotlib.figure", reason="needs the extra 'report'")
    drawn: list[Any] = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    table = TABLE | {30: [(0.9, 0.02), (0.9, 0.03)]}
    result = search(Runs(table), [1, 2, 3, 30], seeds=2, figure=tmp_path / "search.png")
    left, right = drawn[0].axes
    curves = {tuple(line.get_xdata()): line.get_ydata() for line in left.lines if len(line.get_xdata()) == 4}
    np.testing.assert_allclose(curves[1.0, 2.0, 3.0, 30.0], [each.mean_ece for each in result.candidates])
    assert left.get_xscale() == "log"
    rings = [line for line in right.lines if line.get_markersize() == 12]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in rings] == [(2.0, pytest.approx(0.936))]


@pytest.mark.parametrize(
    ("fit", "options", "token"),
    [
        (Runs(), {"weights": [0]}, "at least one weight"),
        (Runs(), {"seeds": 0}, "seeds"),
        (Runs(), {"seeds": []}, "seeds"),
        (Runs(), {"accuracy_tolerance": 1.5}, "accuracy_tolerance"),
        (Runs(), {"figure": "search.bmp"}, "png"),
        (lambda *_: 0.5, {}, "logits.*float"),
        (lambda *_: {"ece": 0.1}, {}, "accuracy.*got ece"),
        (lambda *_: {"ece": float("nan"), "accuracy": 0.5}, {}, "shares"),
        (lambda *_: {"ece": 0.1, "accuracy": 93.0}, {}, "got 93"),
    ],
)
def test_what_cannot_work_says_why(fit: Callable[..., Any], options: dict[str, Any], token: str) -> None:
    given: dict[str, Any] = {"weights": [1.0], "seeds": 1} | options
    with pytest.raises((ValueError, TypeError), match=token):
        search(fit, **given)


def test_another_file_is_not_taken_for_a_store(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"notes\.json"):
        search(Runs(), [1], seeds=1, store=path)
    assert path.read_text() == "{}"
    assert isinstance(search(Runs(), [1], seeds=1), SearchResult)
