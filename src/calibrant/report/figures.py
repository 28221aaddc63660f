"""The figures: reliability diagram and cumulative plot; gaps of classes, of groups and over time.

A gap is the mean probability minus the share that came true, in points, so 0 is calibrated on average. Figures are
drawn without ``pyplot``, so nothing is shown, kept or leaked: save one with ``figure.savefig``.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator

from calibrant.frames import Array
from calibrant.metrics.binned import BinTable, ConventionName, equal_width_bins
from calibrant.metrics.groups import GroupCalibration, TimeCalibration
from calibrant.metrics.intervals import Interval
from calibrant.metrics.predictions import Predictions
from calibrant.report.formats import shortened
from calibrant.report.statistics import ERRORS, MOST_ROWS, class_rows, wilson_interval
from calibrant.report.style import (
    ACCENT,
    GAP,
    INK,
    MUTED,
    PAPER,
    canvas,
    legend_above,
    legend_inside,
    literal,
    percent_ticks,
)

__all__ = ["classwise_plot", "cumulative_plot", "groups_plot", "reliability_diagram", "time_plot"]

# Largest number of points: more could not be distinguished.
MOST_POINTS = 400
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
    the 95 % Wilson interval of the accuracy: it does not assume that the model is calibrated, and stays wide if a few
    samples happen to be all right. Empty bins are left out.

    Args:
        predictions: Predictions from ``metrics.predictions``.
        bins: Number of bins of equal width; by default the convention's.
        convention: As in :func:`calibrant.metrics.ece`.
        title: Title of the figure; shown literally, without control characters.
        event: Name of the event whose probability the pairs state, such as a class; by default that of being right.
        ax: Axes of your own to draw the diagram in, without the histogram.

    Returns:
        The figure; that of ``ax``, if given.

    References:
        Wilson, "Probable inference, the law of succession, and statistical inference", 1927; Niculescu-Mizil,
        Caruana, "Predicting good probabilities with supervised learning", ICML 2005.

    Example:
        >>> from calibrant import metrics, report
        >>> figure = report.figures.reliability_diagram(metrics.predictions([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]))
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['accuracy', 'samples']
    """
    stated, came_true = _axes_of(event)
    table = equal_width_bins(predictions, bins=bins, convention=convention)
    handles = (
        Line2D([], [], color=ACCENT, marker="o", markersize=5.5, linewidth=0, label=came_true),
        Patch(color=ACCENT, alpha=0.18, linewidth=0, label="95 % interval"),
        Line2D([], [], color=GAP, linewidth=3, alpha=0.75, label="gap"),
        Line2D([], [], color=MUTED, linewidth=1, linestyle=(0, (3, 2)), label="calibrated"),
    )
    if ax is not None:
        _draw_bins(ax, table)
        ax.set(xlabel=stated, ylabel=came_true)
        ax.xaxis.set_major_formatter(percent_ticks())
        return legend_inside(ax, title, *handles)
    with canvas(4.9, title) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
        _draw_bins(top, table)
        top.set(ylabel=came_true)
        left, width, samples = _boxes(table)
        bottom.bar(left, samples / predictions.total, width, align="edge", color=ACCENT, linewidth=0)
        bottom.set(xlabel=stated, ylabel="samples")
        bottom.yaxis.set_major_locator(MaxNLocator(2))
        for formatted in (bottom.xaxis, bottom.yaxis):
            formatted.set_major_formatter(percent_ticks())
        bottom.grid(visible=False, axis="x")
        legend_above(figure, title, *handles)
    return figure


def _boxes(table: BinTable) -> tuple[Array, Array, Array]:
    """Left edge, width and number of samples of the bins that have any, with a little space between them."""
    held = table.samples > 0
    # A separate bin for confidence 1 has no width to show.
    width = np.maximum(table.upper[held] - table.lower[held], 0.004)
    return table.lower[held] + 0.06 * width, 0.88 * width, table.samples[held]


def _draw_bins(axes: Axes, table: BinTable) -> None:
    held = table.samples > 0
    left, width, samples = _boxes(table)
    confidence, accuracy = table.confidence[held] / samples, table.right[held] / samples
    low, high = wilson_interval(table.right[held], samples)
    axes.plot((0, 1), (0, 1), color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    axes.bar(left, high - low, width, low, align="edge", color=ACCENT, alpha=0.18, linewidth=0)
    axes.vlines(confidence, accuracy, confidence, color=GAP, linewidth=3, alpha=0.75)
    axes.plot(
        confidence, accuracy, "o", color=ACCENT, markersize=5.5, markeredgecolor=PAPER, markeredgewidth=0.8,
        clip_on=False, zorder=3,
    )  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.xaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 1]))
    axes.yaxis.set_major_formatter(percent_ticks())


