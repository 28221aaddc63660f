"""Accuracy and ECE during training, train against test: the paper's Figure 1."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from calibrant.experiments.outcome import BINS
from calibrant.experiments.paper.figure_parts import (
    BAND,
    HEIGHT,
    band_key,
    finished,
    label_of,
    mean_and_deviation,
    not_run,
    percent_axis,
    row_of,
    wide_figure,
)
from calibrant.experiments.trials.protocol import Plan, Row
from calibrant.experiments.trials.store import Store
from calibrant.report.figures import ACCENT, GAP, legend_above

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
                _draw(axes, histories, score)
                axes.set_title(f"{_trained_with(row)}: {name}")
        for axes, (score, _) in zip(grid[-1], _SCORES, strict=True):
            axes.set_xlabel("epoch")
            axes.set_xlim(left=0.5)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            percent_axis(axes, from_zero=score == "ece")
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


def _draw(axes: Axes, histories: list[History], score: str) -> None:
    epochs = [entry["epoch"] + 1 for entry in histories[0]]
    for part, colour, dashes in _PARTS:
        values = [[entry.get(f"{part}/{score}", float("nan")) for entry in history] for history in histories]
        mean, deviation = mean_and_deviation(values)
        axes.plot(epochs, mean, color=colour, dashes=dashes, linewidth=1.6, marker="o" if len(epochs) == 1 else None)
        if len(histories) > 1:
            axes.fill_between(epochs, mean - deviation, mean + deviation, color=colour, alpha=BAND, linewidth=0)
