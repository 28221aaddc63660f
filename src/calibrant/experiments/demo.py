"""A first look at calibrated training: the paper's Table 1 in miniature, on digits."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

import calibrant as cal
from calibrant.experiments.configuration import Configuration, ObjectiveName
from calibrant.experiments.fit import fit, prepare
from calibrant.experiments.objectives import display_name
from calibrant.experiments.outcome import Outcome, Predicted, judge
from calibrant.experiments.recipes import RECIPES
from calibrant.experiments.table import NOTE, outcome_table, print_whole
from calibrant.experiments.watching import training_progress
from calibrant.files import read_predictions, write_predictions
from calibrant.report import audit, write_report

METHODS: list[ObjectiveName] = ["nll", "mmce", "sb-ece", "esd"]


class Result(NamedTuple):
    """What a network predicts."""

    configuration: Configuration
    validation: Predicted
    test: Predicted


def run_demo(
    *, seeds: int, epochs: int, weight: float, noise: float, out: Path, console: Console, workers: int | None = None
) -> dict[str, list[Outcome]]:
    """Train every way with every seed, print the comparison, and return it; of the first seed all is kept."""
    out.mkdir(parents=True, exist_ok=True)
    recipe = RECIPES["digits"].replaced({"epochs": epochs, "noise": noise})
    wanted = [
        recipe.replaced({"objective": objective, "weight": weight, "seed": seed})
        for seed in range(seeds)
        for objective in METHODS
    ]
    results: dict[Configuration, Result] = {}
    with training_progress(Console(stderr=True)) as progress:
        task = progress.add_task(f"training {len(wanted)} networks", total=len(wanted), scores="")
        for result in _trained(wanted, workers or os.cpu_count() or 1):
            results[result.configuration] = result
            progress.advance(task)
        progress.update(task, description="writing the report")
        for configuration in wanted[: len(METHODS)]:
            _keep(results[configuration], out)
        _report(out)
    outcomes: dict[str, list[Outcome]] = {_name(objective): [] for objective in METHODS}
    for configuration in wanted:
        _, validation, test = results[configuration]
        outcomes[_name(configuration.objective)].append(judge(validation, test))
    _show(console, outcomes, recipe, weight, out)
    return outcomes


def _trained(wanted: list[Configuration], workers: int) -> Iterator[Result]:
    """Small networks use one core well and two badly, so each has one to itself."""
    if workers == 1:
        yield from map(_train, wanted)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin_worker) as pool:
        futures = [pool.submit(_train, configuration) for configuration in wanted]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()
            raise


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)


def _train(configuration: Configuration) -> Result:
    trained = fit(prepare(configuration), accelerator="cpu")
    return Result(configuration, trained.validation, trained.test)


def _name(objective: ObjectiveName) -> str:
    return display_name(RECIPES["digits"].replaced({"objective": objective}))


def _keep(result: Result, out: Path) -> None:
    """Write the predictions on the test images, and those on the validation images to fit a repair on."""
    for ending, (logits, target) in (("", result.test), ("-validation", result.validation)):
        path = out / f"{result.configuration.objective}{ending}.npz"
        write_predictions(path, logits.numpy(), target.numpy(), kind="logits")


def _report(out: Path) -> None:
    """Audit the networks of the first seed, and compare each with the first."""
    audits = [audit(_name(objective), read_predictions(out / f"{objective}.npz")) for objective in METHODS]
    first, *others = audits
    compared = [
        (first.name, other.name, cal.metrics.compare(first.predictions, other.predictions, metric="esd"))
        for other in others
    ]
    write_report(out / "report.html", audits, compared)


def _show(
    console: Console, outcomes: dict[str, list[Outcome]], recipe: Configuration, weight: float, out: Path
) -> None:
    seeds = len(outcomes["NLL"])
    title = f"Digits, {recipe.epochs} epochs, {seeds} seed{'' if seeds == 1 else 's'}, weight {weight:g}"
    print_whole(console, outcome_table(outcomes, title=title))
    console.print(NOTE, highlight=False)
    console.print(
        f"LeNet5 on scikit-learn's digits with pixel noise {recipe.noise:g}: 360 test images. A toy-sized default: it "
        "shows the mechanism, not a benchmark.",
        highlight=False,
    )
    files = " ".join(str(out / f"{stem}.npz") for stem in ("nll", "esd"))
    console.print(
        f"Of the first seed: {out / 'report.html'}, and predictions. Try calibrant evaluate {files}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
