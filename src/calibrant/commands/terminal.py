"""Output on the terminal: tables of scores side by side, and progress."""

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from calibrant.files import json_text
from calibrant.metrics import Score, Scores

Advance = Callable[[float], None]
# Largest width of a heading, and smallest width of the column of conventions.
MOST_HEADING = 17
LEAST_CONVENTION = 28


def print_scores(console: Console, columns: dict[str, Scores], *, title: str = "") -> None:
    """Scores side by side, one column each, with the convention of every row if it fits.

    If the columns do not fit next to each other, they are split into several tables: a number is never cut.

    Args:
        console: Console to print to.
        columns: Heading and scores of each column. A missing score is left blank.
        title: Title above the first table.
    """
    rows: dict[str, Score] = {}
    for scores in columns.values():
        for entry in scores:
            rows.setdefault(entry.key, entry)
    labels = 1 + max(len(entry.label) for entry in rows.values())
    widths = {
        heading: 3 + max(min(len(heading), MOST_HEADING), *(len(str(entry)) for entry in scores))
        for heading, scores in columns.items()
    }
    while columns:
        fitting: dict[str, Scores] = {}
        room = console.width - labels
        for heading, scores in columns.items():
            room -= widths[heading]
            if fitting and room < 0:
                room += widths[heading]
                break
            fitting[heading] = scores
        console.print(_score_table(rows, fitting, widths, title, with_convention=room >= LEAST_CONVENTION))
        columns = {heading: scores for heading, scores in columns.items() if heading not in fitting}
        title = ""


def _score_table(
    rows: dict[str, Score], columns: dict[str, Scores], widths: dict[str, int], title: str, *, with_convention: bool
) -> Table:
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("score", no_wrap=True)
    for heading in columns:
        table.add_column(plain(heading), justify="right", width=widths[heading] - 3, overflow="fold")
    if with_convention:
        table.add_column("convention", style="dim")
    for key, first in rows.items():
        found = [next((str(entry) for entry in scores if entry.key == key), "") for scores in columns.values()]
        said = [entry.convention for scores in columns.values() for entry in scores if entry.key == key]
        table.add_row(first.label, *found, *([plain(_shared(said))] if with_convention else []))
    return table


def _shared(conventions: Sequence[str]) -> str:
    """The parts with which all conventions begin: the number of bins of a sweep differs between columns.

    Example:
        >>> _shared(["P(y = 1); equal mass, 13 bins chosen", "P(y = 1); equal mass, 6 bins chosen"])
        'P(y = 1); equal mass'
    """
    parts = zip(*(re.split("(?=[,;] )", each) for each in conventions), strict=False)
    return "".join(same[0] for same in takewhile(lambda each: len(set(each)) == 1, parts))


def show_notices(console: Console, notices: Sequence[str], about: str = "") -> None:
    """Print what was assumed or is doubtful, one line each."""
    for notice in notices:
        console.print(f"[yellow]Note:[/] {plain(about)}{plain(notice)}", highlight=False)


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Print every distinct warning once, on the error stream, without the line of code that gave it."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in seen:
            seen.add(str(message))
            show_warning(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def show_warning(text: str) -> None:
    """Print a warning on the error stream; a progress bar there stays below it."""
    console = Console(stderr=True)
    with console.capture() as shown:
        console.print(f"[yellow]warning:[/] {plain(text)}", highlight=False, emoji=False, soft_wrap=True)
    # A bar replaces sys.stderr by a stream that moves the bar, which another console would bypass.
    sys.stderr.write(shown.get())


def plain(text: str) -> str:
    """Escape text, in which rich would interpret square brackets."""
    return escape(printable(text))


def printable(text: str) -> str:
    """Replace characters that are not printable, which names of files may contain."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[str], Advance]]:
    """A progress bar with the time left, only on a terminal, and on the error stream, apart from results.

    It gives a function that takes the name of the next task and returns a function to report the share that is done.
    """
    with timed_bar(Console(stderr=True)) as progress:
        task = progress.add_task(plain(what), total=None)

        def begin(name: str) -> Advance:
            # Until the first share is known, the bar only shows activity.
            progress.reset(task, description=plain(name), total=None)
            return lambda share: progress.update(task, completed=share, total=1.0)

        yield begin


def timed_bar(console: Console | None, *more: str) -> Progress:
    """A progress bar with the time left, and more columns; it is disabled without a terminal."""
    shown = console is not None and console.is_terminal
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        *map(TextColumn, more), transient=True, disable=not shown,
        console=console if shown else Console(quiet=True),  # before rich 14.3 a disabled bar ends in an empty line
    )  # fmt: skip


def print_json(data: Any) -> None:
    """Print data as JSON on standard output; numbers that JSON does not support become null."""
    sys.stdout.write(json_text(data, ensure_ascii=False) + "\n")
