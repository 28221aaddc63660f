"""Who runs trials: processes of this machine."""

import os
import signal
import threading
from collections import deque
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from calibrant.experiments.configuration import Configuration
from calibrant.experiments.json_files import write_json
from calibrant.experiments.store import CONFIGURATION, FAILURE, Store
from calibrant.experiments.trial import Ending, run_trial

ATTEMPTS = 3  # at a trial whose process was lost


class Ended(NamedTuple):
    """A trial that an executor is through with."""

    configuration: Configuration
    ending: Ending


class Executor(Protocol):
    """Runs trials side by side; each keeps its own result in the store."""

    def submit(self, configuration: Configuration) -> None:
        """Queue a trial."""

    def wait(self, seconds: float) -> list[Ended]:
        """Those that have ended since the last call; comes back at once when there are any, else after a while."""

    def stop(self) -> None:
        """End everything now; what is unfinished goes on from its checkpoint another time."""


@dataclass(frozen=True)
class Task:
    """What a worker needs to know besides the configuration."""

    store: Path
    data: Path | None
    accelerator: str
    threads: int


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    trial: Configuration | None = None


class LocalExecutor:
    """One trial a process; the cores, or the GPUs, are divided among them.

    A process that is lost, say for want of memory, is replaced, and its trial taken up again from its checkpoint.

    Args:
        store: Where trials are kept.
        data: Folder of the data.
        workers: Processes; by default one for each GPU, or for each core.
        accelerator: As Lightning names them.
    """

    def __init__(
        self, store: Path, data: Path | None, *, workers: int | None = None, accelerator: str = "auto"
    ) -> None:
        self._devices = 0 if accelerator == "cpu" else torch.cuda.device_count()
        cores = os.cpu_count() or 1
        self.slots = workers or self._devices or cores
        self._task = Task(store, data, accelerator, max(1, cores // self.slots))
        self._queue: deque[Configuration] = deque()
        self._workers: list[_Worker | None] = [None] * self.slots
        self._attempts: dict[Configuration, int] = {}

    def submit(self, configuration: Configuration) -> None:
        """Queue a trial."""
        self._queue.append(configuration)
        self._hand_out()

    def wait(self, seconds: float) -> list[Ended]:
        """Those that have ended since the last call."""
        busy = {worker.pipe: place for place, worker in enumerate(self._workers) if worker and worker.trial}
        ended = [one for pipe in connection.wait(list(busy), seconds) if (one := self._collect(busy[pipe]))]  # type: ignore[index]
        self._hand_out()
        return ended

    def stop(self) -> None:
        """End all processes."""
        self._queue.clear()
        running = [worker.process for worker in self._workers if worker]
        for process in running:
            process.terminate()
        for process in running:
            process.join(5)
            if process.is_alive():
                process.kill()
        self._workers = [None] * self.slots

    def _hand_out(self) -> None:
        for place, worker in enumerate(self._workers):
            if not self._queue:
                return
            if worker is None or not worker.process.is_alive():
                worker = self._workers[place] = self._started(place)
            if worker.trial is None:
                worker.trial = self._queue.popleft()
                try:
                    worker.pipe.send(worker.trial)
                except OSError:  # it has just died, which wait() will notice
                    continue

    def _started(self, place: int) -> _Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        device = place % self._devices if self._devices else None
        process = context.Process(target=_work, args=(theirs, self._task, device), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _collect(self, place: int) -> Ended | None:
        worker: Any = self._workers[place]
        trial, worker.trial = worker.trial, None
        try:
            return Ended(trial, worker.pipe.recv())
        except (EOFError, OSError):
            worker.process.join()
            self._workers[place] = None
        self._attempts[trial] = self._attempts.get(trial, 0) + 1
        if self._attempts[trial] < ATTEMPTS:
            self._queue.append(trial)
            return None
        note_loss(Store(self._task.store), trial, f"its process ended with code {worker.process.exitcode}")
        return Ended(trial, "failed")


def note_loss(store: Store, trial: Configuration, what: str) -> None:
    """Record a trial that took its process down with it every time."""
    folder = store.trial(trial).folder
    write_json(folder / CONFIGURATION, trial.to_dict())
    write_json(folder / FAILURE, {"traceback": f"{what}, {ATTEMPTS} times; was it out of memory?"})


def _work(pipe: Connection, task: Task, device: int | None) -> None:
    """Run what comes through the pipe, until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
    torch.set_num_threads(task.threads)
    store = Store(task.store)
    while True:
        try:
            pipe.send(run_trial(store, pipe.recv(), task.data, task.accelerator))
        except (EOFError, OSError):
            return


def _leave_with_parent() -> None:
    """A worker whose parent was killed would go on to the end of its trial, unseen."""
    parent: Any = parent_process()
    parent.join()
    os._exit(1)
