"""Scores of networks as a table in the terminal."""

import math
import statistics
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table

from calibrant_lab.scores import BINS, Column

NOTE = (
    f"ECE in {BINS} bins. TS and VS: temperature and vector scaling, fitted on the validation set; - if no "
    "temperature could be fitted."
)


def score_table(
    rows: Mapping[str, Sequence[Mapping[str, float]]],
    columns: Sequence[Column],
    *,
    title: str,
    apart: str | None = None,
) -> Table:
    """One row per method, mean ± standard deviation over seeds; the best mean of each column in bold.

    Rows hold the scores of each seed by column key; the row named ``apart`` is not compared with the others.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("", no_wrap=True)
    for one in columns:
        table.add_column(one.heading, justify="right", no_wrap=True)
    means = {
        name: {one.key: one.better * statistics.fmean(seed[one.key] for seed in scores) for one in columns}
        for name, scores in rows.items()
    }
    compared = [mean for name, mean in means.items() if name != apart]
    for name, scores in rows.items():
        cells = []
        for one in columns:
            known = [mean[one.key] for mean in compared if not math.isnan(mean[one.key])]
            text = mean_and_spread([one.factor * seed[one.key] for seed in scores], one.digits)
            best = len(rows) > 1 and name != apart and bool(known) and means[name][one.key] == max(known)
            cells.append(f"[bold]{text}[/]" if best else text)
        table.add_row(name, *cells)
    return table


class Whole:
    """A table as wide as its numbers: a broken line is ugly, a number that rich truncates is wrong."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for rich."""
        needed = Measurement.get(console, options.update(width=1000), self._table).maximum
        yield from console.render(self._table, options.update(width=max(needed, options.max_width)))


def print_whole(console: Console, content: RenderableType) -> None:
    """Print tables and text without truncating tables at the terminal's edge."""
    console.print(Whole(content) if isinstance(content, Table) else content, crop=False)


def mean_and_spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean ± standard deviation; without the deviation for a single value, a dash for values that are missing."""
    if any(math.isnan(value) for value in values):
        return "-"
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean}±{statistics.stdev(values):.{digits}f}"  # as narrow as terminals are
