"""Columns and labels of a source beyond memory, as SQL that makes pairs of confidence and correctness."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from calibrant.files.cells import EXACT, RIGHT, called, explained_by_rounding
from calibrant.files.formats import Column, text
from calibrant.files.layout import (
    NOT_TWO,
    Columns,
    Layout,
    find_layout,
    in_order,
    is_harness,
    is_whole,
    name_of_values,
    with_positive,
)
from calibrant.inputs import TOLERANCE
from calibrant.metrics.scale_sql import Check, Dialect, PairQuery

# ruff: noqa: S608 (every name that comes from outside passes through Dialect.name)

# Rows that are looked at to see what labels and probabilities mean.
LOOKED_AT = 1000
# Labels that an error may name.
MOST_LISTED = 6


class Query(Protocol):
    """Runs a statement; ``end`` is the share of all work that is done after it."""

    def __call__(self, text: str, end: float = ..., /) -> Sequence[Sequence[Any]]:
        """Return the rows."""


class SqlSource(NamedTuple):
    """A table of an engine, its dialect of SQL, a function that runs a statement, and the table's name in errors."""

    dialect: Dialect
    query: Query
    table: str
    where: str


class ScoreColumns(NamedTuple):
    """Columns of scores: one of lists, one plain (the score of class 1), or one for each class.

    Attributes:
        columns: The columns.
        classes: Number of scores per row; 1 means binary.
        name: Name of the scores in error messages.
        label: Name of the labels in error messages.
        logits: Whether the scores are logits.
        divisor: 100 if they are percentages.
    """

    columns: Sequence[Column]
    classes: int
    name: str
    label: str
    logits: bool
    divisor: int

    @property
    def type(self) -> str:
        """Type that they are computed in."""
        return "FLOAT" if all(column.number == "FLOAT" for column in self.columns) else "DOUBLE"


class LabelExpression(NamedTuple):
    """Expression of class indices, names of the classes if known, and what was assumed."""

    expression: str
    names: tuple[str, ...] | None = None
    notices: tuple[str, ...] = ()


def find_pairs(source: SqlSource, found: Sequence[Column], columns: Columns, *, risk: bool) -> PairQuery:
    """Find the predictions of the source, in the layout that `Columns` describes.

    With ``risk``, pairs of two classes are the probability of class 1 and whether it came.
    """
    try:
        return _find_pairs(source, {column.name: column for column in found}, columns, risk=risk)
    except ValueError as error:
        raise ValueError(f"{source.where}: {error}") from error


def _find_pairs(source: SqlSource, by_name: dict[str, Column], columns: Columns, *, risk: bool) -> PairQuery:
    dialect, query, table, _ = source
    layout = _layout(by_name, columns)
    label = by_name[layout.labels[0]]
    notices = layout.notices
    if columns.ignore_index is not None and label.number is not None:
        ignored = f"{dialect.name(label.name)} = {columns.ignore_index}"
        [(left_out, total)] = query(f"SELECT sum(CASE WHEN {ignored} THEN 1 ELSE 0 END), count(*) FROM {table}")
        if left_out:
            notices += (f"{left_out:,} of {total:,} rows with the label {columns.ignore_index} are left out",)
        table = f"(SELECT * FROM {table} WHERE {dialect.name(label.name)} <> {columns.ignore_index}) AS kept"
        source = source._replace(table=table)
    divisor = 100 if columns.percent else 1
    scores = [_numbers(by_name[name]) for name in layout.values]
    if layout.kind == "confidence":
        if columns.positive is not None:
            raise ValueError(NOT_TWO)
        right = agreement(dialect, layout.prediction, label.name) if layout.prediction else None
        right = right or correctness(dialect, label)
        made = _pairs_of_confidence(source, scores[0], label.name, right, divisor)
        return replace(made, notices=notices)
    classes = len(scores)
    name = columns.of(layout.kind)[0]
    if scores[0].is_list:
        quoted = dialect.name(scores[0].name)
        first = query(f"SELECT {dialect.length.format(quoted)} FROM {table} WHERE {quoted} IS NOT NULL LIMIT 1")
        classes = first[0][0] if first else 1
        if classes == 0:
            raise ValueError(f"column {name} holds empty lists: write a number for each class")
    count = max(classes, 2)
    names = columns.class_names() or layout.classes
    if not label.is_text:
        _numbers(label, also_boolean=True)
    column = scores[0].name if classes == 1 else None
    labels = _class_indices(source, label, names, count, column=column, positive=columns.positive)
    values = ScoreColumns(scores, classes, name, label.name, layout.kind == "logits", divisor)
    made = _pairs_of_scores(source, values, labels.expression, risk=risk and classes <= 2)
    assumed = name_of_values(layout, columns) if names is None else ""
    notices += labels.notices
    return replace(made, classes=count, names=labels.names, label=label.name, assumed=assumed, notices=notices)


