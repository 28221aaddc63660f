"""`calibrant recipes`: what can be trained, how, and with which settings."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from calibrant_lab.methods import METHODS
from calibrant_lab.recipes import RECIPES, recipe
from calibrant_lab.settings import Settings


def list_recipes(console: Console) -> None:
    """Show the built-in recipes and methods."""
    table = _table("recipe", "network", "epochs", "batch")
    for name, one in RECIPES.items():
        defaults = one.settings()
        table.add_row(name, str(getattr(defaults, "model", "")), str(defaults.epochs), str(defaults.batch_size))
    console.print(table)
    table = _table("method", "", "options")
    for name, method in METHODS.items():
        kind = "added to the NLL, on held-out data" if method.objective else "replaces the NLL" if method.loss else ""
        options = ", ".join(
            option if value is None else f"{option} {value:g}" for option, value in method.defaults.items()
        )
        table.add_row(name, f"{escape(method.label)}{', ' if kind else ''}{kind}", options)
    console.print(table)
    console.print(
        "For your own, give package.module:name or ./file.py:name as --recipe or --method. calibrant recipes NAME "
        "lists the settings of a recipe.",
        highlight=False,
    )


def show_recipe(reference: str, console: Console) -> None:
    """Show the settings of a recipe, its own first."""
    kind = recipe(reference).settings
    table = _table("setting", "default", "")
    own = [one for one in kind.model_fields if one not in Settings.model_fields]
    for setting in (*own, *Settings.model_fields):
        field = kind.model_fields[setting]
        default = field.default
        shown = ",".join(f"{one:g}" for one in default) if isinstance(default, tuple) else default
        name = f"--{setting.replace('_', '-')}"
        table.add_row(name, "" if shown is None else escape(str(shown)), escape(field.description or ""))
    console.print(table)


def _table(first: str, *others: str) -> Table:
    return Table(Column(first, no_wrap=True), *others, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
