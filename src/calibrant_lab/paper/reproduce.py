"""`calibrant reproduce`: from a table or figure of the paper to the trials it needs, and back to the table."""

import gc
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from calibrant.files import FileError, whole_or_not_at_all
from calibrant_lab.configuration import Configuration, Overrides, RecipeName
from calibrant_lab.fit import check_accelerator, prepare
from calibrant_lab.json_files import read_json
from calibrant_lab.names import (
    FIGURES,
    SHIFTED,
    TABLES,
    FigureName,
    Format,
    MethodName,
    ProfileName,
    Running,
    Shift,
    TableName,
    Target,
)
from calibrant_lab.paper.figure_numbers import curves_csv, shift_csv
from calibrant_lab.paper.figures import DRAWN, write_figure
from calibrant_lab.paper.formats import render, significance_csv
from calibrant_lab.paper.tabulated import Tabulated, tabulate
from calibrant_lab.recipes import resolve
from calibrant_lab.table import print_whole
from calibrant_lab.trials.executors import Executor, LocalExecutor
from calibrant_lab.trials.live import LiveView
from calibrant_lab.trials.protocol import PROFILES, Plan, Profile, Protocol, Results, rehearse, with_profile
from calibrant_lab.trials.rehearsal import list_trials
from calibrant_lab.trials.runner import run, stored
from calibrant_lab.trials.store import DATA, Store

# Of rows, not of a recipe: searched, or as published.
OF_THE_PROTOCOL = (
    "objective", "weight", "seed", "bandwidth", "softness", "root", "gamma", "smoothing", "reduced_split", "method",
)  # fmt: skip


class OptionError(ValueError):
    """An option that is wrong for all recipes."""


@dataclass(frozen=True)
class Asked:
    """The command line."""

    target: Target
    recipes: tuple[RecipeName, ...]
    profile: ProfileName
    search_seeds: int
    methods: tuple[MethodName, ...]
    settings: Overrides
    data: Path | None
    runs: Path
    format: Format
    out: Path | None


@dataclass(frozen=True)
class Request:
    """What to reproduce, and how much of it.

    Attributes:
        target: A table or a figure of the paper, or all of them.
        base: The recipe, with the changes of profile and command line.
        profile: How much to search.
        search_seeds: Networks a candidate of the search.
        methods: Rows of Table 1 besides the NLL; the figures show the same.
        data: Folder of the data.
        corrupted: Folder with the official files of the corrupted test set, for Figure 6.
        limit: Test images a corruption, for Figure 6.
    """

    target: Target
    base: Configuration
    profile: ProfileName
    search_seeds: int
    methods: tuple[MethodName, ...]
    data: Path | None = None
    corrupted: Path | None = None
    limit: int | None = None

    @property
    def tables(self) -> tuple[TableName, ...]:
        """The tables whose trials are needed: the figures are drawn from those of Table 1."""
        if self.target == "all":
            return TABLES
        return tuple(name for name in TABLES if name == self.target) or ("table1",)

    @property
    def figures(self) -> tuple[FigureName, ...]:
        """The figures to draw; of some recipes there are no corrupted images, and so no Figure 6."""
        wanted = FIGURES if self.target == "all" else tuple(name for name in FIGURES if name == self.target)
        return tuple(name for name in wanted if self.target == name or self.base.recipe in SHIFTED or name != "figure6")

    def file_name(self, made: TableName | FigureName) -> str:
        """Without an ending; with profile and seeds, so that a quick look does not overwrite what took days."""
        search = "" if self.search_seeds == 1 else f"-{self.search_seeds}seeds"
        return f"{self.base.recipe}-{self.profile}{search}-{made}"

    def plan(self, results: Results, failed: Set[Configuration] = frozenset()) -> Plan:
        """All rows of all tables asked for, each trial once."""
        plans = [self.table(name, results, failed) for name in self.tables]
        return replace(plans[0], rows=tuple(row for plan in plans for row in plan.rows))

    def table(self, name: TableName, results: Results, failed: Set[Configuration] = frozenset()) -> Plan:
        """One of the tables."""
        profile = searched(self.profile, self.search_seeds)
        return Protocol(self.base, profile, results, failed).table(name, self.methods)


