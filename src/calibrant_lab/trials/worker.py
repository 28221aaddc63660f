"""Main loop of a process that runs trials."""

import faulthandler
import os
import pickle
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.store import Ending, Store, is_full


@dataclass(frozen=True)
class Job:
    """What all trials of a sweep have in common."""

    store: Path
    data: Path | None
    accelerator: str


def attempt(job: Job, configuration: Configuration) -> tuple[Ending, str | None]:
    """Run a trial; return how it ended and, if the trial could not record it itself, the error."""
    try:
        # Imported here, since it takes seconds and the scheduling process does not need it.
        from calibrant_lab.trials.run import run_trial

        return run_trial(Store(job.store), configuration, job.data, job.accelerator), None
    except Exception as error:  # such as a folder that cannot be written; the next trial may succeed
        return ("disk full", None) if is_full(error) else ("failed", traceback.format_exc())


def work(handle: int) -> None:
    """Receive a job, then trials to run, through the pipe inherited as this handle."""
    faulthandler.enable()
    pipe: Connection[Any, Any] = Connection(handle)
    trials: SimpleQueue[bytes] = SimpleQueue()
    job = pipe.recv()
    threading.Thread(target=_listen, args=(pipe, trials), daemon=True).start()
    while True:
        content = trials.get()
        try:
            # This loads recipe and method, whose files may have changed since the sweep started.
            configuration = pickle.loads(content)  # noqa: S301 (from the process that started this one)
        except Exception:
            pipe.send(("failed", traceback.format_exc()))
        else:
            pipe.send(attempt(job, configuration))


def _listen(pipe: "Connection[Any, Any]", trials: "SimpleQueue[bytes]") -> None:
    """Receive trials while one is running; exit as soon as the parent process is gone."""
    try:
        while True:
            trials.put(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)
