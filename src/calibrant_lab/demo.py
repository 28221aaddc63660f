"""A first look at calibrated training, on made data whose true probabilities are known."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from pathlib import Path

from rich.console import Console

import calibrant as cal
from calibrant.files import read_predictions, write_predictions
from calibrant.report import audit, write_report
from calibrant_lab.demo_table import DemoScores, demo_table, differences, score
from calibrant_lab.demo_training import (
    HELD_OUT,
    ROWS,
    TEST_ROWS,
    TRAININGS,
    WIDTH,
    Job,
    Result,
    begin_worker,
    rows_for_test,
    train,
)
from calibrant_lab.made_data import CLASSES, FEATURES
from calibrant_lab.progress import training_progress
from calibrant_lab.table import print_whole

# Stem of a file of predictions -> name of the row.
NAMES = {
    "nll": "NLL",
    "nll-temperature": "NLL + temperature",
    "esd": "NLL + ESD, weight 1",
    "calibrated": "CalibratedLoss",
}
TRUTH = "the true probabilities"


def run_demo(
    *,
    seeds: int,
    epochs: int,
    out: Path,
    console: Console,
    rows: int = ROWS,
    test_rows: int = TEST_ROWS,
    workers: int | None = None,
) -> dict[str, list[DemoScores]]:
    """Train every way with every seed, print the comparison, and return it; the first seed's predictions are kept.

    Args:
        seeds: Number of networks to train each way.
        epochs: Passes over the training rows.
        out: Folder for the report and the predictions.
        console: Where to print.
        rows: Training rows, the held-out ones included.
        test_rows: Test rows.
        workers: Processes that train; by default one for each core.
    """
    out.mkdir(parents=True, exist_ok=True)
    jobs = [Job(training, seed, epochs, rows, test_rows) for seed in range(seeds) for training in TRAININGS]
    scores: dict[str, list[DemoScores]] = {name: [] for name in (*NAMES.values(), TRUTH)}
    with training_progress(Console(stderr=True)) as progress:
        task = progress.add_task(f"training {len(jobs)} networks", total=len(jobs), scores="")
        results: dict[Job, Result] = {}
        for result in _trained(jobs, workers or os.cpu_count() or 1):
            results[result.job] = result
            progress.advance(task)
        progress.update(task, description="writing the report")
        for seed in range(seeds):
            _judge([results[job] for job in jobs if job.seed == seed], scores, out if seed == 0 else None)
        _report(out)
    _show(console, scores, jobs[0], seeds, out)
    return scores


def _trained(jobs: list[Job], workers: int) -> Iterator[Result]:
    """Small networks use one core well and two badly, so each has one to itself."""
    if workers == 1:
        yield from map(train, jobs)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=begin_worker) as pool:
        futures = [pool.submit(train, job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            children = active_children()
            for child in children:
                child.terminate()
            for child in children:
                child.join()
            raise


def _judge(results: list[Result], scores: dict[str, list[DemoScores]], out: Path | None) -> None:
    """Score the networks of one seed on its test rows, and write their predictions if there is a folder for them."""
    trained: dict[str, Result] = {result.job.training: result for result in results}
    nll = trained["nll"]
    test = rows_for_test(nll.job)
    scaling = cal.posthoc.TemperatureScaling().fit(nll.held_out, nll.held_out_target)
    for stem, name in NAMES.items():
        logits = scaling(nll.test) if stem == "nll-temperature" else trained[stem].test
        scores[name].append(score(logits, test))
        if out is not None:
            write_predictions(out / f"{stem}.npz", logits.numpy(), test.target.numpy(), kind="logits")
    scores[TRUTH].append(score(test.truth.log(), test))
    if out is not None:
        path = out / "nll-held-out.npz"
        write_predictions(path, nll.held_out.numpy(), nll.held_out_target.numpy(), kind="logits")


def _report(out: Path) -> None:
    """Audit the networks of the first seed, and compare each with the first."""
    first, *others = [audit(name, read_predictions(out / f"{stem}.npz")) for stem, name in NAMES.items()]
    compared = [
        (first.name, other.name, cal.metrics.compare(first.predictions, other.predictions, metric="esd"))
        for other in others
    ]
    write_report(out / "report.html", [first, *others], compared)


def _show(console: Console, scores: dict[str, list[DemoScores]], job: Job, seeds: int, out: Path) -> None:
    title = f"Made data, {job.epochs} epoch{_s(job.epochs)}, {seeds} seed{_s(seeds)}"
    print_whole(console, demo_table(scores, title=title, bound=TRUTH))
    held_out = round(HELD_OUT * job.rows)
    lines = [
        f"Made data: {FEATURES} features, {CLASSES} classes, labels drawn from the probabilities of a random teacher "
        f"network, so that the truth is known. {job.rows - held_out:,} training rows for every method, {held_out:,} "
        f"held out, {job.test_rows:,} test rows; an MLP with two layers of {WIDTH}. The settings were chosen so that "
        "NLL over-fits.",
        "Error of p: mean |predicted - true probability| of the predicted class. ECE in 20 bins.",
        *differences(scores, "CalibratedLoss", ("NLL + temperature", "NLL")),
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False)
    files = " ".join(str(out / f"{stem}.npz") for stem in ("nll", "calibrated"))
    console.print(
        f"Of the first seed: {out / 'report.html'}, and predictions. Try calibrant evaluate {files}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


def _s(count: int) -> str:
    return "" if count == 1 else "s"
