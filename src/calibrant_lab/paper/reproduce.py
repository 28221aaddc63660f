"""`calibrant reproduce`: from a sweep to the trials it needs, and back to its tables and figures."""

import gc
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

from rich.console import Console

from calibrant.files import FileError, whole_or_not_at_all
from calibrant_lab import plugins
from calibrant_lab.paper.figures import CAPTIONS, DRAWN, FigureName, write_figure
from calibrant_lab.paper.figures.numbers import numbers_of, shift_csv
from calibrant_lab.paper.tables.build import Tabulated, tabulate
from calibrant_lab.paper.tables.formats import Format, render, significance_csv
from calibrant_lab.sweeps.dry_run import list_trials
from calibrant_lab.sweeps.live import LiveView
from calibrant_lab.sweeps.protocol import Plan, plan, rehearse
from calibrant_lab.sweeps.run import run, validated
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.table import print_whole
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.estimate import estimate
from calibrant_lab.trials.fit import check_accelerator, prepare
from calibrant_lab.trials.json_files import read_json
from calibrant_lab.trials.local_executor import Executor, LocalExecutor
from calibrant_lab.trials.provenance import told
from calibrant_lab.trials.store import DATA, Store

FIGURES: tuple[FigureName, ...] = ("figure1", "figure2", "figure3", "figure4", "figure5", "figure6")


@dataclass(frozen=True)
class Running:
    """Where trials run: executor, number in parallel, resources for each trial.

    Args:
        executor: local runs trials on this machine; ray on a cluster, or in Ray's way on this machine.
        parallel: Trials at a time on this machine; by default one for each GPU or core.
        ray_address: Address of the cluster, such as auto; by default Ray is started on this machine.
        gpus_per_trial: GPUs of a trial on the cluster; may be a fraction.
        cpus_per_trial: CPUs of a trial on the cluster; also its threads.
        accelerator: cpu, gpu, mps or auto.
    """

    executor: Literal["local", "ray"] = "local"
    parallel: int | None = None
    ray_address: str | None = None
    gpus_per_trial: float = 0.0
    cpus_per_trial: int = 1
    accelerator: str = "auto"


@dataclass(frozen=True)
class Request:
    """What to run and show.

    Attributes:
        sweeps: Tables, all of one recipe and settings; figures are drawn of the first.
        figures: Figures to draw.
        shows_tables: Whether to print and write the tables.
        data: Folder of the data.
        corrupted: Folder with the official files of the corrupted test set, for Figure 6.
        limit: Test images for each corruption, for Figure 6.
    """

    sweeps: tuple[Sweep, ...]
    figures: tuple[FigureName, ...] = ()
    shows_tables: bool = True
    data: Path | None = None
    corrupted: Path | None = None
    limit: int | None = None

    @property
    def base(self) -> Configuration:
        """What all trials have in common."""
        return self.sweeps[0].base


def run_missing(request: Request, store: Store, running: Running) -> None:
    """Run the trials that the store lacks, if there are any."""
    if "figure6" in request.figures:
        check_figure6(request)
    for sweep in request.sweeps:
        results = validated(store, sweep)
        current = plan(sweep, results)
        if not current.missing(results.keys()):
            continue
        executor = _executor(request, store, running)
        # Every trial would fail for the same reason: find out now, once.
        if running.executor == "local":
            check_accelerator(running.accelerator)
        prepared = prepare(request.base.replaced({"method": "esd"}), request.data)
        _check_data(prepared.loaders.description["fingerprint"], current.needed, store)
        del prepared
        gc.collect()
        total = len(rehearse(sweep).needed)
        with LiveView(store, Console(stderr=True), total=total) as view:
            run(sweep, store, executor, view)


def check_figure6(request: Request) -> None:
    """Before days of training rather than after them: whether Figure 6 can be drawn at all."""
    from calibrant_lab.shift.sources import shifted_images

    shifted_images(request.base, request.data, request.corrupted)


def _check_data(fingerprint: str, trials: Iterable[Configuration], store: Store) -> None:
    """A table whose rows were trained on different data would compare nothing."""
    for trial in trials:
        path = store.trial(trial).folder / DATA
        found = read_json(path) if path.exists() else None
        if isinstance(found, dict) and found.get("fingerprint", fingerprint) != fingerprint:
            raise FileError(
                path.parent, "was run with other data: give the --data-dir it was run with, or other --runs"
            )


