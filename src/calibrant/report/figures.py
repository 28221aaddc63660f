"""The figures: reliability diagram and cumulative plot; gaps of classes, of groups and over time.

A gap is the mean probability minus the share that came true, in points, so 0 is calibrated on average. Figures are
drawn without ``pyplot``, so nothing is shown, kept or leaked: save one with ``figure.savefig``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator

from calibrant.frames import Array
from calibrant.metrics.binned import ConventionName, equal_width_bins
from calibrant.metrics.groups import GroupCalibration, TimeCalibration
from calibrant.metrics.intervals import Interval, confidence_interval, wilson_interval
from calibrant.metrics.predictions import Predictions, views
from calibrant.report.formats import shortened
from calibrant.report.statistics import ERRORS, excludes_zero
from calibrant.report.style import (
    ACCENT,
    GAP,
    INK,
    MUTED,
    PAPER,
    WIDTH,
    house_style,
    legend_above,
    literal,
    percent_ticks,
)

__all__ = ["classwise_plot", "cumulative_plot", "groups_plot", "reliability_diagram", "time_plot"]

# Largest number of points: more could not be distinguished.
MOST_POINTS = 400
# Largest number of classes or groups: the worst are the interesting ones.
MOST_ROWS = 20
# Longest name beside an axis; the table beside the figure has the whole name.
LABEL_LETTERS = 28


def __dir__() -> list[str]:
    return __all__


def reliability_diagram(
    predictions: Predictions,
    *,
    bins: int | None = None,
    convention: ConventionName = "paper",
    title: str | None = None,
    event: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Accuracy against confidence, bin by bin, over a histogram of the confidences.

    A dot is at a bin's mean confidence and accuracy, so its distance from the diagonal is the bin's gap. Its box is
    the 95 % Wilson interval of the accuracy (1927): it does not assume that the model is calibrated, and stays wide if
    a few samples happen to be all right. Empty bins are left out.

    Args:
        predictions: Predictions from ``metrics.predictions``.
        bins: Number of bins of equal width; by default the convention's.
        convention: As in :func:`calibrant.metrics.ece`.
        title: Title of the figure; shown literally, without control characters.
        event: Name of the event whose probability the pairs state, such as a class; by default that of being right.
        ax: Axes of your own to draw in, without the histogram; the result is then their figure.

    Example:
        >>> from calibrant import metrics, report
        >>> figure = report.figures.reliability_diagram(metrics.predictions([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]))
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['accuracy', 'samples']
    """
    stated, came_true = _axes_of(event)
    table = equal_width_bins(predictions, bins=bins, convention=convention)
    held = table.samples > 0
    samples, right = table.samples[held], table.right[held]
    # A separate bin for confidence 1 has no width to show; between boxes is a little space.
    width = np.maximum(table.upper[held] - table.lower[held], 0.004)
    left, width = table.lower[held] + 0.06 * width, 0.88 * width
    handles = (
        Line2D([], [], color=ACCENT, marker="o", markersize=5.5, linewidth=0, label=came_true),
        Patch(color=ACCENT, alpha=0.18, linewidth=0, label="95 % interval"),
        Line2D([], [], color=GAP, linewidth=3, alpha=0.75, label="gap"),
        Line2D([], [], color=MUTED, linewidth=1, linestyle=(0, (3, 2)), label="calibrated"),
    )

    def draw_bins(axes: Axes) -> None:
        confidence, accuracy = table.confidence[held] / samples, right / samples
        low, high = wilson_interval(right, samples)
        axes.plot((0, 1), (0, 1), color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.bar(left, high - low, width, low, align="edge", color=ACCENT, alpha=0.18, linewidth=0)
        axes.vlines(confidence, accuracy, confidence, color=GAP, linewidth=3, alpha=0.75)
        axes.plot(
            confidence, accuracy, "o", color=ACCENT, markersize=5.5, markeredgecolor=PAPER, markeredgewidth=0.8,
            clip_on=False, zorder=3,
        )  # fmt: skip
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=stated, ylabel=came_true)
        axes.xaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 1]))
        axes.xaxis.set_major_formatter(percent_ticks())
        axes.yaxis.set_major_formatter(percent_ticks())

    def draw_histogram(axes: Axes) -> None:
        axes.bar(left, samples / predictions.total, width, align="edge", color=ACCENT, linewidth=0)
        axes.set(xlabel=stated, ylabel="samples")
        axes.yaxis.set_major_locator(MaxNLocator(2))
        axes.yaxis.set_major_formatter(percent_ticks())
        axes.grid(visible=False, axis="x")

    if ax is not None:
        return _drawn({draw_bins: 1}, handles, title, ax)
    return _drawn({draw_bins: 5, draw_histogram: 1}, handles, title)


