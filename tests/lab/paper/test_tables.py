"""Tables from stores made by hand."""

import dataclasses
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from calibrant_lab.paper.profiles import paper_sweep
from calibrant_lab.paper.published import Printed
from calibrant_lab.paper.tables.build import Cell, TableRow, Tabulated, tabulate
from calibrant_lab.paper.tables.ensembles import ensemble
from calibrant_lab.paper.tables.notes import footnotes, footnotes_on_significance, title
from calibrant_lab.scores import scores_of
from calibrant_lab.sweeps.protocol import Validated, plan, rehearse
from calibrant_lab.trials.store import Store
from tests.lab.synthetic import fail, finish, finish_all, finished_plan, keep_predictions, scores

# The means of the paper's Table 1 on MNIST, as shares; the second row is ours alone.
ACCURACY = [0.988, 0.985, 0.984, 0.979, 0.986]
ECE = [0.0091, 0.0100, 0.0036, 0.0041, 0.0030]


def outcome(place: int, seed: int) -> dict[str, float]:
    """Around the paper's numbers, with a deviation of 0.0158 points."""
    accuracy, ece = ACCURACY[place] + 1e-4 * (seed - 2), ECE[place] + 1e-4 * (seed - 2)
    return scores(accuracy, ece, 0.1, ece / 2, accuracy - 0.001, ece / 3)


def table1(folder: Path) -> Tabulated:
    plan = finished_plan("table1", "mnist")
    return tabulate(plan, finish_all(Store(folder), plan, outcome))


def named(table: Tabulated, name: str, kind: str = "network") -> TableRow:
    return next(row for row in table.rows if (row.name, row.kind) == (name, kind))


def text_of(notes: list[str]) -> str:
    return "\n".join(notes)


def test_rows_have_the_mean_and_deviation_over_seeds_and_the_papers_beside_them(tmp_path: Path) -> None:
    table = table1(tmp_path)
    assert [row.name for row in table.rows] == ["NLL", "NLL, reduced split", "+ MMCE", "+ SB-ECE", "+ ESD"]
    cell = named(table, "+ ESD").cells["accuracy"]
    assert cell.mean == pytest.approx(98.6)
    assert cell.std == pytest.approx(statistics.stdev([98.58, 98.59, 98.6, 98.61, 98.62]))
    assert cell.paper == Printed(98.6, 0.204, "98.6±0.204")
    assert named(table, "NLL").cells["ece+vector"].paper == Printed(0.43, 0.123, "0.43±0.123")
    assert all(cell.paper is None for cell in named(table, "NLL, reduced split").cells.values())


def test_the_best_mean_of_each_column_is_marked_once(tmp_path: Path) -> None:
    table = table1(tmp_path)
    best = {one.key: [row.name for row in table.rows if row.cells[one.key].best] for one in table.columns}
    assert best == {
        "accuracy": ["NLL"], "accuracy+vector": ["NLL"],
        "ece": ["+ ESD"], "ece+temperature": ["+ ESD"], "ece+vector": ["+ ESD"],
    }  # fmt: skip


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


def test_equal_means_are_all_the_best(tmp_path: Path) -> None:
    plan = finished_plan("table1", "digits", "quick")

    def rounded(place: int, seed: int) -> dict[str, float]:
        return outcome(0, seed) | {"ece": 0.001 + 1e-15 * place}

    store = finish_all(Store(tmp_path), plan, rounded)
    table = tabulate(plan, store)
    assert all(row.cells["ece"].best for row in table.rows)


def test_differences_from_the_paper_are_listed(tmp_path: Path) -> None:
    table = table1(tmp_path)
    notes = text_of(footnotes(table))
    # Half of 0.91 against the paper's 0.31 ± 0.044.
    assert "† further from" in notes
    assert "NLL: ECE after TS +0.14" in notes
    assert "accuracy +" not in notes
    assert "50 epochs, 5 seeds. Settings other than the recipe's: epochs 50 instead of 250." in notes
    assert "Searched in the paper, but not here: λ 0.4, 0.8, 3, 5, 6, 7, 9, 10." in notes
    whole = dataclasses.replace(table, sweep=paper_sweep("table1", "mnist", "paper"))
    assert "Settings are the recipe's." in text_of(footnotes(whole))
    assert "but not here" not in text_of(footnotes(whole))


