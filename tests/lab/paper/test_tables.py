"""Tables of stores whose scores are known."""

import dataclasses
import itertools
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from calibrant_lab.paper.profiles import paper_sweep
from calibrant_lab.paper.published import Printed
from calibrant_lab.paper.tables.build import Cell, TableRow, Tabulated, tabulate
from calibrant_lab.paper.tables.ensembles import ensemble
from calibrant_lab.paper.tables.notes import footnotes, footnotes_on_significance
from calibrant_lab.scores import scores_of
from calibrant_lab.sweeps.protocol import Validated, plan, rehearse
from calibrant_lab.trials.store import Store
from tests.lab.stores import failed, finish_all, finished, finished_plan, keep_predictions, scores

# The means of the paper's Table 1 on MNIST, as shares; the second row is ours alone.
ACCURACY = [0.988, 0.985, 0.984, 0.979, 0.986]
ECE = [0.0091, 0.0100, 0.0036, 0.0041, 0.0030]


def outcome(place: int, seed: int) -> dict[str, float]:
    """Around the paper's numbers, with a deviation of 0.0158 points."""
    accuracy, ece = ACCURACY[place % 5] + 1e-4 * (seed - 2), ECE[place % 5] + 1e-4 * (seed - 2)
    return scores(accuracy, ece, 0.1, ece / 2, accuracy - 0.001, ece / 3)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Tabulated:
    """Table 1 on MNIST, complete."""
    plan = finished_plan("table1", "mnist")
    return tabulate(plan, finish_all(Store(tmp_path_factory.mktemp("runs")), plan, outcome))


def named(table: Tabulated, name: str, kind: str = "network") -> TableRow:
    return next(row for row in table.rows if (row.name, row.kind) == (name, kind))


def notes_of(table: Tabulated) -> str:
    return "\n".join([*footnotes(table), *footnotes_on_significance(table)])


def has(text: str, *parts: str) -> bool:
    return all(part in text for part in parts)


def test_rows_have_the_mean_and_deviation_over_seeds_and_the_papers_beside_them(table: Tabulated) -> None:
    assert [row.name for row in table.rows] == ["NLL", "NLL, reduced split", "+ MMCE", "+ SB-ECE", "+ ESD"]
    cell = named(table, "+ ESD").cells["accuracy"]
    assert cell.mean == pytest.approx(98.6)
    assert cell.std == pytest.approx(statistics.stdev([98.58, 98.59, 98.6, 98.61, 98.62]))
    assert cell.paper == Printed(98.6, 0.204, "98.6±0.204")
    assert named(table, "NLL").cells["ece+vector"].paper == Printed(0.43, 0.123, "0.43±0.123")
    assert all(cell.paper is None for cell in named(table, "NLL, reduced split").cells.values())


def test_the_best_mean_of_each_column_is_marked(table: Tabulated, tmp_path: Path) -> None:
    best = {one.key: [row.name for row in table.rows if row.cells[one.key].best] for one in table.columns}
    assert best == {
        "accuracy": ["NLL"], "accuracy+vector": ["NLL"],
        "ece": ["+ ESD"], "ece+temperature": ["+ ESD"], "ece+vector": ["+ ESD"],
    }  # fmt: skip
    plan = finished_plan("table1", "digits", "quick")
    equal = finish_all(Store(tmp_path), plan, lambda place, seed: outcome(0, seed) | {"ece": 0.001 + 1e-15 * place})
    assert all(row.cells["ece"].best for row in tabulate(plan, equal).rows)


@pytest.mark.parametrize(
    ("values", "paper", "differs"),
    [
        ((1.0, 2.0, 3.0), (4.2, 0.4), True),  # 2.2 > 2 * sqrt(1 + 0.16) = 2.154
        ((1.0, 2.0, 3.0), (4.1, 0.4), False),
        ((1.0, 2.0, 3.0), (-0.2, 0.4), True),
        ((2.0,), (9.0, 0.4), False),  # one seed has no deviation
        ((math.nan, 2.0), (9.0, 0.4), False),
    ],
)
def test_differs_is_two_joint_deviations(values: tuple[float, ...], paper: tuple[float, float], differs: bool) -> None:
    assert Cell(values, Printed(*paper, "")).differs is differs