def _layout(by_name: dict[str, Column], columns: Columns) -> Layout:
    """The layout, if it is one that SQL can read.

    Raises:
        ValueError: If it is not; the message says what to do.
    """
    in_memory = "need the samples in memory: choose --engine memory"
    if columns.weight is not None:
        raise ValueError(f"weights {in_memory}, or leave them out")
    if columns.names_none() and is_harness(list(by_name)):
        raise ValueError(f"logs of lm-evaluation-harness {in_memory}")
    layout = find_layout(list(by_name), columns)
    if len(layout.labels) > 1:
        raise ValueError(
            f"several labels {in_memory}, or evaluate them one by one, with --probabilities {layout.values[0]} "
            f"--target {layout.labels[0]}"
        )
    if not layout.labels:
        wanted = ", or ".join(" and ".join(columns.of(kind)) for kind in columns.kinds())
        raise ValueError(f"needs the columns {wanted}; it has {', '.join(by_name)}: name yours")
    if by_name[layout.values[0]].is_dictionary:
        raise ValueError(f"dictionaries of options {in_memory}")
    return layout


def _numbers(column: Column, *, also_boolean: bool = False) -> Column:
    if column.number is None and not (also_boolean and column.is_boolean):
        raise ValueError(f"column {column.name} holds {column.type}, not numbers: convert it")
    return column


def _pairs_of_confidence(source: SqlSource, confidence: Column, label: str, right: str, divisor: int) -> PairQuery:
    """Pairs that the source already holds."""
    dialect, _, table, _ = source
    kind = confidence.number or "DOUBLE"
    text = (
        f"pairs AS (SELECT CAST({dialect.name(confidence.name)}{f' / {divisor}' * (divisor > 1)} AS {kind}) AS z, "
        f"{right} AS c FROM {table})"
    )
    checks = (
        Check("z IS NULL OR isnan(z)", f"have no {confidence.name} (NaN or missing): fill it in or leave them out"),
        Check("NOT z BETWEEN 0 AND 1", f"have a {confidence.name} outside [0, 1]: write probabilities, not logits"),
        Check("c IS NULL OR c NOT IN (0, 1)", f"have a {label} that is neither 0 nor 1: write 0 or 1"),
    )
    return PairQuery(text, kind, checks)


