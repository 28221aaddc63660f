"""Labels of a source beyond memory as class indices or correctness, in SQL; what is assumed is told."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from calibrant.metrics.columns import RIGHT
from calibrant.metrics.scale_sql import Dialect
from calibrant.metrics.two_classes import called, in_order, with_positive
from calibrant.tables import Column, text

# ruff: noqa: S608 (every name that comes from outside passes through Dialect.name)

Rows = Callable[[str], Sequence[Sequence[Any]]]
# Rows that are looked at to see what labels and probabilities mean.
LOOKED_AT = 1000
# Labels that an error may name.
MOST_LISTED = 6


class Labels(NamedTuple):
    """Expression of class indices, names of the classes if known, and what was assumed."""

    expression: str
    names: tuple[str, ...] | None = None
    notices: tuple[str, ...] = ()


def class_indices(
    dialect: Dialect,
    rows: Rows,
    table: str,
    label: Column,
    names: tuple[str, ...] | None,
    count: int,
    *,
    column: str | None = None,
    positive: str | None = None,
) -> Labels:
    """Class indices of labels: numbers, or names in the order given or in that of the alphabet, as in memory.

    Args:
        dialect: SQL dialect of the engine.
        rows: Runs a statement.
        table: Table to select from.
        label: Column of the labels.
        names: Names of the classes, if known.
        count: Number of classes.
        column: Column of the values of one class of two, if there is one.
        positive: Class that it is for, if given.

    Raises:
        ValueError: If the order of the classes is unknown.
    """
    expression = f"trim({dialect.name(label.name)})" if label.is_text else marks(dialect, label)
    if positive is not None:
        distinct = f"SELECT DISTINCT {expression} AS t FROM {table} WHERE {expression} IS NOT NULL LIMIT {MOST_LISTED}"
        found = [called(bool(each) if label.is_boolean else each) for (each,) in rows(distinct)]
        names = with_positive(label.name, positive, names, found, count)
        if not label.is_text:
            other, one = (float(name == "True") if label.is_boolean else float(name) for name in names)
            return Labels(f"CASE {expression} WHEN {other!r} THEN 0e0 WHEN {one!r} THEN 1e0 END", names)
    if label.is_text:
        return _of_text(dialect, rows, table, label, names, count, column)
    if names is not None and all(name.isdecimal() for name in names):
        listed = dialect.make_list.format(", ".join(f"{name}e0" for name in names))
        return Labels(f"CAST({dialect.position.format(listed, expression)} - 1 AS DOUBLE)", names)
    some = rows(f"SELECT DISTINCT t FROM (SELECT {expression} AS t FROM {table} LIMIT {LOOKED_AT}) AS looked_at")
    if count == 2 and {-1.0, 1.0} == {each for (each,) in some}:
        told = f"read {label.name} -1 and 1 as classes 0 and 1"
        return Labels(f"CASE {expression} WHEN -1 THEN 0e0 WHEN 1 THEN 1e0 END", names, (told,))
    return Labels(expression, names)


def _of_text(
    dialect: Dialect,
    rows: Rows,
    table: str,
    label: Column,
    names: tuple[str, ...] | None,
    count: int,
    column: str | None,
) -> Labels:
    cell = f"trim({dialect.name(label.name)})"
    notices: tuple[str, ...] = ()
    if names is None:
        distinct = f"SELECT DISTINCT {cell} FROM {table} WHERE {cell} IS NOT NULL LIMIT {count + 1}"
        found = sorted(str(each) for (each,) in rows(distinct))
        if found and all(_is_whole(each) for each in found):
            return Labels(f"CAST({cell} AS DOUBLE)")
        if len(found) != count:
            raise ValueError(
                f"column {label.name!r} has {'more than ' * (len(found) > count)}{min(len(found), count)} names of "
                f"classes, but there are {count} classes: give their order with --classes FILE"
            )
        names, notice = in_order(found, column)
        notices = (notice,)
    listed = dialect.make_list.format(", ".join(map(text, names)))
    # A label that is no class has place 0 in Spark and none in DuckDB: both fail the check of the target.
    return Labels(f"CAST({dialect.position.format(listed, cell)} - 1 AS DOUBLE)", names, notices)


def _is_whole(cell: str) -> bool:
    return cell.removeprefix("-").removesuffix(".0").isdecimal()


def correctness(dialect: Dialect, column: Column) -> str:
    """Right and wrong as 1 and 0, also in words."""
    if not column.is_text:
        return marks(dialect, column)
    cell = f"lower(trim({dialect.name(column.name)}))"
    words = {"true": "1", "false": "0", "1": "1", "0": "0", "1.0": "1", "0.0": "0"} | RIGHT
    right, wrong = (", ".join(text(word) for word, mark in words.items() if mark == each) for each in ("1", "0"))
    return f"CASE WHEN {cell} IN ({right}) THEN 1e0 WHEN {cell} IN ({wrong}) THEN 0e0 END"


def agreement(dialect: Dialect, prediction: str, target: str) -> str:
    """Where the predicted class is the true one."""
    one, other = (f"lower(trim(CAST({dialect.name(name)} AS {dialect.text_type})))" for name in (prediction, target))
    return f"CASE WHEN {one} = {other} THEN 1e0 WHEN {one} <> {other} THEN 0e0 END"


def marks(dialect: Dialect, column: Column) -> str:
    """A column of labels or of right and wrong, as DOUBLE."""
    name = dialect.name(column.name)
    # DuckDB passes a cast on to its CSV reader, which then takes "True" for an invalid number.
    return f"CASE WHEN {name} THEN 1e0 WHEN NOT {name} THEN 0e0 END" if column.is_boolean else f"CAST({name} AS DOUBLE)"