def test_differences_from_the_paper_are_listed(table: Tabulated) -> None:
    notes = notes_of(table)
    # Half of 0.91 against the paper's 0.31 ± 0.044.
    assert has(notes, "† ", "NLL: ECE after TS +0.14", "epochs 50 instead of 250", "λ 0.4, 0.8, 3, 5, 6, 7, 9, 10.")
    assert "accuracy +" not in notes
    whole = dataclasses.replace(table, sweep=paper_sweep("table1", "mnist", "paper"))
    assert not {"instead of", "λ 0.4"} & set(notes_of(whole).split(". "))


def test_the_chosen_settings_and_a_search_without_a_candidate_within_bounds(table: Tabulated, tmp_path: Path) -> None:
    chosen = [row.chosen for row in table.rows[:4]]
    assert chosen == [{}, {}, {"weight": 0.2, "bandwidth": 0.2}, {"weight": 0.2, "softness": 1e-4}]
    assert [row.within for row in table.rows] == [None, None, True, True, True]
    sweep = paper_sweep("table1", "digits", "quick", {"methods": ["esd"]})
    searched = [sweep.base.replaced({"method": "esd", "weight": weight}) for weight in sweep.grids["weight"]]
    found = [Validated(0.9, 0.1), Validated(0.80, 0.01), Validated(0.85, 0.02)]
    current = plan(sweep, dict(zip([sweep.base, *searched], found, strict=True)))
    other = tabulate(current, Store(tmp_path / "none"))
    assert (named(other, "+ ESD").chosen, named(other, "+ ESD").within) == ({"weight": 2.0}, False)
    assert "‡ " in notes_of(other)


def test_rows_without_results_and_missing_seeds_are_named(tmp_path: Path) -> None:
    plan, store = finished_plan("table1", "mnist"), Store(tmp_path)
    for trial in plan.rows[0].trials[:4]:
        finished(store, trial, test=outcome(0, trial.seed))
    for trial in (plan.rows[0].trials[4], *plan.rows[1].trials):
        failed(store, trial)
    unknown, broken, searching = (dataclasses.replace(row, trials=()) for row in plan.rows[2:])
    broken = dataclasses.replace(broken, problem="every candidate failed")
    finished(store, searching.searches[0].candidates[2], test=outcome(4, 0))
    table = tabulate(dataclasses.replace(plan, rows=(*plan.rows[:2], unknown, broken, searching)), store)
    problems = [None, "every seed failed", "not run here", "every candidate failed", "search not ended"]
    assert [row.problem for row in table.rows] == problems
    assert (table.rows[0].seeds, table.rows[0].planned) == ((0, 1, 2, 3), 5)
    assert (table.failed[0], len(table.failed)) == (("NLL", "seed 4"), 6)
    assert table.comparisons == ()
    assert not any(cell.best for row in table.rows for cell in row.cells.values())
    assert has(notes_of(table), "NLL (4 of 5)", "+ SB-ECE (every candidate failed)")
    assert footnotes_on_significance(table) == []


def test_a_failed_candidate_of_the_search_is_named(tmp_path: Path) -> None:
    plan, store = finished_plan("table2", "mnist"), Store(tmp_path)
    finish_all(store, plan, outcome)
    *_, lost = plan.rows[1].searches[0].candidates
    failed(store, lost)
    table = tabulate(plan, store)
    assert table.failed == (("+ ESD (b512)", "λ=8 of the search"),)
    assert "+ ESD (b512), λ=8 of the search" in notes_of(table)


def test_each_is_compared_with_every_other(table: Tabulated) -> None:
    pairs = [(one.against, one.method) for one in table.comparisons if one.measure == "ece"]
    assert pairs == list(itertools.combinations([row.name for row in table.rows], 2))
    assert [one.measure for one in table.comparisons[::10]] == ["accuracy", "ece", "ece+temperature"]
    esd = next(one for one in table.comparisons if (one.method, one.against, one.measure) == ("+ ESD", "NLL", "ece"))
    assert esd.paired.difference == pytest.approx(-0.61)
    # Five seeds cannot reach five percent in the exact test.
    assert has(notes_of(table), "30 comparisons", "5 seeds", "0.0625", "5%")


