"""Cost of one run, and of all the runs that tuning takes: the paper's Figure 3."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from calibrant.report.figures import INK, MUTED, legend_above
from calibrant_lab import plugins
from calibrant_lab.paper.figures.parts import (
    HEIGHT,
    Look,
    finished,
    label_of,
    line_key,
    look_of,
    mean_and_deviation,
    not_run,
    plain_numbers,
    wide_figure,
)
from calibrant_lab.sweeps.protocol import Plan, Row
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.store import Cost, Store

Array = npt.NDArray[np.float64]
_TITLES = ("one run", "one tuned network")


@dataclass(frozen=True)
class RowCost:
    """What a row of a table took.

    Attributes:
        name: Of the row.
        look: How it is drawn.
        runs: Every finished run of the row, those of its searches included.
        tuning: Those that one tuned network takes: the trials of the searches, or one run where nothing is searched.
        wanted: How many of those there will be, as far as is known.
    """

    name: str
    look: Look
    runs: tuple[Cost, ...]
    tuning: tuple[Cost, ...]
    wanted: int


def row_costs(plan: Plan, store: Store) -> list[RowCost]:
    """The costs of all rows that have finished runs; a trial that two searches share counts once."""
    found = []
    for row in plan.rows:
        tuning = _tuning(row)
        runs = [result.cost for result in finished((*tuning, *row.trials), store)]
        if runs:
            done = tuple(result.cost for result in finished(tuning, store))
            found.append(RowCost(label_of(row), look_of(plan.rows, row), tuple(runs), done, len(tuning)))
    return found


def figure3(plans: Sequence[Plan], store: Store) -> Figure:
    """Cost of one run (left) and of all the runs that one tuned network takes (right).

    Processor time, since wall-clock time depends on what else the machine does; a mark shows the latter. Several
    plans stand side by side in the order of the cost of a run.

    Args:
        plans: Of Table 1, one for each recipe.
        store: Where their trials are.
    """
    costs = {name: found for name, plan in _named(plans).items() if (found := row_costs(plan, store))}
    # From the cheapest to the most expensive run of the NLL.
    costs = dict(sorted(costs.items(), key=lambda pair: _processor(pair[1][0].runs) / len(pair[1][0].runs)))
    if not costs:
        raise (
            not_run("Figure 3", "finished trials", plans[0]) if plans else ValueError("Figure 3 needs a plan, got none")
        )
    return _bars(next(iter(costs.values()))) if len(costs) == 1 else _lines(costs)


def _tuning(row: Row) -> tuple[Configuration, ...]:
    searched = dict.fromkeys(trial for search in row.searches for trial in search.candidates)
    return tuple(searched) or row.trials[:1]


def _named(plans: Sequence[Plan]) -> dict[str, Plan]:
    """Plans by recipe; those that share a recipe by their epochs too."""
    of_recipe = Counter(plan.base.recipe for plan in plans)
    named: dict[str, Plan] = {}
    for plan in plans:
        name = plugins.short(plan.base.recipe)
        if of_recipe[plan.base.recipe] > 1:
            name += f"\n{plan.base.settings.epochs} epochs"
        named[name if name not in named else f"{name} ({len(named)})"] = plan
    return named


def _bars(costs: list[RowCost]) -> Figure:
    with wide_figure(max(2.2, 1.1 + 0.36 * len(costs))) as figure:
        single, total = figure.subplots(1, 2, sharey=True)
        scale = _bar(single, costs, [cost.runs for cost in costs], mean=True)
        for place, cost in enumerate(costs):
            mean, deviation = mean_and_deviation([run.processor_seconds for run in cost.runs])
            if len(cost.runs) > 1:
                single.errorbar(
                    mean / scale, place, xerr=deviation / scale, color=INK, elinewidth=1, capsize=2.5, linewidth=0
                )
        scale = _bar(total, costs, [cost.tuning for cost in costs], mean=False)
        for place, cost in enumerate(costs):
            end = max(_processor(cost.tuning), _wall(cost.tuning)) / scale
            total.annotate(
                _count(cost), (end, place), (6, 0), textcoords="offset points", va="center", color=MUTED, fontsize=8.5
            )
        total.set_xlim(right=1.3 * total.get_xlim()[1])  # room for the counts
        single.set_yticks(range(len(costs)), [cost.name for cost in costs])
        single.set_ylim(len(costs) - 0.5, -0.5)
        keys: list[Line2D | Patch] = [
            Patch(color=MUTED, linewidth=0, label="processor time"),
            Line2D([], [], marker="|", color=INK, linewidth=0, markersize=9, markeredgewidth=1.6, label="wall clock"),
        ]
        if any(len(cost.runs) > 1 for cost in costs):
            keys.append(Line2D([], [], color=INK, linewidth=1, label="± standard deviation of runs"))
        legend_above(figure, None, *keys)
    return figure


def _bar(axes: Axes, costs: list[RowCost], used: list[tuple[Cost, ...]], *, mean: bool) -> float:
    """Draw the bars of a panel, and return the seconds in its unit."""
    processor, wall = (
        np.array([of(one) / (len(one) if mean else 1) if one else np.nan for one in used]) for of in (_processor, _wall)
    )
    scale, unit = _unit(np.append(processor, wall))
    axes.barh(range(len(costs)), processor / scale, height=0.6, color=[cost.look.colour for cost in costs], linewidth=0)
    axes.plot(wall / scale, range(len(costs)), "|", color=INK, markersize=12, markeredgewidth=1.6)
    axes.set(title=_TITLES[0] if mean else _TITLES[1], xlabel=unit)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    return scale


def _lines(costs: dict[str, list[RowCost]]) -> Figure:
    names = list(costs)
    looks = {cost.name: cost.look for found in costs.values() for cost in found}
    with wide_figure(HEIGHT + 0.2) as figure:
        for axes, title in zip(figure.subplots(1, 2), _TITLES, strict=True):
            values = {name: _by_recipe(costs, name, single=title == _TITLES[0]) for name in looks}
            shown = np.concatenate([value[np.isfinite(value)] for value in values.values()])
            scale, unit = _unit(shown)
            for name, value in values.items():
                look = looks[name]
                axes.plot(
                    range(len(names)), value / scale, color=look.colour, marker=look.marker, markersize=5,
                    linewidth=1.6, alpha=0.9,
                )  # fmt: skip
            # From digits to language models costs differ by powers of ten.
            if shown.min() > 0 and shown.max() / shown.min() > 30:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(plain_numbers())
            else:
                axes.set_ylim(bottom=0)
            axes.set(title=title, ylabel=f"processor time, {unit}")
            axes.set_xticks(range(len(names)), names)
            axes.margins(x=0.1)
        legend_above(figure, None, *(line_key(look, name) for name, look in looks.items()))
    return figure


def _by_recipe(costs: dict[str, list[RowCost]], name: str, *, single: bool) -> Array:
    found = []
    for rows in costs.values():
        row = next((row for row in rows if row.name == name), None)
        used = None if row is None else row.runs if single else row.tuning
        found.append(_processor(used) / (len(used) if single else 1) if used else np.nan)
    return np.array(found)


def _count(cost: RowCost) -> str:
    done = len(cost.tuning)
    several = "s" if cost.wanted != 1 else ""
    return f"{done} run{several}" if done == cost.wanted else f"{done} of {cost.wanted} run{several}"


def _processor(costs: Sequence[Cost]) -> float:
    return sum(cost.processor_seconds for cost in costs)


def _wall(costs: Sequence[Cost]) -> float:
    return sum(cost.seconds for cost in costs)


def _unit(seconds: Array) -> tuple[float, str]:
    """The unit in which the largest is easy to read."""
    most = float(np.nanmax(seconds))
    return (1.0, "seconds") if most < 300 else (60.0, "minutes") if most < 3 * 3600 else (3600.0, "hours")
