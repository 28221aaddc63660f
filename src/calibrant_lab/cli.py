"""The commands of the laboratory, which join the command line of the library through entry points."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console

if TYPE_CHECKING:
    from calibrant_lab.trials.store import Store

Positive = Annotated[int, Parameter(validator=Number(gte=1))]
Flag = Annotated[bool, Parameter(negative="")]
Several = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")]
Runs = Annotated[Path, Parameter(name="--runs", help="Folder of trials.")]


def _require_packages() -> None:
    """Raise an error that names missing packages, before any work is done."""
    needed = ("torch", "lightning", "tensorboard", "matplotlib", "jinja2", "pydantic", "filelock")
    if missing := [name for name in needed if find_spec(name) is None]:
        raise ImportError(f"this command needs the extra lab, for {', '.join(missing)}: pip install 'calibrant[lab]'")


def _store(folder: Path) -> "Store":
    _require_packages()
    from calibrant_lab.trials.store import Store

    return Store(folder)


def demo(*, seeds: Positive = 5, epochs: Positive = 30, out: Path = Path("demo")) -> None:
    """Train small networks on synthetic data with NLL, ESD and CalibratedLoss, and compare them with the known truth.

    Needs no data and no download; takes about a minute and a quarter on two cores.

    Args:
        seeds: Number of networks to train with each method.
        epochs: Passes over the training rows.
        out: Folder for the trials, the report and the predictions of the first seed, to try other commands on.
    """
    _require_packages()
    from calibrant_lab.demo import run_demo

    run_demo(out, Console(), {"epochs": epochs}, seeds=seeds)


def recipes(name: str | None = None) -> None:
    """List recipes and methods, or the settings of one recipe.

    Args:
        name: Name or import path of a recipe.
    """
    _require_packages()
    from calibrant_lab.catalogue import list_recipes, show_recipe

    list_recipes(Console()) if name is None else show_recipe(name, Console())


def train(
    *,
    recipe: str | None = None,
    method: str | None = None,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] | None = None,
    data_dir: Path | None = None,
    runs: Path = Path("runs"),
    config: Path | None = None,
    wandb: str | None = None,
    accelerator: str = "auto",
    **settings: str,
) -> None:
    """Train one network with a recipe and a method, and store it as a trial.

    A trial holds weights, predictions, curves, an HTML report and the configuration. Run the same command again to
    continue an interrupted trial, with the same result as without the interruption, or to show a finished one. With
    more --epochs it continues a finished trial; the result is that of an uninterrupted run.

    Args:
        recipe: Name of a recipe, package.module:name or ./file.py:name; digits needs no data.
        method: Name of a method, package.module:name or ./file.py:name; by default nll.
        seed: Seed of split, initialisation, order and augmentation; by default 0.
        data_dir: Folder with the official data files; by default they are downloaded from the Hugging Face hub.
        runs: Folder of trials.
        config: TOML or JSON file with recipe, method, seed, options and settings, such as the config.json of a trial.
            Options of the command line override it.
        wandb: Weights & Biases project to log to, in addition to TensorBoard.
        accelerator: cpu, gpu, mps or auto.
        settings: Settings of the recipe and options of the method, such as --epochs 5 --weight 2; calibrant recipes
            lists them.
    """
    _require_packages()
    from calibrant_lab.train import resolve
    from calibrant_lab.train import train as run

    configuration = resolve(recipe, method, seed, config, settings)
    run(configuration, data_dir, runs, wandb=wandb, accelerator=accelerator)


def reproduce(
    target: str,
    *,
    recipe: Several = (),
    profile: str | None = None,
    methods: Several = (),
    weights: Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative="")] = (),
    seeds: Positive | None = None,
    search_seeds: Positive | None = None,
    select: str | None = None,
    columns: Several = (),
    data_dir: Path | None = None,
    runs: Path = Path("runs"),
    format: Literal["table", "markdown", "latex", "csv"] = "table",  # noqa: A002 (what users call it)
    out: Path | None = None,
    dry_run: Flag = False,
    executor: Literal["local", "ray"] = "local",
    parallel: Positive | None = None,
    ray_address: str | None = None,
    gpus_per_trial: Annotated[float, Parameter(validator=Number(gte=0))] = 0.0,
    cpus_per_trial: Positive | None = None,
    accelerator: str = "auto",
    corrupted_dir: Path | None = None,
    shift_images: Positive | None = None,
    **settings: str,
) -> None:
    """Run a sweep, and show its tables and figures, with the paper's numbers beside ours.

    For each method a sweep searches the weight λ, then the options of the objective, chooses them by validation scores,
    and trains all seeds. Trials are kept in a folder and none is run twice: after an interruption, the same command
    runs the missing ones.

    Args:
        target: table1, table2, table3, figure1 to figure6, all, or a sweep of your own as a TOML file.
        recipe: Recipes, by default the paper's six or the recipe of the sweep; package.module:name or ./file.py:name
            for your own.
        profile: Size of the search: paper (default) as published; cpu smaller, with 50 epochs; quick for a first try on
            digits. Not for a sweep of your own.
        methods: Methods to compare with the NLL, by default the paper's; package.module:name or ./file.py:name for your
            own.
        weights: Values of λ to search, by default the profile's.
        seeds: Number of networks per row.
        search_seeds: Number of networks per candidate of the search; their means are compared.
        select: Validation score that selects a candidate, the lowest wins; by default ece.
        columns: Scores to show, such as accuracy ece smooth_ece log_loss ece+temperature.
        data_dir: Folder with the official data files; for several recipes, with a subfolder named after each. By
            default they are downloaded from the Hugging Face hub.
        runs: Folder of trials.
        format: Format of printed tables: table, markdown, latex or csv.
        out: Folder for figures and tables in every format; by default figures go to RUNS/figures.
        dry_run: Only list the trials and show the table so far.
        executor: local runs trials as processes on this machine, ray on a Ray cluster.
        parallel: Number of trials at a time on this machine; by default one per GPU or core.
        ray_address: Address of the Ray cluster, such as auto; by default Ray is started on this machine.
        gpus_per_trial: GPUs per trial on the cluster; may be a fraction.
        cpus_per_trial: CPUs and threads per trial on the cluster; by default 1.
        accelerator: cpu, gpu, mps or auto.
        corrupted_dir: Folder with the official CIFAR-10-C or CIFAR-100-C, for figure6; by default corruptions are
            generated.
        shift_images: Number of test images to use for figure6; by default all.
        settings: Settings of the recipe for all trials, such as --epochs 5; calibrant recipes lists them.
    """
    store = _store(runs)
    from calibrant_lab.paper import reproduce as paper
    from calibrant_lab.paper.request import requested

    changes: dict[str, Any] = {
        "methods": methods, "seeds": seeds, "search_seeds": search_seeds, "select": select, "columns": columns,
        "grids": {"weight": weights} if weights else None,
    }  # fmt: skip
    given = {name: value for name, value in changes.items() if value}
    requests = requested(target, recipe, profile, given, settings, data_dir, corrupted_dir, shift_images)
    running = paper.Running(executor, parallel, ray_address, gpus_per_trial, cpus_per_trial, accelerator)
    try:
        complete = paper.reproduce(requests, store, running, format, out, only_list=dry_run)
    except KeyboardInterrupt:
        sys.stderr.write("calibrant: interrupted: finished trials are kept; run the same command to continue\n")
        raise
    if not complete:
        sys.exit(1)


runs = App(name="runs", help="Inspect and clean up a folder of trials.")


@runs.command(name="list")
def list_trials(*, folder: Runs = Path("runs")) -> None:
    """List all trials: settings, status, scores, cost."""
    store = _store(folder)
    from calibrant_lab.trials.listing import list_runs

    list_runs(store, Console())


@runs.command
def show(trial: str, *, folder: Runs = Path("runs")) -> None:
    """Show one trial: configuration, scores, cost, environment, and the traceback if it failed.

    Args:
        trial: First digits of the trial's identity.
        folder: Folder of trials.
    """
    store = _store(folder)
    from calibrant_lab.trials.listing import show_run

    show_run(store, trial, Console())


@runs.command
def prune(
    *,
    folder: Runs = Path("runs"),
    failed: Flag = False,
    unfinished: Flag = False,
    weights: Flag = False,
    apply: Flag = False,
) -> None:
    """List what can be removed from a folder of trials, and remove it with --apply. Running trials are not touched.

    Args:
        folder: Folder of trials.
        failed: Remove failed trials.
        unfinished: Remove unfinished trials, with their checkpoints.
        weights: Remove the weights of finished trials, which only figure6 needs.
        apply: Remove instead of only listing.
    """
    store = _store(folder)
    from calibrant_lab.trials.listing import prune

    prune(store, failed=failed, unfinished=unfinished, weights=weights, apply=apply, console=Console())


@runs.command
def export(out: Path, *, folder: Runs = Path("runs"), predictions: Flag = False) -> None:
    """Write configuration, scores, cost and environment of every finished trial to one JSON file.

    Args:
        out: File to write.
        folder: Folder of trials.
        predictions: Also write the logits of the test sets, as float16, to an .npz file of the same name.
    """
    store = _store(folder)
    from calibrant_lab.trials.export import export

    export(store, out, predictions=predictions)


def report(folder: Annotated[Path, Parameter(name="runs")] = Path("runs"), *, out: Path = Path("report.html")) -> None:
    """Write an HTML page about a folder of trials: tables, figures, every trial, failures.

    Args:
        folder: Folder of trials.
        out: File to write.
    """
    store = _store(folder)
    from calibrant.files import write_whole
    from calibrant_lab.paper.store_report import render_store

    write_whole(out, render_store(store))
    Console().print(f"Report: {out}", highlight=False, markup=False, soft_wrap=True)
