"""`make bench`: metrics and tests of calibration against their peers, in one run."""

import importlib.util
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Job, machine, take_turns
from benchmarks.peers import ece_loop
from benchmarks.tables import duration, finish, markdown, show, status, times
from calibrant import metrics
from calibrant.metrics.registry import METRICS

Array = np.ndarray[Any, Any]
SAMPLES, MANY, TESTED = 10**6, 10**7, 10**4


def pairs(n: int) -> tuple[Array, Array]:
    """Confidences of an over-confident classifier in float32, and their correctness."""
    rng = np.random.default_rng(n)
    confidence = (0.1 + 0.9 * rng.random(n) ** 0.2).astype(np.float32)
    return confidence, rng.random(n) < confidence - 0.05


def installed(package: str) -> bool:
    """Whether a peer can be measured here."""
    return importlib.util.find_spec(package) is not None


def torchmetrics_ece(confidence: Array, correct: Array) -> Callable[[], float]:
    """Its functional form on tensors, with the confidence as the probability of class 1."""
    from torchmetrics.functional.classification import binary_calibration_error

    probability, target = torch.from_numpy(confidence), torch.from_numpy(correct).long()
    return lambda: float(binary_calibration_error(probability, target, n_bins=15, validate_args=False))


def netcal_ece(confidence: Array, correct: Array) -> Callable[[], float]:
    """Its class, made once."""
    from netcal.metrics import ECE

    measure, target = ECE(15), correct.astype(int)
    return lambda: float(measure.measure(confidence, target))


def relplot_smooth_ece(confidence: Array, correct: Array) -> Callable[[], float]:
    """Its function."""
    import relplot

    target = correct.astype(np.float64)
    return lambda: float(relplot.smECE(confidence, target))


def loop_ece(confidence: Array, correct: Array) -> Callable[[], float]:
    """The loop over bins that published code uses."""
    tensors = torch.from_numpy(confidence), torch.from_numpy(correct)
    return lambda: float(ece_loop(*tensors))


# What is measured: our job, the peer and its package, the promise (our speed over theirs).
Comparison = tuple[str, Callable[..., float], str, Callable[[Array, Array], Callable[[], float]], str, float]
COMPARED: list[Comparison] = [
    (
        "ECE, 15 bins", lambda z, c: metrics.ece(z, c, 15, "torchmetrics"), "torchmetrics", torchmetrics_ece,
        "torchmetrics", 1.0,
    ),
    ("ECE, 15 bins", lambda z, c: metrics.ece(z, c, 15, "netcal"), "netcal", netcal_ece, "netcal", 1.0),
    ("ECE, 20 bins", metrics.ece, "loop over bins", loop_ece, "torch", 1.0),
    ("smooth ECE", lambda z, c: metrics.smooth_ece(z, c), "relplot", relplot_smooth_ece, "relplot", 0.0),
]  # fmt: skip


def against_peers() -> tuple[list[list[str]], list[str]]:
    """Rows of the first table, and every promise that was not kept."""
    confidence, correct = pairs(SAMPLES)
    rows, broken = [], []
    for name, ours, peer, theirs, package, promise in COMPARED:
        status(f"{name} against {peer}")
        if not installed(package):
            rows.append([name, peer, "", "not installed", "", ""])
            continue
        their_job = theirs(confidence, correct)
        values = ours(confidence, correct), their_job()
        timing = take_turns([partial(ours, confidence, correct), their_job], seconds=3.0)
        rows.append([
            name, peer, duration(timing.seconds[0]), duration(timing.seconds[1]), times(timing.ratios[0]),
            f"{abs(values[0] - values[1]):.0e}",
        ])  # fmt: skip
        if timing.ratios[0] < promise:
            broken.append(f"{name} against {peer}: {timing.ratios[0]:.2f}x, promised {promise:g}x")
    status("")
    return rows, broken


def calibration_test(metric: str) -> Job:
    """A job that tests calibration once."""
    given = pairs(TESTED)
    return lambda: metrics.calibration_test(*given, metric=metric, draws=1000)


def everything(confidence: Array, correct: Array) -> list[tuple[str, str, str, bool]]:
    """Every score of ten million pairs, over a sort of the confidences and over the ECE of torchmetrics."""
    kind = confidence.dtype
    status(f"every score of ten million samples in {kind}")
    jobs: list[Job] = [lambda: np.sort(confidence), lambda: metrics.evaluate(confidence, correct)]
    if installed("torchmetrics"):
        jobs.append(torchmetrics_ece(confidence, correct))
    # It runs in one thread, so that its processor time is its time on an idle machine.
    seconds, ratios = take_turns(jobs, seconds=15.0, turn=0.0, clock=time.process_time)
    rows = [
        (
            f"metrics.evaluate of {len(confidence):,} {kind} pairs: every score, processor time",
            duration(seconds[1]),
            "<= 1.5 s",
            seconds[1] <= 1.5,
        ),
        ("over numpy.sort of the same array", f"{ratios[0]:.1f}x", "", True),
    ]
    if len(jobs) > 2:
        rows.append(("over torchmetrics' ECE alone", f"{ratios[0] / ratios[1]:.1f}x", "", True))
    return rows


def single_figures() -> tuple[list[list[str]], list[str]]:
    """Rows of the second table, and every promise that was not kept."""
    status("ESD of ten million samples")
    many = pairs(MANY)
    jobs: list[Job] = [lambda: np.sort(many[0]), lambda: metrics.esd(*many)]
    esd = take_turns(jobs, seconds=8.0, turn=0.0, clock=time.process_time)
    whole = [everything(many[0].astype(kind), many[1]) for kind in (np.float32, np.float64)]
    tests: dict[str, float] = {}
    for metric in ("esd", "ks_error", "ece"):
        status(f"test of calibration with {metric}")
        tests[METRICS[metric].label] = take_turns([calibration_test(metric)], seconds=3.0).seconds[0]
    status("")
    figures = [
        (f"ESD of {MANY:,} float32 confidences, processor time", duration(esd.seconds[1]), "", True),
        ("over numpy.sort of the same array", f"{esd.ratios[0]:.1f}x", "<= 4x", esd.ratios[0] <= 4),
        *(row for rows in whole for row in rows),
        *(
            (
                f"calibration_test, {m}, N = {TESTED:,}, 1,000 draws",
                duration(t),
                "about 1 s",
                t < 1.5,
            )
            for m, t in tests.items()
        ),
    ]
    rows = [[what, value, promised] for what, value, promised, _ in figures]
    return rows, [f"{what}: {value}, promised {promised}" for what, value, promised, kept in figures if not kept]


def main() -> None:
    """Measure, print, write results/metrics.md, and fail if a promise is not kept."""
    heading = ["metric", "peer", "ours", "theirs", "speed-up", "difference"]
    title = f"Metrics of {SAMPLES:,} samples against their peers"
    rows, broken = against_peers()
    show(title, heading, rows)
    single_heading = ["figure", "measured", "promised"]
    single_rows, more_broken = single_figures()
    show("Single figures", single_heading, single_rows)
    text = (
        f"# {title}\n\nMeasured by `make bench` on {machine()}. Float32 confidences. Medians, and medians of "
        "ratios, of runs taken in turns. The difference is that of the two values: torchmetrics and the loop add up in "
        "float32, relplot rounds to a coarser grid.\n\n"
        f"{markdown(heading, rows)}\n\n{markdown(single_heading, single_rows)}\n"
    )
    finish("metrics", text, broken + more_broken)


if __name__ == "__main__":
    main()