def cumulative_plot(
    predictions: Predictions, *, title: str | None = None, event: str | None = None, ax: Axes | None = None
) -> Figure:
    r"""Cumulative accuracy and cumulative confidence, from the least to the most confident sample.

    At threshold :math:`\alpha` they are :math:`\frac1N\sum_i 1[z_i \le \alpha] c_i` and
    :math:`\frac1N\sum_i 1[z_i \le \alpha] z_i`. Below is their difference: ESD estimates its mean square,
    and its largest absolute value is the KS error (Yoon et al., ICLR 2023, Appendix A). The band contains 95 % of what
    chance gives a calibrated model at each threshold.

    Arguments are those of :func:`reliability_diagram`; in axes of your own only the difference is drawn.
    """
    stated, came_true = _axes_of(event)
    share, threshold, accuracy, confidence, chance = cumulated(predictions)
    order = "the least confident first (their confidence)" if event is None else "in order of their probability"
    above = (
        Line2D([], [], color=ACCENT, linewidth=1.8, label=came_true),
        Line2D([], [], color=INK, linewidth=1.3, linestyle=(0, (3, 1.5)), label=stated),
    )
    below = (
        Line2D([], [], color=GAP, linewidth=1.8, label="difference"),
        Patch(color=MUTED, alpha=0.2, linewidth=0, label="chance (95 %)"),
    )

    def draw_curves(axes: Axes) -> None:
        axes.plot(share, accuracy, color=ACCENT, linewidth=1.8)
        axes.plot(share, confidence, color=INK, linewidth=1.3, linestyle=(0, (4, 2)))
        axes.fill_between(share, accuracy, confidence, color=GAP, alpha=0.35, linewidth=0)
        axes.set(xlim=(0, 1), ylim=(0, None), ylabel="cumulative share")
        axes.yaxis.set_major_formatter(percent_ticks())

    def draw_difference(axes: Axes) -> None:
        axes.fill_between(share, -100 * chance, 100 * chance, color=MUTED, alpha=0.2, linewidth=0)
        axes.axhline(0, color=MUTED, linewidth=1)
        axes.plot(share, 100 * (confidence - accuracy), color=GAP, linewidth=1.8)
        axes.set(xlim=(0, 1), xlabel=f"samples, {order}", ylabel="difference, points")
        axes.yaxis.set_major_locator(MaxNLocator(4))
        ticks = np.array([0, 0.25, 0.5, 0.75, 1])
        at = threshold[np.minimum(np.searchsorted(share, ticks), len(share) - 1)]
        axes.xaxis.set_major_locator(FixedLocator(ticks.tolist()))
        axes.set_xticklabels(
            [f"{100 * tick:.0f} %\n({short_confidence(z)})" for tick, z in zip(ticks, at, strict=True)]
        )

    if ax is not None:
        return _drawn({draw_difference: 1}, below, title, ax)
    return _drawn({draw_curves: 5, draw_difference: 2.6}, (*above, *below), title)


def _drawn(
    plots: Mapping[Callable[[Axes], None], float],
    handles: Sequence[Line2D | Patch],
    title: str | None,
    ax: Axes | None = None,
    height: float = 4.9,
) -> Figure:
    """A figure of plots one above the other, with their shares of its height; or one plot in axes of the user."""
    if ax is not None:
        (draw,) = plots
        draw(ax)
        ax.legend(handles=list(handles), loc="best")
        if title is not None:
            ax.set_title(literal(title))
        own: Any = ax.get_figure()
        figure: Figure = own.figure  # of a part of a figure too
        return figure
    with house_style():
        size = (WIDTH, height + 0.3 * (title is not None))
        figure = Figure(figsize=size, facecolor=PAPER, layout="constrained")
        every = figure.subplots(len(plots), 1, sharex=True, squeeze=False, height_ratios=list(plots.values()))
        for axes, draw in zip(every[:, 0], plots, strict=True):
            draw(axes)
            axes.label_outer()
        legend_above(figure, title, *handles)
    return figure


def _axes_of(event: str | None) -> tuple[str, str]:
    """Labels of the two axes: the stated probability, and the observed share."""
    if event is None:
        return "confidence", "accuracy"
    return f"probability of {literal(event)}", f"share of {literal(event)}"


def cumulated(predictions: Predictions) -> tuple[Array, ...]:
    """Share of samples, threshold, cumulative accuracy and confidence, and the 95 % point of chance, thinned."""
    confidence, samples, right = predictions.ties
    total = predictions.total
    sums = (samples, right, samples * confidence, samples * confidence * (1 - confidence))
    share, accuracy, sure, variance = (np.concatenate(([0.0], values.cumsum() / total)) for values in sums)
    threshold = np.concatenate((confidence[:1], confidence))
    chance = ERRORS * np.sqrt(np.maximum(variance, 0) / total)
    keep = np.searchsorted(share, np.linspace(0, 1, MOST_POINTS))
    keep = np.unique(np.append(np.minimum(keep, len(share) - 1), np.abs(sure - accuracy).argmax()))
    share[-1] = 1.0
    return tuple(values[keep] for values in (share, threshold, accuracy, sure, chance))


def short_confidence(confidence: float) -> str:
    """A confidence in at most four digits, rounded down, so that only 1 is shown as 1."""
    return f"{math.floor(10_000 * confidence) / 10_000:g}"


