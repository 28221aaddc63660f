"""The figures of a report: reliability diagram, cumulative plot, breakdown by class.

They are drawn without ``pyplot``, so nothing is shown, kept or leaked: save one with ``figure.savefig``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, PercentFormatter

from calibrant.metrics.binned import ConventionName, equal_width_bins
from calibrant.metrics.predictions import Predictions
from calibrant.report.chance import ERRORS, wilson_interval
from calibrant.report.classes import MOST_ROWS, class_rows
from calibrant.report.names import clean

Array = npt.NDArray[Any]

# Blue and orange differ for every common colour vision. A page replaces them with its own colours.
INK, MUTED, FAINT, PAPER = "#1c2733", "#5a6775", "#d9e0e6", "#ffffff"
ACCENT, GAP = "#1b62b5", "#c8541a"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 1.2,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.4,
}
# 4.7 inches are 338 points, about the width of a phone: letters keep their size there.
WIDTH = 4.7
# Largest number of points: more could not be distinguished.
MOST_POINTS = 400


def reliability_diagram(
    predictions: Predictions,
    *,
    bins: int | None = None,
    convention: ConventionName = "paper",
    title: str | None = None,
    event: str | None = None,
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

    References:
        Wilson, "Probable inference, the law of succession, and statistical inference", 1927; Niculescu-Mizil,
        Caruana, "Predicting good probabilities with supervised learning", ICML 2005.

    Example:
        >>> from calibrant import metrics, report
        >>> figure = report.reliability_diagram(metrics.predictions([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]))
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['accuracy', 'samples']
    """
    stated, came_true = _axes_of(event)
    table = equal_width_bins(predictions, bins=bins, convention=convention)
    held = table.samples > 0
    lower, samples, right = table.lower[held], table.samples[held], table.right[held]
    # A separate bin for confidence 1 has no width to show.
    width = np.maximum(table.upper[held] - lower, 0.004)
    confidence, accuracy = table.confidence[held] / samples, right / samples
    low, high = wilson_interval(right, samples)
    with _figure(4.9, title) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
        top.plot((0, 1), (0, 1), color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        inset = 0.06 * width
        top.bar(lower + inset, high - low, width - 2 * inset, low, align="edge", color=ACCENT, alpha=0.18, linewidth=0)
        top.vlines(confidence, accuracy, confidence, color=GAP, linewidth=3, alpha=0.75)
        top.plot(
            confidence,
            accuracy,
            "o",
            color=ACCENT,
            markersize=5.5,
            markeredgecolor=PAPER,
            markeredgewidth=0.8,
            clip_on=False,
            zorder=3,
        )
        top.set(xlim=(0, 1), ylim=(0, 1), ylabel=came_true)
        bottom.bar(
            lower + inset, samples / len(predictions), width - 2 * inset, align="edge", color=ACCENT, linewidth=0
        )
        bottom.set(xlabel=stated, ylabel="samples")
        bottom.yaxis.set_major_locator(MaxNLocator(2))
        for axes in (top, bottom):
            axes.xaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 1]))
            axes.yaxis.set_major_formatter(percent_ticks())
        bottom.xaxis.set_major_formatter(percent_ticks())
        bottom.grid(visible=False, axis="x")
        legend_above(
            figure,
            title,
            Line2D([], [], color=ACCENT, marker="o", markersize=5.5, linewidth=0, label=came_true),
            Patch(color=ACCENT, alpha=0.18, linewidth=0, label="95 % interval"),
            Line2D([], [], color=GAP, linewidth=3, alpha=0.75, label="gap"),
            Line2D([], [], color=MUTED, linewidth=1, linestyle=(0, (3, 2)), label="calibrated"),
        )
    return figure


