"""The progress bar of long computations."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def progress_bar(console: Console | None, last: str) -> Progress:
    """Return a progress bar, with ``last`` as its last column; it is disabled without a terminal."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        TextColumn(last), console=console, transient=True, disable=console is None or not console.is_terminal,
    )  # fmt: skip
