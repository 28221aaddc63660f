"""`calibrant reproduce`: run the trials of a sweep, then show its tables and figures."""

import gc
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from torch import nn

from calibrant.commands.terminal import warnings_shown
from calibrant.files import FileError, read_json, write_whole
from calibrant.report.formats import counted
from calibrant_lab import plugins
from calibrant_lab.paper.figures import DRAWN, FORMATS, write_figure
from calibrant_lab.paper.figures.numbers import numbers_of, shift_csv
from calibrant_lab.paper.figures.shift import figure6
from calibrant_lab.paper.request import Request
from calibrant_lab.paper.tables.build import Tabulated, tabulate
from calibrant_lab.paper.tables.formats import Format, for_terminal, render, significance_csv
from calibrant_lab.score_table import print_whole
from calibrant_lab.scores import Predicted, score
from calibrant_lab.shift.evaluation import shift_of
from calibrant_lab.sweeps.dry_run import estimate, list_trials
from calibrant_lab.sweeps.live import LiveView
from calibrant_lab.sweeps.protocol import Plan, Validated, plan, rehearse
from calibrant_lab.sweeps.run import record, run, validated
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.fit import Prepared, check_accelerator, prepare
from calibrant_lab.trials.local_executor import Executor, LocalExecutor
from calibrant_lab.trials.provenance import change_lines, other_data, warning_lines
from calibrant_lab.trials.store import DATA, Store


@dataclass(frozen=True)
class Running:
    """Where trials run: executor, number in parallel, resources per trial."""

    executor: Literal["local", "ray"] = "local"
    parallel: int | None = None
    ray_address: str | None = None
    gpus_per_trial: float = 0.0
    cpus_per_trial: int | None = None
    accelerator: str = "auto"

    def __post_init__(self) -> None:
        of_cluster = self.ray_address, self.gpus_per_trial or None, self.cpus_per_trial
        if self.executor == "local" and of_cluster != (None, None, None):
            raise ValueError("--ray-address, --gpus-per-trial and --cpus-per-trial need --executor ray: add it")
        if self.executor == "ray" and self.parallel is not None:
            raise ValueError("--parallel is for --executor local: a cluster runs as many trials as its resources allow")


@warnings_shown()
def reproduce(
    requests: Sequence[Request],
    store: Store,
    running: Running,
    format: Format,  # noqa: A002
    out: Path | None,
    *,
    only_list: bool,
) -> bool:
    """Run and show one recipe after another; return whether every trial succeeded.

    To use more of a cluster, give several commands the same folder of trials. A recipe that cannot be run, for example
    because its data are missing, does not stop the others. Without ``out``, figures go to the folder of trials.
    """
    console, complete = Console(), True
    for request in requests:
        try:
            if only_list:
                dry_run(request, store, running, console)
                for sweep in request.sweeps:
                    _print_table(plan(sweep, validated(store, sweep)), store, format, console)
                continue
            _run_missing(request, store, running)
            complete &= _show(request, store, format, out, console)
        except (ValueError, OSError, ImportError) as error:
            if len(requests) == 1:
                raise
            complete = False
            text = f"error: {plugins.short(request.base.recipe)}: {error}"
            Console(stderr=True).print(text, style="red", highlight=False, markup=False, soft_wrap=True)
    return complete


def dry_run(request: Request, store: Store, running: Running, console: Console) -> None:
    """List the trials of every sweep, and estimate their cost from a few steps on this machine."""
    measure = cache(partial(estimate, data=request.data, accelerator=running.accelerator))
    if any(":" in one for sweep in request.sweeps for one in (sweep.select, *sweep.columns)):
        prepared = None
        with suppress(ValueError, OSError, ImportError):  # the line about the cost says what is wrong
            prepared = prepare(request.base.replaced({"reduced_split": True}), request.data)
        if prepared is not None:
            _check_metrics(request, prepared)
    for sweep in request.sweeps:
        known, results = _planned(sweep, store)
        epochs = counted(sweep.base.settings.epochs, "epoch")
        console.print(f"{plugins.short(sweep.recipe)}, {epochs}: {sweep.name}", style="bold")
        list_trials(rehearse(sweep), known, results, console, estimate=measure, gpus=running.gpus_per_trial or 1.0)
        console.print()


def _run_missing(request: Request, store: Store, running: Running) -> None:
    """Run missing trials."""
    for sweep in request.sweeps:
        current, results = _planned(sweep, store)
        if not current.missing(results.keys()):
            record(sweep, store)
            continue
        executor = _executor(request, store, running)
        # Check once now what would otherwise make every trial fail.
        if running.executor == "local":
            check_accelerator(running.accelerator)
        _check_data(request, current.needed, store)
        gc.collect()
        with LiveView(store, Console(stderr=True), total=len(rehearse(sweep).needed)) as view:
            run(sweep, store, executor, view.show)


def _planned(sweep: Sweep, store: Store) -> tuple[Plan, dict[Configuration, Validated]]:
    """The plan and the scores it is based on; raises ``FileError`` if these are of other files of the same name."""
    results = validated(store, sweep)
    current = plan(sweep, results)
    for one in current.needed:
        if one in results:
            store.trial(one).found_again(one)
    return current, results


