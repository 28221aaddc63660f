"""Columns and labels of a source beyond memory, as SQL that makes pairs of confidence and correctness."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from calibrant.files.cells import EXACT, RIGHT, explained_by_rounding
from calibrant.files.formats import Column, text
from calibrant.files.layout import (
    NOT_TWO,
    ClassLabels,
    Columns,
    Layout,
    class_labels,
    find_layout,
    is_harness,
    names_of_classes,
    without_labels,
)
from calibrant.inputs import TOLERANCE
from calibrant.metrics.scale_sql import Check, Dialect, Judged, PairQuery

# ruff: noqa: S608 (every name that comes from outside passes through Dialect.name)

# Rows that are looked at to see what labels and probabilities mean.
LOOKED_AT = 1000
# Runs a statement and returns its rows; a second argument is the share of all work that is done after it.
Query = Callable[..., Sequence[Sequence[Any]]]


class SqlSource(NamedTuple):
    """A table of an engine, its dialect of SQL, and a function that runs a statement."""

    dialect: Dialect
    query: Query
    table: str


class Scores(NamedTuple):
    """Columns of scores: one of lists, one plain (the score of one event), or one for each class."""

    columns: Sequence[Column]
    classes: int  # number of scores in a row
    name: str  # in error messages
    logits: bool
    divisor: int  # 100 if they are percentages

    @property
    def type(self) -> str:
        """Type that they are computed in."""
        return "FLOAT" if all(column.number == "FLOAT" for column in self.columns) else "DOUBLE"


def find_pairs(source: SqlSource, found: Sequence[Column], columns: Columns, *, risk: bool) -> PairQuery:
    """Find the predictions of the source; with ``risk``, those of two classes are the probability of class 1."""
    by_name = {column.name: column for column in found}
    layout = _layout(by_name, columns)
    label = by_name[layout.labels[0]]
    source, notices = _without_ignored(source, label, columns.ignore_index)
    notices = layout.notices + notices
    values = [by_name[name] for name in layout.values]
    of_pairs = layout.kind == "confidence"
    numeric = list(values)
    if not of_pairs and not label.is_text and not label.is_boolean:
        numeric.append(label)
    for column in numeric:
        if column.number is None or (of_pairs and column.is_list):
            raise ValueError(f"column {column.name} holds {column.type}, not numbers: convert it")
    scores = Scores(
        values,
        _scores_in_a_row(source, values),
        columns.of(layout.kind)[0],
        layout.kind == "logits",
        100 if columns.percent else 1,
    )
    if of_pairs:
        if columns.positive is not None:
            raise ValueError(NOT_TWO)
        right = correctness(source.dialect, label)
        if layout.prediction:
            right = agreement(source.dialect, layout.prediction, label.name)
        return replace(_pairs(source, scores, right, label.name, "confidence"), notices=notices)
    count = max(scores.classes, 2)
    names = names_of_classes(columns, layout.classes, count)
    assumed = layout.option if names is None else ""
    one = values[0].name if scores.classes == 1 else None
    target, meaning = _class_indices(source, label, names, count, column=one, positive=columns.positive)
    made = _pairs(source, scores, target, label.name, "risk" if risk and count == 2 else "top label")
    return replace(made, classes=count, names=meaning.names, assumed=assumed, notices=notices + meaning.notices)


def _layout(by_name: Mapping[str, Column], columns: Columns) -> Layout:
    """The layout, if it is one that SQL can read; an error that says what to do if it is not."""
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
        raise ValueError(without_labels(layout, columns, list(by_name)))
    if by_name[layout.values[0]].is_dictionary:
        raise ValueError(f"dictionaries of options {in_memory}")
    return layout


def _without_ignored(source: SqlSource, label: Column, ignored: int | None) -> tuple[SqlSource, tuple[str, ...]]:
    """The source without rows of an ignored label, and a notice of their number."""
    if ignored is None or label.number is None:
        return source, ()
    name, table = source.dialect.name(label.name), source.table
    [(left_out, total)] = source.query(
        f"SELECT sum(CASE WHEN {name} = {ignored} THEN 1 ELSE 0 END), count(*) FROM {table}"
    )
    kept = source._replace(table=f"(SELECT * FROM {table} WHERE {name} <> {ignored}) AS kept")
    return kept, (f"{left_out:,} of {total:,} rows with the label {ignored} are left out",) if left_out else ()


def _scores_in_a_row(source: SqlSource, values: Sequence[Column]) -> int:
    if not values[0].is_list:
        return len(values)
    dialect, query, table = source
    quoted = dialect.name(values[0].name)
    first = query(f"SELECT {dialect.length.format(quoted)} FROM {table} WHERE {quoted} IS NOT NULL LIMIT 1")
    if first and first[0][0] == 0:
        raise ValueError(f"column {values[0].name} holds empty lists: write a number for each class")
    return first[0][0] if first else 1


def _pairs(source: SqlSource, scores: Scores, target: str, label: str, judged: Judged) -> PairQuery:
    """Pairs of the predicted class, or of an event; ``target`` is the expression of the class, or of the event."""
    dialect, name, kind = source.dialect, scores.name, scores.type
    several = scores.classes > 1
    checks = [Check("s IS NULL", f"have no {name}: fill them in or leave those rows out")]
    if scores.columns[0].is_list or several:
        length, filled = dialect.length.format("s"), dialect.not_null.format("s")
        checks += [
            Check(
                f"{length} <> {scores.classes}",
                f"have a different number of {name} than the {scores.classes} of the first row: write lists of equal "
                "length",
            ),
            Check(f"{filled} < {length}", f"have missing {name}: fill them in or leave those rows out"),
        ]
    tops, tolerance = _tops(source, scores, target)
    if scores.logits:
        # Every engine sorts NaN above infinity.
        infinity = "CAST('Infinity' AS DOUBLE)"
        infinite = f"top >= {infinity} OR bottom <= -{infinity}"
        checks.append(Check(infinite, f"have NaN or infinite {name}: leave those rows out"))
    else:
        checks += [
            Check("isnan(top)", f"have NaN among the {name}: leave those rows out"),
            Check(
                "bottom < 0 OR top > 1",
                f"have {name} outside [0, 1]: give --percent if they are percentages, or name the column logits if it "
                "holds logits",
            ),
            # Half precision rounds each of C probabilities; a row of logits or counts is off by far more.
            Check(
                f"abs(whole - 1) > {tolerance}",
                f"have {name} that do not sum to 1: divide each row by its sum, or write the softmax of the logits",
            ),
        ]
    highest = max(scores.classes, 2) - 1
    checks.append(
        Check(
            f"t IS NULL OR NOT t BETWEEN 0 AND {highest} OR t <> floor(t)",
            f"have a {label} that is not a whole number from 0 to {highest}: write one in every row, or leave rows "
            "without a label out",
        )
    )
    confidence, predicted = _of_top_label(dialect, scores) if judged == "top label" else _of_event(scores)
    correct = f"CASE WHEN {predicted} = t THEN 1e0 ELSE 0e0 END"
    shares = "shares AS (SELECT s AS x, whole, t FROM tops)" if several else ""
    if scores.logits and several:
        powers = dialect.mapped.format("s", "exp(CAST(x AS DOUBLE) - CAST(top AS DOUBLE))")
        total = dialect.total.format("x")
        shares = f"powers AS (SELECT {powers} AS x, t FROM tops), shares AS (SELECT x, {total} AS whole, t FROM powers)"
    pairs = f"pairs AS (SELECT *, CAST({confidence} AS {kind}) AS z, {correct} AS c FROM tops)"
    return PairQuery(f"{tops}, {pairs}", kind, tuple(checks), judged, shares, label)


def _tops(source: SqlSource, scores: Scores, target: str) -> tuple[str, float]:
    """Expressions that end in ``tops``, and how far a sum of probabilities may be from 1."""
    # Columns: the scores s, the label t, the largest and smallest score, and whole, what rounded ones are divided by.
    dialect, query, table = source
    share = f" / {scores.divisor}" * (scores.divisor > 1)
    quoted = [dialect.name(column.name) for column in scores.columns]
    plain = [f"CAST({name}{share} AS {scores.type})" for name in quoted]
    if scores.columns[0].is_list:
        listed = dialect.mapped.format(quoted[0], f"x{share}") if share else quoted[0]
        s = f"CAST({listed} AS {dialect.list_type.format(scores.type)})"
    else:
        s = plain[0] if scores.classes == 1 else dialect.make_list.format(", ".join(plain))
    read = f"scores AS (SELECT {s} AS s, {target} AS t FROM {table})"
    if not scores.columns[0].is_list and scores.classes == 1:
        return f"{read}, tops AS (SELECT s, t, s AS top, s AS bottom, 1e0 AS whole FROM scores)", TOLERANCE
    top, bottom, total = (each.format("s") for each in (dialect.largest, dialect.smallest, dialect.total))
    whole, tolerance = "1e0", TOLERANCE
    if not scores.logits and scores.classes > 1:
        whole = f"CASE WHEN abs({total} - 1) > {EXACT} THEN {total} ELSE 1e0 END"
        first = [row[0] for row in query(f"WITH {read} SELECT s FROM scores LIMIT {LOOKED_AT}")]
        full = [each for each in first if each is not None and len(each) == scores.classes and None not in each]
        tolerance = explained_by_rounding(np.array(full, np.float64)) if full else TOLERANCE
    return f"{read}, tops AS (SELECT s, t, {top} AS top, {bottom} AS bottom, {whole} AS whole FROM scores)", tolerance


def _of_event(scores: Scores) -> tuple[str, str]:
    """Probability of class 1 of two, or that a confidence is right; and the class that is judged."""
    if scores.classes == 1:
        return "1 / (1 + exp(-CAST(top AS DOUBLE)))" if scores.logits else "top", "1"
    ahead = "array_position(s, top) = 2"  # class 1 has the larger score
    if scores.logits:
        gap = "CAST(top AS DOUBLE) - CAST(bottom AS DOUBLE)"
        return f"1 / (1 + exp(CASE WHEN {ahead} THEN -({gap}) ELSE {gap} END))", "1"
    return f"CAST(CASE WHEN {ahead} THEN top ELSE bottom END AS DOUBLE) / whole", "1"


def _of_top_label(dialect: Dialect, scores: Scores) -> tuple[str, str]:
    """Confidence and predicted class; a softmax is taken in double."""
    if scores.classes == 1 and scores.logits:
        return "1 / (1 + exp(-abs(CAST(top AS DOUBLE))))", "CASE WHEN top > 0 THEN 1 ELSE 0 END"
    if scores.classes == 1:
        return f"greatest(top, CAST(1 AS {scores.type}) - top)", "CASE WHEN top > 0.5 THEN 1 ELSE 0 END"
    predicted = "array_position(s, top) - 1"
    if not scores.logits:
        return "CAST(top AS DOUBLE) / whole", predicted
    # Rows with the same logits in another order must tie: if sorted, their sums round equally. Rounding to FLOAT
    # hides the difference anyway.
    terms = "array_sort(s)" if scores.type == "DOUBLE" else "s"
    powers = dialect.mapped.format(terms, "exp(CAST(x AS DOUBLE) - CAST(top AS DOUBLE))")
    return f"1 / {dialect.total.format(powers)}", predicted


def _class_indices(
    source: SqlSource,
    label: Column,
    names: tuple[str, ...] | None,
    count: int,
    *,
    column: str | None,
    positive: str | None,
) -> tuple[str, ClassLabels]:
    """Expression of class indices, and what the labels mean, as in memory."""
    dialect, query, table = source
    cell = f"trim({dialect.name(label.name)})" if label.is_text else marks(dialect, label)
    all_are_needed = positive is not None or (label.is_text and names is None)
    rows = f"SELECT {cell} AS t FROM {table}{'' if all_are_needed else f' LIMIT {LOOKED_AT}'}"
    distinct = query(f"SELECT DISTINCT t FROM ({rows}) AS looked_at WHERE t IS NOT NULL LIMIT {max(count, 5) + 1}")
    found = [bool(each) if label.is_boolean else each for (each,) in distinct]
    meaning = class_labels(label.name, found, names, count, column=column, positive=positive)
    number = f"CAST({cell} AS DOUBLE)"
    if label.is_text:
        number = f"CASE lower({cell}) WHEN 'true' THEN 1e0 WHEN 'false' THEN 0e0 ELSE {number} END"
    if meaning.keys is None:
        return number, meaning
    keys = [text(key) if isinstance(key, str) else f"CAST({key!r} AS DOUBLE)" for key in meaning.keys]
    listed, sought = dialect.make_list.format(", ".join(keys)), cell if isinstance(meaning.keys[0], str) else number
    # A label that is no class has place 0 in Spark and none in DuckDB: both fail the check of the target.
    return f"CAST(array_position({listed}, {sought}) - 1 AS DOUBLE)", meaning


def correctness(dialect: Dialect, column: Column) -> str:
    """Right and wrong as 1 and 0, also in words."""
    if not column.is_text:
        return marks(dialect, column)
    cell = f"lower(trim({dialect.name(column.name)}))"
    words = {"1": 1, "0": 0, "1.0": 1, "0.0": 0} | RIGHT
    right, wrong = (", ".join(text(word) for word, mark in words.items() if mark == each) for each in (1, 0))
    return f"CASE WHEN {cell} IN ({right}) THEN 1e0 WHEN {cell} IN ({wrong}) THEN 0e0 END"


def agreement(dialect: Dialect, prediction: str, target: str) -> str:
    """Where the predicted class is the true one."""
    one, other = (f"lower(trim(CAST({dialect.name(name)} AS STRING)))" for name in (prediction, target))
    return f"CASE WHEN {one} = {other} THEN 1e0 WHEN {one} <> {other} THEN 0e0 END"


def marks(dialect: Dialect, column: Column) -> str:
    """A column of labels or of right and wrong, as DOUBLE."""
    name = dialect.name(column.name)
    # DuckDB passes a cast on to its CSV reader, which then takes "True" for an invalid number.
    return f"CASE WHEN {name} THEN 1e0 WHEN NOT {name} THEN 0e0 END" if column.is_boolean else f"CAST({name} AS DOUBLE)"