def test_the_chosen_settings_and_a_search_without_a_candidate_within_bounds(tmp_path: Path) -> None:
    table = table1(tmp_path)
    assert named(table, "+ MMCE").chosen == {"weight": 0.2, "bandwidth": 0.2}
    assert named(table, "+ SB-ECE").chosen == {"weight": 0.2, "softness": 1e-4}
    assert named(table, "NLL").chosen == {}
    assert [row.within for row in table.rows] == [None, None, True, True, True]

    sweep = paper_sweep("table1", "digits", "quick", {"methods": ["esd"]})
    searched = [sweep.base.replaced({"method": "esd", "weight": weight}) for weight in sweep.grids["weight"]]
    found = [Validated(0.9, 0.1), Validated(0.80, 0.01), Validated(0.85, 0.02)]
    current = plan(sweep, dict(zip([sweep.base, *searched], found, strict=True)))
    table = tabulate(current, Store(tmp_path / "none"))
    assert named(table, "+ ESD").chosen == {"weight": 2.0}
    assert named(table, "+ ESD").within is False
    assert "‡ no candidate" in text_of(footnotes(table))


def test_what_was_not_run_says_so_and_missing_seeds_are_counted(tmp_path: Path) -> None:
    plan, store = finished_plan("table1", "mnist"), Store(tmp_path)
    for trial in plan.rows[0].trials[:4]:
        finish(store, trial, outcome(0, trial.seed))
    fail(store, plan.rows[0].trials[4])
    for trial in plan.rows[1].trials:
        fail(store, trial)
    unknown = dataclasses.replace(plan.rows[2], trials=())
    broken = dataclasses.replace(plan.rows[3], trials=(), problem="every candidate of the search failed")
    plan = dataclasses.replace(plan, rows=(*plan.rows[:2], unknown, broken, plan.rows[4]))
    table = tabulate(plan, store)
    assert [row.problem for row in table.rows] == [
        None, "every seed failed", "not run here", "every candidate of the search failed", "not run here",
    ]  # fmt: skip
    assert (table.rows[0].seeds, table.rows[0].planned) == ((0, 1, 2, 3), 5)
    assert table.failed[0] == ("NLL", "seed 4")
    assert len(table.failed) == 6
    assert table.comparisons == ()
    assert not any(cell.best for row in table.rows for cell in row.cells.values())
    notes = text_of(footnotes(table))
    assert "NLL (4 of 5)" in notes
    assert "+ SB-ECE (every candidate of the search failed)" in notes
    assert footnotes_on_significance(table) == []


def test_an_empty_store_is_a_table_of_the_papers_numbers(tmp_path: Path) -> None:
    table = tabulate(finished_plan("table1", "cifar10"), Store(tmp_path / "none"))
    assert {row.problem for row in table.rows} == {"not run here"}
    assert table.in_paper


def test_each_is_compared_with_every_other(tmp_path: Path) -> None:
    table = table1(tmp_path)
    pairs = [(one.method, one.against) for one in table.comparisons if one.measure == "ece"]
    assert pairs == [
        ("NLL, reduced split", "NLL"), ("+ MMCE", "NLL"), ("+ SB-ECE", "NLL"), ("+ ESD", "NLL"),
        ("+ MMCE", "NLL, reduced split"), ("+ SB-ECE", "NLL, reduced split"), ("+ ESD", "NLL, reduced split"),
        ("+ SB-ECE", "+ MMCE"), ("+ ESD", "+ MMCE"), ("+ ESD", "+ SB-ECE"),
    ]  # fmt: skip
    assert [one.measure for one in table.comparisons[::10]] == ["accuracy", "ece", "ece+temperature"]
    esd = next(one for one in table.comparisons if (one.method, one.against, one.measure) == ("+ ESD", "NLL", "ece"))
    assert esd.paired.difference == pytest.approx(-0.61)


def test_five_seeds_cannot_reach_five_percent_in_the_exact_test_and_the_notes_say_so(tmp_path: Path) -> None:
    notes = text_of(footnotes_on_significance(table1(tmp_path)))
    assert "p: paired t-test, corrected by Holm for the 30 comparisons shown" in notes
    assert "exact test over all changes of sign, not corrected. With 5 seeds it cannot go below 0.0625" in notes
    assert "so never below 5%" in notes


def test_without_its_baseline_the_others_are_compared(tmp_path: Path) -> None:
    plan, store = finished_plan("table1", "mnist"), Store(tmp_path)
    for trial in (*plan.rows[1].trials, *plan.rows[4].trials):
        finish(store, trial, outcome(4, trial.seed))
    compared = tabulate(plan, store).comparisons
    assert {(one.method, one.against) for one in compared} == {("+ ESD", "NLL, reduced split")}


