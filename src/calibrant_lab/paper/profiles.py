"""The paper's tables and searches as sweeps: files in ``paper/sweeps``."""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from calibrant_lab.recipes import recipe
from calibrant_lab.sweeps.sweep import Sweep

PROFILES = ("paper", "cpu", "quick")
TABLES = ("table1", "table2", "table3")
FIGURES = ("figure1", "figure2", "figure3", "figure4", "figure5", "figure6")
RECIPES = ("mnist", "cifar10", "cifar100", "imagenet100", "snli", "anli")


class Profile(NamedTuple):
    """Size of a search."""

    grids: dict[str, tuple[float, ...]]  # values to search, by option
    seeds: int  # networks per row
    most_epochs: int | None = None  # None for the recipe's


def profile(name: str) -> Profile:
    """Return a profile by name.

    Example:
        >>> profile("quick").grids["weight"], profile("paper").most_epochs
        ((0.6, 2), None)
    """
    if name not in PROFILES:
        raise ValueError(f"unknown profile {name!r}: choose from {', '.join(PROFILES)}")
    found = _read(f"{name}.toml")
    grids = {option: tuple(values) for option, values in found["grids"].items()}
    return Profile(grids, found["seeds"], found.get("most_epochs"))


def paper_sweep(table: str, recipe_name: str, profile_name: str, changes: Mapping[str, Any] | None = None) -> Sweep:
    """The sweep of a table of the paper, for a recipe and a profile; ``changes`` are fields of the sweep.

    Example:
        >>> paper_sweep("table2", "mnist", "cpu").settings
        {'epochs': 50}
    """
    tables = _read("tables.toml")
    if table not in tables:
        raise ValueError(f"unknown table {table!r}: choose from {', '.join(tables)}")
    found, given = profile(profile_name), dict(changes or {})
    most = found.most_epochs
    shorter = {"epochs": most} if most is not None and recipe(recipe_name).settings().epochs > most else {}
    added = {"settings": shorter | given.pop("settings", {}), "grids": found.grids | given.pop("grids", {})}
    fields = {"name": table, "recipe": recipe_name, "profile": profile_name, "seeds": found.seeds}
    return Sweep.checked(fields | tables[table] | given | added)


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files("calibrant_lab.paper") / "sweeps" / name).read_text(encoding="utf-8"))
