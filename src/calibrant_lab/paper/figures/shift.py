"""Accuracy and ECE under distribution shift by severity (the paper's appendix), and what the shift looks like."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from calibrant.report.figures import FAINT, MUTED, PAPER, house_style, legend_above
from calibrant_lab.paper.figures.parts import NotRunError, label_of, line_key, look_of, percent_axis
from calibrant_lab.shift.corruptions import SEVERITIES
from calibrant_lab.shift.evaluation import ShiftResult
from calibrant_lab.sweeps.protocol import Row

PANELS = (("accuracy", "accuracy"), ("ece", "ECE, as trained"), ("ece_temperature", "ECE, with temperature"))
SPREAD = 0.62  # of the distance between two severities, that the methods stand side by side in
STEP = 0.16  # from one row to the next, at most


def figure6(rows: Mapping[str, Sequence[ShiftResult]]) -> Figure:
    """Accuracy, ECE, and ECE after temperature scaling, by severity, one line a method.

    Seeds are averaged first. A marker is the mean over corruptions, and its bar holds the middle half of them.
    Severity 0 is the clean test set, of which there is but one.

    Args:
        rows: By the name of a table's row, a result for each seed; rows without any are left out.
    """
    shown = {name: list(results) for name, results in rows.items() if results}
    if not shown:
        raise NotRunError("the figure of distribution shift needs finished trials, and there are none")
    _check_comparable([result for results in shown.values() for result in results])
    # Who has which colour depends on the rows of the whole plan, drawn or not.
    every = [Row(name, ()) for name in rows]
    looks = {row.name: (look_of(every, row), label_of(row)) for row in every if row.name in shown}
    places = (np.arange(len(shown)) - (len(shown) - 1) / 2) * min(STEP, SPREAD / len(shown))
    severities = np.arange(len(SEVERITIES) + 1)
    with house_style():
        figure = Figure(figsize=(8.4, 3.4), facecolor=PAPER, layout="constrained")
        panels = figure.subplots(1, len(PANELS))
        panels[2].sharey(panels[1])
        for axes, (measure, title) in zip(panels, PANELS, strict=True):
            for place, (name, (look, _)) in zip(places, looks.items(), strict=True):
                mean, low, high = _over_corruptions(shown[name], measure)
                at = severities + place
                axes.vlines(at, low, high, color=look.colour, linewidth=2.4, alpha=0.4)
                axes.plot(at, mean, color=look.colour, linewidth=0.9, alpha=0.7)
                axes.plot(at, mean, look.marker, color=look.colour, markersize=4.5, markeredgecolor=PAPER,
                          markeredgewidth=0.5)  # fmt: skip
            for odd in severities[1::2]:
                axes.axvspan(odd - 0.5, odd + 0.5, color=FAINT, alpha=0.4, linewidth=0)
            axes.set(title=title, xlabel="severity", xlim=(-0.5, len(SEVERITIES) + 0.5))
            axes.xaxis.set_major_locator(FixedLocator(severities.tolist()))
            axes.grid(visible=False, axis="x")
        # Once all is drawn: limits that are set hold, and two panels share theirs.
        for axes, (measure, _) in zip(panels, PANELS, strict=True):
            percent_axis(axes, from_zero=measure != "accuracy")
        bar = Line2D([], [], color=MUTED, linewidth=2.4, alpha=0.5, label="middle half of the corruptions")
        legend_above(figure, _title(next(iter(shown.values()))[0]), *(line_key(*one) for one in looks.values()), bar)
    return figure


def _over_corruptions(results: Sequence[ShiftResult], measure: str) -> tuple[npt.NDArray[np.float64], ...]:
    """Mean and quartiles over corruptions at each severity, the seeds averaged."""
    by_severity = [result.by_severity(measure) for result in results]
    averaged = [np.mean(values, axis=0) for values in zip(*by_severity, strict=True)]
    columns = zip(*((values.mean(), *np.quantile(values, (0.25, 0.75))) for values in averaged), strict=True)
    return tuple(np.array(column) for column in columns)


def _check_comparable(results: Sequence[ShiftResult]) -> None:
    """Curves of different images must not stand side by side as if they were of the same."""
    kinds = {(result.request.source, tuple(result.corrupted), result.images) for result in results}
    if len(kinds) > 1:
        raise ValueError(
            "the results are of different images or corruptions: evaluate all trials with the same data and limit"
        )


def _title(result: ShiftResult) -> str:
    source = "published" if result.request.source == "official" else "generated"
    limited = "" if result.request.limit is None else f", the first {result.images:,} test images only"
    return f"Distribution shift: {len(result.corrupted)} {source} corruptions{limited}"