def searched(profile: ProfileName, seeds: int) -> Profile:
    """A profile with so many networks a candidate."""
    return replace(PROFILES[profile], search_seeds=seeds)


def reproduce_all(asked: Asked, running: Running, shift: Shift, *, dry_run: bool) -> bool:
    """Reproduce for one recipe after the other; return whether every trial ended well.

    One after the other: on a cluster with room for more, give several commands the same folder of trials. A recipe
    that cannot be run, say for want of its data, does not stop those after it.
    """
    searched(asked.profile, asked.search_seeds)
    console, store, well = Console(), Store(asked.runs), True
    for base in [_base(recipe, asked) for recipe in asked.recipes]:
        data = asked.data
        if data is not None and len(asked.recipes) > 1:
            data = None if base.recipe == "digits" else data / base.recipe
        request = Request(
            asked.target, base, asked.profile, asked.search_seeds, asked.methods, data, shift.corrupted_dir,
            shift.shift_images,
        )  # fmt: skip
        try:
            if asked.target == "figure6" or shift.corrupted_dir is not None:
                _check_shift(request)
            if dry_run:
                _list(request, store, console)
                _print_tables(request, store, asked.format, console)
                continue
            run_missing(request, store, running)
            well &= show(request, store, asked.format, asked.out, console)
        except (ValueError, OSError, ImportError) as error:
            if len(asked.recipes) == 1 or isinstance(error, OptionError):
                raise
            well = False
            Console(stderr=True).print(
                f"error: {base.recipe}: {error}", style="red", highlight=False, markup=False, soft_wrap=True
            )
    return well


def run_missing(request: Request, store: Store, running: Running) -> None:
    """Run the trials that the store lacks, if there are any."""
    results = _validated(store)
    if not request.plan(results).missing(results.keys()):
        return
    executor = _executor(request, store, running)
    # Every trial would fail for the same reason: find out now, once.
    if running.executor == "local":
        try:
            check_accelerator(running.accelerator)
        except ValueError as error:
            raise OptionError(str(error)) from error
    prepared = prepare(request.base.replaced({"objective": "esd"}), request.data)
    _check_data(prepared.loaders.description["fingerprint"], request.plan(results).needed, store)
    del prepared
    gc.collect()
    with LiveView(store, Console(stderr=True), total=len(rehearse(request.plan).needed)) as view:
        run(request.plan, store, executor, view)


