"""Results as tables of HTML, which notebooks show."""

import html
from collections.abc import Iterable, Sequence


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of HTML; the second column, of values, is aligned right.

    Example:
        >>> table("1 sample", ["score", "value"], [["ECE", "3 %"]])[:60]
        '<table><caption>1 sample</caption><tr><th>score</th><th>valu'
    """
    side = ("left", "right")
    lines = (
        "".join(f"<td style='text-align:{side[place == 1]}'>{html.escape(cell)}</td>" for place, cell in enumerate(row))
        for row in rows
    )
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{html.escape(caption)}</caption>{f'<tr>{head}</tr>' if head else ''}{body}</table>"
