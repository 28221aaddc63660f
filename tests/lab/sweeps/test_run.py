"""What is run, in which order, and what happens when something goes wrong; trials themselves are made up."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Set
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from calibrant_lab.configuration import Configuration
from calibrant_lab.json_files import write_json
from calibrant_lab.outcome import Outcome
from calibrant_lab.trials import runner
from calibrant_lab.trials.executors import Ended
from calibrant_lab.trials.protocol import Plan, Profile, Protocol, Results
from calibrant_lab.trials.runner import run
from calibrant_lab.trials.store import CHECKPOINT, Cost, Result, Store, Validated, write_result
from tests.lab.sweeps import BASE, TRIALS, Unseen, plan

if TYPE_CHECKING:
    from calibrant_lab.trials.trial import Ending


def finish(store: Store, trial: Configuration) -> "Ending":
    """Leave what a trial leaves, as far as the runner looks."""
    folder = store.trial(trial).folder
    write_json(folder / "config.json", trial.to_dict())
    # The heavier the weight, the less accurate and the better calibrated.
    scores = Validated(0.9 - 0.01 * trial.weight, 0.1 - 0.01 * trial.weight)
    outcome = Outcome(0.9, 0.1, 0.3, 1.0, 0.1, 0.9, 0.1)
    write_result(folder, Result(trial, scores, outcome, Cost(1.0, 1.0, 1, 1), {}))
    return "done"


class Fake:
    """Runs one trial for each call of wait, in memory."""

    def __init__(self, store: Store, ends: "Callable[[Configuration], Ending | None] | None" = None) -> None:
        self.ends = ends or (lambda trial: finish(store, trial))
        self.queue: deque[Configuration] = deque()
        self.asked: list[Configuration] = []
        self.stopped = 0

    def submit(self, configuration: Configuration) -> None:
        self.queue.append(configuration)
        self.asked.append(configuration)

    def wait(self, seconds: float) -> list[Ended]:
        if not self.queue:
            return []
        trial = self.queue.popleft()
        ending = self.ends(trial)
        return [] if ending is None else [Ended(trial, ending)]

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_everything_is_run_once_and_a_second_command_runs_nothing(store: Store) -> None:
    first, second = Fake(store), Fake(store)
    done = run(plan, store, first, Unseen())
    assert len(first.asked) == len(set(first.asked)) == TRIALS
    assert set(first.asked) == set(done.needed)
    assert run(plan, Store(store.folder), second, Unseen()) == done
    assert second.asked == []
    assert first.stopped == second.stopped == 1


def test_a_checkpoint_beside_a_result_is_removed(store: Store) -> None:
    done = run(plan, store, Fake(store), Unseen())
    left = store.trial(done.needed[0]).folder / CHECKPOINT
    left.write_bytes(b"killed before it could remove this")
    run(plan, store, Fake(store), Unseen())
    assert not left.exists()


def test_later_trials_follow_from_earlier_results(store: Store) -> None:
    profile = Profile(weights=(0.5, 1.0, 9.0), bandwidths=(0.4, 0.8), softnesses=(), seeds=2)

    def make(results: Results, failed: Set[Configuration]) -> Plan:
        return Protocol(BASE, profile, results, failed).table1(("mmce",))

    executor = Fake(store)
    row = run(make, store, executor, Unseen()).rows[-1]
    # 9 gives up too much accuracy, 1 is better calibrated than 0.5; φ = 0.4 is a tie, and the first.
    assert [(trial.weight, trial.bandwidth, trial.seed) for trial in row.trials] == [(1.0, 0.4, 0), (1.0, 0.4, 1)]
    order = [executor.asked.index(trial) for trial in (*row.searches[0].candidates, row.searches[1].candidates[1])]
    assert order == sorted(order)
    assert executor.asked[-1] == row.trials[1]


def test_a_failed_trial_stops_no_other_and_is_tried_again_by_the_next_command(store: Store) -> None:
    fails = plan({}).rows[0].trials[1]
    executor = Fake(store, lambda trial: "failed" if trial == fails else finish(store, trial))
    run(plan, store, executor, Unseen())
    assert len(executor.asked) == TRIALS
    assert len(store.results()) == TRIALS - 1
    again = Fake(store)
    run(plan, store, again, Unseen())
    assert again.asked == [fails]


def test_a_trial_said_to_be_done_that_left_nothing_has_failed(store: Store) -> None:
    shown: list[int] = []

    class View(Unseen):
        def show(self, plan: Plan, results: Results, failed: Set[Configuration]) -> None:
            shown.append(len(failed))

    gone = plan({}).rows[1].trials[0]
    run(plan, store, Fake(store, lambda trial: "done" if trial == gone else finish(store, trial)), View())
    assert shown[-1] == 1


def test_a_trial_of_another_command_is_taken_from_it_when_it_is_finished(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SECONDS_BETWEEN_VISITS", 1e9)  # however slow the machine
    theirs = plan({}).needed[0]
    waited: list[Configuration] = []

    def ends(trial: Configuration) -> "Ending":
        if trial == theirs:
            return "busy"
        waited.append(trial)
        if len(waited) == 3:  # meanwhile, there
            finish(Store(store.folder), theirs)
        return finish(store, trial)

    executor = Fake(store, ends)
    run(plan, store, executor, Unseen())
    assert executor.asked.count(theirs) == 1
    assert len(store.results()) == TRIALS


def test_a_trial_that_another_command_leaves_unfinished_is_taken_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SECONDS_BETWEEN_VISITS", 0.02)
    theirs = plan({}).needed[0]
    visits: list[Configuration] = []

    def ends(trial: Configuration) -> "Ending":
        if trial == theirs:
            visits.append(trial)
            if len(visits) < 4:
                return "busy"
        return finish(store, trial)

    executor = Fake(store, ends)
    run(plan, store, executor, Unseen())
    assert executor.asked.count(theirs) == 4
    assert len(store.results()) == TRIALS


def test_a_busy_trial_is_not_asked_for_without_pause(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    theirs = plan({}).needed[0]
    at: list[float] = []

    class Slow(Fake):
        def wait(self, seconds: float) -> list[Ended]:
            now[0] += seconds
            return super().wait(seconds)

    def ends(trial: Configuration) -> "Ending":
        if trial == theirs:
            at.append(now[0])
            if len(at) < 3:
                return "busy"
        return finish(store, trial)

    run(plan, store, Slow(store, ends), Unseen())
    assert min(later - earlier for earlier, later in pairwise(at)) >= runner.SECONDS_BETWEEN_VISITS


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("the cluster has no such node")])
def test_the_executor_is_stopped_whatever_happens(store: Store, error: BaseException) -> None:
    def ends(trial: Configuration) -> "Ending":
        raise error

    executor = Fake(store, ends)
    with pytest.raises((KeyboardInterrupt, ValueError)):
        run(plan, store, executor, Unseen())
    assert executor.stopped == 1


def test_sigterm_stops_the_executor_too(store: Store) -> None:
    def ends(trial: Configuration) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        executor = Fake(store, ends)
        with pytest.raises(SystemExit) as left:
            run(plan, store, executor, Unseen())
        assert (left.value.code, executor.stopped) == (128 + signal.SIGTERM, 1)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_it_runs_beside_the_main_thread(store: Store) -> None:
    executor = Fake(store)
    thread = threading.Thread(target=run, args=(plan, store, executor, Unseen()))
    thread.start()
    thread.join(60)
    assert executor.stopped == 1
    assert len(store.results()) == TRIALS


def test_a_store_that_does_not_exist_has_no_results(tmp_path: Path) -> None:
    assert runner.stored(Store(tmp_path / "none")) == {}
