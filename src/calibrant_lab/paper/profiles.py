"""The paper's tables and searches as sweeps: files in ``paper/sweeps``."""

import math
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from calibrant_lab.recipes import recipe
from calibrant_lab.sweeps.sweep import Sweep

PROFILES = ("paper", "cpu", "quick")
FIGURES = ("figure1", "figure2", "figure3", "figure4", "figure5", "figure6")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files("calibrant_lab.paper") / "sweeps" / name).read_text(encoding="utf-8"))


_TABLES = _read("tables.toml")
RECIPES: tuple[str, ...] = tuple(_TABLES.pop("recipes"))
TABLES = tuple(_TABLES)


def profile(name: str) -> dict[str, Any]:
    """The size of a search: ``grids``, ``seeds`` and, if it shortens training, ``most_epochs``."""
    if name not in PROFILES:
        raise ValueError(f"unknown profile {name!r}: choose from {', '.join(PROFILES)}")
    return _read(f"{name}.toml")


def paper_sweep(table: str, recipe_name: str, profile_name: str, changes: Mapping[str, Any] | None = None) -> Sweep:
    """The sweep of a table of the paper, for a recipe and a profile; ``changes`` are fields of the sweep.

    Example:
        >>> paper_sweep("table2", "mnist", "cpu").settings
        {'epochs': 50}
    """
    if table not in TABLES:
        raise ValueError(f"unknown table {table!r}: choose from {', '.join(TABLES)}")
    found, given = profile(profile_name), dict(changes or {})
    most = found.pop("most_epochs", math.inf)
    shorter = {"epochs": most} if recipe(recipe_name).settings().epochs > most else {}
    added = {"settings": shorter | given.pop("settings", {}), "grids": found["grids"] | given.pop("grids", {})}
    fields = {"name": table, "recipe": recipe_name, "profile": profile_name}
    return Sweep.checked(found | fields | _TABLES[table] | given | added)