def classwise_plot(predictions: Predictions, *, title: str | None = None, ax: Axes | None = None) -> Figure:
    """Mean probability minus share of classes or labels, with 95 % intervals: the 20 largest gaps, the largest on top.

    Of more than 50 classes, those 50 that the model expects most often are compared; of two classes, class 1 is shown.
    Arguments are those of :func:`reliability_diagram`; the predictions need probabilities or logits.
    """
    predictions.of_classes("a plot of classes")
    classes = [view for view in views(predictions) if view.of_event and len(view.pairs) > 1]
    gaps = [confidence_interval(view.pairs, metric="gap") for view in classes]
    worst = sorted(zip(classes, gaps, strict=True), key=lambda each: -abs(each[1].value))[:MOST_ROWS]
    rows = [(view.name, gap, excludes_zero(gap)) for view, gap in worst]
    kind = "label" if predictions.task == "multi-label" else "class"
    return _plot_rows(rows, kind, ("interval excludes 0", "average gap within chance"), title, ax)


def groups_plot(found: GroupCalibration, *, title: str | None = None, ax: Axes | None = None) -> Figure:
    """Gap of each group with its 95 % interval, in the order of the result: the 20 worst, the worst on top.

    It takes a result of :func:`calibrant.metrics.calibration_by_group`, and arguments of :func:`reliability_diagram`.
    """
    rows = [(group.name, group.gap, group.rejected) for group in found.groups[:MOST_ROWS]]
    return _plot_rows(rows, "group", ("rejected", "not rejected"), title, ax)


def time_plot(found: TimeCalibration, *, title: str | None = None, ax: Axes | None = None) -> Figure:
    """Gap in each window of time with its 95 % interval, and where it most likely changed, if it did.

    It takes a result of :func:`calibrant.metrics.calibration_over_time`, and arguments of :func:`reliability_diagram`.
    """
    handles = [_dot(ACCENT, "gap, 95 % interval")]
    if found.changed:
        mark = f"most likely change: after {literal(found.change_at)}"
        handles.append(Line2D([], [], color=GAP, linewidth=1.5, linestyle=(0, (4, 2)), label=mark))

    def draw(axes: Axes) -> None:
        place = np.arange(len(found.windows))
        low, value, high = _ends([window.gap for window in found.windows])
        axes.axhline(0, color=INK, linewidth=1)
        axes.vlines(place, low, high, color=ACCENT, linewidth=1.8)
        axes.plot(place, value, "o-", color=ACCENT, linewidth=0.8, markersize=5.5, markeredgecolor=PAPER)
        if found.changed:
            axes.axvline(_place_of_change(found), color=GAP, linewidth=1.5, linestyle=(0, (4, 2)))
        axes.set(xlabel="start of the window", ylabel="stated minus observed, points", xlim=(-0.6, len(place) - 0.4))
        starts = [shortened(literal(window.start), LABEL_LETTERS) for window in found.windows]
        axes.set_xticks(place, starts, rotation=30, ha="right")
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.grid(visible=False, axis="x")

    return _drawn({draw: 1}, handles, title, ax, height=3.2)


def _place_of_change(found: TimeCalibration) -> float:
    """Where the change is: between two windows, or inside one."""
    times = np.array([found.change_at, *(window.end for window in found.windows)])
    with suppress(ValueError):  # dates are in the order of their texts
        times = times.astype(float)
    place = min(int(np.searchsorted(times[1:], times[0])), len(found.windows) - 1)
    return place + 0.5 * (found.change_at == found.windows[place].end)


def _plot_rows(
    rows: Sequence[tuple[str, Interval, bool]], kind: str, labels: tuple[str, str], title: str | None, ax: Axes | None
) -> Figure:
    """Names, gaps, and whether they are wrong, one below the other, with labels for those that are and are not."""
    colours = [GAP if wrong else ACCENT for _, _, wrong in rows]
    handles = [_dot(colour, label) for colour, label in zip((GAP, ACCENT), labels, strict=True) if colour in colours]

    def draw(axes: Axes) -> None:
        place = np.arange(len(rows))
        low, value, high = _ends([gap for _, gap, _ in rows])
        axes.axvline(0, color=INK, linewidth=1)
        axes.hlines(place, low, high, color=colours, linewidth=1.8)
        axes.scatter(value, place, s=5.5**2, color=colours, edgecolor=PAPER, linewidth=0.8, zorder=3)
        axes.set(xlabel="stated minus observed, points", ylabel=kind, ylim=(len(rows) - 0.4, -0.6))
        axes.set_yticks(place, [shortened(literal(name), LABEL_LETTERS) for name, _, _ in rows])
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.grid(visible=False, axis="y")

    return _drawn({draw: 1}, handles, title, ax, height=1.2 + 0.24 * max(len(rows), 3))


def _dot(colour: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker="o", markersize=5.5, linewidth=1.8, label=label)


def _ends(gaps: Sequence[Interval]) -> tuple[Array, Array, Array]:
    """Lower ends, values and upper ends in points."""
    low, value, high = 100 * np.array([(gap.low, gap.value, gap.high) for gap in gaps]).T
    return low, value, high
