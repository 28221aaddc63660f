"""Output on the terminal: audits, tables, notices and progress."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from calibrant.files.write import json_text
from calibrant.metrics.closed_form import p_value
from calibrant.metrics.evaluate import Scores
from calibrant.metrics.registry import label, number
from calibrant.report.formats import bare_p, clean, counted, ends, in_unit, points, score_rows

if TYPE_CHECKING:
    from calibrant.report.audit import Audit, Finding

Advance = Callable[[float], None]
# Largest width of a heading, and smallest width of the column of conventions.
MOST_HEADING, LEAST_CONVENTION = 17, 28
# Rows of a table of views, classes or groups; the rest is in JSON and in the report.
TABLE_ROWS = 12
# Width at which no table is broken.
UNLIMITED = 10_000


def say(console: Console, text: str, *, markup: bool = False) -> None:
    """Print a sentence; square brackets are text unless it has markup."""
    console.print(text if markup else plain(text), highlight=False)


def say_path(console: Console, what: str, path: object) -> None:
    """Print the path of a file that was written, in one line."""
    console.print(f"{what}: {plain(str(path))}", soft_wrap=True, highlight=False)


def print_audit(console: Console, audit: "Audit") -> None:
    """Scores before and after recalibration, intervals, tests, and parts of the losses."""
    print_scores(console, audit.columns, title=audit.scores.title)
    intervals = (f"{label(key)} {in_unit(interval)}" for key, interval in audit.intervals.items())
    say(console, f"95 % intervals: {'; '.join(intervals)}.")
    for key, parts in audit.parts.items():
        say(
            console,
            f"{label(key)} {parts.loss:.4f} = {parts.calibration:.4f} calibration + {parts.refinement:.4f} "
            f"refinement (recalibration: {parts.recalibration}).",
        )
    if len(audit.findings) == 1:
        _print_finding(console, audit.findings[0])
    else:
        _print_findings(console, audit)
    if audit.repair is not None:
        tried = ", ".join(f"{name} {loss:.4f}" for name, loss in audit.repair.tried.items())
        say(
            console,
            f"Recalibration by {audit.repair.description}, fitted on all samples. In the column recalibrated, each "
            f"half of the samples is recalibrated by a fit on the other half. Log loss there: {tried}.",
        )


def _print_finding(console: Console, found: "Finding") -> None:
    esd = f"ESD {number('esd', found.test.statistic)}, {p_value(found.p_value)} ({found.test.draws:,} draws)"
    say(console, f"Tests of the {found.view}: {esd}; {'; '.join(map(str, found.analytic))}.")
    line = "none that is finite" if found.line is None else str(found.line)
    say(console, f"Calibration line: {line}. ICI {100 * found.ici:.2f} %.")
    say(console, f"Equivalence: {found.equivalence}.")


def _print_findings(console: Console, audit: "Audit") -> None:
    alone = [found for found in audit.findings if found not in audit.classes]
    family = sorted(audit.classes, key=lambda found: found.p_value)
    rows = []
    for found in [*alone, *family][:TABLE_ROWS]:
        equal, view = found.equivalence, found.view
        within = f"± {100 * equal.margin:g}" if equal.on_average else "not shown"
        name = "top label" if view.kind == "top label" else f"{view.kind} {view.name}"
        rows.append((name, points(found.gap.value), ends(found.gap), bare_p(found.p_value), within))
    console.print(_table(("judged", "gap", "95 % interval", "p", "within"), rows))
    rest = len(audit.findings) - len(rows)
    draws = max(found.test.draws for found in audit.findings)
    say(
        console,
        f"p: ESD of up to {draws:,} data sets drawn from calibrated probabilities, Kuiper's test where that is beyond "
        "doubt (below 1e-9), and Holm's correction for classes or labels. Gaps in points."
        f"{f' {rest:,} more are in --json.' if rest else ''}",
    )


def print_watched(console: Console, audit: "Audit", about: str = "") -> None:
    """Calibration of groups and over time, and the change since the baseline, if they were asked for."""
    means = ("samples", *(("P", "events") if audit.findings[0].view.of_event else ("confidence", "right")))
    headings = (*means, "gap", "95 % interval")
    if audit.groups is not None:
        found = audit.groups
        rejected = f"{len(found.rejected)} of {len(found.groups)} groups are not calibrated, after Holm's correction"
        say(console, f"{about}{rejected}. Multicalibration error {100 * found.multicalibration_error:.2f} %.")
        rows = [(each.name, *_cells(each), bare_p(each.p_value)) for each in found.groups[:TABLE_ROWS]]
        _print_narrow(console, ("group", *headings, "p"), rows)
        if len(found.groups) > TABLE_ROWS:
            say(console, f"{len(found.groups) - TABLE_ROWS:,} more groups are in --json.")
        if found.too_small:
            count = counted(len(found.too_small), "group")
            say(console, f"Not judged, as they have fewer than {found.least} samples: {count}.")
    if audit.over_time is not None:
        say(console, f"{about}Over time: {audit.over_time}.")
        windows = [(f"{each.start} to {each.end}", *_cells(each)) for each in audit.over_time.windows]
        _print_narrow(console, ("time", *headings), windows)
    if audit.change is not None:
        say(console, f"{about}Against the baseline: {audit.change}.")


def _cells(each: Any) -> tuple[str, ...]:
    """Numbers of a group or a window."""
    means = (f"{100 * mean:.1f} %" for mean in (each.mean_confidence, each.accuracy))
    return f"{each.samples:,}", *means, points(each.gap.value), ends(each.gap)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column is text, and whose others are numbers that are never broken."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(headings[0], overflow="fold")
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, *cells in rows:
        table.add_row(plain(name), *cells)
    return table


def _print_narrow(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table that breaks no name: if it is too wide, it has no means, then a line for each part of a name."""
    table = _table(headings, rows)
    unlimited = console.options.update_width(UNLIMITED)
    if console.measure(table, options=unlimited).maximum > console.width:
        headings, *rows = [[*row[:2], *row[4:]] for row in (headings, *rows)]
        table = _table(headings, rows)
    if console.measure(table, options=unlimited).maximum > console.width:
        table = _table(headings, [])
        for name, *cells in rows:
            table.add_row(",\n".join(map(plain, name.split(", "))), *cells)
    console.print(table)