def cumulative_plot(
    predictions: Predictions, *, title: str | None = None, event: str | None = None, ax: Axes | None = None
) -> Figure:
    r"""Cumulative accuracy and cumulative confidence, from the least to the most confident sample.

    At threshold :math:`\alpha` they are :math:`\frac1N\sum_i 1[z_i \le \alpha] c_i` and
    :math:`\frac1N\sum_i 1[z_i \le \alpha] z_i`. Below is their difference: ESD estimates its mean square,
    and its largest absolute value is the KS error. The band contains 95 % of what chance gives a calibrated model at
    each threshold.

    Args:
        predictions: Predictions from ``metrics.predictions``.
        title: Title of the figure; shown literally, without control characters.
        event: As in :func:`reliability_diagram`.
        ax: Axes of your own to draw the difference in, without the curves above it.

    Returns:
        The figure; that of ``ax``, if given.

    References:
        Yoon, Tee, Yoon, Yoon, Kim, Li, Yoo, "ESD: Expected Squared Difference as a Tuning-Free Trainable
        Calibration Measure", ICLR 2023, Appendix A.

    Example:
        >>> from calibrant import metrics, report
        >>> figure = report.figures.cumulative_plot(metrics.predictions([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]))
        >>> figure.axes[0].lines[0].get_ydata().tolist()
        [0.0, 0.25, 0.25, 0.5]
    """
    stated, came_true = _axes_of(event)
    curves = cumulated(predictions)
    share, _, accuracy, confidence, _ = curves
    order = "the least confident first (their confidence)" if event is None else "in order of their probability"
    below = (
        Line2D([], [], color=GAP, linewidth=1.8, label="difference"),
        Patch(color=MUTED, alpha=0.2, linewidth=0, label="chance (95 %)"),
    )
    if ax is not None:
        _draw_difference(ax, curves, order)
        return legend_inside(ax, title, *below)
    with canvas(4.9, title) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(5, 2.6))
        top.plot(share, accuracy, color=ACCENT, linewidth=1.8)
        top.plot(share, confidence, color=INK, linewidth=1.3, linestyle=(0, (4, 2)))
        top.fill_between(share, accuracy, confidence, color=GAP, alpha=0.35, linewidth=0)
        top.set(xlim=(0, 1), ylim=(0, None), ylabel="cumulative share")
        top.yaxis.set_major_formatter(percent_ticks())
        _draw_difference(bottom, curves, order)
        legend_above(
            figure,
            title,
            Line2D([], [], color=ACCENT, linewidth=1.8, label=came_true),
            Line2D([], [], color=INK, linewidth=1.3, linestyle=(0, (3, 1.5)), label=stated),
            *below,
        )
    return figure


def _draw_difference(axes: Axes, curves: tuple[Array, ...], order: str) -> None:
    share, threshold, accuracy, confidence, chance = curves
    axes.fill_between(share, -100 * chance, 100 * chance, color=MUTED, alpha=0.2, linewidth=0)
    axes.axhline(0, color=MUTED, linewidth=1)
    axes.plot(share, 100 * (confidence - accuracy), color=GAP, linewidth=1.8)
    axes.set(xlim=(0, 1), xlabel=f"samples, {order}", ylabel="difference, points")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    ticks = np.array([0, 0.25, 0.5, 0.75, 1])
    at = threshold[np.minimum(np.searchsorted(share, ticks), len(share) - 1)]
    axes.xaxis.set_major_locator(FixedLocator(ticks.tolist()))
    axes.set_xticklabels([f"{100 * tick:.0f} %\n({short_confidence(z)})" for tick, z in zip(ticks, at, strict=True)])


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
    """A confidence in the fewest digits that do not round it up to 1."""
    for digits in (2, 3, 4):
        text = f"{confidence:.{digits}f}"
        if not text.startswith("1") or confidence == 1:
            return text if confidence != 1 else "1"
    return "> 0.9999"


class Row(NamedTuple):
    """One line of a figure; ``wrong`` if the gap is more than chance."""

    name: str
    gap: Interval
    wrong: bool


def classwise_plot(predictions: Predictions, *, title: str | None = None, ax: Axes | None = None) -> Figure:
    """Mean probability minus share of classes or labels, with 95 % intervals: the 20 largest gaps, the largest on top.

    Args:
        predictions: Predictions from ``metrics.predictions``, with probabilities or logits.
        title: Title of the figure; shown literally, without control characters.
        ax: Axes of your own to draw in.

    Returns:
        The figure; that of ``ax``, if given.

    Example:
        >>> from calibrant import metrics, report
        >>> given = metrics.predictions(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], target=[0, 1, 1])
        >>> [label.get_text() for label in report.figures.classwise_plot(given).axes[0].get_yticklabels()]
        ['0', '1']
    """
    rows = [Row(row.name, row.gap, not row.gap.low <= 0 <= row.gap.high) for row in class_rows(predictions)]
    kind = "label" if predictions.task == "multi-label" else "class"
    return _plot(rows, kind, "interval excludes 0", "average gap within chance", title, ax)


