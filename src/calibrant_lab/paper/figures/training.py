"""Accuracy and ECE during training, train against test: the paper's Figure 1."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from calibrant.report.figures import ACCENT, GAP, legend_above
from calibrant_lab.paper.figures.parts import (
    BAND,
    HEIGHT,
    Array,
    band_key,
    finished,
    label_of,
    mean_and_deviation,
    not_run,
    percent_axis,
    row_of,
    wide_figure,
)
from calibrant_lab.sweeps.protocol import Plan, Row
from calibrant_lab.trials.scores import BINS
from calibrant_lab.trials.store import Store

History = list[dict[str, float]]
_PARTS = (("train", GAP, (4.0, 2.0)), ("test", ACCENT, ()))  # name, colour, dashes
_SCORES = (("accuracy", "accuracy"), ("ece", f"ECE in {BINS} bins"))


def figure1(plan: Plan, store: Store) -> Figure:
    """Accuracy (left) and ECE (right) by epoch of the NLL, and of ESD below it if it was run.

    Training scores are taken while the network learns, over the batches of an epoch; test scores at its end.

    Args:
        plan: Of Table 1.
        store: Where its trials are.
    """
    rows = [(row, found) for row in (row_of(plan, "nll"), row_of(plan, "esd")) if row and (found := _read(row, store))]
    if not rows or rows[0][0].name != "NLL":
        raise not_run("Figure 1", "a finished trial of the NLL", plan)
    with wide_figure(HEIGHT * (1 if len(rows) == 1 else 1.65)) as figure:
        grid = figure.subplots(len(rows), 2, squeeze=False, sharex=True, sharey="col")
        for (row, histories), line in zip(rows, grid, strict=True):
            for axes, (score, name) in zip(line, _SCORES, strict=True):
                for part, colour, dashes in _PARTS:
                    _draw(axes, _values(histories, part, score), colour, dashes)
                axes.set_title(f"{_trained_with(row)}: {name}")
        for axes, (score, _) in zip(grid[-1], _SCORES, strict=True):
            axes.set_xlabel("epoch")
            axes.set_xlim(left=0.5)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.set_ylim(_limits([_values(found, part, score) for _, found in rows for part, *_ in _PARTS], score))
            percent_axis(axes)
        keys = [
            Line2D([], [], color=colour, dashes=dashes, linewidth=1.6, label=part) for part, colour, dashes in _PARTS
        ]
        seeds = max(len(histories) for _, histories in rows)
        legend_above(figure, None, *keys, *([band_key(ACCENT, seeds)] if seeds > 1 else []))
    return figure


def _read(row: Row, store: Store) -> list[History]:
    return [store.trial(result.configuration).history() for result in finished(row.trials, store)]


def _trained_with(row: Row) -> str:
    return row.name if row.name == "NLL" else f"NLL + {label_of(row)}"


def _values(histories: list[History], part: str, score: str) -> Array:
    """One line a seed, one column an epoch."""
    return np.array([[entry.get(f"{part}_{score}", np.nan) for entry in history] for history in histories])


def _limits(values: list[Array], score: str) -> tuple[float, float]:
    """Of what is shown: the means without the first tenth of the epochs, which would make a line of all the rest."""
    late = np.concatenate([mean_and_deviation(found)[0][found.shape[1] // 10 :] for found in values])
    late = late[np.isfinite(late)]
    low, high = (float(late.min()), float(late.max())) if len(late) else (0.0, 1.0)
    margin = max(0.08 * (high - low), 1e-3)
    return (0.0, high + margin) if score == "ece" else (max(0.0, low - margin), min(1.0, high + margin))


def _draw(axes: Axes, values: Array, colour: str, dashes: tuple[float, ...]) -> None:
    mean, deviation = mean_and_deviation(values)
    epochs = np.arange(1, len(mean) + 1)
    axes.plot(epochs, mean, color=colour, dashes=dashes, linewidth=1.6, marker="o" if len(epochs) == 1 else None)
    if len(values) > 1:
        axes.fill_between(epochs, mean - deviation, mean + deviation, color=colour, alpha=BAND, linewidth=0)
