"""How measurements are shown: on the terminal, and as a file under results/."""

import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from calibrant.files import whole_or_not_at_all

RESULTS = Path(__file__).parent.parent / "results"


def duration(seconds: float) -> str:
    """Seconds in the unit a reader would choose."""
    return (
        f"{seconds:.1f} s"
        if seconds >= 1
        else f"{seconds * 1e3:.2g} ms"
        if seconds < 0.1
        else f"{seconds * 1e3:.0f} ms"
    )


def times(ratio: float) -> str:
    """A ratio, with no more digits than it deserves."""
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.1f}x"


def memory(megabytes: float) -> str:
    """Megabytes, with the noise of the measurement not shown as digits."""
    return f"{megabytes:,.0f} MB" if megabytes >= 1 else "< 1 MB"


def status(text: str) -> None:
    """Say what is being measured, on a terminal, without a thread that would disturb the measurement."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def markdown(heading: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def show(title: str, heading: list[str], rows: list[list[str]]) -> None:
    """The same table for the terminal."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for index, name in enumerate(heading):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def finish(name: str, text: str, broken: list[str]) -> None:
    """Write results/<name>.md, and fail if a promise was not kept."""
    with whole_or_not_at_all(RESULTS / f"{name}.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    if broken:
        sys.exit("Not kept:\n" + "\n".join(broken))
