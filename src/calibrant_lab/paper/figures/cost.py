"""Cost of one run, and of all runs needed for tuning: the paper's Figure 3."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from calibrant.report.formats import counted
from calibrant.report.style import INK, MUTED, legend_above
from calibrant_lab.paper.figures import parts
from calibrant_lab.sweeps.protocol import Plan
from calibrant_lab.trials.store import Result, Store

_TITLES = ("one run", "one tuned network")


@dataclass(frozen=True)
class RowCost:
    """Cost of a row of a table."""

    name: str
    look: parts.Look
    runs: tuple[Result, ...]  # every finished run of the row, including its searches
    tuning: tuple[Result, ...]  # runs needed for one tuned network: those of the searches, or one without a search
    wanted: int  # expected number of those, as far as is known

    def seconds(self, *, single: bool, processor: bool = True) -> float:
        """Mean time of a single run, or total time for one tuned network; NaN if nothing has finished."""
        used = self.runs if single else self.tuning
        costs = [one.cost.processor_seconds if processor else one.cost.seconds for one in used]
        return sum(costs) / (len(costs) if single else 1) if costs else np.nan


def row_costs(plan: Plan, store: Store) -> list[RowCost]:
    """Costs of all rows with finished runs; a trial that two searches share counts once."""
    found = []
    for row in plan.rows:
        searched = dict.fromkeys(trial for search in row.searches for trial in search.candidates)
        tuning = tuple(searched) or row.trials[:1]
        if runs := parts.finished((*tuning, *row.trials), store):
            look, done = parts.look_of(plan.rows, row), parts.finished(tuning, store)
            found.append(RowCost(parts.label_of(row), look, tuple(runs), tuple(done), len(tuning)))
    return found


def figure3(plans: Sequence[Plan], store: Store) -> Figure:
    """Cost of one run (left) and of all runs needed for one tuned network (right).

    Bars show processor time, since wall-clock time depends on other load; a mark shows the latter. Several plans, one
    per recipe, are sorted by the cost of a run.
    """
    if not plans:
        raise ValueError("Figure 3 needs a plan, got none")
    costs = {name: found for name, plan in _named(plans).items() if (found := row_costs(plan, store))}
    if not costs:
        raise parts.not_run("Figure 3", "finished trials", plans[0])
    if len(costs) == 1:
        return _bars(*costs.popitem())
    # Sorted by the cost of an NLL run.
    return _lines(dict(sorted(costs.items(), key=lambda pair: pair[1][0].seconds(single=True))))


def _named(plans: Sequence[Plan]) -> dict[str, Plan]:
    """Plans by data and network, and by epochs if they share both."""
    subjects = Counter(plan.sweep.subject for plan in plans)
    named: dict[str, Plan] = {}
    for plan in plans:
        name = plan.sweep.subject
        if subjects[name] > 1:
            name += f", {counted(plan.base.settings.epochs, 'epoch')}"
        named[name if name not in named else f"{name} ({len(named)})"] = plan
    return named


def _bars(subject: str, costs: list[RowCost]) -> Figure:
    with parts.wide_figure(max(2.4, 1.3 + 0.36 * len(costs))) as figure:
        single, total = figure.subplots(1, 2, sharey=True)
        scale = _bar(single, costs, single=True)
        for place, cost in enumerate(costs):
            if len(cost.runs) > 1:
                times = [run.cost.processor_seconds / scale for run in cost.runs]
                mean, deviation = parts.mean_and_deviation(times)
                single.errorbar(mean, place, xerr=deviation, color=INK, elinewidth=1, capsize=2.5, linewidth=0)
        scale = _bar(total, costs, single=False)
        for place, cost in enumerate(costs):
            end = max(cost.seconds(single=False, processor=processor) for processor in (True, False)) / scale
            done = f"{len(cost.tuning)} of " if len(cost.tuning) != cost.wanted else ""
            total.annotate(
                f"{done}{counted(cost.wanted, 'run')}", (end, place), (6, 0), textcoords="offset points", va="center",
                color=MUTED, fontsize=8.5,
            )  # fmt: skip
        total.set_xlim(right=1.3 * total.get_xlim()[1])  # room for the counts
        single.set_yticks(range(len(costs)), [cost.name for cost in costs])
        single.set_ylim(len(costs) - 0.5, -0.5)
        keys: list[Line2D | Patch] = [
            Patch(color=MUTED, linewidth=0, label="processor time"),
            Line2D([], [], marker="|", color=INK, linewidth=0, markersize=9, markeredgewidth=1.6, label="wall clock"),
        ]
        if any(len(cost.runs) > 1 for cost in costs):
            keys.append(Line2D([], [], color=INK, linewidth=1, label="± standard deviation of runs"))
        legend_above(figure, subject, *keys)
    return figure


def _bar(axes: Axes, costs: list[RowCost], *, single: bool) -> float:
    """Draw the bars of a panel, and return the seconds in its unit."""
    processor, wall = (
        np.array([cost.seconds(single=single, processor=kind) for cost in costs]) for kind in (True, False)
    )
    scale, unit = _unit(np.append(processor, wall))
    axes.barh(range(len(costs)), processor / scale, height=0.6, color=[cost.look.colour for cost in costs], linewidth=0)
    axes.plot(wall / scale, range(len(costs)), "|", color=INK, markersize=12, markeredgewidth=1.6)
    axes.set(title=_TITLES[not single], xlabel=f"processor time, {unit}")
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    return scale


def _lines(costs: dict[str, list[RowCost]]) -> Figure:
    looks = {cost.name: cost.look for found in costs.values() for cost in found}
    by_name = [{cost.name: cost for cost in found} for found in costs.values()]
    with parts.wide_figure() as figure:
        for axes, title in zip(figure.subplots(1, 2), _TITLES, strict=True):
            single = title == _TITLES[0]
            values = {
                name: np.array([row[name].seconds(single=single) if name in row else np.nan for row in by_name])
                for name in looks
            }
            shown = np.concatenate([value[np.isfinite(value)] for value in values.values()])
            scale, unit = _unit(shown)
            for name, value in values.items():
                colour, marker = looks[name]
                axes.plot(value / scale, color=colour, marker=marker, markersize=5, linewidth=1.6, alpha=0.9)
            # Costs differ by powers of ten between digits and language models.
            if shown.min() > 0 and shown.max() / shown.min() > 30:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter("{x:g}")
            else:
                axes.set_ylim(0, 1.08 * shown.max() / scale)
            axes.set(title=title, ylabel=f"processor time, {unit}")
            labels = [textwrap.fill(name, 48 // len(costs), break_long_words=False) for name in costs]
            axes.set_xticks(range(len(costs)), labels, fontsize=8)
            axes.margins(x=0.1)
        legend_above(figure, None, *(parts.line_key(look, name) for name, look in looks.items()))
    return figure


def _unit(seconds: parts.Array) -> tuple[float, str]:
    """A readable unit for the largest value."""
    most = float(np.nanmax(seconds))
    return (1.0, "seconds") if most < 300 else (60.0, "minutes") if most < 3 * 3600 else (3600.0, "hours")
