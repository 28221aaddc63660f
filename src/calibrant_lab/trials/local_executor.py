"""Run trials in processes on this machine."""

import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe, connection
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import torch

from calibrant.files import FileError, write_json
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.store import CHECKPOINT, CONFIGURATION, FAILURE, Ending, Store
from calibrant_lab.trials.worker import Job

ATTEMPTS = 3  # at a trial whose process was lost without progress since the last attempt
LAST_WORDS = 2000  # characters of a lost process's output to keep


class Ended(NamedTuple):
    """A trial that has ended, and how."""

    configuration: Configuration
    ending: Ending


class Executor(Protocol):
    """Runs trials in parallel; each writes its result to the store."""

    def submit(self, configuration: Configuration) -> None:
        """Queue a trial."""

    def wait(self, seconds: float) -> list[Ended]:
        """Return trials that ended since the last call; blocks for at most ``seconds`` if there are none."""

    def stop(self) -> None:
        """Stop all trials now; unfinished ones continue from their checkpoints another time."""


def note_failure(store: Store, trial: Configuration, text: str) -> Ending:
    """Record a failure for a trial that could not do so itself, unless it has finished or runs elsewhere."""
    kept = store.trial(trial)
    # If the reason cannot be written either, as on a full disk, the other trials continue.
    with suppress(OSError, FileError):
        write_json(kept.folder / CONFIGURATION, trial.to_dict())
        with kept.claimed() as ours:
            if not ours:
                return "busy"
            if store.result(trial) is not None:
                return "done"
            write_json(kept.folder / FAILURE, {"traceback": text})
    return "failed"


class Losses:
    """Decides whether trials whose process was lost are run again."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._seen: dict[Configuration, tuple[int, int]] = {}  # losses in a row, and time of the last checkpoint

    def settle(self, trial: Configuration, text: str) -> Ended | None:
        """How a trial whose process was lost has ended, or None if it should run again."""
        if self.store.result(trial) is not None:  # only its message was lost
            return Ended(trial, "done")
        path = self.store.trial(trial).folder / CHECKPOINT
        checkpoint = path.stat().st_mtime_ns if path.exists() else 0
        times, earlier = self._seen.get(trial, (0, checkpoint))
        times = times + 1 if earlier == checkpoint else 1
        self._seen[trial] = (times, checkpoint)
        if times < ATTEMPTS:
            return None
        return Ended(trial, note_failure(self.store, trial, f"Given up after {ATTEMPTS} attempts: {text}"))


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Any  # our end
    printed: IO[bytes]
    trial: Configuration | None = None


class LocalExecutor:
    """Runs one trial per process and divides the cores or GPUs among them.

    A lost process, for example one out of memory, is replaced, and its trial continues from its checkpoint. Workers
    exit when this process ends for any reason. By default there is one per GPU, or one per core.
    """

    def __init__(
        self, store: Path, data: Path | None, *, workers: int | None = None, accelerator: str = "auto"
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be 1 or more, got {workers}: leave it out for one per core")
        self._devices = [] if accelerator == "cpu" else _gpus()
        cores = _cores()
        self.slots = workers or len(self._devices) or cores
        self._threads = max(1, min(torch.get_num_threads(), cores // self.slots))
        self._job = Job(store, data, accelerator)
        self._store = Store(store)
        self._losses = Losses(self._store)
        self._queue: deque[Configuration] = deque()
        self._workers: dict[int, _Worker] = {}  # by slot

    def submit(self, configuration: Configuration) -> None:
        """Queue a trial."""
        self._queue.append(configuration)
        self._hand_out()

    def wait(self, seconds: float) -> list[Ended]:
        """Return trials that ended since the last call."""
        places = {worker.pipe: place for place, worker in self._workers.items()}
        ended = [one for pipe in connection.wait(list(places), seconds) if (one := self._collect(places[pipe]))]
        self._hand_out()
        return ended

    def stop(self) -> None:
        """Stop all processes."""
        self._queue.clear()
        for worker in self._workers.values():
            _kill(worker)
        for place in list(self._workers):
            self._end(place)

    def _hand_out(self) -> None:
        for place in range(self.slots):
            if not self._queue:
                return
            if place not in self._workers:
                self._workers[place] = self._started(place)
            worker = self._workers[place]
            if worker.trial is None:
                worker.trial = self._queue.popleft()
                with suppress(OSError):  # the worker has just died; wait() will notice
                    worker.pipe.send(worker.trial)

    def _started(self, place: int) -> _Worker:
        settings = {"OMP_NUM_THREADS": str(self._threads)}
        if self._devices:
            settings["CUDA_VISIBLE_DEVICES"] = self._devices[place % len(self._devices)]
        ours, theirs = Pipe()
        printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        # In its own process group: Ctrl-C reaches only this process, and the worker's children are killed with it.
        process = subprocess.Popen(  # noqa: S603 (the command is ours)
            _command(theirs.fileno()), env=os.environ | settings, pass_fds=[theirs.fileno()], process_group=0,
            stdin=subprocess.DEVNULL, stdout=printed, stderr=printed,
        )  # fmt: skip
        theirs.close()
        with suppress(OSError):  # as above
            ours.send(self._job)
        return _Worker(process, ours, printed)

    def _collect(self, place: int) -> Ended | None:
        worker = self._workers[place]
        trial, worker.trial = worker.trial, None
        try:
            ending, text = worker.pipe.recv()
        except (EOFError, OSError):
            text = self._end(place)
            ended = None if trial is None else self._losses.settle(trial, text)
            if trial is not None and ended is None:
                self._queue.append(trial)
            return ended
        if trial is None:
            return None
        return Ended(trial, ending if text is None else note_failure(self._store, trial, text))

    def _end(self, place: int) -> str:
        """Kill a worker and its children if they still run; return how it ended."""
        worker = self._workers.pop(place)
        worker.pipe.close()
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(0.5)  # the pipe closes before the process has exited
        _kill(worker)
        code = worker.process.wait()
        with worker.printed as printed:
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - LAST_WORDS))
            last_words = printed.read().decode(errors="replace").strip()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        memory = "; was it out of memory?" if code == -signal.SIGKILL else ""
        return f"its process {how}{memory}\n{last_words}".strip()


def _kill(worker: _Worker) -> None:
    with suppress(ProcessLookupError):
        os.killpg(worker.process.pid, signal.SIGKILL)


def _command(handle: int) -> list[str]:
    """Command of a worker: with the same import path, but without the script that this process runs."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from calibrant_lab.trials.worker import work; work({handle})"
    return [sys.executable, "-c", code]


def _cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus() -> list[str]:
    """Visible GPUs, as in CUDA_VISIBLE_DEVICES."""
    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] or [str(number) for number in range(count)]
