"""A first look at calibrated training: the paper's Table 1 in miniature, on digits."""

from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import Progress, TaskID

import calibrant as cal
from calibrant.experiments.configuration import Configuration, ObjectiveName
from calibrant.experiments.fit import Trained, fit, prepare
from calibrant.experiments.objectives import display_name
from calibrant.experiments.outcome import Outcome, judge
from calibrant.experiments.recipes import RECIPES
from calibrant.experiments.table import NOTE, outcome_table
from calibrant.experiments.watching import training_progress
from calibrant.files import read_predictions, write_predictions
from calibrant.report import audit, write_report

METHODS: list[ObjectiveName] = ["nll", "mmce", "sb-ece", "esd"]


def run_demo(
    *, seeds: int, epochs: int, weight: float, noise: float, out: Path, console: Console
) -> dict[str, list[Outcome]]:
    """Train every way with every seed, print the comparison, and return it; of the first seed all is kept."""
    out.mkdir(parents=True, exist_ok=True)
    recipe = RECIPES["digits"].replaced({"epochs": epochs, "noise": noise})
    outcomes: dict[str, list[Outcome]] = {}
    with training_progress(Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(METHODS) * seeds * epochs, scores="")
        for seed in range(seeds):
            for objective in METHODS:
                configuration = recipe.replaced({"objective": objective, "weight": weight, "seed": seed})
                name = _name(objective)
                progress.update(task, description=f"{name}, seed {seed + 1} of {seeds}")
                trained = fit(prepare(configuration), callbacks=[_Advance(progress, task)], accelerator="cpu")
                outcomes.setdefault(name, []).append(judge(trained.validation, trained.test))
                if seed == 0:
                    _keep(trained, out, objective)
        progress.update(task, description="writing the report")
        _report(out)
    _show(console, outcomes, recipe, weight, out)
    return outcomes


def _name(objective: ObjectiveName) -> str:
    return display_name(RECIPES["digits"].replaced({"objective": objective}))


class _Advance(Callback):
    """One bar over all networks."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.progress, self.task = progress, task

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:  # noqa: ARG002
        self.progress.advance(self.task)


def _keep(trained: Trained, out: Path, stem: str) -> None:
    """Write the predictions on the test images, and those on the validation images to fit a repair on."""
    for ending, (logits, target) in (("", trained.test), ("-validation", trained.validation)):
        write_predictions(out / f"{stem}{ending}.npz", logits.numpy(), target.numpy(), kind="logits")


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
    console.print(outcome_table(outcomes, title=title))
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