def _check_shift(request: Request) -> None:
    """Before days of training rather than after them: whether Figure 6 can be drawn at all."""
    recipe = request.base.recipe
    if request.target == "figure6" and recipe not in SHIFTED:
        raise ValueError(f"there are no corrupted images of {recipe}: figure6 is for {', '.join(SHIFTED)}")
    if request.corrupted is not None and "figure6" in request.figures:
        from calibrant_lab.shift.sources import official

        official(request.corrupted, recipe)


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
        format: Of printed tables.
        out: Folder for tables in every format, and for figures; figures go beside the trials without it.
        console: Where to print.
    """
    results = _validated(store)
    failed = _without_result(request, results)
    for name, table in _print_tables(request, store, format, console, failed).items():
        if out is not None:
            write_table(out, request.file_name(name), table)
    plan = request.table("table1", results, failed)
    for figure in request.figures:
        try:
            made = str(_draw(figure, plan, request, store, out or store.folder / "figures"))
        except ValueError as error:  # not run, not kept, or without a temperature
            if request.target != "all":
                raise
            made = f"not drawn: {error}"
        console.print(f"{figure}: {made}", highlight=False, markup=False, soft_wrap=True)
    return not failed


def _print_tables(
    request: Request,
    store: Store,
    format: Format,  # noqa: A002
    console: Console,
    failed: Set[Configuration] = frozenset(),
) -> dict[TableName, Tabulated]:
    """The tables asked for, as they stand."""
    results, found = _validated(store), {}
    for name in request.tables:
        if request.target in (name, "all"):
            found[name] = tabulate(name, request.table(name, results, failed), store, profile=request.profile)
            rendered = render(found[name], format)
            print_whole(console, rendered) if format == "table" else console.out(rendered, highlight=False)
    return found


def write_table(folder: Path, name: str, table: Tabulated) -> None:
    """A table in every format that is a file."""
    for ending, text in (
        ("md", render(table, "markdown")), ("tex", render(table, "latex")), ("csv", render(table, "csv")),
        ("significance.csv", significance_csv(table)),
    ):  # fmt: skip
        with whole_or_not_at_all(folder / f"{name}.{ending}") as temporary:
            temporary.write_text(text, encoding="utf-8")


def _base(recipe: RecipeName, asked: Asked) -> Configuration:
    """Options go before the profile, and the profile before the recipe."""
    for name in OF_THE_PROTOCOL:
        if getattr(asked.settings, name) is not None:
            raise ValueError(f"{name.replace('_', '-')} is the protocol's to choose: leave it out")
    # Some rows have an objective: its settings are welcome.
    base = replace(resolve(recipe, replace(asked.settings, objective="esd"), None), objective="nll")
    return base if asked.settings.epochs is not None else with_profile(base, PROFILES[asked.profile])


def _validated(store: Store) -> Results:
    return {configuration: result.validation for configuration, result in stored(store).items()}


def _executor(request: Request, store: Store, running: Running) -> Executor:
    if running.executor == "local" and (running.ray_address is not None or running.gpus_per_trial):
        raise OptionError("--ray-address and --gpus-per-trial are for --executor ray: give it, or leave them out")
    if running.executor == "ray" and running.parallel is not None:
        raise OptionError("--parallel is for --executor local: a cluster runs as many trials as it has room for")
    if running.executor == "local":
        return LocalExecutor(store.folder, request.data, workers=running.parallel, accelerator=running.accelerator)
    from calibrant_lab.trials.ray_executor import RayExecutor

    return RayExecutor(
        store.folder, request.data, address=running.ray_address, gpus_per_trial=running.gpus_per_trial,
        cpus_per_trial=running.cpus_per_trial, accelerator=running.accelerator,
    )  # fmt: skip


def _list(request: Request, store: Store, console: Console) -> None:
    found = stored(store)
    known = request.plan({configuration: result.validation for configuration, result in found.items()})
    base, search = request.base, "" if known.search_seeds == 1 else f", {known.search_seeds} seeds a candidate"
    console.print(f"{base.recipe}, {base.model}, {base.epochs} epochs, profile {request.profile}{search}", style="bold")
    list_trials(rehearse(request.plan), known, found, console)
    console.print()


def _without_result(request: Request, results: Results) -> frozenset[Configuration]:
    """What was asked for and has no result, after all has been run."""
    failed: frozenset[Configuration] = frozenset()
    while missing := request.plan(results, failed).missing(results.keys() | failed):
        failed |= frozenset(missing)
    return failed


def _draw(name: FigureName, plan: Plan, request: Request, store: Store, folder: Path) -> Path:
    numbers: str | None
    if name == "figure6":
        from calibrant_lab.shift.evaluation import shift_of
        from calibrant_lab.shift.figure import figure6

        shifted = shift_of(
            plan, store, request.data, corrupted=request.corrupted, limit=request.limit, console=Console(stderr=True)
        )
        figure, numbers = figure6(shifted), shift_csv(shifted)
    else:
        figure, numbers = DRAWN[name](plan, store), curves_csv(plan, store) if name == "figure1" else None
    path = folder / f"{request.file_name(name)}.svg"
    for ending in (".svg", ".png"):
        write_figure(path.with_suffix(ending), figure)
    if numbers is not None:
        with whole_or_not_at_all(path.with_suffix(".csv")) as temporary:
            temporary.write_text(numbers, encoding="utf-8")
    return path