def _pairs_of_scores(source: SqlSource, scores: ScoreColumns, target: str, *, risk: bool) -> PairQuery:
    """Pairs of the predicted class, or with ``risk`` of class 1 of two; ``target`` is the expression of the labels."""
    dialect, query, table, _ = source
    columns, classes, name, label, logits, divisor = scores
    kind = scores.type
    marks = f"{target} AS t"
    checks = [Check("s IS NULL", f"have no {name}: fill them in or leave those rows out")]
    share = f" / {divisor}" * (divisor > 1)
    if columns[0].is_list or len(columns) > 1:
        quoted = [dialect.name(column.name) for column in columns]
        if columns[0].is_list:
            plain = dialect.divided.format(quoted[0], divisor) if share else quoted[0]
            listed = f"CAST({plain} AS {dialect.list_type.format(kind)})"
        else:
            listed = dialect.make_list.format(", ".join(f"CAST({column}{share} AS {kind})" for column in quoted))
        top, bottom = dialect.largest.format("s"), dialect.smallest.format("s")
        # Rounded probabilities are divided by their sum.
        total = dialect.total.format("s")
        whole = "1e0" if logits or classes == 1 else f"CASE WHEN abs({total} - 1) > {EXACT} THEN {total} ELSE 1e0 END"
        sources = f"scores AS (SELECT {listed} AS s, {marks} FROM {table})"
        first = query(f"WITH {sources} SELECT s FROM scores LIMIT {LOOKED_AT}") if not logits and classes > 1 else ()
        sources += f", tops AS (SELECT s, t, {top} AS top, {bottom} AS bottom, {whole} AS whole FROM scores)"
        length, filled = dialect.length.format("s"), dialect.not_null.format("s")
        checks += [
            Check(f"{length} <> {classes}", f"have a different number of {name} than the {classes} of the first row: "
                                            "write lists of equal length"),
            Check(f"{filled} < {length}", f"have missing {name}: fill them in or leave those rows out"),
        ]  # fmt: skip
    else:
        column = f"CAST({dialect.name(columns[0].name)}{share} AS {kind})"
        sources = (
            f"scores AS (SELECT {column} AS s, {marks} FROM {table}), "
            "tops AS (SELECT s, t, s AS top, s AS bottom, 1e0 AS whole FROM scores)"
        )
        first = ()
    if logits:
        confidence, predicted, more = _of_logits(dialect, scores)
    else:
        confidence, predicted, more = _of_probabilities(dialect, scores, _tolerance(first, classes))
    highest = max(classes, 2) - 1
    checks += [
        *more,
        Check(f"t IS NULL OR NOT t BETWEEN 0 AND {highest} OR t <> floor(t)",
              f"have a {label} that is not a whole number from 0 to {highest}: "
              "number the classes from 0, and leave out rows without a label"),
    ]  # fmt: skip
    if risk:
        confidence, predicted = _of_class_1(dialect, scores), "1"
    correct = f"CASE WHEN {predicted} = t THEN 1e0 ELSE 0e0 END"
    text = f"{sources}, pairs AS (SELECT *, {confidence} AS z, {correct} AS c FROM tops)"
    shares = "shares AS (SELECT s AS x, whole, t FROM tops)" if classes > 1 else ""
    if logits and shares:
        powers = dialect.shifted_powers.format("s", "CAST(top AS DOUBLE)")
        total = dialect.total.format("x")
        shares = f"powers AS (SELECT {powers} AS x, t FROM tops), shares AS (SELECT x, {total} AS whole, t FROM powers)"
    return PairQuery(
        text, kind, tuple(checks), "risk" if risk else "top label", shares=shares, rounded=not logits and classes > 1
    )


def _tolerance(first: Sequence[Sequence[Any]], classes: int) -> float:
    """Distance of a sum from 1 that the digits of the first rows explain."""
    lists = [row[0] for row in first if row[0] is not None and len(row[0]) == classes]
    full = [each for each in lists if all(number is not None for number in each)]
    return explained_by_rounding(np.array(full, np.float64)) if full else TOLERANCE


def _of_class_1(dialect: Dialect, scores: ScoreColumns) -> str:
    """Probability of class 1 of two."""
    kind, logits = scores.type, scores.logits
    if scores.classes == 1:
        return f"CAST(1 / (1 + exp(-CAST(top AS DOUBLE))) AS {kind})" if logits else "top"
    first, second = (f"CAST({dialect.element.format('s', place)} AS DOUBLE)" for place in (1, 2))
    return f"CAST({f'1 / (1 + exp({first} - {second}))' if logits else f'{second} / whole'} AS {kind})"


def _of_probabilities(dialect: Dialect, scores: ScoreColumns, tolerance: float) -> tuple[str, str, list[Check]]:
    """Confidence, predicted class and checks of probabilities."""
    name, kind = scores.name, scores.type
    checks = [
        Check("isnan(top)", f"have NaN among the {name}: leave those rows out"),
        Check(
            "bottom < 0 OR top > 1",
            f"have {name} outside [0, 1]: give --percent if they are "
            "percentages, or name the column logits if it holds logits",
        ),
    ]
    if scores.classes == 1:
        return f"greatest(top, CAST(1 AS {kind}) - top)", "CASE WHEN top > 0.5 THEN 1 ELSE 0 END", checks
    # Half precision rounds each of C probabilities; a row of logits or counts is off by far more.
    checks.append(
        Check(f"abs(whole - 1) > {tolerance}", f"have {name} that do not sum to 1: divide each row by its sum, or "
                                               "write the softmax of the logits")
    )  # fmt: skip
    return f"CAST(CAST(top AS DOUBLE) / whole AS {kind})", f"{dialect.position.format('s', 'top')} - 1", checks


