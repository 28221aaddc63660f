"""Accuracy and ECE during training, train against test: the paper's Figure 1."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from calibrant.report.figures import ACCENT, GAP, legend_above
from calibrant_lab.paper.figures import parts
from calibrant_lab.scores import BINS
from calibrant_lab.sweeps.protocol import Plan
from calibrant_lab.trials.store import Store

_PARTS = (("train", GAP, (4.0, 2.0)), ("test", ACCENT, ()))  # name, colour, dashes
_SCORES = (("accuracy", "accuracy"), ("ece", f"ECE in {BINS} bins"))


def figure1(plan: Plan, store: Store) -> Figure:
    """Accuracy (left) and ECE (right) by epoch of the NLL, and of ESD below it if it was run.

    Training scores are computed during training, over the batches of an epoch; test scores at its end.
    """
    shown = [row for row in (parts.row_of(plan, "nll"), parts.row_of(plan, "esd")) if row]
    done = [(row, found) for row in shown if (found := parts.finished(row.trials, store))]
    rows = [(row, [store.trial(one.configuration).history() for one in found]) for row, found in done]
    if not rows or rows[0][0].name != "NLL":
        raise parts.not_run("Figure 1", "a finished trial of the NLL", plan)
    with parts.wide_figure(parts.HEIGHT * (1 if len(rows) == 1 else 1.65)) as figure:
        grid = figure.subplots(len(rows), 2, squeeze=False, sharex=True, sharey="col")
        for (row, histories), line in zip(rows, grid, strict=True):
            trained_with = row.name if row.name == "NLL" else f"NLL {row.name}"
            for axes, (score, name) in zip(line, _SCORES, strict=True):
                for part, colour, dashes in _PARTS:
                    values = [[one.get(f"{part}_{score}", np.nan) for one in history] for history in histories]
                    _draw(axes, values, colour, dashes)
                axes.set_title(f"{trained_with}: {name}")
        for axes in grid[-1]:
            axes.set_xlabel("epoch")
            axes.set_xlim(left=0.5)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.margins(y=0.03)  # a line at 0 or 100 % is not clipped
            parts.percent_axis(axes)
        keys = [Line2D([], [], color=colour, dashes=line, linewidth=1.6, label=part) for part, colour, line in _PARTS]
        seeds = max(len(histories) for _, histories in rows)
        band = Patch(color=ACCENT, alpha=parts.BAND, linewidth=0, label=f"± standard deviation of {seeds} seeds")
        legend_above(figure, plan.sweep.subject, *keys, *([band] if seeds > 1 else []))
    return figure


def _draw(axes: Axes, values: list[list[float]], colour: str, dashes: tuple[float, ...]) -> None:
    """Plot the mean of values with one row per seed and one column per epoch.

    Late in long trainings not every epoch has test scores.
    """
    mean, deviation = parts.mean_and_deviation(values)
    known = np.isfinite(mean)
    mean, deviation, epochs = mean[known], deviation[known], np.arange(1, len(mean) + 1)[known]
    axes.plot(epochs, mean, color=colour, dashes=dashes, linewidth=1.6, marker="o" if len(epochs) == 1 else None)
    if len(values) > 1:  # clip the band, since a share is within 0 and 1
        low, high = np.clip([mean - deviation, mean + deviation], 0, 1)
        axes.fill_between(epochs, low, high, color=colour, alpha=parts.BAND, linewidth=0)
