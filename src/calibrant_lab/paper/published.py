"""The numbers of the paper's Tables 1 to 3, exactly as printed: ``published.txt``.

Yoon, Tee, Yoon, Yoon, Kim, Li and Yoo, "ESD: Expected Squared Difference as a Tuning-Free Trainable Calibration
Measure", ICLR 2023. Percent; mean and standard deviation of five trials. The weights λ behind them were not published.
The NLL of Table 3 is not that of Table 1.
"""

import re
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from calibrant_lab.sweeps.sweep import COLUMNS, Sweep


class Printed(NamedTuple):
    """A cell of the paper, as numbers and as printed."""

    mean: float
    std: float
    text: str


def published(sweep: Sweep) -> dict[str, dict[str, Printed]]:
    """The paper's numbers for a sweep, by row and column; empty for other data or another network.

    Example:
        >>> published(Sweep(name="table1", recipe="mnist"))["+ ESD"]["ece"]
        Printed(mean=0.3, std=0.035, text='0.30±0.035')
        >>> published(Sweep(name="table1", recipe="digits"))
        {}
        >>> published(Sweep(name="table1", recipe="mnist", settings={"model": "resnet20"}))
        {}
    """
    # The network must be the recipe's, by name or as a folder of that name.
    ours, recipes = sweep.base.settings, sweep.base.of_recipe.settings()
    given, model = (str(getattr(one, "model", "")) for one in (ours, recipes))
    if Path(given).name != model or getattr(ours, "initial_weights", None) is not None:
        return {}
    text = (files("calibrant_lab.paper") / "published.txt").read_text(encoding="utf-8")
    rows = (re.split(" {2,}", line) for line in text.splitlines()[1:])
    return {
        name: {column: _printed(cell) for column, cell in zip(COLUMNS[: len(cells)], cells, strict=True)}
        for table, recipe, name, *cells in rows
        if (table, recipe) == (sweep.name, sweep.recipe)
    }


def _printed(text: str) -> Printed:
    mean, std = text.split("±")
    return Printed(float(mean), float(std), text)
