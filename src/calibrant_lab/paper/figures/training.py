"""Accuracy and ECE during training: the paper's Figure 1, and the curves of a single trial."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from calibrant.report.style import ACCENT, GAP, legend_above
from calibrant_lab.paper.figures import parts
from calibrant_lab.scores import BINS
from calibrant_lab.sweeps.protocol import Plan
from calibrant_lab.trials.store import Store

_SCORES = (("accuracy", "accuracy"), ("ece", f"ECE in {BINS} bins"))


def figure1(plan: Plan, store: Store) -> Figure:
    """Accuracy (left) and ECE (right) by epoch of the NLL, and of ESD below it if it was run.

    Training scores are computed during training, over the batches of an epoch; test scores at its end.
    """
    rows = {}
    for row in (parts.row_of(plan, "nll"), parts.row_of(plan, "esd")):
        if row and (found := parts.finished(row.trials, store)):
            name = row.name if row.name == "NLL" else f"NLL {row.name}"
            rows[name] = [store.trial(one.configuration).history() for one in found]
    if "NLL" not in rows:
        raise parts.not_run("Figure 1", "a finished trial of the NLL", plan)
    return training_curves(rows, "test", plan.sweep.subject)


def training_curves(rows: Mapping[str, Sequence[list[dict[str, float]]]], against: str, title: str) -> Figure:
    """Accuracy and ECE by epoch, on the training data and ``against`` another part: the test or the validation set.

    Each row of panels has a name, which may be empty, and the history of every seed.
    """
    lines = (("train", GAP, (4.0, 2.0)), (against, ACCENT, ()))  # part, colour, dashes
    with parts.wide_figure(parts.HEIGHT * (1 if len(rows) == 1 else 1.65)) as figure:
        grid = figure.subplots(len(rows), 2, squeeze=False, sharex=True, sharey="col")
        for (row, histories), panels in zip(rows.items(), grid, strict=True):
            for axes, (score, name) in zip(panels, _SCORES, strict=True):
                for part, colour, dashes in lines:
                    values = [[one.get(f"{part}_{score}", np.nan) for one in history] for history in histories]
                    _draw(axes, values, colour, dashes)
                axes.set_title(f"{row}: {name}" if row else name)
        for axes in grid[-1]:
            axes.set_xlabel("epoch")
            axes.set_xlim(left=0.5)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.margins(y=0.03)  # a line at 0 or 100 % is not clipped
            parts.percent_axis(axes)
        keys = [Line2D([], [], color=colour, dashes=dash, linewidth=1.6, label=part) for part, colour, dash in lines]
        seeds = max(map(len, rows.values()))
        band = Patch(color=ACCENT, alpha=parts.BAND, linewidth=0, label=f"± standard deviation of {seeds} seeds")
        legend_above(figure, title, *keys, *([band] if seeds > 1 else []))
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
