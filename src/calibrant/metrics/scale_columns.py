"""Columns of a source of predictions, and SQL that makes pairs of confidence and correctness from them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from calibrant.metrics.columns import Columns
from calibrant.metrics.given import TOLERANCE
from calibrant.metrics.layouts import find_layout
from calibrant.metrics.scale_sql import Check, Dialect, Pairs
from calibrant.tables import Column, text

# ruff: noqa: S608 (every name that comes from outside passes through Dialect.name)

Rows = Callable[[str], Sequence[Sequence[Any]]]


def find_pairs(
    dialect: Dialect, rows: Rows, table: str, found: Sequence[Column], columns: Columns, where: str, *, risk: bool
) -> Pairs:
    """Find the predictions of the source, in the layout that `Columns` describes.

    With ``risk``, pairs of two classes are the probability of class 1 and whether it came.
    """
    by_name = {column.name: column for column in found}
    if columns.weight is not None:
        raise ValueError(f"{where}: weights need the samples in memory: leave them out, or choose --engine memory")
    try:
        layout = find_layout(list(by_name), columns)
        names = columns.class_names() or layout.classes
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if len(layout.labels) != 1:
        wanted = ", or ".join(" and ".join(columns.of(kind)) for kind in columns.kinds())
        raise ValueError(f"{where}: needs the columns {wanted}; it has {', '.join(by_name)}: name yours")

    def numbers(name: str, *, also_boolean: bool = False) -> Column:
        column = by_name[name]
        if column.number is None and not (also_boolean and column.is_boolean):
            remedy = "give the order of the classes with --classes FILE" if name in layout.labels else "convert it"
            raise ValueError(f"{where}: column {name} holds {column.type}, not numbers: {remedy}")
        return column

    label = by_name[layout.labels[0]]
    if columns.ignore_index is not None and label.number is not None:
        table = f"(SELECT * FROM {table} WHERE {dialect.name(label.name)} <> {columns.ignore_index}) AS kept"
    divisor = 100 if columns.percent else 1
    if layout.kind == "confidence":
        right = _agreement(dialect, layout.prediction, label.name) if layout.prediction else None
        right = right or _marks(dialect, numbers(label.name, also_boolean=True))
        return _pairs_of_confidence(dialect, table, numbers(layout.values[0]), label.name, right, divisor)
    scores = [numbers(name) for name in layout.values]
    classes = len(scores)
    name = columns.of(layout.kind)[0]
    if scores[0].is_list:
        quoted = dialect.name(scores[0].name)
        first = rows(f"SELECT {dialect.length.format(quoted)} FROM {table} WHERE {quoted} IS NOT NULL LIMIT 1")
        classes = first[0][0] if first else 1
        if classes == 0:
            raise ValueError(f"{where}: column {name} holds empty lists: write a number for each class")
    target = _position(dialect, label, names) if names is not None and label.is_text else None
    if target is None:
        target = _marks(dialect, numbers(label.name, also_boolean=True))
        if layout.classes is not None and layout.classes[0].isdecimal():
            target += f" - {layout.classes[0]}"  # classes are numbered from 1
    made = Scores(scores, classes, name, layout.kind == "logits", divisor)
    return _pairs_of_scores(dialect, table, made, label.name, target, risk=risk and classes <= 2)


class Scores(NamedTuple):
    """Columns of scores: one of lists, one plain (the score of class 1), or one for each class.

    Attributes:
        columns: The columns.
        classes: Number of scores per row; 1 means binary.
        name: Name of the scores in error messages.
        logits: Whether the scores are logits.
        divisor: 100 if they are percentages.
    """

    columns: Sequence[Column]
    classes: int
    name: str
    logits: bool
    divisor: int


def _position(dialect: Dialect, label: Column, names: Sequence[str]) -> str:
    """Place of a label among the names of the classes."""
    listed = dialect.make_list.format(", ".join(map(text, names)))
    return f"CAST({dialect.position.format(listed, dialect.name(label.name))} - 1 AS DOUBLE)"


def _agreement(dialect: Dialect, prediction: str, target: str) -> str:
    """Where the predicted class is the true one."""
    one, other = (f"lower(trim(CAST({dialect.name(name)} AS {dialect.text_type})))" for name in (prediction, target))
    return f"CASE WHEN {one} = {other} THEN 1e0 WHEN {one} <> {other} THEN 0e0 END"


def _marks(dialect: Dialect, column: Column) -> str:
    """A column of labels or of right and wrong, as DOUBLE."""
    name = dialect.name(column.name)
    # DuckDB passes a cast on to its CSV reader, which then takes "True" for an invalid number.
    return f"CASE WHEN {name} THEN 1e0 WHEN NOT {name} THEN 0e0 END" if column.is_boolean else f"CAST({name} AS DOUBLE)"


def _pairs_of_confidence(
    dialect: Dialect, table: str, confidence: Column, label: str, right: str, divisor: int
) -> Pairs:
    """Pairs that the source already holds."""
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
    return Pairs(text, kind, checks)


def _pairs_of_scores(dialect: Dialect, table: str, scores: Scores, label: str, target: str, *, risk: bool) -> Pairs:
    """Pairs of the predicted class, or of class 1 of two, from probabilities or logits.

    Args:
        dialect: SQL dialect of the engine.
        table: Table to select from.
        scores: Columns of scores.
        label: Name of the labels, for errors.
        target: Expression of the labels.
        risk: Whether the pairs are those of class 1.
    """
    columns, classes, name, logits, divisor = scores
    kind = "FLOAT" if all(column.number == "FLOAT" for column in columns) else "DOUBLE"
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
        sources = (
            f"scores AS (SELECT {listed} AS s, {marks} FROM {table}), "
            f"tops AS (SELECT s, t, {top} AS top, {bottom} AS bottom FROM scores)"
        )
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
            "tops AS (SELECT s, t, s AS top, s AS bottom FROM scores)"
        )
    confidence, predicted, more = (_of_logits if logits else _of_probabilities)(dialect, kind, classes, name)
    highest = max(classes, 2) - 1
    checks += [
        *more,
        Check(f"t IS NULL OR NOT t BETWEEN 0 AND {highest} OR t <> floor(t)",
              f"have a {label} that is not a whole number from 0 to {highest}: "
              "number the classes from 0, and leave out rows without a label"),
    ]  # fmt: skip
    if risk:
        confidence, predicted = _of_class_1(dialect, kind, classes, logits=logits), "1"
    correct = f"CASE WHEN {predicted} = t THEN 1e0 ELSE 0e0 END"
    text = f"{sources}, pairs AS (SELECT *, {confidence} AS z, {correct} AS c FROM tops)"
    return Pairs(text, kind, tuple(checks), risk)


def _of_class_1(dialect: Dialect, kind: str, classes: int, *, logits: bool) -> str:
    """Probability of class 1 of two."""
    if classes == 1:
        return f"CAST(1 / (1 + exp(-CAST(top AS DOUBLE))) AS {kind})" if logits else "top"
    first, second = (f"CAST({dialect.element.format('s', place)} AS DOUBLE)" for place in (1, 2))
    return f"CAST(1 / (1 + exp({first} - {second})) AS {kind})" if logits else dialect.element.format("s", 2)


def _of_probabilities(dialect: Dialect, kind: str, classes: int, name: str) -> tuple[str, str, list[Check]]:
    """Confidence, predicted class and checks of probabilities."""
    checks = [
        Check("isnan(top)", f"have NaN among the {name}: leave those rows out"),
        Check("bottom < 0 OR top > 1", f"have {name} outside [0, 1]: name the column logits if it holds logits"),
    ]
    if classes == 1:
        return f"greatest(top, CAST(1 AS {kind}) - top)", "CASE WHEN top > 0.5 THEN 1 ELSE 0 END", checks
    # Half precision rounds each of C probabilities; a row of logits or counts is off by far more.
    total = dialect.total.format("s")
    checks.append(
        Check(f"abs({total} - 1) > {TOLERANCE}", f"have {name} that do not sum to 1: write the softmax of the logits")
    )
    return "top", f"{dialect.position.format('s', 'top')} - 1", checks


def _of_logits(dialect: Dialect, kind: str, classes: int, name: str) -> tuple[str, str, list[Check]]:
    """Confidence, predicted class and checks of logits; the softmax is taken in double and rounded once."""
    # Every engine sorts NaN above infinity.
    infinity = "CAST('Infinity' AS DOUBLE)"
    checks = [
        Check(f"top >= {infinity} OR bottom <= -{infinity}", f"have NaN or infinite {name}: leave those rows out")
    ]
    if classes == 1:
        confidence = "1 / (1 + exp(-abs(CAST(top AS DOUBLE))))"
        return f"CAST({confidence} AS {kind})", "CASE WHEN top > 0 THEN 1 ELSE 0 END", checks
    # Rows with the same logits in another order must tie: if sorted, their sums round equally. Rounding to FLOAT
    # hides the difference anyway.
    terms = dialect.ascending.format("s") if kind == "DOUBLE" else "s"
    total = dialect.total.format(dialect.shifted_powers.format(terms, "CAST(top AS DOUBLE)"))
    return f"CAST(1 / {total} AS {kind})", f"{dialect.position.format('s', 'top')} - 1", checks
