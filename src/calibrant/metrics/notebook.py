"""Results as tables of HTML, which notebooks show, and as columns of a data frame."""

import html
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = (1,)) -> str:
    """Return a table of HTML, with some columns aligned right: by default the second, of values.

    Example:
        >>> table("1 sample", ["score", "value"], [["ECE", "3 %"]])[:60]
        '<table><caption>1 sample</caption><tr><th>score</th><th>valu'
    """
    side = ("left", "right")
    lines = (
        "".join(
            f"<td style='text-align:{side[place in right]}'>{html.escape(cell)}</td>" for place, cell in enumerate(row)
        )
        for row in rows
    )
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{html.escape(caption)}</caption>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def one(caption: str, result: Any) -> str:
    """Return a table of HTML with a row for each field of a result, a data class or a named tuple."""
    names = [field.name for field in fields(result)] if is_dataclass(result) else result._fields
    return table(caption, (), [(_words(name), _shown(name, getattr(result, name))) for name in names])


def several(caption: str, columns: dict[str, Sequence[Any]]) -> str:
    """Return a table of HTML with these columns; all but the first are aligned right."""
    rows = [list(map(_shown, columns, row)) for row in zip(*columns.values(), strict=True)]
    return table(caption, [_words(name) for name in columns], rows, right=range(1, len(columns)))


def columns_of(results: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Return a column for each field of results of one data class; of an interval its value and both ends.

    Fields that are other results, such as a test, are left out.
    """
    found: dict[str, Sequence[Any]] = {}
    for field in fields(results[0]):
        values = [getattr(result, field.name) for result in results]
        if not is_dataclass(values[0]):
            found[field.name] = values
        elif hasattr(values[0], "low"):
            ends = {"": "value", "_low": "low", "_high": "high"}
            found |= {field.name + end: [getattr(value, part) for value in values] for end, part in ends.items()}
    return found


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shown(name: str, value: Any) -> str:
    if name.endswith("p_value") and value < 0.001:
        return "< 0.001"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