def groups_plot(found: GroupCalibration, *, title: str | None = None, ax: Axes | None = None) -> Figure:
    """Gap of each group with its 95 % interval, in the order of the result: the 20 worst, the worst on top.

    Args:
        found: Result of :func:`calibrant.metrics.calibration_by_group`.
        title: Title of the figure; shown literally, without control characters.
        ax: Axes of your own to draw in.

    Returns:
        The figure; that of ``ax``, if given.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics, report
        >>> region = np.repeat(["north", "south"], 50)
        >>> found = metrics.calibration_by_group(np.full(100, 0.6), np.arange(100) < 50, groups=region)
        >>> [label.get_text() for label in report.figures.groups_plot(found).axes[0].get_yticklabels()]
        ['south', 'north']
    """
    rows = [Row(group.name, group.gap, group.rejected) for group in found.groups[:MOST_ROWS]]
    return _plot(rows, "group", "rejected", "not rejected", title, ax)


def time_plot(found: TimeCalibration, *, title: str | None = None, ax: Axes | None = None) -> Figure:
    """Gap in each window of time with its 95 % interval, and where it most likely changed, if it did.

    Args:
        found: Result of :func:`calibrant.metrics.calibration_over_time`.
        title: Title of the figure; shown literally, without control characters.
        ax: Axes of your own to draw in.

    Returns:
        The figure; that of ``ax``, if given.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics, report
        >>> found = metrics.calibration_over_time(np.full(90, 0.6), np.arange(90) % 2, time=np.arange(90))
        >>> len(report.figures.time_plot(found).axes[0].get_xticks())
        3
    """
    handles = [Line2D([], [], color=ACCENT, marker="o", markersize=5.5, linewidth=1.8, label="gap, 95 % interval")]
    if found.changed:
        mark = f"most likely change: after {literal(found.change_at)}"
        handles.append(Line2D([], [], color=GAP, linewidth=1.5, linestyle=(0, (4, 2)), label=mark))
    return _drawn(lambda axes: _draw_windows(axes, found), 3.2, handles, title, ax)


def _plot(rows: Sequence[Row], kind: str, wrong: str, right: str, title: str | None, ax: Axes | None) -> Figure:
    handles = [
        Line2D([], [], color=colour, marker="o", markersize=5.5, linewidth=1.8, label=label)
        for colour, label, shown in (
            (GAP, wrong, any(row.wrong for row in rows)),
            (ACCENT, right, not all(row.wrong for row in rows)),
        )
        if shown
    ]
    return _drawn(lambda axes: _draw_rows(axes, rows, kind), 1.2 + 0.24 * max(len(rows), 3), handles, title, ax)


def _drawn(
    draw: Callable[[Axes], None], height: float, handles: Sequence[Line2D], title: str | None, ax: Axes | None
) -> Figure:
    """A figure of one plot, or the user's figure with the plot in some of its axes."""
    if ax is not None:
        draw(ax)
        return legend_inside(ax, title, *handles)
    with canvas(height, title) as figure:
        draw(figure.subplots())
        legend_above(figure, title, *handles)
    return figure


def _draw_rows(axes: Axes, rows: Sequence[Row], kind: str) -> None:
    axes.axvline(0, color=INK, linewidth=1)
    for place, row in enumerate(rows):
        low, value, high = (100 * each for each in (row.gap.low, row.gap.value, row.gap.high))
        colour = GAP if row.wrong else ACCENT
        axes.hlines(place, low, high, color=colour, linewidth=1.8)
        axes.plot(value, place, "o", color=colour, markersize=5.5, markeredgecolor=PAPER, markeredgewidth=0.8)
    axes.set(xlabel="stated minus observed, points", ylabel=kind, ylim=(len(rows) - 0.4, -0.6))
    axes.set_yticks(range(len(rows)), [shortened(literal(row.name), LABEL_LETTERS) for row in rows])
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.grid(visible=False, axis="y")


def _draw_windows(axes: Axes, found: TimeCalibration) -> None:
    windows = found.windows
    place = np.arange(len(windows))
    low, value, high = (
        100 * np.array([getattr(window.gap, key) for window in windows]) for key in ("low", "value", "high")
    )
    axes.axhline(0, color=INK, linewidth=1)
    axes.vlines(place, low, high, color=ACCENT, linewidth=1.8)
    axes.plot(place, value, "o-", color=ACCENT, linewidth=0.8, markersize=5.5, markeredgecolor=PAPER)
    if found.changed:
        axes.axvline(_place(found), color=GAP, linewidth=1.5, linestyle=(0, (4, 2)))
    axes.set(xlabel="start of the window", ylabel="stated minus observed, points", xlim=(-0.6, len(windows) - 0.4))
    axes.set_xticks(
        place, [shortened(literal(window.start), LABEL_LETTERS) for window in windows], rotation=30, ha="right"
    )
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(visible=False, axis="x")


def _place(found: TimeCalibration) -> float:
    """Where the change is: between two windows, or inside one."""
    at = _moment(found.change_at)
    for place, window in enumerate(found.windows):
        if at <= _moment(window.end):
            return place + 0.5 * (found.change_at == window.end)
    return len(found.windows) - 1


def _moment(text: str) -> tuple[float, str]:
    """A time in an order: numbers by their size, dates by their text."""
    try:
        return float(text), ""
    except ValueError:
        return 0.0, text
