"""How things are measured: interleaved in one run, the median of many, memory in a process of its own."""

import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

Job = Callable[[], object]


def median_seconds(jobs: Sequence[Job], *, seconds: float, turn: float = 0.05) -> list[float]:
    """Median wall time of each job, all of them taking turns so that a busy machine is busy for all.

    Args:
        jobs: What to time.
        seconds: How long to go on taking turns; three turns each at the least.
        turn: How long a job goes on in its turn before the next one has the caches. At 0 it runs once.
    """
    for job in jobs:
        job()
    times: list[list[float]] = [[] for _ in jobs]
    deadline = time.perf_counter() + seconds
    turns = 0
    while turns < 3 or time.perf_counter() < deadline:
        turns += 1
        for job, taken in zip(jobs, times, strict=True):
            turn_ends = time.perf_counter() + turn
            while True:
                start = time.perf_counter()
                job()
                end = time.perf_counter()
                taken.append(end - start)
                if end >= turn_ends:
                    break
    return [statistics.median(taken) for taken in times]


def peak_extra_megabytes(job: Callable[..., object], *arguments: object) -> float:
    """Megabytes by which a job raises the peak memory of a fresh process, its input already made."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_peak, (job, arguments))


def _peak(job: Callable[..., object], arguments: tuple[object, ...]) -> float:
    work = job(*arguments)
    assert callable(work)  # noqa: S101 (a job given arguments returns the work, ready to run)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
    before = _status_megabytes("VmRSS")
    work()
    return _status_megabytes("VmHWM") - before


def _status_megabytes(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def machine() -> str:
    """One line that names the machine, for the foot of a table."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {torch.get_num_threads()} threads, Python {platform.python_version()}, torch {torch.__version__}"
