"""The same on a Ray cluster of two nodes, both on this machine: whatever is killed, the table is the same."""

import dataclasses
import errno
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from calibrant_lab.trials import ray_executor
from calibrant_lab.trials.local_executor import ATTEMPTS, Ended
from calibrant_lab.trials.ray_executor import RayExecutor
from calibrant_lab.trials.store import Store
from calibrant_lab.trials.worker import Job
from tests.lab import interrupted_sweep as sweeps
from tests.lab.interrupted_sweep import (
    SWEEP,
    TRIALS,
    carried_out,
    collect,
    descendants,
    end,
    finished,
    holder,
    leave,
    until,
)
from tests.lab.stores import finished as made

pytest.importorskip("ray", reason='Ray is not installed: pip install "calibrant[ray]"')
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs Linux's /proc to find processes"),
]

BASE = SWEEP.base
Make = Callable[..., RayExecutor]
# A node that is gone is noticed in a second, not in half a minute.
WATCHFUL = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 200, "health_check_failure_threshold": 5}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and a second node, a core each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    found: Any = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": WATCHFUL},
    )
    found.add_node(num_cpus=1)
    yield found
    found.shutdown()


@pytest.fixture(scope="module")
def connected(cluster: Any) -> Iterator[Any]:
    """A connection that executors find, and leave as it is: Ray's workers stay from test to test."""
    import ray

    ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    yield ray
    ray.shutdown()


@pytest.fixture
def joined(store: Store, connected: Any) -> Iterator[Make]:
    """An executor on the cluster, whose tasks do something else than train."""
    made = []

    def make(does: Callable[..., Any] | None = None) -> RayExecutor:
        made.append(RayExecutor(store.folder, None))
        made[-1]._connect()
        if does is not None:
            made[-1]._task = connected.remote(max_retries=0)(does)
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_a_sweep_loses_a_node_a_worker_and_its_command_and_ends_as_if_it_had_not(
    undisturbed: Path, tmp_path: Path, cluster: Any, begin: "Callable[..., subprocess.Popen[str]]"
) -> None:
    folder, (second,) = tmp_path / "killed", cluster.worker_nodes
    raylet = second.all_processes["raylet"][0].process.pid

    # The node on which a trial is being trained, with all its processes.
    process = begin(folder, "ray", cluster.address)
    until(lambda: any(sweeps.parent(pid) == raylet for one in sweeps.begun(folder, 1) if (pid := holder(one))), process)
    workers = descendants(raylet)
    cluster.remove_node(second, allow_graceful=False)
    leave(workers)
    cluster.add_node(num_cpus=1)

    # A worker, whose trial another takes up; then the command itself.
    os.kill(sweeps.someone_at_work(folder, 2, process), signal.SIGKILL)
    until(lambda: finished(folder), process)
    victim = sweeps.someone_at_work(folder, 1, process)
    _, said = end(process, signal.SIGKILL)
    assert said == ""  # what Ray has to say about it is in its logs, not in someone's table
    leave([victim])
    done = finished(folder)
    assert 0 < len(done) < 2 * TRIALS

    assert end(begin(folder, "ray", cluster.address)) == (0, "")
    assert {name: when for name, when in finished(folder).items() if name in done} == done
    assert sweeps.left_by(folder) == sweeps.left_by(undisturbed)


def test_a_ray_started_for_a_sweep_ends_with_it_even_if_killed(
    tmp_path: Path, begin: "Callable[..., subprocess.Popen[str]]"
) -> None:
    folder = tmp_path / "store"
    process = begin(folder, "ray")
    until(lambda: any(folder.glob("digits-*")), process)  # its folder is made when a trial is handed out
    started = {one: Path(f"/proc/{one}/cmdline").read_text() for one in descendants(process.pid)}
    # Its agents, which run no trials, take a minute to notice.
    ours = [one for one, command in started.items() if "agent" not in command.lower()]
    assert len(ours) >= 2
    assert end(process, signal.SIGKILL) == (-signal.SIGKILL, "")
    leave(ours)