def cumulative_plot(predictions: Predictions, *, title: str | None = None, event: str | None = None) -> Figure:
    r"""Cumulative accuracy and cumulative confidence, from the least to the most confident sample.

    At threshold :math:`\alpha` they are :math:`\frac1N\sum_i 1[z_i \le \alpha] c_i` and
    :math:`\frac1N\sum_i 1[z_i \le \alpha] z_i`. Below is their difference: ESD estimates its mean square,
    and its largest absolute value is the KS error. The band contains 95 % of what chance gives a calibrated model at
    each threshold.

    Args:
        predictions: Predictions from ``metrics.predictions``.
        title: Title of the figure; shown literally, without control characters.
        event: As in :func:`reliability_diagram`.

    References:
        Yoon, Tee, Yoon, Yoon, Kim, Li, Yoo, "ESD: Expected Squared Difference as a Tuning-Free Trainable
        Calibration Measure", ICLR 2023, Appendix A.

    Example:
        >>> from calibrant import metrics, report
        >>> figure = report.cumulative_plot(metrics.predictions([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]))
        >>> figure.axes[0].lines[0].get_ydata().tolist()
        [0.0, 0.25, 0.25, 0.5]
    """
    stated, came_true = _axes_of(event)
    share, threshold, accuracy, confidence, chance = cumulated(predictions)
    difference = 100 * (confidence - accuracy)
    with _figure(4.9, title) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(5, 2.6))
        top.plot(share, accuracy, color=ACCENT, linewidth=1.8)
        top.plot(share, confidence, color=INK, linewidth=1.3, linestyle=(0, (4, 2)))
        top.fill_between(share, accuracy, confidence, color=GAP, alpha=0.35, linewidth=0)
        top.set(xlim=(0, 1), ylim=(0, None), ylabel="cumulative share")
        top.yaxis.set_major_formatter(percent_ticks())
        bottom.fill_between(share, -100 * chance, 100 * chance, color=MUTED, alpha=0.2, linewidth=0)
        bottom.axhline(0, color=MUTED, linewidth=1)
        bottom.plot(share, difference, color=GAP, linewidth=1.8)
        least = "the least confident first (their confidence)" if event is None else "in order of their probability"
        bottom.set(xlabel=f"samples, {least}", ylabel="difference, points")
        bottom.yaxis.set_major_locator(MaxNLocator(4))
        ticks = np.array([0, 0.25, 0.5, 0.75, 1])
        at = threshold[np.minimum(np.searchsorted(share, ticks), len(share) - 1)]
        bottom.xaxis.set_major_locator(FixedLocator(ticks.tolist()))
        bottom.set_xticklabels(
            [f"{100 * tick:.0f} %\n({short_confidence(z)})" for tick, z in zip(ticks, at, strict=True)]
        )
        legend_above(
            figure,
            title,
            Line2D([], [], color=ACCENT, linewidth=1.8, label=came_true),
            Line2D([], [], color=INK, linewidth=1.3, linestyle=(0, (3, 1.5)), label=stated),
            Line2D([], [], color=GAP, linewidth=1.8, label="difference"),
            Patch(color=MUTED, alpha=0.2, linewidth=0, label="chance (95 %)"),
        )
    return figure


def classwise_plot(
    predictions: Predictions,
    *,
    bins: int | None = None,
    convention: ConventionName = "paper",
    title: str | None = None,
) -> Figure:
    """Mean confidence and accuracy of the predictions of each class.

    Classes are sorted by class-wise ECE, the worst on top; of more than 20, only the worst 20 are shown. A class that
    is never predicted has no dots.

    Args:
        predictions: Predictions from ``metrics.predictions``, with probabilities or logits.
        bins: Number of bins of class-wise ECE; by default the convention's.
        convention: Convention of class-wise ECE.
        title: Title of the figure; shown literally, without control characters.

    Example:
        >>> from calibrant import metrics, report
        >>> given = metrics.predictions(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], target=[0, 1, 1])
        >>> [label.get_text() for label in report.classwise_plot(given).axes[0].get_yticklabels()]
        ['0', '1']
    """
    rows = class_rows(predictions, bins=bins, convention=convention, most=MOST_ROWS)
    place = np.arange(len(rows))
    precision, confidence = (np.array([getattr(row, key) for row in rows]) for key in ("precision", "confidence"))
    with _figure(1.3 + 0.24 * max(len(rows), 4), title) as figure:
        axes = figure.subplots()
        axes.hlines(place, precision, confidence, color=GAP, linewidth=3, alpha=0.75)
        axes.plot(precision, place, "o", color=ACCENT, markersize=6, markeredgecolor=PAPER, markeredgewidth=0.8)
        axes.plot(confidence, place, "D", color=PAPER, markersize=4.5, markeredgecolor=INK, markeredgewidth=1.2)
        axes.set(xlabel="of the samples predicted as this class", ylabel="class", ylim=(len(rows) - 0.4, -0.6))
        axes.set_yticks(place, [str(row.label) for row in rows])
        low, high = _room(np.concatenate((precision, confidence)))
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(percent_ticks(0 if high - low > 0.08 else 1))
        axes.grid(visible=False, axis="y")
        legend_above(
            figure,
            title,
            Line2D([], [], color=ACCENT, marker="o", markersize=6, linewidth=0, label="accuracy"),
            Line2D([], [], color=PAPER, marker="D", markersize=4.5, markeredgecolor=INK, markeredgewidth=1.2,
                   linewidth=0, label="mean confidence"),
            Line2D([], [], color=GAP, linewidth=3, alpha=0.75, label="gap"),
        )  # fmt: skip
    return figure


