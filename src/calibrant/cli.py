"""The command line."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from calibrant import __version__
from calibrant.commands import Engine
from calibrant.experiments.configuration import Overrides, RecipeName
from calibrant.experiments.names import (
    PAPER,
    PUBLISHED,
    Format,
    MethodName,
    ProfileName,
    Running,
    Shift,
    Target,
)
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.columns import Columns

app = App(
    name="calibrant",
    help="Neural networks that say how sure they are, and are right about it.",
    version=__version__,
)

Positive = Annotated[int, Parameter(validator=Number(gte=1))]
NotNegative = Annotated[float, Parameter(validator=Number(gte=0, lt=float("inf")))]


NotNegativeInteger = Annotated[int, Parameter(validator=Number(gte=0))]
Method = Literal[
    "temperature", "vector", "matrix", "dirichlet", "ensemble-temperature", "platt", "beta", "spline", "histogram",
    "isotonic", "bbq",
]  # fmt: skip
Draws = Annotated[int, Parameter(validator=Number(gte=19))]  # with fewer, no p-value is ever below 5 %
Names = Annotated[Columns, Parameter(name="*", group="Names in the files")]
Settings = Annotated[
    Overrides, Parameter(name="*", consume_multiple=True, group="Settings (by default those of the recipe)")
]


@app.command
def demo(
    *,
    seeds: Positive = 5,
    epochs: Positive = 60,
    out: Path = Path("demo"),
) -> None:
    """Train small networks on made data with NLL, ESD and CalibratedLoss, and compare them with the known truth.

    Needs no data and no download; takes about a minute on two cores.

    Args:
        seeds: Number of networks to train each way.
        epochs: Passes over the training rows.
        out: Folder for the report and the predictions of the first seed, to try the other commands on.
    """
    from rich.console import Console

    from calibrant.report import require_report_packages

    require_report_packages()
    from calibrant.experiments.demo import run_demo

    run_demo(seeds=seeds, epochs=epochs, out=out, console=Console())


@app.command
def train(
    *,
    recipe: RecipeName | None = None,
    data_dir: Path | None = None,
    out: Path | None = None,
    config: Path | None = None,
    wandb: str | None = None,
    accelerator: str = "auto",
    settings: Settings = Overrides(),  # type: ignore[call-arg]  # noqa: B008 (frozen; all are optional)
) -> None:
    """Train a classifier with the NLL and a calibration objective, by one of the paper's recipes.

    Leaves weights, predictions, curves, an HTML report and the configuration in one folder. The same command again
    goes on with an interrupted run, to the result it would have had, and shows a finished one.

    Args:
        recipe: Data, model and the paper's settings for them; digits needs no data.
        data_dir: Folder with the official files of the data; without it they are fetched from the Hugging Face hub.
        out: Folder of the run; by default runs/RECIPE-OBJECTIVE-METHOD-seedSEED.
        config: TOML or JSON file of settings, such as the config.json of an earlier run. Options go before it.
        wandb: Project of Weights & Biases to log to, besides TensorBoard.
        accelerator: cpu, gpu, mps or auto.
        settings: Of the run.
    """
    from calibrant.experiments.packages import require_training_packages
    from calibrant.experiments.recipes import resolve

    configuration = resolve(recipe, settings, config)
    if out is None:
        way = "" if configuration.method is None else f"-{configuration.method}"
        out = Path("runs", f"{configuration.recipe}-{configuration.objective}{way}-seed{configuration.seed}")
    require_training_packages()
    from calibrant.experiments import train

    train.train(configuration, data_dir, out, wandb=wandb, accelerator=accelerator)


@app.command
def reproduce(
    target: Target,
    *,
    recipe: Annotated[tuple[RecipeName, ...], Parameter(consume_multiple=True, negative="")] = PAPER,
    profile: ProfileName = "paper",
    search_seeds: int = 1,
    data_dir: Path | None = None,
    runs: Path = Path("runs"),
    methods: Annotated[tuple[MethodName, ...], Parameter(consume_multiple=True, negative="")] = PUBLISHED,
    format: Format = "table",  # noqa: A002 (what users call it)
    out: Path | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    running: Annotated[Running, Parameter(name="*", group="Who runs the trials")] = Running(),  # noqa: B008 (frozen)
    shift: Annotated[Shift, Parameter(name="*", group="Figure 6")] = Shift(),  # noqa: B008 (frozen)
    settings: Settings = Overrides(),  # type: ignore[call-arg]  # noqa: B008 (frozen; all are optional)
) -> None:
    """Run the paper's protocol, and show a table or a figure of it, with the paper's numbers beside ours.

    For each method it searches the weight λ, then φ of MMCE and T of SB-ECE, and chooses by validation scores; then
    five seeds are trained. Trials are kept in a folder and none is run twice: the same command again, after whatever
    interruption, goes on with what is missing.

    Args:
        target: table1, table2, table3, figure1 to figure6, or all.
        recipe: One or several; by default the six of the paper. digits needs no data.
        profile: paper is the search as published; cpu a smaller one of 50 epochs; quick one of seconds, for digits.
        search_seeds: Networks a candidate of the search; what is compared is their mean. With one, chance has a say.
        data_dir: Folder with the official files of the data; for several recipes, of a folder for each, named like
            it. Without it they are fetched from the Hugging Face hub.
        runs: Folder that trials are kept in.
        methods: Rows of Table 1 beside the NLL; esd-raw is ESD without the root, and loop the temperature in
            the loop.
        format: Of printed tables.
        out: Folder to write tables to, in every format, and figures; without it figures go to RUNS/figures.
        dry_run: Only list the trials, and show the table as it stands.
        running: Where and how.
        shift: Images.
        settings: Changes of the recipe, for all trials.
    """
    from calibrant.experiments.packages import require_training_packages

    require_training_packages()
    from calibrant.experiments.paper.reproduce import Asked, reproduce_all

    asked = Asked(target, recipe, profile, search_seeds, methods, settings, data_dir, runs, format, out)
    try:
        well = reproduce_all(asked, running, shift, dry_run=dry_run)
    except KeyboardInterrupt:
        sys.stderr.write("calibrant: interrupted: finished trials are kept, and the same command goes on\n")
        raise
    if not well:
        sys.exit(1)


runs_app = App(name="runs", help="Look into a folder of trials, and tidy it.")
app.command(runs_app)


@runs_app.command(name="list")
def list_runs(*, runs: Path = Path("runs")) -> None:
    """List all trials: settings, status, scores, cost.

    Args:
        runs: Folder that trials are kept in.
    """
    from rich.console import Console

    from calibrant.experiments.packages import require_training_packages

    require_training_packages()
    from calibrant.experiments.trials import runs as commands
    from calibrant.experiments.trials.store import Store

    commands.list_runs(Store(runs), Console())


@runs_app.command
def show(trial: str, *, runs: Path = Path("runs")) -> None:
    """Show one trial: configuration, scores, cost, environment, and what went wrong.

    Args:
        trial: The first digits of its identity.
        runs: Folder that trials are kept in.
    """
    from rich.console import Console

    from calibrant.experiments.packages import require_training_packages

    require_training_packages()
    from calibrant.experiments.trials import runs as commands
    from calibrant.experiments.trials.store import Store

    commands.show_run(Store(runs), trial, Console())


@runs_app.command
def prune(
    *,
    runs: Path = Path("runs"),
    failed: Annotated[bool, Parameter(negative="")] = False,
    unfinished: Annotated[bool, Parameter(negative="")] = False,
    weights: Annotated[bool, Parameter(negative="")] = False,
    apply: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Say what could be removed from a folder of trials, and with --apply remove it. What is running is left alone.

    Args:
        runs: Folder that trials are kept in.
        failed: Trials that failed.
        unfinished: Trials that were begun and not ended, with their checkpoints.
        weights: The networks of finished trials; figure6 needs them, nothing else does.
        apply: Remove, instead of only saying what.
    """
    from rich.console import Console

    from calibrant.experiments.packages import require_training_packages

    require_training_packages()
    from calibrant.experiments.trials import runs as commands
    from calibrant.experiments.trials.store import Store

    commands.prune(Store(runs), failed=failed, unfinished=unfinished, weights=weights, apply=apply, console=Console())


