"""Runs of the arena: every method on every case, one thread, scored by the same code with the same floor.

Each result is kept in a file of JSON lines under the case, a digest of its data, the method and the version of the
method, so that an interrupted run continues, and a method that was changed is run again. Several processes may add to
one file. A result is a dictionary with log_loss, brier, ece, infinite, fit, predict and failed. Arrays of results have
a row for each case and a column for each method.
"""

import json
import signal
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import studentized_range
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks.arena_data import Case, Part
from benchmarks.arena_methods import NOTHING, Method
from benchmarks.tables import status

Array = NDArray[np.float64]

FLOOR = float(np.finfo(np.float32).tiny)
# Log losses that differ by no more than this are a tie; worse than nothing means worse by more.
TIE = 1e-6
ECE_BINS = 15
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


def floored(p: NDArray[Any]) -> Array:
    """Probabilities with the floor, in rows that sum to one."""
    p = np.maximum(np.asarray(p, dtype=np.float64), FLOOR)
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def score(p: NDArray[Any], y: NDArray[Any]) -> dict[str, float]:
    """Log loss, Brier score (sum over classes), ECE (top label) and whether the log loss was infinite before the floor.

    Raises:
        ValueError: If these are no probabilities: another shape, NaN, infinite or negative values.
    """
    p = np.asarray(p)
    if p.ndim != 2 or len(p) != len(y) or not np.isfinite(p).all() or (p < -1e-6).any():
        raise ValueError(f"not probabilities of {len(y)} rows: shape {p.shape}, finite {np.isfinite(p).all()}")
    rows = np.arange(len(y))
    infinite = bool((p[rows, y] <= 0).any())
    p = floored(p)
    hit = np.zeros_like(p)
    hit[rows, y] = 1
    return {
        "log_loss": float(-np.log(p[rows, y]).mean()),
        "brier": float(((p - hit) ** 2).sum(axis=1).mean()),
        "ece": ece(p.max(axis=1), p.argmax(axis=1) == y),
        "infinite": float(infinite),
    }


def ece(confidence: Array, correct: NDArray[np.bool_]) -> float:
    """Expected calibration error of the top label in 15 bins of equal width, open below and closed above."""
    bins = np.clip(np.ceil(confidence * ECE_BINS).astype(int) - 1, 0, ECE_BINS - 1)
    gap = np.bincount(bins, weights=correct - confidence, minlength=ECE_BINS)
    return float(np.abs(gap).sum() / len(confidence))


def wins(losses: Array) -> Array:
    """Share of the other methods that each method beats, case by case; a tie is half a win."""
    difference = losses[:, None, :] - losses[:, :, None]  # case, method, other
    won = (difference > TIE) + 0.5 * (np.abs(difference) <= TIE)
    others = losses.shape[1] - 1
    return np.asarray((won.sum(axis=2) - 0.5) / max(others, 1))


def ranks(losses: Array) -> Array:
    """Rank of each method, case by case: one plus the number of better methods, ties shared."""
    methods = losses.shape[1]
    return np.asarray(1 + (methods - 1) * (1 - wins(losses)))


def by_pair(values: Array, pairs: Sequence[str]) -> tuple[Array, list[str]]:
    """Means over the splits of each pair, so that pairs weigh equally."""
    names = list(dict.fromkeys(pairs))
    index = {name: k for k, name in enumerate(names)}
    which = np.array([index[pair] for pair in pairs])
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, which, values)
    return sums / np.bincount(which)[:, None], names


class Interval(NamedTuple):
    """A mean over pairs with its 95 % interval; NaN if there is only one block to draw."""

    mean: float
    low: float
    high: float


def bootstrap(values: Array, blocks: Sequence[str], draws: int = 2000, seed: int = 0) -> list[Interval]:
    """Mean over pairs of each column, with percentile intervals that draw whole blocks (data sets or networks)."""
    names = sorted(set(blocks))
    which = np.array([names.index(block) for block in blocks])
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, which, values)
    counts = np.bincount(which).astype(float)
    means = values.mean(axis=0)
    if len(names) < 2:
        return [Interval(float(mean), np.nan, np.nan) for mean in means]
    drawn = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    sampled = drawn @ sums / (drawn @ counts)[:, None]
    low, high = np.percentile(sampled, [2.5, 97.5], axis=0)
    return [Interval(*map(float, three)) for three in zip(means, low, high, strict=True)]


def critical_difference(methods: int, pairs: int, level: float = 0.05) -> float:
    """Nemenyi's critical difference between mean ranks (Demšar 2006)."""
    q = studentized_range.ppf(1 - level, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * pairs)))