@pytest.mark.parametrize(
    ("name", "rows", "measures", "among_others"),
    [
        ("table2", ["NLL (b512)", "+ ESD (b512)", "+ ESD (b256)", "+ ESD (b128)", "+ ESD (b64)"], 5, {
            ("+ ESD (b256)", "+ ESD (b512)"), ("+ ESD (b128)", "+ ESD (b512)"), ("+ ESD (b64)", "+ ESD (b512)"),
        }),
        ("table3", ["NLL (b512)", "+ ECE (b512)", "+ ECE (b256)", "+ ECE (b128)",
                    "+ ESD (b512)", "+ ESD (b256)", "+ ESD (b128)"], 2, {
            ("+ ESD (b512)", "+ ECE (b512)"), ("+ ESD (b256)", "+ ECE (b256)"), ("+ ESD (b128)", "+ ECE (b128)"),
            ("+ ESD (b256)", "+ ESD (b512)"), ("+ ESD (b128)", "+ ESD (b512)"),
            ("+ ECE (b256)", "+ ECE (b512)"), ("+ ECE (b128)", "+ ECE (b512)"),
        }),
    ],
)  # fmt: skip
def test_the_tables_over_batch_sizes(
    tmp_path: Path, name: str, rows: list[str], measures: int, among_others: set[tuple[str, str]]
) -> None:
    recipe = "cifar10" if name == "table2" else "cifar100"
    plan = finished_plan(name, recipe)
    store = finish_all(Store(tmp_path), plan, lambda place, seed: outcome(place % 5, seed))
    table = tabulate(plan, store)
    assert [row.name for row in table.rows] == rows
    assert len(table.columns) == measures
    paper = table.rows[1].cells["ece"].paper
    assert paper is not None
    assert paper.text == ("3.08±0.692" if name == "table2" else "14.6±0.252")
    pairs = {(one.method, one.against) for one in table.comparisons}
    assert pairs - {(row, rows[0]) for row in rows[1:]} == among_others
    assert {(row, rows[0]) for row in rows[1:]} < pairs


def test_other_recipes_say_that_the_paper_has_no_numbers(tmp_path: Path) -> None:
    table = tabulate(finished_plan("table2", "mnist"), Store(tmp_path / "none"))
    assert not table.in_paper
    assert "The paper has no numbers for these data and this network." in footnotes(table)


def test_another_network_than_the_papers_has_none_of_its_numbers(tmp_path: Path) -> None:
    plan = finished_plan("table1", "mnist", model="resnet20")
    table = tabulate(plan, finish_all(Store(tmp_path), plan, outcome))
    assert not table.in_paper
    notes = text_of(footnotes(table))
    assert "The paper has no numbers for these data and this network." in notes
    assert "model resnet20 instead of lenet5" in notes
    assert "in the paper" not in notes
    assert title(table) == "The paper's Table 1 on mnist (resnet20), profile cpu"


def notes_of(store: Store, **changes: Any) -> str:
    plan = rehearse(paper_sweep("table1", "mnist", "cpu", changes))
    return text_of(footnotes(tabulate(plan, store)))


