"""What the command line asks for, as sweeps and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant_lab import plugins
from calibrant_lab.paper.profiles import FIGURES, RECIPES, TABLES, paper_sweep
from calibrant_lab.recipes import recipe
from calibrant_lab.shift.sources import shifted_images
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import Configuration


@dataclass(frozen=True)
class Request:
    """What to run and show."""

    sweeps: tuple[Sweep, ...]  # tables, all of one recipe and settings; figures are drawn of the first
    figures: tuple[str, ...] = ()
    shows_tables: bool = True
    data: Path | None = None
    corrupted: Path | None = None  # folder with the official files of the corrupted test set, for Figure 6
    limit: int | None = None  # of test images for each corruption, for Figure 6

    @property
    def base(self) -> Configuration:
        """What all trials have in common."""
        return self.sweeps[0].base


def requested(
    target: str,
    recipes: Sequence[str] = (),
    profile: str | None = None,
    changes: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
    data: Path | None = None,
    corrupted: Path | None = None,
    limit: int | None = None,
) -> list[Request]:
    """The requests of a command line, one for each recipe, checked before the first is run.

    ``changes`` are fields of the sweep that are not those of table and profile, or of the file.
    """
    if not target.endswith(".toml") and target not in (*TABLES, *FIGURES, "all"):
        known = ", ".join((*TABLES, *FIGURES))
        raise ValueError(f"there is no target {target!r}: there are {known}, all, and sweeps in .toml files")
    own = Sweep.read(Path(target)) if target.endswith(".toml") else None
    if own is not None and profile is not None:
        raise ValueError(f"{target} has grids of its own: leave --profile out, or give --weights")
    names = tuple(recipes) or (RECIPES if own is None else (own.recipe,))
    made = []
    for name in names:
        given = dict(changes or {}) | {"settings": _checked(name, settings or {})}
        sweeps = (
            _paper_sweeps(target, name, profile or "paper", given) if own is None else (_changed(own, name, given),)
        )
        drawable = [one for one in FIGURES if one != "figure6" or recipe(name).shift]
        figures = tuple(drawable if target == "all" else [target] if target in FIGURES else [])
        folder = data
        if data is not None and len(names) > 1:
            folder = below if (below := data / plugins.short(name)).is_dir() else None
        made.append(Request(sweeps, figures, target not in FIGURES, folder, corrupted, limit))
        if "figure6" in figures:  # before days of training rather than after them: whether it can be drawn at all
            shifted_images(made[-1].base, folder, corrupted)
    return made


def _paper_sweeps(target: str, name: str, profile: str, changes: dict[str, Any]) -> tuple[Sweep, ...]:
    tables = TABLES if target == "all" else (target,) if target in TABLES else TABLES[:1]
    # Rows and columns of one's own are those of Table 1, unless another table was asked for.
    others = {key: value for key, value in changes.items() if key not in ("methods", "columns")}
    return tuple(
        paper_sweep(table, name, profile, changes if table in (target, TABLES[0]) else others) for table in tables
    )


def _changed(sweep: Sweep, name: str, changes: dict[str, Any]) -> Sweep:
    """A sweep from a file, with what the command line says instead."""
    grids = dict(sweep.grids)
    if "grids" in changes:  # weights for all methods
        grids = {key: values for key, values in grids.items() if not key.endswith(".weight")} | changes["grids"]
    settings = sweep.settings | changes["settings"]
    return Sweep.checked(sweep.model_dump() | changes | {"recipe": name, "grids": grids, "settings": settings})


def _checked(name: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Settings of the command line as plain values, only those that were given; a list where there are commas."""
    given = {key.replace("-", "_"): value.split(",") if "," in value else value for key, value in settings.items()}
    checked = recipe(name).settings.checked(given).to_dict()
    return {key: checked[key] for key in given}
