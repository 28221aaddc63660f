"""A first look at calibrated training: the paper's Table 1 in miniature, on digits."""

from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import Progress, TaskID

import calibrant as cal
from calibrant.experiments.configuration import Configuration, ObjectiveName
from calibrant.experiments.fit import Trained, fit
from calibrant.experiments.outcome import Outcome, judge
from calibrant.experiments.recipes import RECIPES
from calibrant.experiments.table import NOTE, outcome_table
from calibrant.experiments.watching import training_progress
from calibrant.files import read_predictions, write_predictions
from calibrant.report import audit, require_report_packages, write_report

METHODS: dict[ObjectiveName, str] = {"nll": "NLL", "mmce": "NLL + MMCE", "sb-ece": "NLL + SB-ECE", "esd": "NLL + ESD"}


def run_demo(
    *, seeds: int, epochs: int, weight: float, noise: float, out: Path, console: Console
) -> dict[str, list[Outcome]]:
    """Train every way with every seed, print the comparison, and return it; of the first seed all is kept."""
    require_report_packages()
    outcomes: dict[str, list[Outcome]] = {name: [] for name in METHODS.values()}
    with training_progress(Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(METHODS) * seeds * epochs, scores="")
        for seed in range(seeds):
            for objective, name in METHODS.items():
                progress.update(task, description=f"{name}, seed {seed + 1} of {seeds}")
                changes = {"objective": objective, "weight": weight, "seed": seed, "epochs": epochs, "noise": noise}
                trained = fit(
                    RECIPES["digits"].replaced(changes), callbacks=[_Advance(progress, task)], accelerator="cpu"
                )
                outcomes[name].append(judge(trained.validation, trained.test))
                if seed == 0:
                    _keep(trained, out, objective)
        progress.update(task, description="writing the report")
        _report(out)
    _show(console, outcomes, RECIPES["digits"].replaced({"epochs": epochs, "noise": noise}), weight, out)
    return outcomes


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
    audits = [audit(name, read_predictions(out / f"{stem}.npz")) for stem, name in METHODS.items()]
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
