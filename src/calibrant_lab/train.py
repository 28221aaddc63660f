"""`calibrant train`: one trial, watched while it runs, with a report of its own."""

import dataclasses
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from rich.console import Console
from rich.markup import escape

import calibrant as cal
from calibrant.commands.terminal import show_warning, timed_bar, warnings_shown
from calibrant.files import FileError, read_predictions
from calibrant.report import audit, write_report
from calibrant.report.audit import Audit
from calibrant.report.formats import counted
from calibrant_lab import plugins
from calibrant_lab.paper.figures import write_figure
from calibrant_lab.paper.figures.training import training_curves
from calibrant_lab.score_table import NOTE, print_whole, score_table
from calibrant_lab.scores import KEPT, column
from calibrant_lab.trials.configuration import Configuration, configure, label, read_configuration
from calibrant_lab.trials.fit import check_accelerator
from calibrant_lab.trials.provenance import changes_since, other_data
from calibrant_lab.trials.run import run_trial
from calibrant_lab.trials.store import CHECKPOINT, FULL, Store, Trial, is_full
from calibrant_lab.trials.watching import Bar


def resolve(
    recipe: str | None, method: str | None, seed: int | None, config: Path | None, changes: Mapping[str, Any]
) -> Configuration:
    """The configuration given by a recipe, a file and command-line options; the latter take precedence."""
    given = {name: value.split(",") if "," in str(value) else value for name, value in changes.items()}
    if config is None:
        if recipe is None:
            raise ValueError("--recipe is required: calibrant recipes lists them")
        base = configure(recipe)
    else:
        base = read_configuration(config)
        if recipe is not None and plugins.absolute(recipe) != base.recipe:
            raise FileError(config, f"is for the recipe {base.recipe}: leave out --recipe or the file")
    asked = {"method": method, "seed": seed}
    return base.replaced({name: value for name, value in asked.items() if value is not None} | given)


@warnings_shown()
def train(
    configuration: Configuration, data: Path | None, runs: Path, *, wandb: str | None = None, accelerator: str = "auto"
) -> Trial:
    """Train a network, continue an interrupted trial, or show a finished one."""
    check_accelerator(accelerator)
    store = Store(runs)
    trial = store.trial(configuration)
    name = label(configuration)
    if trial.status == "done":
        trial.found_again(configuration)
        for text in (*trial.warnings().values(), *other_data(trial, data)):
            show_warning(text)
    else:
        try:
            trial.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(trial.folder, f"cannot be written: {error.strerror}") from error
        loggers: list[Logger] = [TensorBoardLogger(trial.folder, name="", version="tensorboard")]
        if wandb is not None:
            loggers.append(_weights_and_biases(wandb, trial.folder, name, configuration))
        with timed_bar(Console(stderr=True), "{task.fields[scores]}") as progress:
            task = progress.add_task(f"{name}: reading data", total=None, scores="")
            try:
                ending = run_trial(
                    store, configuration, data, accelerator, loggers=loggers,
                    callbacks=[Bar(progress, task, label=name)], raises=True, keeps_checkpoint=True,
                )  # fmt: skip
            except OSError as error:
                if is_full(error):
                    raise FileError(trial.folder, FULL) from error
                raise
            except KeyboardInterrupt:
                progress.stop()
                if (trial.folder / CHECKPOINT).exists():
                    sys.stderr.write("calibrant: interrupted: the same command continues from the last checkpoint\n")
                raise
        if ending == "busy":
            raise FileError(trial.folder, "is being trained by another process: wait for it, or give another --runs")
    audits = _audits(trial, name)
    if not (trial.folder / "report.html").exists():
        write_figure(trial.folder / "curves.png", training_curves({"": [trial.history()]}, "validation", name))
        first, *others = audits
        compared = [(first.name, one.name, cal.metrics.compare(first.predictions, one.predictions)) for one in others]
        write_report(trial.folder / "report.html", audits, compared)
    _show(trial, configuration, name, audits)
    for change in changes_since(dataclasses.replace(trial.result(), configuration=configuration)):
        Console(stderr=True).print(f"[yellow]changed[/] {escape(change)}", highlight=False)
    return trial


def _weights_and_biases(project: str, out: Path, name: str, configuration: Configuration) -> Logger:
    try:
        import wandb  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError("--wandb needs the package wandb: pip install 'calibrant[wandb]'") from error
    from lightning.pytorch.loggers import WandbLogger

    # An interrupted run continues as the same run.
    identity = hashlib.sha256(f"{out.resolve()}{configuration.identity}".encode()).hexdigest()[:16]
    return WandbLogger(
        project=project, name=f"{plugins.short(configuration.recipe)} {name}", save_dir=out, id=identity,
        resume="allow", config=configuration.to_dict(),
    )  # fmt: skip


def _audits(trial: Trial, name: str) -> list[Audit]:
    """The network as trained, and with the temperature fitted on its validation set, which is the one to use."""
    test = read_predictions(trial.folder / "test.npz")
    try:
        scaling = cal.posthoc.TemperatureScaling(strict=True).fit(*trial.predicted("validation"))
    except ValueError as error:
        return [dataclasses.replace(audit(name, test, repair=False), problem=str(error))]
    temperature = f"{float(scaling.temperature_):.3g}"
    logits, target = trial.predicted("test")
    scaled = cal.metrics.predictions(logits=scaling(logits).numpy(), target=target.numpy())
    models = {name: test, f"{name}, T = {temperature} from validation": scaled}
    # Without a repair, which would be fitted on the test set: here there is a validation set to fit it on.
    return [audit(model, predictions, repair=False) for model, predictions in models.items()]


def _show(trial: Trial, configuration: Configuration, name: str, audits: list[Audit]) -> None:
    console = Console()
    epochs = counted(configuration.settings.epochs, "epoch")
    title = f"{plugins.short(configuration.recipe)}, {epochs}, seed {configuration.seed}"
    columns = [column(key) for key in KEPT]
    print_whole(console, score_table({escape(name): [trial.result().test]}, columns, title=escape(title)))
    console.print(NOTE, highlight=False)
    for one in audits:
        console.print(f"[bold]{escape(one.name)}[/]: {escape(one.verdict)}", highlight=False)
    folder = escape(str(trial.folder))
    console.print(
        f"In {folder}: model.pt, report.html, curves.png, test.npz and validation.npz for calibrant evaluate and "
        f"recalibrate, config.json for --config. Live curves: tensorboard --logdir {folder}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