def _of_logits(dialect: Dialect, scores: ScoreColumns) -> tuple[str, str, list[Check]]:
    """Confidence, predicted class and checks of logits; the softmax is taken in double and rounded once."""
    name, kind = scores.name, scores.type
    # Every engine sorts NaN above infinity.
    infinity = "CAST('Infinity' AS DOUBLE)"
    checks = [
        Check(f"top >= {infinity} OR bottom <= -{infinity}", f"have NaN or infinite {name}: leave those rows out")
    ]
    if scores.classes == 1:
        confidence = "1 / (1 + exp(-abs(CAST(top AS DOUBLE))))"
        return f"CAST({confidence} AS {kind})", "CASE WHEN top > 0 THEN 1 ELSE 0 END", checks
    # Rows with the same logits in another order must tie: if sorted, their sums round equally. Rounding to FLOAT
    # hides the difference anyway.
    terms = dialect.ascending.format("s") if kind == "DOUBLE" else "s"
    total = dialect.total.format(dialect.shifted_powers.format(terms, "CAST(top AS DOUBLE)"))
    return f"CAST(1 / {total} AS {kind})", f"{dialect.position.format('s', 'top')} - 1", checks


def _class_indices(
    source: SqlSource,
    label: Column,
    names: tuple[str, ...] | None,
    count: int,
    *,
    column: str | None = None,
    positive: str | None = None,
) -> LabelExpression:
    """Class indices of labels: numbers, or names in the order given or in that of the alphabet, as in memory.

    Args:
        source: Where they are.
        label: Column of the labels.
        names: Names of the classes, if known.
        count: Number of classes.
        column: Column of the values of one class of two, if there is one.
        positive: Class that it is for, if given.
    """
    dialect, query, table, _ = source
    expression = f"trim({dialect.name(label.name)})" if label.is_text else marks(dialect, label)
    if positive is not None:
        distinct = f"SELECT DISTINCT {expression} AS t FROM {table} WHERE {expression} IS NOT NULL LIMIT {MOST_LISTED}"
        found = [called(bool(each) if label.is_boolean else each) for (each,) in query(distinct)]
        names = with_positive(label.name, positive, names, found, count)
        if not label.is_text:
            other, one = (float(name == "True") if label.is_boolean else float(name) for name in names)
            return LabelExpression(f"CASE {expression} WHEN {other!r} THEN 0e0 WHEN {one!r} THEN 1e0 END", names)
    if label.is_text:
        return _of_text(source, label, names, count, column)
    if names is not None and all(name.isdecimal() for name in names):
        listed = dialect.make_list.format(", ".join(f"{name}e0" for name in names))
        return LabelExpression(f"CAST({dialect.position.format(listed, expression)} - 1 AS DOUBLE)", names)
    some = query(f"SELECT DISTINCT t FROM (SELECT {expression} AS t FROM {table} LIMIT {LOOKED_AT}) AS looked_at")
    if count == 2 and {-1.0, 1.0} == {each for (each,) in some}:
        told = f"read {label.name} -1 and 1 as classes 0 and 1"
        return LabelExpression(f"CASE {expression} WHEN -1 THEN 0e0 WHEN 1 THEN 1e0 END", names, (told,))
    return LabelExpression(expression, names)


def _of_text(
    source: SqlSource, label: Column, names: tuple[str, ...] | None, count: int, column: str | None
) -> LabelExpression:
    dialect, query, table, _ = source
    cell = f"trim({dialect.name(label.name)})"
    notices: tuple[str, ...] = ()
    if names is None:
        distinct = f"SELECT DISTINCT {cell} FROM {table} WHERE {cell} IS NOT NULL LIMIT {count + 1}"
        found = sorted(str(each) for (each,) in query(distinct))
        if found and all(map(is_whole, found)):
            return LabelExpression(f"CAST({cell} AS DOUBLE)")
        if len(found) != count:
            raise ValueError(
                f"column {label.name!r} has {'more than ' * (len(found) > count)}{min(len(found), count)} names of "
                f"classes, but there are {count} classes: give their order with --classes FILE"
            )
        names, notice = in_order(found, column)
        notices = (notice,)
    listed = dialect.make_list.format(", ".join(map(text, names)))
    # A label that is no class has place 0 in Spark and none in DuckDB: both fail the check of the target.
    return LabelExpression(f"CAST({dialect.position.format(listed, cell)} - 1 AS DOUBLE)", names, notices)


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
