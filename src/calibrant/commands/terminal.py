"""What the terminal shows: tables of scores side by side, and progress where someone is watching."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from calibrant.metrics import Score, Scores

Advance = Callable[[float], None]


def score_table(columns: dict[str, Scores], *, title: str = "") -> Table:
    """Scores side by side, one column each, and the convention of every row.

    Args:
        columns: Heading and scores of each column. A score that one of them lacks is left blank there.
        title: Above the table.
    """
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("score", no_wrap=True)
    for heading in columns:
        table.add_column(plain(heading), justify="right", no_wrap=len(columns) <= 3)
    table.add_column("convention", style="dim")
    rows: dict[str, Score] = {}
    for scores in columns.values():
        for entry in scores:
            rows.setdefault(entry.key, entry)
    for key, first in rows.items():
        found = [next((str(entry) for entry in scores if entry.key == key), "") for scores in columns.values()]
        # A convention that differs between columns, such as the number of bins a sweep chose, is nobody's.
        said = {entry.convention for scores in columns.values() for entry in scores if entry.key == key}
        convention = first.convention if len(said) == 1 else first.convention.split(",")[0].split(";")[0]
        table.add_row(first.label, *found, convention)
    return table


def plain(text: str) -> str:
    """Text as it stands: rich would read what is in square brackets."""
    return text.replace("[", r"\[")


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[str], Advance]]:
    """A bar with the time left, on a terminal only, and on the error stream: results stay clean.

    It gives a function that names the next piece of work and returns how to say which share of it is done.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(plain(what), total=1.0)

        def begin(name: str) -> Advance:
            progress.reset(task, description=plain(name), total=1.0)
            return lambda share: progress.update(task, completed=share)

        yield begin


def print_json(data: Any) -> None:
    """Plain data for machines, on standard output; numbers that JSON does not know become null."""
    json.dump(_finite(data), sys.stdout, indent=2, allow_nan=False, ensure_ascii=False)
    sys.stdout.write("\n")


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, str):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