def _axes_of(event: str | None) -> tuple[str, str]:
    """What is stated, and what came true; a dollar sign in a name is a dollar sign, not mathematics."""
    if event is None:
        return "confidence", "accuracy"
    name = clean(event).replace("$", r"\$")
    return f"probability of {name}", f"share of {name}"


def _room(shares: Array) -> tuple[float, float]:
    """Limits of the axis that just show all shares."""
    shares = shares[np.isfinite(shares)]
    if not len(shares):
        return 0.0, 1.0
    margin = max(0.04 * float(np.ptp(shares)), 0.01)
    return max(float(shares.min()) - margin, -0.02), min(float(shares.max()) + margin, 1.02)


def cumulated(predictions: Predictions) -> tuple[Array, ...]:
    """Share of samples, threshold, cumulative accuracy and confidence, and the 95 % point of chance, thinned."""
    confidence, samples, right = predictions.groups
    n = len(predictions)
    sums = (samples, right, samples * confidence, samples * confidence * (1 - confidence))
    share, accuracy, sure, variance = (np.concatenate(([0.0], values.cumsum() / n)) for values in sums)
    threshold = np.concatenate((confidence[:1], confidence))
    chance = ERRORS * np.sqrt(np.maximum(variance, 0) / n)
    keep = np.searchsorted(share, np.linspace(0, 1, MOST_POINTS))
    keep = np.unique(np.append(np.minimum(keep, len(share) - 1), np.abs(sure - accuracy).argmax()))
    share[-1] = 1.0
    return tuple(values[keep] for values in (share, threshold, accuracy, sure, chance))


@contextmanager
def house_style() -> Iterator[None]:
    """Draw and save in our style, without changing the user's settings."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


@contextmanager
def _figure(height: float, title: str | None) -> Iterator[Figure]:
    with house_style():
        yield Figure(figsize=(WIDTH, height + 0.3 * (title is not None)), facecolor=PAPER, layout="constrained")


def legend_above(figure: Figure, title: str | None, *handles: Line2D | Patch) -> None:
    """Put the legend between title and axes, where it hides nothing, on as many lines as its width needs."""
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(
            handles=list(handles), loc="outside upper left", ncols=columns, alignment="left", borderpad=0,
            borderaxespad=0.3,
        )  # fmt: skip
        if title is not None:
            legend.set_title(clean(title), prop=FontProperties(size=10.5, weight="bold"))
            # A dollar sign in a name is a dollar sign, not mathematics.
            legend.get_title().set_parse_math(False)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def percent_ticks(decimals: int = 0) -> PercentFormatter:
    """Shares on an axis as percent."""
    return PercentFormatter(1, decimals=decimals, symbol=" %")


def short_confidence(confidence: float) -> str:
    """A confidence in the fewest digits that do not round it up to 1."""
    for digits in (2, 3, 4):
        text = f"{confidence:.{digits}f}"
        if not text.startswith("1") or confidence == 1:
            return text if confidence != 1 else "1"
    return "> 0.9999"
