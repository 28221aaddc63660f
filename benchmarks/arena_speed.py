"""Speed of our methods against their peers: `python -m benchmarks.arena speed`.

Three tables: structured matrix scaling against probmetrics at 10, 100 and 1,000 classes; temperature against
scikit-learn on two sizes and on the pairs of the arena; and every method of ours at 1,000 classes. Fits of a row take
turns in one run on one thread, and every row has the value that each reaches.
"""

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks.arena_data import Case
from benchmarks.arena_methods import Method, bare_temperature
from benchmarks.arena_runs import at_most, score
from benchmarks.measure import machine, take_turns
from benchmarks.tables import duration, markdown, show, status, times

Array = NDArray[Any]
OURS_SMS, THEIR_SMS = "calibrant: sms", "probmetrics: SMS"
OURS_TEMPERATURE = "calibrant: temperature"
THEIR_TEMPERATURES = ["scikit-learn: temperature", "scikit-learn: bare temperature"]
SMS_SIZES = [(5_000, 10), (5_000, 100), (5_000, 1_000)]
TEMPERATURE_SIZES = [(10_000, 10), (10_000, 100)]
LARGE = (10_000, 1_000)
LARGE_LIMIT = 5.0  # seconds
LARGE_PATIENCE = 120.0
PATIENCE = 5.0  # a fit that takes longer is made once


def data(rows: int, classes: int) -> tuple[Array, Array]:
    """Float32 probabilities of an over-confident model with a bias for some classes, and labels."""
    generator = np.random.default_rng(rows + classes)
    honest = generator.normal(size=(rows, classes)) * 2
    honest[np.arange(rows), generator.integers(classes, size=rows)] += 4
    p = softmax(honest, axis=1)
    y = (p.cumsum(axis=1) < generator.random((rows, 1))).sum(axis=1).clip(max=classes - 1)
    given = softmax(honest * 1.8 + generator.normal(size=classes) * 0.3, axis=1)
    return given.astype(np.float32), y.astype(np.int64)


def measure(cases: Sequence[Case], methods: Sequence[Method], path: Path) -> None:
    """Measure, print and write the file."""
    by_name = {method.name: method for method in (*methods, bare_temperature())}
    torch.set_num_threads(1)
    text = [
        f"# Speed of post-hoc methods\n\nMeasured by `python -m benchmarks.arena speed` on {machine()}. Fits of a row "
        "take turns in one run on one thread; medians, and medians of ratios, of processor time. The bare temperature "
        "is the private fitter inside scikit-learn, without the classifier and the folds that its users call."
    ]
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for title, heading, rows in (
            structured(by_name), temperature_sizes(by_name), temperature_pairs(by_name, cases), large(methods),
        ):  # fmt: skip
            if rows:
                show(title, heading, rows)
                text += [f"## {title}", markdown(heading, rows)]
            else:
                text.append(f"## {title}\n\nNot measured: a method is not there.")
            path.write_text("\n\n".join(text) + "\n", encoding="utf-8")
    print(path)


Table = tuple[str, list[str], list[list[str]]]


def _compare(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float, float]:
    """Seconds of both and the ratio; a slow peer is fitted once."""
    ours()  # a first call may import or compile
    start = time.process_time()
    theirs()
    once = time.process_time() - start
    if once > PATIENCE:
        mine = take_turns([ours], seconds=1.0, turn=0.0, clock=time.process_time).seconds[0]
        return mine, once, once / mine
    timing = take_turns([ours, theirs], seconds=2.0, turn=0.0, clock=time.process_time)
    return timing.seconds[0], timing.seconds[1], timing.ratios[0]


def _pair(ours: Method, theirs: Method, p: Array, y: Array, q: Array, z: Array) -> list[str]:
    seconds, their_seconds, ratio = _compare(lambda: ours.fit(p, y), lambda: theirs.fit(p, y))
    values = [score(method.fit(p, y)(q), z)["log_loss"] for method in (ours, theirs)]
    return [
        duration(seconds), duration(their_seconds), times(ratio), f"{values[0]:.6f}", f"{values[1]:.6f}",
        f"{values[0] - values[1]:+.1e}",
    ]  # fmt: skip


