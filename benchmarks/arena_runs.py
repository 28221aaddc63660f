"""Runs of the arena: every method on every case, one thread, each result kept in a file of JSON lines.

A line is kept under the case, a digest of its data, the method and the version of the method, so that an interrupted
run goes on where it was, and a method that was changed is run again. Several processes may add to one file.
"""

import json
import signal
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks.arena_data import Case, Part
from benchmarks.arena_methods import NOTHING, Method
from benchmarks.arena_scores import score
from benchmarks.tables import status

Result = dict[str, Any]
Key = tuple[str, str, str, str]
# Seconds of the processor that a fit with its prediction may take; one that takes longer counts as failed.
LIMIT = 60.0


class Results:
    """Results on file, by case, digest of the data, method and version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept: dict[Key, Result] = {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self.start = "" if text.endswith("\n") or not text else "\n"  # after a line that was not finished
        for line in text.splitlines():
            try:
                result = json.loads(line)
            except json.JSONDecodeError:  # a process was killed while it wrote
                continue
            self.kept[_key(result)] = result

    def add(self, result: Result) -> None:
        """Keep a result in memory and at the end of the file."""
        self.kept[_key(result)] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(self.start + json.dumps(result) + "\n")
        self.start = ""


def _key(result: Result) -> Key:
    return result["case"], result["data"], result["method"], result["version"]


def digest(calibration: Part, test: Part) -> str:
    """A check sum of the data of a case."""
    value = 0
    for array in (*calibration, *test):
        value = zlib.crc32(np.ascontiguousarray(array).tobytes(), value)
    return f"{value:08x}"


def run(cases: Sequence[Case], methods: Sequence[Method], results: Results, limit: float = LIMIT) -> list[Result]:
    """Run what is not on file, and return the results of these cases and methods."""
    wanted: list[Result] = []
    warm: set[tuple[str, bool]] = set()
    torch.set_num_threads(1)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, case in enumerate(cases):
            calibration, test = case.read()
            data = digest(calibration, test)
            classes = calibration.p.shape[1]
            for method in methods:
                if not method.fewest <= classes <= method.most:
                    continue
                key = (case.key, data, method.name, method.version)
                if key not in results.kept:
                    status(f"{number + 1} of {len(cases)}: {case.key}, {method.name}")
                    if (method.name, classes == 2) not in warm:
                        _warm_up(method, classes == 2)
                        warm.add((method.name, classes == 2))
                    outcome = attempt(method, calibration, test, limit)
                    results.add(dict(zip(("case", "data", "method", "version"), key, strict=True)) | outcome)
                wanted.append(results.kept[key])
    status("")
    return wanted


def attempt(method: Method, calibration: Part, test: Part, limit: float = LIMIT) -> Result:
    """Fit, predict and score; or the reason why there is no score. Times are of the processor."""
    try:
        with at_most(limit):
            start = time.process_time()
            predict = method.fit(calibration.p, calibration.y)
            fitted = time.process_time()
            p = predict(test.p)
            end = time.process_time()
            if p.shape != test.p.shape:
                raise ValueError(f"probabilities of shape {p.shape}, not {test.p.shape}")
        return {**score(p, test.y), "fit": fitted - start, "predict": end - fitted, "failed": None}
    except Exception as error:  # whatever a method raises is a failed fit
        return {"failed": f"{type(error).__name__}: {error}"[:200]}


def _warm_up(method: Method, binary: bool) -> None:
    """Fit once on little data: what a first call imports or compiles is not part of a fit."""
    classes = 2 if binary else 3
    p = np.random.default_rng(0).dirichlet(np.ones(classes), 90).astype(np.float32)
    part = Part(p / p.sum(axis=1, keepdims=True), np.arange(90) % classes)
    attempt(method, part, part)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise ``TimeoutError`` after some seconds of processor time."""
    start = time.process_time()

    # Asked at intervals: a timer of processor time would make the kernel's clock of it coarse.
    def check(*_: object) -> None:
        if time.process_time() - start >= seconds:
            raise TimeoutError(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, min(1.0, seconds), min(1.0, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def filled(results: Sequence[Result]) -> dict[tuple[str, str], Result]:
    """Results by case and method; a failed fit has the scores of doing nothing."""
    nothing = {result["case"]: result for result in results if result["method"] == NOTHING}
    scores = ("log_loss", "brier", "ece", "infinite")
    table: dict[tuple[str, str], Result] = {}
    for result in results:
        kept = dict(result)
        if kept["failed"] is not None:
            kept |= {name: nothing[kept["case"]][name] for name in scores} | {"fit": np.nan, "predict": np.nan}
        table[kept["case"], kept["method"]] = kept
    return table