@runs_app.command
def export(out: Path, *, runs: Path = Path("runs")) -> None:
    """Write configuration, scores, cost and environment of every finished trial to one JSON file.

    Args:
        out: The file.
        runs: Folder that trials are kept in.
    """
    from calibrant.experiments.packages import require_training_packages

    require_training_packages()
    from calibrant.experiments.trials import runs as commands
    from calibrant.experiments.trials.store import Store

    commands.export(Store(runs), out)


@app.command
def report(runs: Path = Path("runs"), *, out: Path = Path("report.html")) -> None:
    """Write one HTML page about a whole folder of trials: tables, figures, every trial, failures.

    Args:
        runs: Folder that trials are kept in.
        out: The page.
    """
    from calibrant.experiments.packages import require_training_packages

    require_training_packages()
    from calibrant.experiments.paper.store_report import write_store_report
    from calibrant.experiments.trials.store import Store

    write_store_report(out, Store(runs))


@app.command
def evaluate(
    *files: Path,
    report: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    bins: Positive | None = None,
    convention: ConventionName = "paper",
    draws: Draws = 1000,
    seed: NotNegativeInteger = 0,
    engine: Engine = "auto",
    memory_limit: str = "1GB",
    names: Names = Columns(),  # noqa: B008 (frozen)
) -> None:
    """Tell how honest the predictions in a file are; several files are compared side by side.

    A file is .npz, .csv or .parquet and holds logits or probabilities with target, or confidence with correct. In a
    table, the values of the classes are columns logits_0, logits_1, ..., or in Parquet one column of lists.

    Args:
        files: Predictions, one file for each model.
        report: Write an HTML page with figures here.
        json: Print JSON instead of a table.
        bins: Bins of ECE; by default the convention's.
        convention: Of ECE: paper (20 bins, right-closed), guo (15), torchmetrics (15, left-closed) or netcal (10).
        draws: Data sets drawn to test calibration.
        seed: Of these draws.
        engine: auto reads into memory, and takes duckdb for a table too large for it.
        memory_limit: Of duckdb.
        names: What arrays and columns are called.
    """
    from calibrant.commands.evaluate import Options, evaluate_files

    if not files:
        raise ValueError("give at least one file of predictions")
    options = Options(names, bins, convention, draws, seed, engine, memory_limit)
    evaluate_files(files, options, report=report, as_json=json)


@app.command
def recalibrate(
    *,
    fit: Path,
    apply: Path,
    method: Method = "temperature",
    out: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    names: Names = Columns(),  # noqa: B008 (frozen)
) -> None:
    """Fit a post-hoc method on one file of predictions and apply it to another.

    Writes the calibrated probabilities, and shows the scores before and after if the target is there.

    Args:
        fit: Predictions on held-out data, with target.
        apply: Predictions to calibrate.
        method: What to fit.
        out: Where to write; by default beside --apply, its name ending in -calibrated.
        json: Print JSON instead of a table.
        names: What arrays and columns are called.
    """
    from calibrant.commands.recalibrate import recalibrate_file

    recalibrate_file(fit, apply, out, method, names, as_json=json)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, or the arguments given.

    What is wrong with the input is said in one line; Ctrl-C ends it without a traceback.
    """
    try:
        app(arguments)
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, ImportError, OSError, MemoryError) as error:
        from calibrant.commands.terminal import printable

        sys.stderr.write(f"calibrant: {printable(' '.join(str(error).split()))}\n")
        sys.exit(2)
