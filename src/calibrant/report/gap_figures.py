"""The figures of gaps with intervals: of classes, of groups, over time.

The gap is the mean probability minus the share that came true, in points, so 0 is calibrated on average.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from calibrant.metrics import GroupCalibration, Interval, TimeCalibration
from calibrant.metrics.predictions import Predictions
from calibrant.report.classes import MOST_ROWS, class_rows
from calibrant.report.style import ACCENT, GAP, INK, PAPER, canvas, legend_above, legend_inside, literal

# Longest name beside an axis; the table beside the figure has the whole name.
LONGEST = 28


class Row(NamedTuple):
    """One line of a figure; ``wrong`` if the gap is more than chance."""

    name: str
    gap: Interval
    wrong: bool


def classwise_plot(
    predictions: Predictions, *, most: int = MOST_ROWS, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """Mean probability minus share of each class or label, with its 95 % interval, the largest gap on top.

    Args:
        predictions: Predictions from ``metrics.predictions``, with probabilities or logits.
        most: Most classes shown: those with the largest gaps.
        title: Title of the figure; shown literally, without control characters.
        ax: Axes of your own to draw in.

    Returns:
        The figure; that of ``ax``, if given.

    Example:
        >>> from calibrant import metrics, report
        >>> given = metrics.predictions(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], target=[0, 1, 1])
        >>> [label.get_text() for label in report.classwise_plot(given).axes[0].get_yticklabels()]
        ['0', '1']
    """
    rows = [Row(row.name, row.gap, not row.gap.low <= 0 <= row.gap.high) for row in class_rows(predictions, most=most)]
    kind = "label" if predictions.task == "multi-label" else "class"
    return _plot(rows, kind, "interval excludes 0", "average gap within chance", title, ax)


def groups_plot(
    found: GroupCalibration, *, most: int = MOST_ROWS, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """Gap of each group with its 95 % interval, in the order of the result: the worst on top.

    Args:
        found: Result of :func:`calibrant.metrics.calibration_by_group`.
        most: Most groups shown.
        title: Title of the figure; shown literally, without control characters.
        ax: Axes of your own to draw in.

    Returns:
        The figure; that of ``ax``, if given.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics, report
        >>> region = np.repeat(["north", "south"], 50)
        >>> found = metrics.calibration_by_group(np.full(100, 0.6), np.arange(100) < 50, groups=region)
        >>> [label.get_text() for label in report.groups_plot(found).axes[0].get_yticklabels()]
        ['south', 'north']
    """
    rows = [Row(group.name, group.gap, group.rejected) for group in found.groups[:most]]
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
        >>> len(report.time_plot(found).axes[0].get_xticks())
        3
    """
    handles = [Line2D([], [], color=ACCENT, marker="o", markersize=5.5, linewidth=1.8, label="gap, 95 % interval")]
    if found.changed:
        mark = f"most likely change: after {literal(found.change_at)}"
        handles.append(Line2D([], [], color=GAP, linewidth=1.5, linestyle=(0, (4, 2)), label=mark))
    if ax is not None:
        _draw_windows(ax, found)
        return legend_inside(ax, title, *handles)
    with canvas(3.2, title) as figure:
        _draw_windows(figure.subplots(), found)
        legend_above(figure, title, *handles)
    return figure


def _plot(rows: Sequence[Row], kind: str, wrong: str, right: str, title: str | None, ax: Axes | None) -> Figure:
    handles = [
        Line2D([], [], color=colour, marker="o", markersize=5.5, linewidth=1.8, label=label)
        for colour, label, shown in (
            (GAP, wrong, any(row.wrong for row in rows)),
            (ACCENT, right, not all(row.wrong for row in rows)),
        )
        if shown
    ]
    if ax is not None:
        _draw_rows(ax, rows, kind)
        return legend_inside(ax, title, *handles)
    with canvas(1.2 + 0.24 * max(len(rows), 3), title) as figure:
        _draw_rows(figure.subplots(), rows, kind)
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
    axes.set_yticks(range(len(rows)), [_short(row.name) for row in rows])
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
    axes.set_xticks(place, [_short(window.start) for window in windows], rotation=30, ha="right")
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


def _short(name: str) -> str:
    text = literal(name)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
