"""Convert command-line arguments to sweeps and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant_lab import plugins
from calibrant_lab.paper.profiles import FIGURES, RECIPES, TABLES, paper_sweep
from calibrant_lab.recipes import recipe
from calibrant_lab.shift.sources import shifted_images
from calibrant_lab.sweeps.sweep import Sweep, searched
from calibrant_lab.trials.configuration import Configuration


@dataclass(frozen=True)
class Request:
    """What to run and show."""

    sweeps: tuple[Sweep, ...]  # tables, all of one recipe and settings; figures use the first
    figures: tuple[str, ...] = ()
    shows_tables: bool = True
    data: Path | None = None
    corrupted: Path | None = None  # folder with the official files of the corrupted test set, for Figure 6
    limit: int | None = None  # number of test images per corruption, for Figure 6

    @property
    def base(self) -> Configuration:
        """Configuration that all trials share."""
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
    """The requests of a command line, one per recipe, all checked before the first is run.

    ``changes`` are fields of the sweep that override the table and profile, or the file.
    """
    if not target.endswith(".toml") and target not in (*TABLES, *FIGURES, "all"):
        known = ", ".join((*TABLES, *FIGURES))
        raise ValueError(f"unknown target {target!r}: choose from {known}, all, or give a sweep as a .toml file")
    own = Sweep.read(Path(target)) if target.endswith(".toml") else None
    if own is not None and profile is not None:
        raise ValueError(f"{target} defines its own grids: leave out --profile, or give --weights")
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
        if "figure6" in figures:  # fail now rather than after days of training if it cannot be drawn
            shifted_images(made[-1].base, folder, corrupted)
    if (corrupted, limit) != (None, None) and not any("figure6" in one.figures for one in made):
        raise ValueError("--corrupted-dir and --shift-images are for figure6, which is not drawn: leave them out")
    return made


def _paper_sweeps(target: str, name: str, profile: str, changes: dict[str, Any]) -> tuple[Sweep, ...]:
    tables = TABLES if target == "all" else (target,) if target in TABLES else TABLES[:1]
    # The user's rows and columns apply to Table 1, unless another table was requested.
    others = {key: value for key, value in changes.items() if key not in ("methods", "columns")}
    return tuple(
        paper_sweep(table, name, profile, changes if table in (target, TABLES[0]) else others) for table in tables
    )


def _changed(sweep: Sweep, name: str, changes: dict[str, Any]) -> Sweep:
    """A sweep from a file, with changes from the command line."""
    known = searched(changes.get("methods", sweep.methods))
    grids = {key: values for key, values in sweep.grids.items() if key in known}
    if "grids" in changes:  # weights for all methods
        grids = {key: values for key, values in grids.items() if not key.endswith(".weight")} | changes["grids"]
    settings = sweep.settings | changes["settings"]
    return Sweep.checked(sweep.model_dump() | changes | {"recipe": name, "grids": grids, "settings": settings})


def _checked(name: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Settings given on the command line, as plain values; commas make a list."""
    given = {key.replace("-", "_"): value.split(",") if "," in value else value for key, value in settings.items()}
    checked = recipe(name).settings.checked(given).to_dict()
    return {key: checked[key] for key in given}
