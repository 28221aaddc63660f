"""The commands of the laboratory, which join the command line of the library through entry points."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from calibrant_lab.configuration import Overrides, RecipeName
from calibrant_lab.names import (
    PAPER,
    PUBLISHED,
    Format,
    MethodName,
    ProfileName,
    Running,
    Shift,
    Target,
)

Positive = Annotated[int, Parameter(validator=Number(gte=1))]
Settings = Annotated[
    Overrides, Parameter(name="*", consume_multiple=True, group="Settings (by default those of the recipe)")
]


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
    from calibrant_lab.demo import run_demo

    run_demo(seeds=seeds, epochs=epochs, out=out, console=Console())


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
        out: Folder of the run; by default runs/RECIPE-OBJECTIVE-seedSEED.
        config: TOML or JSON file of settings, such as the config.json of an earlier run. Options go before it.
        wandb: Project of Weights & Biases to log to, besides TensorBoard.
        accelerator: cpu, gpu, mps or auto.
        settings: Of the run.
    """
    from calibrant_lab.packages import require_training_packages
    from calibrant_lab.recipes import resolve

    configuration = resolve(recipe, settings, config)
    if out is None:
        out = Path("runs", f"{configuration.recipe}-{configuration.objective}-seed{configuration.seed}")
    require_training_packages()
    from calibrant_lab import train

    train.train(configuration, data_dir, out, wandb=wandb, accelerator=accelerator)


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
    from calibrant_lab.packages import require_training_packages

    require_training_packages()
    from calibrant_lab.paper.reproduce import Asked, reproduce_all

    asked = Asked(target, recipe, profile, search_seeds, methods, settings, data_dir, runs, format, out)
    try:
        well = reproduce_all(asked, running, shift, dry_run=dry_run)
    except KeyboardInterrupt:
        sys.stderr.write("calibrant: interrupted: finished trials are kept, and the same command goes on\n")
        raise
    if not well:
        sys.exit(1)


runs = App(name="runs", help="Look into a folder of trials, and tidy it.")


@runs.command(name="list")
def list_runs(*, runs: Path = Path("runs")) -> None:
    """List all trials: settings, status, scores, cost.

    Args:
        runs: Folder that trials are kept in.
    """
    from rich.console import Console

    from calibrant_lab.packages import require_training_packages

    require_training_packages()
    from calibrant_lab.trials import runs as commands
    from calibrant_lab.trials.store import Store

    commands.list_runs(Store(runs), Console())


@runs.command
def show(trial: str, *, runs: Path = Path("runs")) -> None:
    """Show one trial: configuration, scores, cost, environment, and what went wrong.

    Args:
        trial: The first digits of its identity.
        runs: Folder that trials are kept in.
    """
    from rich.console import Console

    from calibrant_lab.packages import require_training_packages

    require_training_packages()
    from calibrant_lab.trials import runs as commands
    from calibrant_lab.trials.store import Store

    commands.show_run(Store(runs), trial, Console())


@runs.command
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

    from calibrant_lab.packages import require_training_packages

    require_training_packages()
    from calibrant_lab.trials import runs as commands
    from calibrant_lab.trials.store import Store

    commands.prune(Store(runs), failed=failed, unfinished=unfinished, weights=weights, apply=apply, console=Console())


@runs.command
def export(out: Path, *, runs: Path = Path("runs")) -> None:
    """Write configuration, scores, cost and environment of every finished trial to one JSON file.

    Args:
        out: The file.
        runs: Folder that trials are kept in.
    """
    from calibrant_lab.packages import require_training_packages

    require_training_packages()
    from calibrant_lab.trials import runs as commands
    from calibrant_lab.trials.store import Store

    commands.export(Store(runs), out)


def report(runs: Path = Path("runs"), *, out: Path = Path("report.html")) -> None:
    """Write one HTML page about a whole folder of trials: tables, figures, every trial, failures.

    Args:
        runs: Folder that trials are kept in.
        out: The page.
    """
    from calibrant_lab.packages import require_training_packages

    require_training_packages()
    from calibrant_lab.paper.store_report import write_store_report
    from calibrant_lab.trials.store import Store

    write_store_report(out, Store(runs))
