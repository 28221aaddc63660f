"""Results as tables of HTML, which notebooks show, and as columns of a data frame."""

import html
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=Any)


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


def shown(kind: Kind) -> Kind:
    """Let a notebook show results of a data class or a named tuple as tables, with a row for each field.

    The caption is what a result prints as, or else the first line that describes its class.
    """
    prints = "__str__" in vars(kind)
    described = (kind.__doc__ or kind.__name__).splitlines()[0].replace("`", "")

    def page(result: Any) -> str:
        names = [field.name for field in fields(result)] if is_dataclass(result) else result._fields
        rows = [(_words(name), _cell(name, getattr(result, name))) for name in names]
        return table(str(result) if prints else described, (), rows)

    kind._repr_html_ = page
    return kind


def several(caption: str, columns: dict[str, Sequence[Any]]) -> str:
    """Return a table of HTML with these columns; all but the first are aligned right."""
    rows = [list(map(_cell, columns, row)) for row in zip(*columns.values(), strict=True)]
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


def _cell(name: str, value: Any) -> str:
    if name.endswith("p_value") and value < 0.001:
        return "< 0.001"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
