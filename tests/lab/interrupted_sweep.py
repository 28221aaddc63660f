"""A small sweep to be interrupted: the program, its processes, and what it leaves in the store.

``python interrupted_sweep.py STORE local [WORKERS]`` or ``python interrupted_sweep.py STORE ray [ADDRESS]``
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from calibrant_lab.sweeps.run import run
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.local_executor import Ended, Executor, LocalExecutor
from calibrant_lab.trials.store import Store, Trial

SWEEP = Sweep(
    recipe="digits", methods=("esd",), seeds=2, grids={"weight": (1.0,)}, settings={"batch_size": 256, "epochs": 16}
)
TRIALS = 6  # two networks for each of NLL, NLL on the reduced split, and ESD
PATIENCE = 600.0  # seconds, on a busy machine


def collect(executor: Executor, number: int = 1) -> list[Ended]:
    """Wait until so many trials have ended."""
    ended: list[Ended] = []

    def enough() -> bool:
        ended.extend(executor.wait(0.5))
        return len(ended) >= number

    until(enough)
    return ended


def carried_out(executor: Executor, *trials: Configuration) -> list[Ended]:
    """Submit trials, and wait until all have ended."""
    for one in trials:
        executor.submit(one)
    return collect(executor, len(trials))


def begin(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """The sweep as a process, in its own group: a kill of one of the tests reaches nobody else."""
    command = [sys.executable, str(Path(__file__)), str(folder), *arguments]
    return subprocess.Popen(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip


def end(process: "subprocess.Popen[str]", number: signal.Signals | None = None) -> tuple[int, str]:
    """Let the process end, by a signal or by itself; its exit code and what it said."""
    if number is not None:
        process.send_signal(number)
    said, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, said


def until(holds: Callable[[], object], process: "subprocess.Popen[str] | None" = None) -> None:
    """Wait until something is the case; fail if the process that is to bring it about ends before."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def trials(folder: Path) -> list[Trial]:
    return Store(folder).trials() if folder.is_dir() else []


def leave(processes: list[int]) -> None:
    """See them all gone, soon."""
    until(lambda: not any(alive(one) for one in processes))


def begun(folder: Path, epochs: float = 0.0, most: float = math.inf) -> list[Trial]:
    """Trials at work that have come so far, and no further."""
    return [one for one in trials(folder) if holder(one) and (at := one.progress()) and epochs <= at.epochs <= most]


def someone_at_work(folder: Path, epochs: float, command: "subprocess.Popen[str]") -> int:
    """A process that has trained so far, once there is one."""
    found: list[int] = []

    def look() -> list[int]:
        found.extend(pid for one in begun(folder, epochs) if (pid := holder(one)))
        return found

    until(look, command)
    return found[0]


def finished(folder: Path) -> dict[str, int]:
    """When the files of finished trials were written, which tells whether they were again."""
    ended = [one for one in trials(folder) if one.status == "done"]
    files = [one.folder / name for one in ended for name in ("result.json", "model.pt")]
    return {f"{path.parent.name}/{path.name}": path.stat().st_mtime_ns for path in files}


def holder(trial: Trial) -> int | None:
    """The process that holds the trial's lock."""
    lock = trial.folder / ".lock"
    if lock.exists():
        inode = str(lock.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, _, process, file, *_ = line.replace("-> ", "waits-for-").split()
            if kind == "FLOCK" and file.rpartition(":")[2] == inode:
                return int(process)
    return None


def stat(process: int) -> list[str]:
    """State, parent and more, from /proc."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def parent(process: int) -> int:
    return int(stat(process)[1])


def alive(process: int) -> bool:
    try:
        return stat(process)[0] != "Z"
    except OSError:
        return False


def descendants(process: int) -> list[int]:
    """Of a process that is alive."""
    found, parents = [process], {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = parent(int(entry.name))
        except OSError:
            continue
    for one in found:
        found += [child for child, of in parents.items() if of == one]
    return found[1:]


def left_by(folder: Path) -> dict[str, object]:
    """All of a store that must not depend on what it went through."""
    found: dict[str, object] = {}
    for trial in trials(folder):
        result = json.loads((trial.folder / "result.json").read_text())
        predictions = [np.load(trial.folder / f"{part}.npz") for part in ("validation", "test")]
        arrays = {name: part[name].tobytes() for part in predictions for name in part.files}
        found[trial.folder.name] = (
            result["validation"], result["test"], result["cost"]["images"], trial.history(), arrays,
            sorted(path.name for path in trial.folder.iterdir()),
        )  # fmt: skip
    return found


def main(folder: str, kind: str, option: str | None = None) -> None:
    executor: Executor
    if kind == "local":
        executor = LocalExecutor(Path(folder), None, workers=int(option or 2), accelerator="cpu")
    else:
        from calibrant_lab.trials.ray_executor import RayExecutor

        executor = RayExecutor(Path(folder), None, address=option)
    run(SWEEP, Store(folder), executor, lambda *_: None)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let background processes ignore it
    main(*sys.argv[1:])
