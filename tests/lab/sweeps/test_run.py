"""What is run, in which order, and what happens when something goes wrong; trials themselves are made up."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable

import pytest

from calibrant.files import FileError
from calibrant_lab.sweeps import run as running
from calibrant_lab.sweeps.protocol import Plan, plan
from calibrant_lab.sweeps.run import recorded
from calibrant_lab.sweeps.run import run as run_sweep
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.local_executor import Ended, Executor
from calibrant_lab.trials.store import CHECKPOINT, Ending, Store
from tests.lab.interrupted_sweep import SWEEP, TRIALS
from tests.lab.stores import finished

NEEDED = plan(SWEEP, {}).needed


def finish(store: Store, trial: Configuration) -> Ending:
    """The heavier the weight, the less accurate and the better calibrated."""
    weight = trial.option("weight") or 1.0
    finished(store, trial, 0.9 - 0.01 * weight, 0.1 - 0.01 * weight, nll=0.3 + 0.01 * weight)
    return "done"


def run(store: Store, executor: Executor, show: Callable[..., None] = lambda *_: None, sweep: Sweep = SWEEP) -> Plan:
    return run_sweep(sweep, store, executor, show)


class Fake:
    """Runs one trial for each call of wait, in memory."""

    def __init__(self, store: Store, ends: Callable[[Configuration], Ending | None] | None = None) -> None:
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


def test_everything_is_run_once_and_a_second_command_runs_nothing(store: Store) -> None:
    first, second = Fake(store), Fake(store)
    done = run(store, first)
    assert len(first.asked) == len(set(first.asked)) == TRIALS
    assert set(first.asked) == set(done.needed)
    assert run(Store(store.folder), second) == done
    assert second.asked == []
    assert first.stopped == second.stopped == 1
    left = store.trial(done.needed[0]).folder / CHECKPOINT
    left.write_bytes(b"killed before it could remove this")
    run(store, Fake(store))
    assert not left.exists()


def test_later_trials_follow_from_earlier_results(store: Store) -> None:
    grids = {"weight": (0.5, 1.0, 9.0), "bandwidth": (0.4, 0.8)}
    executor = Fake(store)
    row = run(store, executor, sweep=SWEEP.model_copy(update={"methods": ("mmce",), "grids": grids})).rows[-1]
    # 9 gives up too much accuracy, 1 is better calibrated than 0.5; φ = 0.4 is a tie, and the first.
    assert [(trial.option("weight"), trial.option("bandwidth"), trial.seed) for trial in row.trials] == [
        (1.0, 0.4, 0), (1.0, 0.4, 1)
    ]  # fmt: skip
    order = [executor.asked.index(trial) for trial in (*row.searches[0].candidates, row.searches[1].candidates[1])]
    assert order == sorted(order)
    assert executor.asked[-1] == row.trials[1]


def test_a_failed_trial_stops_no_other_and_is_tried_again_by_the_next_command(store: Store) -> None:
    fails = plan(SWEEP, {}).rows[0].trials[1]
    executor = Fake(store, lambda trial: "failed" if trial == fails else finish(store, trial))
    run(store, executor)
    assert len(executor.asked) == TRIALS
    assert len(store.results()) == TRIALS - 1
    again = Fake(store)
    run(store, again)
    assert again.asked == [fails]


def test_a_trial_reported_as_done_without_a_result_has_failed(store: Store) -> None:
    shown: list[int] = []
    run(store, Fake(store, lambda trial: "done" if trial == NEEDED[1] else finish(store, trial)),
        lambda _, __, failed: shown.append(len(failed)))  # fmt: skip
    assert shown[-1] == 1


@pytest.mark.parametrize("finishes", [True, False])
def test_a_trial_of_another_command_is_awaited_or_taken_over(
    finishes: bool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "SECONDS_BETWEEN_VISITS", 1e9 if finishes else 0.02)
    theirs, waited = NEEDED[0], 0

    def ends(trial: Configuration) -> Ending:
        nonlocal waited
        if trial == theirs and (finishes or executor.asked.count(theirs) < 4):
            return "busy"
        waited += 1
        if waited == 3 and finishes:  # by the other command
            finish(Store(store.folder), theirs)
        return finish(store, trial)

    executor = Fake(store, ends)
    run(store, executor)
    assert executor.asked.count(theirs) == (1 if finishes else 4)
    assert len(store.results()) == TRIALS


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("the cluster has no such node"), None])
def test_the_executor_is_stopped_by_errors_and_sigterm(store: Store, error: BaseException | None) -> None:
    def ends(trial: Configuration) -> None:
        if error is not None:
            raise error
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        executor = Fake(store, ends)
        with pytest.raises((KeyboardInterrupt, ValueError, SystemExit)) as left:
            run(store, executor)
        assert executor.stopped == 1
        if isinstance(left.value, SystemExit):
            assert left.value.code == 128 + signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_it_runs_beside_the_main_thread(store: Store) -> None:
    executor = Fake(store)
    thread = threading.Thread(target=run, args=(store, executor))
    thread.start()
    thread.join(60)
    assert executor.stopped == 1
    assert len(store.results()) == TRIALS


def test_a_full_disk_stops_the_sweep_at_once_and_the_next_command_goes_on(store: Store) -> None:
    ended: list[Configuration] = []

    def ends(trial: Configuration) -> Ending:
        ended.append(trial)
        return finish(store, trial) if len(ended) < 3 else "disk full"

    executor = Fake(store, ends)
    with pytest.raises(FileError, match="full disk"):
        run(store, executor)
    assert (len(ended), executor.stopped) == (3, 1)
    assert len(store.results()) == 2
    again = Fake(store)
    run(store, again)
    assert len(again.asked) == TRIALS - 2


def test_a_sweep_is_recorded_before_its_first_trial_and_comes_back(store: Store) -> None:
    def ends(trial: Configuration) -> Ending:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(store, Fake(store, ends))
    assert recorded(store) == [SWEEP]
    other = SWEEP.model_copy(update={"seeds": 1})
    for sweep in (other, SWEEP):
        run(store, Fake(store), sweep=sweep)
    assert sorted(recorded(store), key=lambda one: one.seeds) == [other, SWEEP]
