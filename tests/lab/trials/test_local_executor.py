"""Whatever is killed, and whenever, the same command ends with the same table, and repeats no finished trial."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant_lab.trials import local_executor
from calibrant_lab.trials.local_executor import ATTEMPTS, Ended, LocalExecutor, Losses, note_failure
from calibrant_lab.trials.store import Store
from tests.lab import interrupted_sweep as sweeps
from tests.lab.interrupted_sweep import SWEEP, TRIALS, carried_out, descendants, end, finished, holder, leave, until
from tests.lab.stores import finished as made

pytestmark = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs Linux's /proc to find processes")

BASE = SWEEP.base
Make = Callable[..., LocalExecutor]
Worker = Callable[[str], None]


@pytest.fixture
def local(store: Store) -> Iterator[Make]:
    """An executor on the store, stopped in the end."""
    made = []

    def make(workers: int | None = 1, accelerator: str = "cpu") -> LocalExecutor:
        made.append(LocalExecutor(store.folder, None, workers=workers, accelerator=accelerator))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def worker_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """Replace the worker by a program that does something else with its pipe; ``take()`` is the next it is sent."""

    def replace(does: str) -> None:
        head = (
            "import os, signal, sys, time; from multiprocessing.connection import Connection; "
            "pipe = Connection(int(sys.argv[1])); take = pipe.recv_bytes; take()\n"
        )
        script = tmp_path / "worker.py"
        script.write_text(head + does)
        monkeypatch.setattr(local_executor, "_command", lambda handle: [sys.executable, "-S", str(script), str(handle)])

    return replace


@pytest.mark.slow
def test_a_sweep_killed_again_and_again_ends_as_if_it_had_not_been(
    undisturbed: Path, tmp_path: Path, begin: "Callable[..., subprocess.Popen[str]]"
) -> None:
    chance, folder = np.random.default_rng(5), tmp_path / "killed"

    # The command, while its workers start.
    process = begin(folder, "local")
    until(lambda: descendants(process.pid), process)
    time.sleep(chance.uniform(0, 2))
    workers = descendants(process.pid)
    end(process, signal.SIGKILL)
    leave(workers)

    # A worker in the middle of a trial, which another then takes up; and the command, in the middle of some.
    process = begin(folder, "local")
    os.kill(sweeps.someone_at_work(folder, chance.uniform(1, 4), process), signal.SIGKILL)
    until(lambda: finished(folder) and sweeps.begun(folder, 3, 12), process)
    workers = descendants(process.pid)
    end(process, signal.SIGKILL)
    leave(workers)
    done = finished(folder)
    assert 0 < len(done) < 2 * TRIALS

    # Two commands at once, the first of which to train is interrupted, and the other ends.
    commands = [begin(folder, "local", "1"), begin(folder, "local", "1")]
    at_work: list[subprocess.Popen[str]] = []

    def someone_trains() -> list[subprocess.Popen[str]]:
        holders = {holder(one) for one in sweeps.begun(folder, most=12)}  # so that a command is not just about to end
        at_work[:] = [one for one in commands if holders & set(descendants(one.pid))]
        return at_work

    until(someone_trains)
    commands.remove(at_work[0])
    os.killpg(at_work[0].pid, signal.SIGINT)
    code, said = end(at_work[0])
    assert code == -signal.SIGINT, said
    assert said.count("Traceback") == 1  # ours: workers do not hear of it
    assert end(commands[0]) == (0, "")
    assert {name: when for name, when in finished(folder).items() if name in done} == done
    assert sweeps.left_by(folder) == sweeps.left_by(undisturbed)


@pytest.mark.slow
def test_trials_that_fail_or_are_another_commands_hold_up_no_other(local: Make, store: Store, tmp_path: Path) -> None:
    fails, theirs, runs = (BASE.replaced({"epochs": 1, "seed": seed}) for seed in range(3))
    (tmp_path / "weights.pt").write_bytes(b"no weights")
    fails = fails.replaced({"initial_weights": str(tmp_path / "weights.pt")})
    held = store.trial(theirs)
    held.folder.mkdir(parents=True)
    with held.claimed() as ours:
        assert ours
        ended = carried_out(local(), fails, theirs, runs)
    assert ended == [Ended(fails, "failed"), Ended(theirs, "busy"), Ended(runs, "done")]
    assert "weights.pt" in (store.trial(fails).failure() or "")
    assert [one.configuration for one in store.trials() if one.status == "done"] == [runs]


def test_a_trial_lost_every_time_is_given_up_with_the_last_output_of_its_process(
    local: Make, worker_that: Worker, store: Store
) -> None:
    worker_that("take(); print('no memory left', flush=True); os.kill(os.getpid(), signal.SIGKILL)")
    assert carried_out(local(), BASE) == [Ended(BASE, "failed")]
    failure = store.trial(BASE).failure() or ""
    assert all(part in failure for part in (f"{ATTEMPTS} attempts", "SIGKILL", "no memory left"))


def test_a_process_killed_before_it_could_report_has_finished_its_trial(
    local: Make, worker_that: Worker, store: Store, tmp_path: Path
) -> None:
    worker_that(f"take(); open({str(tmp_path / 'count')!r}, 'a').write('x'); os.kill(os.getpid(), signal.SIGKILL)")
    made(store, BASE)
    assert carried_out(local(), BASE) == [Ended(BASE, "done")]
    assert (tmp_path / "count").read_text() == "x"


def test_workers_that_leave_between_trials_are_replaced_and_none_stays_behind(local: Make, worker_that: Worker) -> None:
    before = descendants(os.getpid())
    worker_that("take(); pipe.send(('done', None)); sys.exit()")
    executor, seeds = local(workers=2), [BASE.replaced({"seed": seed}) for seed in range(5)]
    assert {one.configuration for one in carried_out(executor, *seeds)} == set(seeds)
    assert executor.wait(0.5) == []  # the last two have left
    executor.stop()
    assert descendants(os.getpid()) == before  # zombies would count


def test_a_worker_that_ignores_its_pipe_is_ended_all_the_same(local: Make, worker_that: Worker) -> None:
    worker_that("signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork(); time.sleep(600)")
    before = descendants(os.getpid())
    executor = local(workers=2)
    executor.submit(BASE)
    until(lambda: len(descendants(os.getpid())) == len(before) + 2)
    begun_here = set(descendants(os.getpid())) - set(before)
    executor.stop()
    leave(list(begun_here))


def test_a_failure_that_a_worker_could_not_record_is_recorded_for_it(
    local: Make, worker_that: Worker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_that("take(); pipe.send(('failed', os.environ['OMP_NUM_THREADS']))")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(local_executor, "_cores", lambda: 16)
    assert carried_out(local(workers=5), BASE) == [Ended(BASE, "failed")]
    assert store.trial(BASE).failure() == "3"  # sixteen cores among five


@pytest.mark.parametrize(
    ("visible", "expected"), [("", ["0", "1"]), ("5,7", ["5", "7"]), ("GPU-a, GPU-b", ["GPU-a", "GPU-b"])]
)
def test_every_worker_has_a_gpu_of_those_that_are_visible(
    visible: str, expected: list[str], local: Make, worker_that: Worker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_that("take(); pipe.send(('failed', os.environ['CUDA_VISIBLE_DEVICES'])); take()")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    executor, seeds = local(None, "auto"), [BASE.replaced({"seed": seed}) for seed in range(2)]
    carried_out(executor, *seeds)
    assert executor.slots == 2
    assert [store.trial(one).failure() for one in seeds] == expected
    assert local(None).slots == local_executor._cores()


def test_losses_are_counted_only_while_a_trial_comes_no_further(store: Store) -> None:
    losses, checkpoint = Losses(store), store.trial(BASE).folder / "last.ckpt"
    checkpoint.parent.mkdir(parents=True)
    for epoch in range(2 * ATTEMPTS):
        checkpoint.touch()
        os.utime(checkpoint, ns=(epoch, epoch))
        assert losses.settle(BASE, "lost") is None
    assert [losses.settle(BASE, "lost") for _ in range(ATTEMPTS - 1)] == [None, Ended(BASE, "failed")]


def test_a_failure_is_noted_only_where_nobody_else_has_or_makes_a_result(store: Store) -> None:
    assert note_failure(store, BASE, "lost") == "failed"
    assert store.trial(BASE).status == "failed"
    other = BASE.replaced({"seed": 1})
    store.trial(other).folder.mkdir()
    with store.trial(other).claimed():
        assert note_failure(store, other, "lost") == "busy"
    made(store, other)
    assert note_failure(store, other, "lost") == "done"
    assert store.trial(other).failure() is None


def test_no_workers_are_refused(local: Make) -> None:
    with pytest.raises(ValueError, match="workers"):
        local(workers=0)