def _check_data(request: Request, trials: Iterable[Configuration], store: Store) -> None:
    """Raise ``ValueError`` if stored trials used different data, as rows must be comparable, or a metric fails."""
    prepared = prepare(request.base.replaced({"reduced_split": True}), request.data)
    _check_metrics(request, prepared)
    fingerprint = prepared.loaders.description["fingerprint"]
    for trial in (one for one in trials if one.seed == 0):  # data may depend on the seed
        path = store.trial(trial).folder / DATA
        found = read_json(path) if path.exists() else None
        if isinstance(found, dict) and found.get("fingerprint", fingerprint) != fingerprint:
            reason = "was run with different data: give the --data-dir it was run with, or another --runs"
            raise FileError(path.parent, reason)


def _check_metrics(request: Request, prepared: Prepared) -> None:
    """Compute every metric of the user once, from random logits of the real targets; raise if one raises."""
    for sweep in request.sweeps:
        for part, columns in (("validation", (sweep.select,)), ("test", sweep.columns)):
            target, classes = prepared.loaders.targets[part], prepared.loaders.classes
            for name in {one.partition("+")[0] for one in columns if ":" in one}:
                noise = torch.randn(len(target), classes, generator=torch.Generator().manual_seed(0))
                # Right more often than not, as those of a trained network.
                score(name, Predicted(noise + 2 * nn.functional.one_hot(target, classes), target))


def _show(request: Request, store: Store, format: Format, out: Path | None, console: Console) -> bool:  # noqa: A002
    """Print the tables and draw the figures from stored results; return whether nothing is missing."""
    plans = [_ended(sweep, store) for sweep in request.sweeps]
    if request.shows_tables:
        for current, _ in plans:
            table = _print_table(current, store, format, console)
            if out is not None:
                _write_table(out, table)
    needed = plans[0][0].needed
    others = (line for one in needed for line in other_data(store.trial(one), request.data))
    results = [replace(found, configuration=one) for one in needed if (found := store.result(one)) is not None]
    changes = change_lines(results, others)
    for line in (*changes, *warning_lines(store.trial(one) for one in needed)):
        Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)
    for figure in request.figures:
        try:
            made = str(_write_figure(figure, plans[0][0], request, store, out or store.folder / "figures"))
        except ValueError as error:  # not run, not stored, or without a temperature
            if len(request.figures) == 1:
                raise
            made = f"not drawn: {error}"
        console.print(f"{figure}: {made}", highlight=False, markup=False, soft_wrap=True)
    return all(complete for _, complete in plans)


def _ended(sweep: Sweep, store: Store) -> tuple[Plan, bool]:
    """The plan after all trials have ended, those without a result counted as failed; and whether all succeeded."""
    results = validated(store, sweep)
    failed: frozenset[Configuration] = frozenset()
    while missing := (current := plan(sweep, results, failed)).missing(results.keys() | failed):
        failed |= frozenset(missing)
    return current, not failed


def _print_table(current: Plan, store: Store, format: Format, console: Console) -> Tabulated:  # noqa: A002
    table = tabulate(current, store)
    if format == "table":
        print_whole(console, for_terminal(table))
    else:
        console.out(render(table, format), highlight=False)
    return table


def _suffix(folder: Path, sweep: Sweep) -> str:
    """Suffix of a sweep's file names: empty, or its identity if another sweep has files of the same names.

    The sweep is written beside its files to identify them.
    """
    suffix = ""
    path = folder / f"{sweep.file_name}.toml"
    if path.exists() and path.read_text(encoding="utf-8") != sweep.to_toml():
        suffix = f"-{sweep.identity}"
        text = f"{path} has different settings: files of this sweep are named ...{suffix}"
        Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
    write_whole(folder / f"{sweep.file_name}{suffix}.toml", sweep.to_toml())
    return suffix


def _write_table(folder: Path, table: Tabulated) -> None:
    """Write a table in every file format."""
    name = f"{table.sweep.file_name}{_suffix(folder, table.sweep)}"
    texts = {
        "md": render(table, "markdown"), "tex": render(table, "latex"), "csv": render(table, "csv"),
        "significance.csv": significance_csv(table),
    }  # fmt: skip
    for ending, text in texts.items():
        write_whole(folder / f"{name}.{ending}", text)


def _write_figure(name: str, current: Plan, request: Request, store: Store, folder: Path) -> Path:
    """Draw a figure, and write it and its data; return the path of the SVG."""
    sweep = current.sweep
    if name == "figure6":
        shifted = shift_of(
            current, store, request.data, corrupted=request.corrupted, limit=request.limit,
            console=Console(stderr=True),
        )  # fmt: skip
        figure, numbers = figure6(shifted, sweep.subject), shift_csv(sweep, shifted)
    else:
        figure, numbers = DRAWN[name](current, store), numbers_of(name, current, store)
    path = folder / f"{sweep.model_copy(update={'name': name}).file_name}{_suffix(folder, sweep)}.svg"
    for ending in FORMATS:
        write_figure(path.with_suffix(ending), figure)
    write_whole(path.with_suffix(".csv"), numbers)
    return path


def _executor(request: Request, store: Store, running: Running) -> Executor:
    if running.executor == "local":
        return LocalExecutor(store.folder, request.data, workers=running.parallel, accelerator=running.accelerator)
    from calibrant_lab.trials.ray_executor import RayExecutor

    return RayExecutor(
        store.folder, request.data, address=running.ray_address, gpus_per_trial=running.gpus_per_trial,
        cpus_per_trial=running.cpus_per_trial or 1, accelerator=running.accelerator,
    )  # fmt: skip