def show(request: Request, store: Store, format: Format, out: Path | None, console: Console) -> bool:  # noqa: A002
    """Print the tables and draw the figures from what the store holds; return whether nothing is missing.

    Args:
        request: What is wanted.
        store: Where trials are kept.
        format: Format of printed tables.
        out: Folder for tables in every format, and for figures; figures go beside the trials without it.
        console: Where to print.
    """
    complete = True
    for sweep in request.sweeps:
        results = validated(store, sweep)
        failed = _without_result(sweep, results.keys(), store)
        complete &= not failed
        if request.shows_tables:
            table = print_table(plan(sweep, results, failed), store, format, console)
            if out is not None:
                write_table(out, sweep, table)
    first = request.sweeps[0]
    results = validated(store, first)
    of_figures = plan(first, results, _without_result(first, results.keys(), store))
    for line in told(found for one in of_figures.needed if (found := store.result(one)) is not None):
        Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)
    for figure in request.figures:
        try:
            made = str(_draw(figure, of_figures, request, store, out or store.folder / "figures"))
        except ValueError as error:  # not run, not kept, or without a temperature
            if len(request.figures) == 1:
                raise
            made = f"not drawn: {error}"
        console.print(f"{figure}: {made}", highlight=False, markup=False, soft_wrap=True)
    return complete


def print_table(current: Plan, store: Store, format: Format, console: Console) -> Tabulated:  # noqa: A002
    """Print a table as it stands."""
    table = tabulate(current, store)
    if format == "table":
        print_whole(console, render(table, "table"))
    else:
        console.out(render(table, format), highlight=False)
    return table


def write_table(folder: Path, sweep: Sweep, table: Tabulated) -> None:
    """Write a table in every format that is a file, with its sweep beside it; refuse to overwrite another's."""
    path = folder / f"{sweep.file_name}.toml"
    if path.exists() and path.read_text(encoding="utf-8") != sweep.to_toml():
        raise FileError(path, "is of another sweep, whose table stands beside it: choose another --out, or remove it")
    sweep.write(path)
    for ending, text in (
        ("md", render(table, "markdown")), ("tex", render(table, "latex")), ("csv", render(table, "csv")),
        ("significance.csv", significance_csv(table)),
    ):  # fmt: skip
        with whole_or_not_at_all(folder / f"{sweep.file_name}.{ending}") as temporary:
            temporary.write_text(text, encoding="utf-8")


def dry_run(request: Request, store: Store, running: Running, console: Console) -> None:
    """List the trials of every sweep, and what they will take, measured here by a few steps."""
    measure = cache(partial(estimate, data=request.data, accelerator=running.accelerator))
    for sweep in request.sweeps:
        results = validated(store, sweep)
        finished = {trial: result for trial in results if (result := store.result(trial)) is not None}
        console.print(f"{plugins.short(sweep.recipe)}, {sweep.base.settings.epochs} epochs: {sweep.name}", style="bold")
        list_trials(
            rehearse(sweep), plan(sweep, results), finished, console, estimate=measure,
            gpus=running.gpus_per_trial or 1.0,
        )  # fmt: skip
        console.print()


def _executor(request: Request, store: Store, running: Running) -> Executor:
    if running.executor == "local" and (running.ray_address is not None or running.gpus_per_trial):
        raise ValueError("--ray-address and --gpus-per-trial are for --executor ray: give it, or leave them out")
    if running.executor == "ray" and running.parallel is not None:
        raise ValueError("--parallel is for --executor local: a cluster runs as many trials as it has room for")
    if running.executor == "local":
        return LocalExecutor(store.folder, request.data, workers=running.parallel, accelerator=running.accelerator)
    from calibrant_lab.trials.ray_executor import RayExecutor

    return RayExecutor(
        store.folder, request.data, address=running.ray_address, gpus_per_trial=running.gpus_per_trial,
        cpus_per_trial=running.cpus_per_trial, accelerator=running.accelerator,
    )  # fmt: skip


def _without_result(sweep: Sweep, known: Set[Configuration], store: Store) -> frozenset[Configuration]:
    """What was asked for and has no result, after all has been run."""
    results = validated(store, sweep)
    failed: frozenset[Configuration] = frozenset()
    while missing := plan(sweep, results, failed).missing(known | failed):
        failed |= frozenset(missing)
    return failed


def _draw(name: FigureName, current: Plan, request: Request, store: Store, folder: Path) -> Path:
    if name == "figure6":
        from calibrant_lab.paper.figures.shift import figure6
        from calibrant_lab.shift.evaluation import shift_of

        shifted = shift_of(
            current, store, request.data, corrupted=request.corrupted, limit=request.limit,
            console=Console(stderr=True),
        )  # fmt: skip
        figure, numbers = figure6(shifted), shift_csv(shifted)
    else:
        figure, numbers = DRAWN[name](current, store), numbers_of(name, current, store)
    path = folder / f"{replace_name(current.sweep, name)}.svg"
    for ending in (".svg", ".png", ".pdf"):
        write_figure(path.with_suffix(ending), figure)
    with whole_or_not_at_all(path.with_suffix(".csv")) as temporary:
        temporary.write_text(numbers, encoding="utf-8")
    return path


def replace_name(sweep: Sweep, name: str) -> str:
    """What a figure of a sweep is called."""
    return sweep.model_copy(update={"name": name}).file_name


__all__ = ["CAPTIONS", "FIGURES", "Request", "Running", "dry_run", "replace", "run_missing", "show"]