def test_a_trial_that_fits_no_node_is_refused_and_the_cluster_left(tmp_path: Path, cluster: Any) -> None:
    import ray

    executor = RayExecutor(tmp_path, None, address=cluster.address, gpus_per_trial=1)
    with pytest.raises(ValueError, match="1 GPUs"):
        executor.submit(BASE)
    executor.stop()
    assert not ray.is_initialized()


def test_a_trial_lost_every_time_is_given_up(joined: Make, store: Store, tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"

    def dies(*_: object) -> None:
        with attempts.open("a") as file:
            file.write("x")
        os._exit(1)

    assert carried_out(joined(dies), BASE) == [Ended(BASE, "failed")]
    assert attempts.read_text() == "x" * ATTEMPTS
    assert "WorkerCrashedError" in (store.trial(BASE).failure() or "")


def test_an_error_on_a_node_is_recorded_with_its_traceback(joined: Make, store: Store) -> None:
    def lacks_a_package(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'calibrant'")

    assert carried_out(joined(lacks_a_package), BASE) == [Ended(BASE, "failed")]
    assert "No module named 'calibrant'" in (store.trial(BASE).failure() or "")


def test_a_node_without_the_store_or_with_one_that_it_cannot_write_is_named(
    joined: Make, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = joined()
    executor._job = dataclasses.replace(executor._job, store=tmp_path / "elsewhere")
    assert carried_out(executor, BASE) == [Ended(BASE, "failed")]
    assert "elsewhere is not the same on node" in (store.trial(BASE).failure() or "")

    def refuses(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    Store(tmp_path).trial(BASE).folder.mkdir()
    monkeypatch.setattr(tempfile, "TemporaryFile", refuses)
    ending, text = ray_executor._run(Job(tmp_path, None, "cpu"), BASE, 1)
    assert ending == "failed"
    assert "Read-only file system" in (text or "")


@pytest.mark.parametrize(("seconds", "ending"), [(60.0, "done"), (0.0, "failed")])
def test_a_result_may_arrive_late_but_not_never(
    seconds: float, ending: str, joined: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "SECONDS_TO_ARRIVE", seconds)
    executor = joined(lambda *_: ("done", None))
    executor.submit(BASE)
    if seconds:
        until(lambda: executor.wait(0.1) or not executor._running)
        made(store, BASE)
    assert [tuple(one) for one in collect(executor)] == [(BASE, ending)]
    failure = store.trial(BASE).failure() or ""
    assert ("is not visible in" in failure) == (ending == "failed")


def test_stopping_ends_the_tasks_and_leaves_the_cluster_and_a_connection_of_others(
    joined: Make, connected: Any, tmp_path: Path
) -> None:
    note = tmp_path / "process"

    def sleeps(*_: object) -> None:
        note.with_suffix(".new").write_text(str(os.getpid()))
        note.with_suffix(".new").rename(note)
        time.sleep(600)

    executor = joined(sleeps)
    executor.submit(BASE)
    until(note.exists)
    executor.stop()
    leave([int(note.read_text())])
    assert connected.is_initialized()
    assert sum(node["Alive"] for node in connected.nodes()) == 2


def test_a_trial_without_a_gpu_of_its_own_takes_none(tmp_path: Path) -> None:
    for gpus, accelerator, expected in ((0.0, "auto", "cpu"), (0.5, "auto", "auto"), (0.0, "mps", "mps")):
        made = RayExecutor(tmp_path, None, gpus_per_trial=gpus, accelerator=accelerator)
        assert made._job.accelerator == expected


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for gpus, cpus in ((-1.0, 1.0), (0.0, 0.0), (float("nan"), 1.0)):
        with pytest.raises(ValueError, match="GPUs"):
            RayExecutor(tmp_path, None, gpus_per_trial=gpus, cpus_per_trial=cpus)
    monkeypatch.setattr(ray_executor, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"calibrant\[ray\]"):
        RayExecutor(tmp_path, None)
