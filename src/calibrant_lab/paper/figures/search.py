"""Results of the search: ECE against the objectives' inner settings (Figure 2), and accuracy against λ (Appendix)."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from calibrant.report.style import ACCENT, INK, legend_above
from calibrant_lab.methods import METHODS
from calibrant_lab.paper.figures import parts
from calibrant_lab.sweeps.protocol import Plan, Row, Search
from calibrant_lab.trials.store import Result, Store

_INNER = {"mmce": "bandwidth φ", "sb-ece": "temperature T"}


def figure2(plan: Plan, store: Store) -> Figure:
    """Test ECE of MMCE by its bandwidth (left) and of SB-ECE by its temperature (right), with ESD as a line.

    A point is the mean over the seeds of the search, by default one. The chosen value and ESD are shown for all seeds.
    """
    rows = {method: _searched(plan, method, store) for method in _INNER}
    if not any(rows.values()):
        raise parts.not_run("Figure 2", "the search over φ of MMCE or T of SB-ECE", plan)
    esd = parts.row_of(plan, "esd")
    scores = [result.test["ece"] for result in parts.finished(esd.trials, store)] if esd else []
    with parts.wide_figure() as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (method, row) in zip(panels, rows.items(), strict=True):
            if row is None:
                parts.empty_panel(axes, METHODS[method].label)
                continue
            _draw_inner(axes, row, store, parts.look_of(plan.rows, row))
            axes.set_xlabel(_INNER[method])
            if scores:
                mean, deviation = map(float, parts.mean_and_deviation(scores))
                axes.axhline(mean, color=ACCENT, linewidth=1.6)
                if len(scores) > 1:
                    axes.axhspan(mean - deviation, mean + deviation, color=ACCENT, alpha=parts.BAND, linewidth=0)
        panels[0].set_ylabel("test ECE")
        panels[0].set_ylim(0, 1.08 * panels[0].get_ylim()[1])
        parts.percent_axis(panels[0])
        seeds = plan.sweep.search_seeds
        points = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
        keys: list[Line2D | Patch] = [
            Line2D([], [], color=INK, marker=".", linewidth=1.6, label=points),
            _ring_key("chosen, all seeds"),
            Line2D([], [], color=ACCENT, linewidth=1.6, label="ESD, all seeds"),
            Patch(color=ACCENT, alpha=parts.BAND, linewidth=0, label="± standard deviation"),
        ]
        legend_above(figure, plan.sweep.subject, *keys[: 2 + min(len(scores), 2)])
    return figure


def figure5(plan: Plan, store: Store) -> Figure:
    """Validation accuracy against λ, and the lowest accuracy that the selection accepts."""
    baseline = parts.finished(plan.baselines, store)
    rows = [row for row in plan.rows if row.searches and parts.finished(row.searches[0].candidates, store)]
    if not baseline or not rows:
        raise parts.not_run("Figure 5", "the first trial of the NLL and a trial of the search over λ", plan)
    accuracy = fmean(result.validation["accuracy"] for result in baseline)
    with parts.wide_figure() as figure:
        axes = figure.subplots()
        axes.axhline(accuracy, color=INK, linewidth=1.2)
        axes.axhline(accuracy - plan.sweep.tolerance, color=INK, linewidth=1.2, linestyle=(0, (4, 2)))
        for place, row in enumerate(rows):
            # Accuracies often coincide: wider lines remain visible below narrower ones.
            _draw_weights(axes, row, store, parts.look_of(plan.rows, row), width=1.6 + 0.8 * (len(rows) - 1 - place))
        axes.set(xscale="log", xlabel="weight λ of the objective", ylabel="validation accuracy")
        _ticks(axes, _apart(trial.option("weight") for row in rows for trial in row.searches[0].candidates))
        parts.percent_axis(axes)
        least = f"threshold, {100 * plan.sweep.tolerance:g} points below"
        keys = [parts.line_key(parts.look_of(plan.rows, row), parts.label_of(row)) for row in rows]
        keys += [
            _ring_key("chosen"), Line2D([], [], color=INK, linewidth=1.2, label="NLL"),
            Line2D([], [], color=INK, linewidth=1.2, linestyle=(0, (3, 1.5)), label=least),
        ]  # fmt: skip
        legend_above(figure, plan.sweep.subject, *keys)
    return figure


def _searched(plan: Plan, method: str, store: Store) -> Row | None:
    row = parts.row_of(plan, method)
    return row if row and len(row.searches) > 1 and parts.finished(row.searches[1].candidates, store) else None


def _draw_inner(axes: Axes, row: Row, store: Store, look: parts.Look) -> None:
    search = row.searches[1]
    _plot(axes, _means(search, store, lambda result: result.test["ece"]), look)
    seeds = [result.test["ece"] for result in parts.finished(row.trials, store)]
    if search.chosen is not None and seeds:
        mean, deviation = parts.mean_and_deviation(seeds)
        error = float(deviation) if len(seeds) > 1 else None
        _ring(axes, search.chosen.option(search.option), float(mean), error, look)
    axes.set_title(f"{parts.label_of(row)} at λ = {search.candidates[0].option('weight'):g}")
    if search.option == "softness":
        axes.set_xscale("log")
    axes.margins(x=0.08)
    _ticks(axes, sorted({one.option(search.option) for one in search.candidates}))


def _means(search: Search, store: Store, score: Callable[[Result], float]) -> dict[float, float]:
    """Mean over finished seeds by value of the searched option, in order."""
    found: dict[float, list[float]] = defaultdict(list)
    for result in parts.finished(search.candidates, store):
        found[result.configuration.option(search.option)].append(score(result))
    return {value: fmean(found[value]) for value in sorted(found)}


def _ticks(axes: Axes, values: list[float]) -> None:
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")


def _draw_weights(axes: Axes, row: Row, store: Store, look: parts.Look, width: float) -> None:
    search = row.searches[0]
    means = _means(search, store, lambda result: result.validation["accuracy"])
    _plot(axes, means, look, width)
    chosen = None if search.chosen is None else search.chosen.option("weight")
    if chosen in means:
        _ring(axes, chosen, means[chosen], None, look, 7 + 1.5 * width)


def _apart(values: Iterable[float]) -> list[float]:
    """Values of a logarithmic axis whose tick labels do not overlap.

    Example:
        >>> _apart([0.2, 0.4, 0.6, 0.8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
        [0.2, 0.4, 0.6, 1, 2, 3, 5, 7, 10]
    """
    first, *others = sorted(set(values))
    kept = [first]
    for value in others:
        if value / kept[-1] >= (max(others) / first) ** 0.075:
            kept.append(value)
    return kept


def _plot(axes: Axes, means: dict[float, float], look: parts.Look, width: float = 1.6) -> None:
    colour, marker = look
    axes.plot([*means], [*means.values()], color=colour, marker=marker, markersize=3.4 + width, linewidth=width)


def _ring(axes: Axes, place: float, value: float, deviation: float | None, look: parts.Look, size: float = 9) -> None:
    axes.errorbar(
        place, value, deviation, color=look.colour, marker="o", markersize=size, markerfacecolor="none",
        markeredgewidth=1.6, linewidth=0, elinewidth=1.4, capsize=3,
    )  # fmt: skip


def _ring_key(label: str) -> Line2D:
    return Line2D([], [], color=INK, marker="o", markersize=7, markerfacecolor="none", linewidth=0, label=label)
