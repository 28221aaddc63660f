"""Run trials on a Ray cluster; Ray is imported when needed, since it takes a second and is optional."""

import logging
import math
import os
import platform
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.local_executor import Ended, Losses, note_failure
from calibrant_lab.trials.store import RESULT, Ending, Store, is_full
from calibrant_lab.trials.worker import Job, attempt

SECONDS_TO_ARRIVE = 90.0  # a network file system may show new files late
OBJECT_STORE = 100 * 2**20  # bytes; tasks return only a few words


class RayExecutor:
    """Runs one trial per Ray task, on any node with enough resources.

    If the worker or node of a trial is lost, the trial continues from its checkpoint on any node.

    The store, the data and all files named in a configuration must be on a file system that this machine and all nodes
    share under the same path. Calibrant must be installed on all nodes, with the extra ``lab``.

    Without an address, Ray is started on this machine while the trials run. If this process is already connected to
    Ray, that connection is used and left open. Without GPUs per trial, trials run on the CPU; CPUs per trial is also
    the number of threads.
    """

    def __init__(
        self,
        store: Path,
        data: Path | None,
        *,
        address: str | None = None,
        gpus_per_trial: float = 0.0,
        cpus_per_trial: float = 1.0,
        accelerator: str = "auto",
    ) -> None:
        if find_spec("ray") is None:
            raise ImportError('this executor needs Ray: pip install "calibrant[ray]"')
        if not (0 <= gpus_per_trial < math.inf and 0 < cpus_per_trial < math.inf):
            raise ValueError(
                f"a trial needs 0 or more GPUs and more than 0 CPUs, got {gpus_per_trial:g} and {cpus_per_trial:g}"
            )
        self._address = address
        self._needs = {"CPU": cpus_per_trial, "GPU": gpus_per_trial}
        # Ray leaves all GPUs visible to a task that requests none.
        chosen = "cpu" if accelerator == "auto" and gpus_per_trial == 0 else accelerator
        self._job = Job(store.resolve(), data and data.resolve(), chosen)
        self._store = Store(store)
        self._losses = Losses(self._store)
        self._task: Any = None  # Ray's handle of _run, once there is a connection
        self._connected_here = False
        self._running: dict[Any, Configuration] = {}  # by Ray's object reference
        self._arriving: dict[Configuration, float] = {}  # done, but files not visible yet -> deadline

    def submit(self, configuration: Configuration) -> None:
        """Queue a trial."""
        if self._task is None:
            self._connect()
        trial = self._store.trial(configuration)
        trial.folder.mkdir(parents=True, exist_ok=True)
        task = self._task.options(name=f"trial {trial.folder.name}")
        self._running[task.remote(self._job, configuration, max(1, int(self._needs["CPU"])))] = configuration

    def wait(self, seconds: float) -> list[Ended]:
        """Return trials that ended since the last call."""
        if not self._running:
            time.sleep(seconds)
            return self._arrived()
        import ray

        references = list(self._running)
        ready, _ = ray.wait(references, num_returns=1, timeout=seconds)
        if ready:
            ready, _ = ray.wait(references, num_returns=len(references), timeout=0)
        ended = [one for reference in ready if (one := self._collect(reference))]
        return ended + self._arrived()

    def stop(self) -> None:
        """Cancel all tasks, then disconnect from the cluster, or stop the Ray that was started here."""
        if self._task is None:
            return
        import ray

        for reference in self._running:
            ray.cancel(reference, force=True)
        self._running.clear()
        self._arriving.clear()
        self._task = None
        if self._connected_here:
            ray.shutdown()

    def _connect(self) -> None:
        talks = logging.getLogger(__name__).isEnabledFor(logging.DEBUG)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not talks:  # Ray prints the last lines of a lost node to stdout, where our tables go
            os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        import ray

        if not ray.is_initialized():
            options: dict[str, Any] = {"log_to_driver": talks, "logging_level": "DEBUG" if talks else "ERROR"}
            if not self._address:
                options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
            self._connected_here = True
            ray.init(self._address or "local", **options)
        # Retries are counted here, not by Ray.
        self._task = ray.remote(num_cpus=self._needs["CPU"], num_gpus=self._needs["GPU"], max_retries=0)(_run)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        if not any(all(node.get(name, 0) >= least for name, least in self._needs.items()) for node in nodes):
            there = "; ".join(f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in nodes)
            raise ValueError(
                f"no node of the cluster has the {self._needs['CPU']:g} CPUs and {self._needs['GPU']:g} GPUs of a "
                f"trial (they have {there}): request less, or start such a node first"
            )

    def _collect(self, reference: Any) -> Ended | None:
        import ray

        trial = self._running.pop(reference)
        try:
            ending, text = ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # it did not start, for example if its node lacks a package
            ending, text = "failed", str(error)
        except ray.exceptions.RayError as error:  # the worker, or its node, was lost
            ended = self._losses.settle(trial, f"its Ray worker was lost, {type(error).__name__}: {error}")
            if ended is None:
                self.submit(trial)
            return ended
        if ending == "done":
            self._arriving[trial] = time.monotonic() + SECONDS_TO_ARRIVE
            return None
        return Ended(trial, ending if text is None else note_failure(self._store, trial, text))

    def _arrived(self) -> list[Ended]:
        ended = []
        for trial, deadline in list(self._arriving.items()):
            folder = self._store.trial(trial).folder
            if folder / RESULT in folder.iterdir():  # listing refreshes a network file system
                ended.append(Ended(trial, "done"))
            elif time.monotonic() > deadline:
                text = f"It finished on another node, but its result is not visible in {folder}: {_SHARED}"
                ended.append(Ended(trial, note_failure(self._store, trial, text)))
            else:
                continue
            del self._arriving[trial]
        return ended


_SHARED = "the store must be a folder that all nodes share under the same path"


def _run(job: Job, configuration: Configuration, threads: int) -> tuple[Ending, str | None]:
    """Run a trial on a node, after checking that its folder, made before the task was submitted, is visible."""
    folder = Store(job.store).trial(configuration).folder
    node = platform.node()
    if not folder.is_dir():
        return "failed", f"The store {job.store} is not the same on node {node}: {_SHARED}"
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if is_full(error):
            return "disk full", None
        return "failed", f"The store {job.store} cannot be written on node {node} ({error.strerror}): {_SHARED}"
    torch.set_num_threads(threads)
    return attempt(job, configuration)
