"""Accuracy and ECE under distribution shift by severity: Figure 6, in the paper's appendix."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from calibrant.report.style import FAINT, MUTED, PAPER, legend_above
from calibrant_lab.paper.figures import parts
from calibrant_lab.shift.corruptions import SEVERITIES
from calibrant_lab.shift.evaluation import ShiftResult
from calibrant_lab.sweeps.protocol import Row

PANELS = (("accuracy", "accuracy"), ("ece", "ECE, as trained"), ("ece_temperature", "ECE, with temperature"))
SPREAD = 0.62  # share of the distance between two severities that the methods occupy
STEP = 0.16  # from one row to the next, at most


def figure6(rows: Mapping[str, Sequence[ShiftResult]], subject: str = "") -> Figure:
    """Accuracy, ECE, and ECE after temperature scaling, by severity, one line per method.

    A marker is the mean over corruptions and seeds. The thin line is the standard deviation over seeds of the mean
    over corruptions; the bar covers the middle half of the corruptions, averaged over seeds. Severity 0 is the clean
    test set. Rows without results are left out.
    """
    shown = {name: list(results) for name, results in rows.items() if results}
    if not shown:
        raise parts.NotRunError("the figure of distribution shift needs finished trials, and there are none")
    found = [result for results in shown.values() for result in results]
    if len({(result.request.source, tuple(result.corrupted), result.images) for result in found}) > 1:
        reason = "the results are for different images or corruptions"
        raise ValueError(f"{reason}: evaluate all trials with the same data and limit")
    # Colours depend on all rows of the plan, drawn or not.
    every = [Row(name, ()) for name in rows]
    looks = {row.name: (parts.look_of(every, row), parts.label_of(row)) for row in every if row.name in shown}
    places = (np.arange(len(shown)) - (len(shown) - 1) / 2) * min(STEP, SPREAD / len(shown))
    severities = np.arange(len(SEVERITIES) + 1)
    with parts.wide_figure(3.5, width=8.4) as figure:
        panels = figure.subplots(1, len(PANELS))
        panels[2].sharey(panels[1])
        for axes, (measure, title) in zip(panels, PANELS, strict=True):
            for place, (name, (look, _)) in zip(places, looks.items(), strict=True):
                mean, deviation, low, high = _by_severity(shown[name], measure)
                at = severities + place
                axes.vlines(at, low, high, color=look.colour, linewidth=3.2, alpha=0.3)
                axes.plot(at, mean, color=look.colour, linewidth=0.9, alpha=0.7)
                axes.plot(at, mean, look.marker, color=look.colour, markersize=4.5, markeredgecolor=PAPER,
                          markeredgewidth=0.5)  # fmt: skip
                if len(shown[name]) > 1:
                    ends = np.clip([mean - deviation, mean + deviation], 0, 1)
                    axes.vlines(at, *ends, color=look.colour, linewidth=1)
            for odd in severities[1::2]:
                axes.axvspan(odd - 0.5, odd + 0.5, color=FAINT, alpha=0.4, linewidth=0)
            axes.set(title=title, xlabel="severity", xlim=(-0.5, len(SEVERITIES) + 0.5))
            axes.xaxis.set_major_locator(FixedLocator(severities.tolist()))
            axes.grid(visible=False, axis="x")
        # Set limits last: they are then fixed, and two panels share theirs.
        for axes, (measure, _) in zip(panels, PANELS, strict=True):
            parts.percent_axis(axes, from_zero=measure != "accuracy")
        keys = [parts.line_key(*one) for one in looks.values()]
        keys += [Line2D([], [], color=MUTED, linewidth=3.2, alpha=0.5, label="middle half of the corruptions")]
        if (seeds := max(map(len, shown.values()))) > 1:
            keys += [Line2D([], [], color=MUTED, linewidth=1, label=f"± standard deviation of {seeds} seeds")]
        legend_above(figure, _title(next(iter(shown.values()))[0], subject), *keys)
    return figure


def _by_severity(results: Sequence[ShiftResult], measure: str) -> tuple[parts.Array, ...]:
    """Per severity: mean and deviation over seeds of the mean over corruptions, and quartiles over corruptions."""
    columns = []
    for values in zip(*(result.by_severity(measure) for result in results), strict=True):
        mean, deviation = parts.mean_and_deviation(np.mean(values, axis=1))
        columns.append((mean, deviation, *np.quantile(np.mean(values, axis=0), (0.25, 0.75))))
    return tuple(np.array(column) for column in zip(*columns, strict=True))


def _title(result: ShiftResult, subject: str) -> str:
    source = "published" if result.request.source == "official" else "generated"
    limited = "" if result.request.limit is None else f", the first {result.images:,} test images only"
    on = f"{subject}, distribution shift" if subject else "Distribution shift"
    return f"{on}: {len(result.corrupted)} {source} corruptions{limited}"