@pytest.mark.parametrize(
    ("name", "recipe", "methods", "sizes", "measures", "paper"),
    [
        ("table2", "cifar10", ["ESD"], [512, 256, 128, 64], 5, "3.08±0.692"),
        ("table3", "cifar100", ["ECE", "ESD"], [512, 256, 128], 2, "14.6±0.252"),
    ],
)
def test_the_tables_over_batch_sizes(
    name: str, recipe: str, methods: list[str], sizes: list[int], measures: int, paper: str, tmp_path: Path
) -> None:
    plan = finished_plan(name, recipe)
    table = tabulate(plan, finish_all(Store(tmp_path), plan, outcome))
    rows = [f"+ {method} (b{size})" for method in methods for size in sizes]
    assert [row.name for row in table.rows] == ["NLL (b512)", *rows]
    assert len(table.columns) == measures
    cell = table.rows[1].cells["ece"].paper
    assert cell is not None
    assert cell.text == paper
    # Each row with the baseline, with its method at 512, and with the first method at its size.
    expected = {(row, "NLL (b512)") for row in rows}
    expected |= {(f"+ {method} (b{size})", f"+ {method} (b512)") for method in methods for size in sizes[1:]}
    expected |= {(f"+ {methods[-1]} (b{size})", f"+ {methods[0]} (b{size})") for size in sizes if methods[1:]}
    assert {(one.method, one.against) for one in table.comparisons} == expected


def test_the_notes_state_the_settings_that_were_used(tmp_path: Path) -> None:
    def notes(**changes: Any) -> str:
        return notes_of(tabulate(rehearse(paper_sweep("table1", "mnist", "cpu", changes)), Store(tmp_path / "none")))

    usual = notes()
    assert has(
        usual, "φ: bandwidth of MMCE", "T: temperature of SB-ECE", "lowest validation ECE", "1.5 points", "20 bins"
    )
    other = notes(
        methods=["weighted-mmce"], select="nll", tolerance=0.03, search_seeds=3, seeds=3, reduced_split=False,
        columns=["accuracy", "equal_mass_ece+temperature"],
    )  # fmt: skip
    assert has(other, "3 seeds", "weighted MMCE", "mean validation NLL over 3 seeds", "3 points", "TS: ")
    assert not any(text in other for text in ("VS", "20 bins", "SB-ECE", "reduced split"))
    assert "1 epoch, 1 seed. " in notes(seeds=1, settings={"epochs": 1})
    # A grid for one method alone counts as searched.
    searched = notes(methods=["esd"], grids={"weight": (1.0,), "esd.weight": (0.4, 3.0)})
    assert "λ 0.2, 0.6, 0.8, 1, 2, 4, 5, 6, 7, 8, 9, 10." in searched


def test_ensembles_and_dropout_come_from_stored_predictions(tmp_path: Path) -> None:
    plan, store = finished_plan("table1", "digits", "quick"), Store(tmp_path)
    for place, row in enumerate(plan.rows[:4]):
        for trial in row.trials[: 1 if place == 2 else None]:
            done = finished(store, trial, test=outcome(place, trial.seed))
            if place < 2:
                keep_predictions(done, trial.seed)
    sampled = store.trial(plan.rows[1].trials[0])
    keep_predictions(sampled, 5, suffix="-dropout")
    table = tabulate(plan, store)
    voting = [row for row in table.rows if row.kind != "network"]
    both = ["NLL", "NLL, reduced split"]
    assert [(row.kind, row.name) for row in voting] == [*(("ensemble", name) for name in both), ("dropout", both[1])]
    assert [row.seeds for row in voting] == [(0, 1), (0, 1), (0,)]
    assert table.unkept == ("+ SB-ECE",)
    assert not any(cell.best for row in voting for cell in row.cells.values())
    voted = voting[0].cells["ece"]
    assert math.isnan(voted.std)
    members = [(one.predicted("validation"), one.predicted("test")) for one in map(store.trial, plan.rows[0].trials)]
    assert voted.mean == pytest.approx(100 * ensemble(members, ["ece"])["ece"])
    expected = scores_of(sampled.predicted("validation", sampled=True), sampled.predicted("test", sampled=True))
    assert voting[2].cells["ece"].mean == 100 * expected["ece"]
    assert "No ensemble of + SB-ECE" in notes_of(table)


def test_a_dash_is_explained_with_the_number_of_seeds(table: Tabulated, tmp_path: Path) -> None:
    def unscaled(place: int, seed: int) -> dict[str, float]:
        return outcome(place, seed) | ({"ece+temperature": math.nan} if (place, seed) in ((0, 1), (0, 3)) else {})

    plan = finished_plan("table1", "mnist")
    assert "A dash: " not in notes_of(table)
    assert "NLL (2 of 5 seeds)" in notes_of(tabulate(plan, finish_all(Store(tmp_path), plan, unscaled)))
