"""`calibrant train`: one run with everything that should be left of it, in one folder."""

import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from rich.console import Console
from rich.markup import escape

import calibrant as cal
from calibrant.files import FileError, naming, read_predictions, whole_or_not_at_all, write_predictions
from calibrant.metrics.predictions import Predictions
from calibrant.report import Audit, audit, verdict, write_report
from calibrant_lab.configuration import Configuration, read_settings
from calibrant_lab.curves import write_curves
from calibrant_lab.fit import Prepared, Trained, fit, prepare
from calibrant_lab.json_files import write_json
from calibrant_lab.objectives import display_name
from calibrant_lab.outcome import Outcome, judge
from calibrant_lab.progress import training_progress
from calibrant_lab.table import NOTE, outcome_table, print_whole
from calibrant_lab.watching import Bar, KeepLast

CONFIGURATION, DATA, CHECKPOINT, SUMMARY = "config.json", "data.json", "last.ckpt", "summary.json"


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
    name = display_name(configuration)
    with _claimed(out, configuration):
        finished = (out / SUMMARY).exists()
        if not finished:
            trained = _trained(configuration, folder, out, name, wandb, accelerator)
            _write_results(out, trained, name)
        audits = _audits(out, name)
        if not finished:
            write_report(out / "report.html", audits, _compared(audits))
            # The summary comes last: where it is, all of the rest is.
            write_json(out / SUMMARY, dataclasses.asdict(judge(trained.validation, trained.test)))
        outcome = _read_summary(out / SUMMARY)
    _show(out, configuration, name, outcome, audits)
    return outcome


@contextmanager
def _claimed(out: Path, configuration: Configuration) -> Iterator[None]:
    """Keep the folder to this process and this configuration."""
    path = out / CONFIGURATION
    if (
        not path.exists()
        and out.exists()
        and (not out.is_dir() or any(entry.name != ".lock" for entry in out.iterdir()))
    ):
        raise FileError(out, "is in use, and not by a run: choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / ".lock", timeout=0)
        lock.acquire()
    except Timeout as error:
        raise FileError(out, "is being trained in by another process: wait for it, or choose another --out") from error
    except OSError as error:
        raise FileError(out, f"cannot be written: {error.strerror}") from error
    with lock:
        begun = (out / CHECKPOINT).exists() or (out / SUMMARY).exists()
        if path.exists() and begun:
            earlier, ours = read_settings(path), configuration.to_dict()
            differing = sorted(key for key in earlier.keys() | ours.keys() if earlier.get(key) != ours.get(key))
            if differing:
                raise FileError(
                    out, f"holds a run with other settings ({', '.join(differing)}): choose another --out, or remove it"
                )
        else:
            write_json(path, configuration.to_dict())
        yield


def _trained(
    configuration: Configuration, folder: Path | None, out: Path, name: str, wandb: str | None, accelerator: str
) -> Trained:
    loggers: list[Logger] = [TensorBoardLogger(out, name="", version="tensorboard")]
    if wandb is not None:
        loggers.append(_weights_and_biases(wandb, out, name, configuration))
    checkpoint = out / CHECKPOINT
    resumes = checkpoint.exists()
    with training_progress(Console(stderr=True)) as progress:
        task = progress.add_task(f"{name}: reading data", total=None, scores="")
        prepared = prepare(configuration, folder)
        _check_data(out / DATA, prepared, resumes=resumes)
        if resumes:
            _check_checkpoint(checkpoint)
        try:
            return fit(
                prepared, loggers=loggers, callbacks=[KeepLast(checkpoint), Bar(progress, task, label=name)],
                resume_from=checkpoint if resumes else None, accelerator=accelerator,
            )  # fmt: skip
        except KeyboardInterrupt:
            progress.stop()
            sys.stderr.write("calibrant: interrupted: the same command goes on from the last checkpoint\n")
            raise


def _check_data(path: Path, prepared: Prepared, *, resumes: bool) -> None:
    """Note what data a run has, and refuse to go on with other data, which would mix the parts of the split."""
    found = prepared.loaders.description
    if resumes and path.exists() and (earlier := read_settings(path)) != found:
        raise FileError(
            path.parent,
            f"was trained on other data ({json.dumps(earlier)}, now {json.dumps(found)}): give the --data-dir it was "
            "begun with, or choose another --out",
        )
    write_json(path, found)


def _check_checkpoint(path: Path) -> None:
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise FileError(path, "is damaged, or not one of ours: delete it to start the run over") from error


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


def _write_results(out: Path, trained: Trained, name: str) -> None:
    with whole_or_not_at_all(out / "model.pt") as temporary:
        torch.save({key: value.cpu() for key, value in trained.model.state_dict().items()}, temporary)
    for part, predicted in (("validation", trained.validation), ("test", trained.test)):
        write_predictions(out / f"{part}.npz", predicted.logits.numpy(), predicted.target.numpy(), kind="logits")
    write_json(out / "history.json", trained.history)
    write_curves(out / "curves.png", trained.history, title=name)


def _audits(out: Path, name: str) -> list[Audit]:
    """The network as trained, and with the temperature its validation set gives, which is the one to use."""
    test, validation = (read_predictions(out / f"{part}.npz") for part in ("test", "validation"))
    try:
        scaling = cal.posthoc.TemperatureScaling().fit(*_logits_and_target(validation))
    except ValueError as error:
        return [_without_repair(name, test, str(error))]
    temperature = f"{float(scaling.temperature_):.3g}"
    logits, target = _logits_and_target(test)
    scaled = cal.metrics.predictions(logits=scaling(logits).numpy(), target=target.numpy())
    return [
        _without_repair(name, test, f"temperature {temperature}, fitted on the validation set, is shown beside it"),
        _without_repair(f"{name}, T = {temperature}", scaled, "it has its temperature already"),
    ]


def _logits_and_target(predictions: Predictions) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.as_tensor(predictions.logits), torch.as_tensor(predictions.target)


def _without_repair(name: str, predictions: Predictions, reason: str) -> Audit:
    # An audit of a file fits a temperature on the file itself; here there is a validation set to fit it on.
    return dataclasses.replace(audit(name, predictions), repair=None, problem=reason)


def _compared(audits: list[Audit]) -> list[tuple[str, str, Any]]:
    first, *others = audits
    return [(first.name, one.name, cal.metrics.compare(first.predictions, one.predictions)) for one in others]


def _read_summary(path: Path) -> Outcome:
    with naming(path):
        found = read_settings(path)
        names = [field.name for field in dataclasses.fields(Outcome)]
        if sorted(found) != sorted(names) or not all(isinstance(found[name], float | int | None) for name in names):
            raise ValueError("is not a summary of a run: delete it, and the same command writes it anew")
        return Outcome(**{name: math.nan if found[name] is None else found[name] for name in names})


def _show(out: Path, configuration: Configuration, name: str, outcome: Outcome, audits: list[Audit]) -> None:
    console = Console()
    title = f"{configuration.recipe}, {configuration.model}, {configuration.epochs} epochs, seed {configuration.seed}"
    print_whole(console, outcome_table({name: [outcome]}, title=escape(title)))
    console.print(NOTE, highlight=False)
    for one in audits:
        console.print(f"[bold]{escape(one.name)}[/]: {escape(verdict(one))}.", highlight=False)
    console.print(
        f"In {escape(str(out))}: model.pt, report.html, curves.png, test.npz and validation.npz for calibrant evaluate "
        f"and recalibrate, config.json for --config. Curves as they grow: tensorboard --logdir {escape(str(out))}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
