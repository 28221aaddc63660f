from pathlib import Path
from typing import Any

import pytest

from calibrant_lab.configuration import Configuration
from calibrant_lab.names import ProfileName
from calibrant_lab.paper.inferred import inferred
from calibrant_lab.recipes import RECIPES
from calibrant_lab.trials.protocol import PROFILES, Plan, with_profile
from calibrant_lab.trials.store import Store
from tests.lab.filled_stores import filled_store, plan_maker, write_failure, write_trial

DIGITS = RECIPES["digits"]
QUICK = with_profile(DIGITS, PROFILES["quick"])


def plans_of(store: Store) -> list[tuple[ProfileName, Plan]]:
    """Table 1 of all that a store has trials of, without rows that were not begun."""
    found = ((one.profile, one.begun("table1")) for one in inferred(store))
    return [(profile, plan) for profile, plan in found if plan is not None]


@pytest.mark.parametrize("profile", ["quick", "cpu"])
def test_a_complete_store_gives_back_the_plan_it_was_filled_for(tmp_path: Path, profile: ProfileName) -> None:
    store = filled_store(tmp_path, profile)
    assert plans_of(store) == [(profile, plan_maker(DIGITS, profile)(store))]


@pytest.mark.parametrize("search_seeds", [1, 3, 5])
def test_the_seeds_of_a_search_are_found_and_further_trials_change_nothing(tmp_path: Path, search_seeds: int) -> None:
    store = filled_store(tmp_path, "cpu", search_seeds=search_seeds)
    expected = plan_maker(DIGITS, "cpu", search_seeds=search_seeds)(store)
    assert plans_of(store) == [("cpu", expected)]
    missing = [
        first.replaced({"seed": seed})
        for first in expected.rows[-1].searches[0].candidates
        for seed in range(5)
        if first.replaced({"seed": seed}) not in store.results()
    ]
    for trial in missing[:1]:
        write_trial(store, trial)
    assert plans_of(store) == [("cpu", expected)]


def test_an_interrupted_search_is_not_taken_for_a_smaller_one(tmp_path: Path) -> None:
    # Both grids have λ 0.6 and 2, and both profiles train digits for 40 epochs here.
    store, make = Store(tmp_path), plan_maker(DIGITS, "cpu")
    for trial in make(store).needed[:12]:
        write_trial(store, trial)
    [(profile, plan)] = plans_of(store)
    assert profile == "cpu"
    assert [row.name for row in plan.rows] == ["NLL", "+ MMCE", "+ SB-ECE"]


@pytest.mark.parametrize(
    ("trial", "profile"),
    [(QUICK, "quick"), (DIGITS, "cpu"), (RECIPES["mnist"], "paper"), (DIGITS.replaced({"epochs": 3}), "quick")],
)
def test_a_single_trial_belongs_to_the_profile_of_its_epochs(
    tmp_path: Path, trial: Configuration, profile: ProfileName
) -> None:
    store = Store(tmp_path)
    write_trial(store, trial)
    [(found, plan)] = plans_of(store)
    assert (found, plan.base, [row.name for row in plan.rows]) == (profile, trial, ["NLL"])


def test_trials_of_no_search_are_shown_as_they_were_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    esd = [QUICK.replaced({"objective": "esd", "weight": 0.6, "seed": seed}) for seed in (0, 1)]
    for trial in (QUICK, *esd):
        write_trial(store, trial)
    [group] = inferred(store)
    plan = group.begun("table1")
    assert plan is not None
    assert group.profile_name == "unknown"
    assert [(row.name, row.trials) for row in plan.rows] == [("NLL", (QUICK,)), ("+ ESD, λ 0.6", tuple(esd))]
    assert group.begun("table2") is None
    write_trial(store, QUICK.replaced({"objective": "esd", "weight": 2.0}))
    [group] = inferred(store)
    assert group.profile_name == "quick"


def test_recipes_and_epochs_are_kept_apart_and_stand_in_the_order_of_the_recipes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    others = [RECIPES["snli"], QUICK, DIGITS, RECIPES["mnist"]]
    for trial in others:
        write_trial(store, trial)
    assert [plan.base for _, plan in plans_of(store)] == [QUICK, DIGITS, RECIPES["mnist"], RECIPES["snli"]]


def test_smaller_batches_are_table2_of_the_same_group(tmp_path: Path) -> None:
    store = filled_store(tmp_path)
    [group] = inferred(store)
    assert group.begun("table2") is not None  # the baseline and ESD at the recipe's batch are of Table 1
    small = group.table("table2").rows[2].trials[0]
    assert small.batch_size == QUICK.batch_size // 2
    write_trial(store, small)
    [group] = inferred(store)
    plan = group.begun("table2")
    assert group.protocol.base == QUICK
    assert plan is not None
    assert [row.name for row in plan.rows][2] == "+ ESD (b64)"


def test_a_batch_size_of_ones_own_is_that_of_the_plan(tmp_path: Path) -> None:
    store = filled_store(tmp_path, recipe=DIGITS.replaced({"batch_size": 32}))
    [(profile, plan)] = plans_of(store)
    assert (profile, plan.base.batch_size, len(plan.rows)) == ("quick", 32, 5)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"objective": "focal"}, "focal"),
        ({"objective": "avuc", "weight": 0.6}, "+ AvUC, λ 0.6"),
        ({"objective": "esd", "root": False, "weight": 60.0}, "+ ESD, raw, λ 60"),
    ],
)
def test_other_methods_that_were_run_have_rows(tmp_path: Path, settings: dict[str, Any], name: str) -> None:
    store = Store(tmp_path)
    for trial in (QUICK, QUICK.replaced(settings)):
        write_trial(store, trial)
    [(_, plan)] = plans_of(store)
    assert [row.name for row in plan.rows] == ["NLL", name]


def test_failed_trials_end_a_search_and_damaged_ones_are_passed_over(tmp_path: Path) -> None:
    store, make = Store(tmp_path), plan_maker(DIGITS, "quick")
    write_trial(store, QUICK)
    first, second = make(store).rows[-1].searches[0].candidates
    write_trial(store, first)
    write_failure(store, second, "ValueError: no")
    (store.trial(QUICK.replaced({"seed": 1})).folder).mkdir()
    (store.trial(QUICK.replaced({"seed": 1})).folder / "config.json").write_text("{")
    [(_, plan)] = plans_of(store)
    assert plan.rows[-1].trials[0] == first


def test_a_failed_baseline_is_told_in_every_row_that_needs_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_failure(store, QUICK, "ValueError: no")
    for trial in plan_maker(DIGITS, "quick")(store).needed[1:]:
        write_trial(store, trial)
    [(_, plan)] = plans_of(store)
    problems = {row.name: row.problem for row in plan.rows}
    assert problems["+ ESD"] == "the NLL baseline of the search failed"
