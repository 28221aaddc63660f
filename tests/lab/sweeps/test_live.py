"""What is seen of a sweep while it runs, and after."""

import io
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from rich.console import Console, RenderableType

from calibrant_lab.paper.profiles import paper_sweep
from calibrant_lab.sweeps import live
from calibrant_lab.sweeps.live import LiveView
from calibrant_lab.sweeps.protocol import Plan, Validated, plan
from calibrant_lab.sweeps.run import validated
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.store import Store
from tests.lab.stores import failed, finished, halfway, held_by_another_process, of

BASE, ESD = of("nll"), of("esd", weight=0.6)
LOST = of("esd", weight=2.0)
TOTAL = 15
TABLE1 = paper_sweep("table1", "digits", "quick", {"settings": {"epochs": 12}})


def terminal(is_terminal: bool = True) -> Any:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=110, color_system=None)


def state(store: Store) -> tuple[Plan, dict[Configuration, Validated]]:
    results = validated(store, TABLE1)
    return plan(TABLE1, results), results


def text_of(shown: RenderableType) -> list[str]:
    console = Console(file=io.StringIO(), width=110, record=True)
    console.print(shown)
    return [line.strip() for line in console.export_text().splitlines() if line.strip()]


def rendered(store: Store, failed: frozenset[Configuration] = frozenset(), total: int | None = TOTAL) -> list[str]:
    return text_of(LiveView(store, terminal(), total=total).render(*state(store), failed))


def test_before_anything_has_begun_there_is_only_what_is_to_do(store: Store) -> None:
    (line,) = rendered(store)
    assert line.startswith("0 done, 0 running, 15 to do")
    assert "left" not in line
    assert rendered(store, total=None)[0].startswith("0 done, 0 running, 10 to do")  # as far as the plan tells


def test_the_counts_and_the_time_left(store: Store) -> None:
    finished(store, BASE, seconds=100)
    finished(store, of("nll", seed=1), seconds=140)
    assert rendered(store)[0].endswith("about 26 min 0 s left")  # 13 trials of 120 s, and nobody else at it
    with ExitStack() as others:
        for one in (ESD, LOST):
            # Half of 120 seconds are over, by ten an epoch.
            others.enter_context(held_by_another_process(halfway(store, one, 6.0, 0.7, 0.12)))
        lines = rendered(store)
        # 11 trials of 120 s and two halves of them, two at a time.
        assert lines[0].startswith("2 done, 2 running, 11 to do")
        assert lines[0].endswith("about 12 min 0 s left")
        assert [line.split() for line in lines if line.startswith("ESD λ 0.6")] == [
            ["ESD", "λ", "0.6", "0", "7", "of", "12", "70.00", "12.00", "1", "min", "0", "s"]
        ]
    halfway(store, ESD, 6.0, 0.7, 0.12)
    assert rendered(store, frozenset({LOST}))[0].startswith("2 done, 0 running, 1 failed, 12 to do")


def test_the_first_trials_tell_the_time_by_how_far_they_are(store: Store) -> None:
    with held_by_another_process(halfway(store, BASE, 3.0, 0.7, 0.12)):
        # 90 s of this one, and 14 of 120 s.
        assert rendered(store)[0].endswith("about 29 min 30 s left")


def test_the_best_is_the_lowest_ece_that_is_accurate_enough(store: Store) -> None:
    finished(store, BASE, accuracy=0.95, ece=0.10)
    finished(store, ESD, accuracy=0.945, ece=0.05)
    finished(store, LOST, accuracy=0.90, ece=0.01)
    finished(store, of("mmce", weight=0.6, bandwidth=0.4), accuracy=0.8, ece=0.01)
    lines = rendered(store)
    best = lines[next(place for place, line in enumerate(lines) if line.startswith("best so far")) + 2 :]
    assert [" ".join(line.split()) for line in best] == [
        "NLL 95.00 0.1000",
        "MMCE λ 0.6 φ 0.4, not accurate enough 1 of 2 80.00 0.0100",
        "ESD λ 0.6 2 of 2 94.50 0.0500",
    ]


@pytest.mark.parametrize(("seconds", "times"), [(0.0, 3), (1000.0, 1)])
def test_it_is_drawn_on_a_terminal_now_and_then(
    seconds: float, times: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SECONDS_BETWEEN_LOOKS", seconds)
    finished(store, BASE)
    console = terminal()
    with LiveView(store, console, total=TOTAL) as view:
        for _ in range(3):
            view.show(*state(store), frozenset())
    drawn, _, erased = console.file.getvalue().rpartition("\r")
    assert drawn.count("1 done, 0 running, 14 to do") == times + 1  # rich draws the last state again when it stops
    assert erased.count("\x1b[2K") >= 5  # and nothing stays on the screen


def test_failures_are_listed_in_the_end_whatever_ended_it(store: Store) -> None:
    trial = failed(store, LOST, "Traceback (most recent call last):\n  ...\nRuntimeError: [out] of memory\n")
    unknown = of("mmce", seed=1)
    console = terminal(False)
    with suppress(KeyboardInterrupt), LiveView(store, console) as view:
        view.show(*state(store), {LOST, unknown})
        raise KeyboardInterrupt
    folder = store.folder
    assert console.file.getvalue().splitlines() == [
        "2 trials failed:",
        "  ESD λ 2, seed 0: RuntimeError: [out] of memory",
        f"    calibrant runs show {trial.identity[:8]} --runs '{folder}'",
        "  MMCE λ 1, seed 1: reason unknown",
        f"    calibrant runs show {store.trial(unknown).identity[:8]} --runs '{folder}'",
    ]