def test_notes_tell_the_settings_that_were_used(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    usual = notes_of(store)
    assert "λ: weight of the objective relative to the NLL; φ: bandwidth of MMCE; T: temperature of SB-ECE." in usual
    assert "the lowest validation ECE among those that lose less than 1.5 points of accuracy" in usual
    assert "ECE in 20 bins of equal width, right-closed. TS: temperature; VS: vector scaling" in usual
    other = notes_of(
        store, methods=["weighted-mmce"], select="nll", tolerance=0.03, search_seeds=3, seeds=3, reduced_split=False,
        columns=["accuracy", "equal_mass_ece+temperature"],
    )  # fmt: skip
    assert "50 epochs, 3 seeds." in other
    assert "φ: bandwidth of weighted MMCE. " in other
    assert "the lowest mean validation NLL over 3 seeds among those that lose less than 3 points" in other
    assert "TS: temperature scaling, fitted on the validation set." in other
    assert "1 epoch, 1 seed. " in notes_of(store, seeds=1, settings={"epochs": 1})
    assert not any(text in other for text in ("VS", "20 bins", "SB-ECE", "reduced split"))


def test_a_grid_for_one_method_alone_counts_as_searched(tmp_path: Path) -> None:
    grids = {"weight": (1.0,), "esd.weight": (0.4, 3.0)}
    missing = notes_of(Store(tmp_path / "none"), methods=["esd"], grids=grids).partition("but not here: λ ")[2]
    assert missing == "0.2, 0.6, 0.8, 1, 2, 4, 5, 6, 7, 8, 9, 10."


def test_columns_and_methods_from_outside_have_their_place_in_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(
        "from calibrant import ESDLoss\n\ndef half(predictions):\n    return float(predictions.correct.mean()) / 2\n"
        "def mine(**options):\n    return ESDLoss()\n"
    )
    monkeypatch.chdir(tmp_path)
    changes = {"methods": ["./own.py:mine"], "columns": ["accuracy", "./own.py:half"], "name": "mine"}
    plan, store = rehearse(paper_sweep("table1", "digits", "quick", changes)), Store(tmp_path / "runs")
    for row in plan.rows:
        for trial in row.trials:
            keep_predictions(finish(store, trial, {"accuracy": 0.5}), trial.seed)
    table = tabulate(plan, store)
    assert [row.name for row in table.rows if row.kind == "network"] == ["NLL", "NLL, reduced split", "+ mine"]
    assert title(table) == "mine on digits (lenet5), profile quick"
    assert 0 < named(table, "+ mine").cells[table.columns[1].key].mean < 0.5


def test_ensembles_and_dropout_come_from_stored_predictions(tmp_path: Path) -> None:
    plan, store = finished_plan("table1", "digits", "quick"), Store(tmp_path)
    for row in plan.rows[:2]:
        for trial in row.trials:
            keep_predictions(finish(store, trial, outcome(0, trial.seed)), trial.seed)
    keep_predictions(store.trial(plan.rows[1].trials[0]).folder, 5, suffix="-dropout")
    finish(store, plan.rows[2].trials[0], outcome(2, 0))
    for trial in plan.rows[3].trials:
        finish(store, trial, outcome(3, trial.seed))
    table = tabulate(plan, store)
    voting = [(row.kind, row.name, row.seeds) for row in table.rows if row.kind != "network"]
    assert voting == [
        ("ensemble", "NLL", (0, 1)), ("ensemble", "NLL, reduced split", (0, 1)),
        ("dropout", "NLL, reduced split", (0,)),
    ]  # fmt: skip
    assert table.unkept == ("+ SB-ECE",)
    assert not any(cell.best for row in table.rows if row.kind != "network" for cell in row.cells.values())
    voted = named(table, "NLL", "ensemble").cells["ece"]
    assert math.isnan(voted.std)
    networks = [store.trial(trial) for trial in plan.rows[0].trials]
    members = [(one.predicted("validation"), one.predicted("test")) for one in networks]
    assert voted.mean == pytest.approx(100 * ensemble(members, ["ece"])["ece"])
    sampled = store.trial(plan.rows[1].trials[0])
    expected = scores_of(sampled.predicted("validation", sampled=True), sampled.predicted("test", sampled=True))
    assert named(table, "NLL, reduced split", "dropout").cells["ece"].mean == 100 * expected["ece"]
    assert "No ensemble of + SB-ECE" in text_of(footnotes(table))


def test_an_ensemble_shows_what_was_chosen_and_no_accuracy_that_was_not_compared(tmp_path: Path) -> None:
    plan, store = finished_plan("table1", "digits", "quick"), Store(tmp_path)
    for trial in plan.rows[2].trials:
        keep_predictions(finish(store, trial, outcome(2, trial.seed)), trial.seed)
    [voting] = [row for row in tabulate(plan, store).rows if row.kind == "ensemble"]
    assert (voting.name, voting.chosen, voting.within) == ("+ MMCE", {"weight": 0.6, "bandwidth": 0.4}, None)


def test_a_candidate_that_failed_is_named_since_the_choice_was_made_without_it(tmp_path: Path) -> None:
    plan, store = finished_plan("table2", "mnist"), Store(tmp_path)
    finish_all(store, plan, outcome_of_any)
    *_, lost = plan.rows[1].searches[0].candidates
    fail(store, lost)
    table = tabulate(plan, store)
    assert table.failed == (("+ ESD (b512)", "λ=8 of the search"),)
    assert "Failed trials: + ESD (b512), λ=8 of the search." in footnotes(table)


def outcome_of_any(place: int, seed: int) -> dict[str, float]:
    return outcome(place % 5, seed)


def test_a_search_that_has_begun_is_not_called_not_run(tmp_path: Path) -> None:
    plan, store = finished_plan("table1", "mnist"), Store(tmp_path)
    searching = dataclasses.replace(plan.rows[4], trials=())
    finish(store, searching.searches[0].candidates[2], outcome(4, 0))
    table = tabulate(dataclasses.replace(plan, rows=(*plan.rows[:4], searching)), store)
    assert named(table, "+ ESD").problem == "search not ended"
    assert named(table, "+ MMCE").problem == "not run here"
    assert "Without numbers" not in text_of(footnotes(table))


def test_a_dash_is_explained_with_the_number_of_seeds(tmp_path: Path) -> None:
    def unscaled(place: int, seed: int) -> dict[str, float]:
        return outcome(place, seed) | ({"ece+temperature": math.nan} if (place, seed) in ((0, 1), (0, 3)) else {})

    plan = finished_plan("table1", "mnist")
    table = tabulate(plan, finish_all(Store(tmp_path), plan, unscaled))
    assert "A dash: no temperature could be fitted for NLL (2 of 5 seeds)." in footnotes(table)
    assert not any(note.startswith("A dash") for note in footnotes(table1(tmp_path / "other")))
