"""How things are measured: interleaved in one run, the median of many, memory in a process of its own."""

import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

Job = Callable[[], object]


class Timing(NamedTuple):
    """Median seconds of each job, and of every later job as a multiple of the first."""

    seconds: list[float]
    ratios: list[float]


def take_turns(
    jobs: Sequence[Job], *, seconds: float, turn: float = 0.05, clock: Callable[[], float] = time.perf_counter
) -> Timing:
    """Time jobs against each other on a machine that others use too.

    The jobs take turns, and ratios are formed turn by turn before their median is taken: a neighbour who
    slows the machine for a second slows both sides of a ratio.

    Args:
        jobs: What to time.
        seconds: How long to go on taking turns; three turns each at the least.
        turn: How long a job goes on in its turn before the next one has the caches. At 0 it runs once.
        clock: What is measured: wall time, or with ``time.process_time`` the processor time of all threads, to which
            neighbours add little.
    """
    for job in jobs:
        job()
    turns: list[list[float]] = []
    deadline = time.perf_counter() + seconds
    while len(turns) < 3 or time.perf_counter() < deadline:
        turns.append([statistics.median(_one_turn(job, turn, clock)) for job in jobs])
    medians = [statistics.median(taken) for taken in zip(*turns, strict=True)]
    ratios = [statistics.median(taken[k] / taken[0] for taken in turns) for k in range(1, len(jobs))]
    return Timing(medians, ratios)


def _one_turn(job: Job, turn: float, clock: Callable[[], float]) -> list[float]:
    times = []
    turn_ends = clock() + turn
    while True:
        start = clock()
        job()
        end = clock()
        times.append(end - start)
        if end >= turn_ends:
            return times


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
