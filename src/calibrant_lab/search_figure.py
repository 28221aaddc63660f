"""ECE and accuracy against the weight of the objective: the figure of a search."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from calibrant.files import whole_or_not_at_all
from calibrant.report.style import ACCENT, GAP, INK, MUTED, PAPER, house_style, legend_above, percent_ticks

if TYPE_CHECKING:
    from calibrant_lab.search import SearchResult, WeightScores

BAND = 0.16


def write_search_figure(path: Path, result: SearchResult) -> None:
    """Draw the means and spreads of a search into a PNG, SVG or PDF file."""
    with house_style():
        figure = Figure(figsize=(8, 3.6), layout="constrained", facecolor=PAPER)
        left, right = figure.subplots(1, 2)
        _draw(left, result, "ece")
        _draw(right, result, "accuracy")
        left.set(title="validation ECE, 20 bins", ylim=(0, None))
        right.set(title="validation accuracy")
        limit = result.baseline.mean_accuracy - result.accuracy_tolerance
        right.axhline(limit, color=GAP, linewidth=1.2, linestyle=(0, (1.5, 1.5)))
        _legend(figure, result)
        with whole_or_not_at_all(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=160)


def _draw(axes: Axes, result: SearchResult, score: str) -> None:
    whole = [each for each in result.candidates if each.failure is None]
    weights = [each.weight for each in whole]
    low, means, high = zip(*(_band(each, score) for each in whole), strict=True) if whole else ((), (), ())
    bottom, mean, top = _band(result.baseline, score)
    axes.axhspan(bottom, top, color=MUTED, alpha=BAND, linewidth=0)
    axes.axhline(mean, color=MUTED, linewidth=1.4, linestyle=(0, (4, 2)))
    axes.fill_between(weights, low, high, color=ACCENT, alpha=BAND, linewidth=0)
    for each in whole:
        values = getattr(each, score)
        axes.plot([each.weight] * len(values), values, ".", color=ACCENT, alpha=0.6, markersize=5.5, markeredgewidth=0)
    axes.plot(weights, means, color=ACCENT, linewidth=1.6)
    for each, value in zip(whole, means, strict=True):
        inside = each in result.qualified
        axes.plot(each.weight, value, "o", markersize=6, color=ACCENT if inside else PAPER,
                  markeredgecolor=PAPER if inside else ACCENT, markeredgewidth=0.8 if inside else 1.4)  # fmt: skip
        if inside and each.weight == result.weight:
            axes.plot(each.weight, value, "o", markersize=12, color="none", markeredgecolor=INK, markeredgewidth=1.3)
    axes.set_xlabel("weight of the objective")
    if len(weights) > 1 and min(weights) > 0 and max(weights) >= 5 * min(weights):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    if len(weights) <= 8:
        axes.xaxis.set_major_locator(FixedLocator(weights))
        axes.set_xticks(weights, [f"{weight:g}" for weight in weights])
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    low_end, high_end = axes.get_ylim()
    axes.yaxis.set_major_formatter(percent_ticks(0 if high_end - low_end > 0.05 else 1))


def _legend(figure: Figure, result: SearchResult) -> None:
    tolerance = f"{100 * result.accuracy_tolerance:g}"
    keys: list[Line2D | Patch] = [
        Line2D([], [], color=ACCENT, marker="o", markersize=6, markeredgecolor=PAPER, linewidth=1.6, label="mean"),
        Line2D([], [], color=MUTED, linewidth=1.4, linestyle=(0, (3, 1.5)), label=f"weight {result.baseline.weight:g}"),
        Line2D([], [], color=GAP, linewidth=1.2, linestyle=(0, (1.5, 1.5)), label=f"{tolerance} points below it"),
    ]
    if len(result.seeds) > 1:
        keys.insert(1, Patch(color=ACCENT, alpha=BAND, linewidth=0, label=f"± std, {len(result.seeds)} seeds"))
    if len(result.qualified) < sum(each.failure is None for each in result.candidates):
        keys.append(Line2D([], [], color=PAPER, marker="o", markersize=6, markeredgecolor=ACCENT,
                           markeredgewidth=1.4, linewidth=0, label="loses too much"))  # fmt: skip
    title = "No weight qualifies"
    if result.qualified:
        keys.append(Line2D([], [], color="none", marker="o", markersize=10, markeredgecolor=INK, markeredgewidth=1.3,
                           linewidth=0, label="chosen"))  # fmt: skip
        title = (
            f"Weight {result.weight:g} has the lowest ECE of those that lose less than {tolerance} points of accuracy"
        )
    failed = [f"{each.weight:g}" for each in result.candidates if each.failure is not None]
    legend_above(figure, title + (f" (failed: {', '.join(failed)})" if failed else ""), *keys)


def _band(scores: WeightScores, score: str) -> tuple[float, float, float]:
    """Mean of a score minus its spread, the mean, and the mean plus its spread."""
    mean, spread = getattr(scores, f"mean_{score}"), getattr(scores, f"{score}_spread")
    spread = 0.0 if math.isnan(spread) else spread
    return mean - spread, mean, mean + spread
