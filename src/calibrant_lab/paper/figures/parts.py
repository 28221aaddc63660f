"""Common parts of the paper's figures: style, colours of methods, and access to a store."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from calibrant.report.style import ACCENT, GAP, MUTED, PAPER, house_style, percent_ticks
from calibrant_lab import plugins
from calibrant_lab.sweeps.protocol import Plan, Row, row_name
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.store import Result, Store

Array = npt.NDArray[np.float64]
# Two panels side by side fill a page; at half a page, letters are still as large as in a footnote.
WIDE, HEIGHT = 7.2, 3.3
BAND = 0.18  # opacity of the standard-deviation band


class NotRunError(ValueError):
    """The trials that a figure needs have not been run."""


class Look(NamedTuple):
    """Style of a method; markers distinguish methods without colour."""

    colour: str
    marker: str


# Blue, orange and green of similar lightness on white and black, after the palette of Okabe and Ito.
_LOOKS = {
    "NLL": Look(MUTED, "D"),
    "NLL, reduced split": Look(MUTED, "d"),
    "MMCE": Look(GAP, "s"),
    "SB-ECE": Look("#009e73", "^"),
    "ESD": Look(ACCENT, "o"),
}
_OTHERS = [Look(colour, marker) for marker in "vPX" for colour in ("#cc79a7", "#b8860b", "#56b4e9", "#8c6bb1")]


def label_of(row: Row) -> str:
    """Name of a row outside a table that starts with the NLL."""
    return row.name.removeprefix("+ ")


def look_of(rows: Sequence[Row], row: Row) -> Look:
    """Style of a row, the same in every figure of a plan with these rows."""
    others = [label_of(one) for one in rows if label_of(one) not in _LOOKS]
    name = label_of(row)
    return _LOOKS[name] if name in _LOOKS else _OTHERS[others.index(name) % len(_OTHERS)]


def row_of(plan: Plan, name: str) -> Row | None:
    """The row of a method, if the plan has it."""
    return next((row for row in plan.rows if row.name == row_name(name)), None)


def finished(trials: Iterable[Configuration], store: Store) -> list[Result]:
    """Existing results in the order of the trials, each once."""
    found = (store.result(trial) for trial in dict.fromkeys(trials))
    return [result for result in found if result is not None]


def not_run(figure: str, needs: str, plan: Plan) -> NotRunError:
    """The error for a figure that cannot be drawn."""
    lacking = f"{figure} needs {needs}, which the store does not have for {plugins.short(plan.base.recipe)}"
    return NotRunError(f"{lacking}: run such trials first, with calibrant reproduce table1")


@contextmanager
def wide_figure(height: float = HEIGHT, width: float = WIDE) -> Iterator[Figure]:
    """Context manager for a figure in the common style."""
    with house_style():
        yield Figure(figsize=(width, height), facecolor=PAPER, layout="constrained")


def percent_axis(axes: Axes, *, from_zero: bool = False) -> None:
    """Show shares as percent on the vertical axis, with as many decimals as the ticks need."""
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    if from_zero:
        axes.set_ylim(bottom=0)
    ticks = axes.get_yticks()
    step = 100 * float(np.diff(ticks).min()) if len(ticks) > 1 else 1.0
    exact = (digits for digits in range(4) if abs(step * 10**digits - round(step * 10**digits)) < 1e-6)
    axes.yaxis.set_major_formatter(percent_ticks(next(exact, 4)))


def mean_and_deviation(values: Array | Sequence[Sequence[float]] | Sequence[float]) -> tuple[Array, Array]:
    """Mean and standard deviation over the first axis; a single seed has no deviation."""
    given = np.asarray(values, dtype=float)
    return given.mean(0), given.std(0, ddof=1) if len(given) > 1 else np.zeros(given.shape[1:])


def line_key(look: Look, label: str) -> Line2D:
    """Legend entry for a line with markers."""
    return Line2D([], [], color=look.colour, marker=look.marker, markersize=5, linewidth=1.6, label=label)


def empty_panel(axes: Axes, title: str) -> None:
    """Placeholder for a panel whose trials were not run."""
    axes.set(title=title, xticks=[])
    axes.grid(visible=False)
    axes.text(0.5, 0.5, "not run here", transform=axes.transAxes, ha="center", va="center", color=MUTED)