HEADING = ["peer", "ours", "theirs", "speed-up", "our log loss", "their log loss", "difference"]


def _sizes(title: str, methods: dict[str, Method], ours: str, peers: list[str], sizes: list[tuple[int, int]]) -> Table:
    rows = []
    for n, classes in sizes:
        p, y = data(2 * n, classes)
        for peer in peers:
            if ours in methods and peer in methods:
                size = f"{n:,} x {classes:,}"
                status(f"{title}: {size}, {peer}")
                rows.append([size, peer, *_pair(methods[ours], methods[peer], p[:n], y[:n], p[n:], y[n:])])
    return title, ["fitted on", *HEADING], rows


def structured(methods: dict[str, Method]) -> Table:
    """Structured matrix scaling against probmetrics, which has it from its authors; log loss on as many test rows."""
    return _sizes("Structured matrix scaling", methods, OURS_SMS, [THEIR_SMS], SMS_SIZES)


def temperature_sizes(methods: dict[str, Method]) -> Table:
    """Temperature scaling against scikit-learn on made data."""
    return _sizes("Temperature", methods, OURS_TEMPERATURE, THEIR_TEMPERATURES, TEMPERATURE_SIZES)


def temperature_pairs(methods: dict[str, Method], cases: Sequence[Case]) -> Table:
    """Temperature scaling against scikit-learn on the arena, by group: three fits each in turns, medians of pairs."""
    rows = []
    for group in dict.fromkeys(case.group for case in cases):
        mine = [case for case in cases if case.group == group and case.split == 0]
        for peer in THEIR_TEMPERATURES:
            if OURS_TEMPERATURE in methods and peer in methods:
                status(f"temperature, {group}, {peer}")
                rows.append([group, *_group(methods[OURS_TEMPERATURE], methods[peer], mine)])
    return "Temperature on the arena's pairs", ["group", "pairs", *HEADING], rows


def _group(ours: Method, theirs: Method, cases: Sequence[Case]) -> list[str]:
    seconds, ratios, losses = [], [], []
    for case in cases:
        (p, y), (q, z) = case.read()
        try:
            jobs = [lambda method=method: method.fit(p, y) for method in (ours, theirs)]  # noqa: B023
            timing = take_turns(jobs, seconds=0.0, turn=0.0, clock=time.process_time)
            losses.append([score(method.fit(p, y)(q), z)["log_loss"] for method in (ours, theirs)])
        except (ValueError, RuntimeError):  # no finite temperature: counted in the arena
            continue
        seconds.append(timing.seconds)
        ratios.append(timing.ratios[0])
    if not ratios:
        return ["0", theirs.name, *["-"] * 6]
    mean, their_mean = np.mean(losses, axis=0)
    mine, other = np.median(seconds, axis=0)
    return [
        f"{len(ratios)}", theirs.name, duration(mine), duration(other), times(statistics.median(ratios)),
        f"{mean:.6f}", f"{their_mean:.6f}", f"{mean - their_mean:+.1e}",
    ]  # fmt: skip


def large(methods: Sequence[Method]) -> Table:
    """Every method of ours at 1,000 classes and 10,000 rows: one fit, and its prediction of 10,000 rows."""
    p, y = data(*LARGE)
    rows = []
    for method in methods:
        if not method.ours:
            continue
        status(f"{LARGE[0]:,} x {LARGE[1]:,}: {method.name}")
        try:
            with at_most(LARGE_PATIENCE):
                start = time.process_time()
                predict = method.fit(p, y)
                fitted = time.process_time()
                loss = score(predict(p), y)["log_loss"]
                end = time.process_time()
        except Exception as error:  # the table says what happened
            rows.append([method.name, "-", "-", "-", f"{type(error).__name__}: {error}"[:80]])
            continue
        seconds = fitted - start
        kept = "yes" if seconds <= LARGE_LIMIT else "**no**"
        rows.append([method.name, duration(seconds), duration(end - fitted), f"{loss:.4f}", kept])
    title = f"Every method at {LARGE[1]:,} classes, {LARGE[0]:,} rows"
    return title, ["method", "fit", "predict and score", "log loss of the fit", f"within {LARGE_LIMIT:g} s"], rows
