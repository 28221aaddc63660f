"""The progress bar of training."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def training_progress(console: Console) -> Progress:
    """Return the progress bar; it is disabled without a terminal."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        TextColumn("{task.fields[scores]}"),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
