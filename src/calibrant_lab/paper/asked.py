"""What the command line asks for, as sweeps."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from calibrant_lab import plugins
from calibrant_lab.paper.profiles import TABLES, paper_sweep
from calibrant_lab.paper.reproduce import FIGURES, Request, Running, dry_run, print_table, run_missing, show
from calibrant_lab.paper.tables.formats import Format
from calibrant_lab.recipes import recipe
from calibrant_lab.sweeps.protocol import plan
from calibrant_lab.sweeps.run import validated
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.store import Store


@dataclass(frozen=True)
class Asked:
    """The command line of `calibrant reproduce`.

    Attributes:
        target: A table or a figure of the paper, ``"all"``, or the path of a sweep.
        recipes: Names or import paths.
        profile: How much of the search to do.
        changes: Fields of the sweep that are not those of table and profile.
        weights: Values of λ to search.
        settings: Settings of the recipe, as texts.
        data: Folder of the data.
        runs: Folder of the trials.
        format: Format of printed tables.
        out: Folder for tables and figures.
        corrupted: Folder of the published corrupted images.
        limit: Test images of Figure 6.
    """

    target: str
    recipes: tuple[str, ...]
    profile: str
    changes: Mapping[str, Any]
    weights: tuple[float, ...]
    settings: Mapping[str, str]
    data: Path | None
    runs: Path
    format: str
    out: Path | None
    corrupted: Path | None = None
    limit: int | None = None


def reproduce_all(asked: Asked, running: Running, *, only_list: bool) -> bool:
    """Run and show one recipe after the other; return whether every trial ended well.

    On a cluster with room for more, give several commands the same folder of trials. A recipe that cannot be run, for
    want of its data for example, does not stop those after it.
    """
    if asked.format not in get_args(Format):
        raise ValueError(f"there is no format {asked.format!r}: there are {', '.join(get_args(Format))}")
    console, store, complete = Console(), Store(asked.runs), True
    requests = _requests(asked)
    for request in requests:
        try:
            if only_list:
                dry_run(request, store, running, console)
                for sweep in request.sweeps:
                    print_table(plan(sweep, validated(store, sweep)), store, asked.format, console)  # type: ignore[arg-type]
                continue
            run_missing(request, store, running)
            complete &= show(request, store, asked.format, asked.out, console)  # type: ignore[arg-type]
        except (ValueError, OSError, ImportError) as error:
            if len(requests) == 1:
                raise
            complete = False
            name = plugins.short(request.base.recipe)
            Console(stderr=True).print(
                f"error: {name}: {error}", style="red", highlight=False, markup=False, soft_wrap=True
            )
    return complete


def _requests(asked: Asked) -> list[Request]:
    """One for each recipe, checked before the first is run."""
    if asked.target.endswith(".toml"):
        sweep = Sweep.read(Path(asked.target))
        changes = dict(asked.changes)
        if asked.weights:
            changes["grids"] = sweep.grids | {"weight": asked.weights}
        if asked.settings:
            changes["settings"] = sweep.settings | _checked(sweep.recipe, asked.settings)
        sweep = Sweep.checked(sweep.model_dump() | changes)
        return [Request((sweep,), data=asked.data)]
    if asked.target not in (*TABLES, *FIGURES, "all"):
        names = ", ".join((*TABLES, *FIGURES))
        raise ValueError(f"there is no target {asked.target!r}: there are {names}, all, and sweeps in .toml files")
    return [_request(asked, name) for name in asked.recipes]


def _request(asked: Asked, name: str) -> Request:
    changes: dict[str, Any] = dict(asked.changes)
    if asked.weights:
        changes["grids"] = {"weight": asked.weights}
    if asked.settings:
        changes["settings"] = _checked(name, asked.settings)
    tables = TABLES if asked.target == "all" else (asked.target,) if asked.target in TABLES else ("table1",)
    sweeps = []
    for table in tables:
        # Rows of one's own are those of Table 1.
        own = changes if table == "table1" or asked.target == table else {**changes, "methods": None, "columns": None}
        given = {key: value for key, value in own.items() if value is not None}
        sweeps.append(paper_sweep(table, name, asked.profile, given))
    figures = FIGURES if asked.target == "all" else tuple(one for one in FIGURES if one == asked.target)
    if asked.target == "all" and not sweeps[0].base.of_recipe.shift:
        figures = figures[:-1]
    data = asked.data
    if data is not None and len(asked.recipes) > 1:
        data = data / plugins.short(name) if (data / plugins.short(name)).is_dir() else None
    return Request(tuple(sweeps), figures, asked.target not in FIGURES, data, asked.corrupted, asked.limit)


def _checked(name: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Settings of the command line as plain values, only those that were given."""
    given = {key.replace("-", "_"): value for key, value in settings.items()}
    checked = recipe(name).settings.checked({key: _value(value) for key, value in given.items()}).to_dict()
    return {key: checked[key] for key in given}


def _value(text: str) -> Any:
    """A list where there are commas."""
    return text.split(",") if "," in text else text
