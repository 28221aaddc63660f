"""Outcomes as a table in the shape of the paper's Table 1."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table

from calibrant_lab.outcome import BINS, Outcome

Column = tuple[str, Callable[[Outcome], float], int]
COLUMNS: list[Column] = [
    ("accuracy %", lambda outcome: 100 * outcome.accuracy, 1),
    ("ECE %", lambda outcome: 100 * outcome.ece, -1),
    ("ECE %\nafter TS", lambda outcome: 100 * outcome.ece_temperature, -1),
    ("accuracy %\nafter VS", lambda outcome: 100 * outcome.accuracy_vector, 1),
    ("ECE %\nafter VS", lambda outcome: 100 * outcome.ece_vector, -1),
    ("T", lambda outcome: outcome.temperature, 0),
]
NOTE = (
    f"ECE in {BINS} bins. TS and VS: temperature and vector scaling, fitted on the validation set; T: the temperature, "
    "above 1 for an over-confident network, - if none fits."
)


def outcome_table(rows: Mapping[str, Sequence[Outcome]], *, title: str) -> Table:
    """One row a method, mean ± standard deviation over its seeds; the best mean of each column in bold."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading, _, _ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    means = {
        name: [statistics.fmean(map(value, outcomes)) for _, value, _ in COLUMNS] for name, outcomes in rows.items()
    }
    for name, outcomes in rows.items():
        cells = []
        for place, (_, value, better) in enumerate(COLUMNS):
            values = [value(outcome) for outcome in outcomes]
            text = mean_and_spread(values) if better else mean_and_spread([statistics.fmean(values)])
            best = better and means[name][place] * better == max(
                (mean[place] * better for mean in means.values() if not math.isnan(mean[place])), default=None
            )
            cells.append(f"[bold]{text}[/]" if best and len(rows) > 1 else text)
        table.add_row(name, *cells)
    return table


class Whole:
    """A table as wide as its numbers: lines that a terminal breaks are ugly, numbers that rich cuts short are wrong."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Rich's way to ask what to draw."""
        needed = Measurement.get(console, options.update(width=1000), self._table).maximum
        yield from console.render(self._table, options.update(width=max(needed, options.max_width)))


def print_whole(console: Console, content: RenderableType) -> None:
    """Print tables and what stands around them, no line of a table cut at the terminal's edge."""
    console.print(Whole(content) if isinstance(content, Table) else content, crop=False)


def mean_and_spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation; a single value has no deviation, and what could not be fitted has no value."""
    if any(math.isnan(value) for value in values):
        return "-"
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean}±{statistics.stdev(values):.2f}"  # as narrow as terminals are