def print_scores(console: Console, columns: dict[str, Scores], *, title: str = "") -> None:
    """Scores side by side, with conventions if they fit, in several tables if columns do not: no number is cut."""
    rows = score_rows(list(columns.values()))
    width = max(len(value) for row in rows for value in row.values)
    width = max(width, *(min(len(name), MOST_HEADING) for name in columns))
    # A column has three characters beside its width.
    space = console.width - 1 - max(len(row.label) for row in rows)
    most = max(1, space // (width + 3))
    for start in range(0, len(columns), most):
        fitting = dict(islice(columns.items(), start, start + most))
        table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("score", no_wrap=True)
        for name in fitting:
            table.add_column(plain(name), justify="right", width=width, overflow="fold")
        if space - len(fitting) * (width + 3) >= LEAST_CONVENTION:
            table.add_column("convention", style="dim")
        for row in score_rows(list(fitting.values())):
            cells = (row.label, *row.values, plain(row.convention))
            table.add_row(*cells[: len(table.columns)])
        console.print(table)
        title = ""


def show_notices(console: Console, notices: Sequence[str], about: str = "") -> None:
    """Print what was assumed or is doubtful, one line each."""
    for notice in notices:
        say(console, f"[yellow]Note:[/] {plain(about + notice)}", markup=True)


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
    """Cleaned text, escaped, as rich would interpret square brackets."""
    return escape(clean(text))


@contextmanager
def progress_bar() -> Iterator[Callable[[str], Advance]]:
    """A progress bar on the error stream: a function that begins a named task, and returns one to report its share."""
    with timed_bar(Console(stderr=True)) as progress:
        task = progress.add_task("reading", total=None)

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
