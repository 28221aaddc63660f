"""`calibrant train`: one run with everything that should be left of it, in one folder."""

import hashlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from rich.console import Console
from rich.markup import escape

from calibrant.experiments.configuration import Configuration, read_settings
from calibrant.experiments.curves import write_curves
from calibrant.experiments.fit import Trained, fit
from calibrant.experiments.objectives import ADDED
from calibrant.experiments.outcome import Outcome, judge
from calibrant.experiments.table import NOTE, outcome_table
from calibrant.experiments.watching import Bar, KeepLast, training_progress
from calibrant.files import FileError, naming, read_predictions, whole_or_not_at_all, write_predictions
from calibrant.report import audit, require_report_packages, verdict, write_report

CONFIGURATION, CHECKPOINT, WEIGHTS, SUMMARY, HISTORY = (
    "config.json", "last.ckpt", "model.pt", "summary.json", "history.json",
)  # fmt: skip
# Names that are abbreviations.
SHORT = ("nll", "esd", "mmce", "sb-ece", "ece", "mdca", "dca")


def train(
    configuration: Configuration,
    folder: Path | None,
    out: Path,
    *,
    wandb: str | None = None,
    accelerator: str = "auto",
) -> Outcome:
    """Train, or go on with what was interrupted, or show again what is finished; return the outcome.

    Args:
        configuration: Of the run.
        folder: With the official files of the data.
        out: Folder of the run. If it holds a run of the same configuration, that one is continued.
        wandb: Project to log to with Weights & Biases.
        accelerator: As Lightning names them.
    """
    require_report_packages()
    claim(out, configuration)
    name = run_name(configuration)
    if not (out / SUMMARY).exists():
        _write(out, _trained(configuration, folder, out, name, wandb, accelerator), name)
    with naming(out / SUMMARY):
        found = json.loads((out / SUMMARY).read_text(encoding="utf-8"))
        outcome = Outcome(**{key: math.nan if value is None else value for key, value in found.items()})
    _show(out, configuration, name, outcome)
    return outcome


def run_name(configuration: Configuration) -> str:
    """What a reader calls the run."""
    name = configuration.objective.upper() if configuration.objective in SHORT else configuration.objective
    if configuration.objective not in ADDED:
        return name
    return f"NLL + {name}" + ("" if configuration.weight == 1 else f" (weight {configuration.weight:g})")


def claim(out: Path, configuration: Configuration) -> None:
    """Make the folder this run's own, or make sure that it is."""
    path = out / CONFIGURATION
    if path.exists():
        earlier, ours = read_settings(path), configuration.to_dict()
        differing = sorted(key for key in earlier.keys() | ours.keys() if earlier.get(key) != ours.get(key))
        if differing:
            raise FileError(
                out, f"holds a run with other settings ({', '.join(differing)}): choose another --out, or remove it"
            )
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileError(out, "is in use, and not by a run: choose another --out")
    _write_json(path, configuration.to_dict())


def _trained(
    configuration: Configuration, folder: Path | None, out: Path, name: str, wandb: str | None, accelerator: str
) -> Trained:
    loggers: list[Logger] = [TensorBoardLogger(out, name="", version="tensorboard")]
    if wandb is not None:
        loggers.append(_weights_and_biases(wandb, out, name, configuration))
    checkpoint = out / CHECKPOINT
    with training_progress(Console(stderr=True)) as progress:
        task = progress.add_task(f"{name}: reading data", total=None, scores="")
        return fit(
            configuration, folder, loggers=loggers,
            callbacks=[KeepLast(checkpoint), Bar(progress, task, label=name)],
            resume_from=checkpoint if checkpoint.exists() else None, accelerator=accelerator,
        )  # fmt: skip


def _weights_and_biases(project: str, out: Path, name: str, configuration: Configuration) -> Logger:
    try:
        import wandb  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError("--wandb needs the package wandb: pip install wandb") from error
    from lightning.pytorch.loggers import WandbLogger

    # The same run goes on after an interruption.
    identity = hashlib.sha256(f"{out.resolve()}{configuration.to_dict()}".encode()).hexdigest()[:16]
    return WandbLogger(
        project=project, name=f"{configuration.recipe} {name}", save_dir=out, id=identity, resume="allow",
        config=configuration.to_dict(),
    )  # fmt: skip


def _write(out: Path, trained: Trained, name: str) -> None:
    """Leave weights, predictions, curves and report; the summary comes last and says that all of it is there."""
    with whole_or_not_at_all(out / WEIGHTS) as temporary:
        torch.save({key: value.cpu() for key, value in trained.model.state_dict().items()}, temporary)
    for part, predicted in (("validation", trained.validation), ("test", trained.test)):
        write_predictions(out / f"{part}.npz", predicted.logits.numpy(), predicted.target.numpy(), kind="logits")
    _write_json(out / HISTORY, trained.history)
    write_curves(out / "curves.png", trained.history, title=name)
    write_report(out / "report.html", [audit(name, read_predictions(out / "test.npz"))])
    summary = asdict(judge(trained.validation, trained.test))
    _write_json(out / SUMMARY, {key: None if math.isnan(value) else value for key, value in summary.items()})


def _write_json(path: Path, content: Any) -> None:
    with whole_or_not_at_all(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _show(out: Path, configuration: Configuration, name: str, outcome: Outcome) -> None:
    console = Console()
    title = f"{configuration.recipe}, {configuration.model}, {configuration.epochs} epochs, seed {configuration.seed}"
    console.print(outcome_table({name: [outcome]}, title=escape(title)))
    console.print(NOTE, highlight=False)
    found = audit(name, read_predictions(out / "test.npz"))
    console.print(f"[bold]{escape(name)}[/]: {escape(verdict(found))}.", highlight=False)
    console.print(
        f"In {escape(str(out))}: model.pt, report.html, curves.png, test.npz and validation.npz for calibrant evaluate "
        f"and recalibrate, config.json for --config. Curves as they grow: tensorboard --logdir {escape(str(out))}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
