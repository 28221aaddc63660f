"""Columns of a source of predictions, and SQL that makes pairs of confidence and correctness from them."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from calibrant.metrics.columns import Columns
from calibrant.metrics.given import TOLERANCE
from calibrant.metrics.scale_sql import Check, Dialect, Pairs

# ruff: noqa: S608 (every name that comes from outside passes through Dialect.name)

Rows = Callable[[str], Sequence[Sequence[Any]]]


class Column(NamedTuple):
    """A column of the source: its name, and its type as the engine calls it."""

    name: str
    type: str

    @property
    def is_list(self) -> bool:
        """Whether it holds lists: ``FLOAT[]`` or ``FLOAT[10]`` in DuckDB, ``array<float>`` in Spark."""
        return self.type.endswith("]") or self.type.lower().startswith("array<")

    @property
    def is_boolean(self) -> bool:
        """Whether it holds true and false."""
        return self.type.lower() == "boolean"

    @property
    def number(self) -> str | None:
        """The type to compute in: FLOAT stays, other numbers become DOUBLE; None if it holds no numbers."""
        element = re.sub(r"^array<(.*)>$|\[\d*\]$", r"\1", self.type.lower())
        if element == "float":
            return "FLOAT"
        return "DOUBLE" if re.fullmatch(r"double|decimal.*|u?(tiny|small|big|huge)?int(eger)?", element) else None


def find_pairs(
    dialect: Dialect, rows: Rows, table: str, found: Sequence[Column], columns: Columns, where: str
) -> Pairs:
    """Find the layout of the source among those that `Columns` describes."""
    by_name = {column.name: column for column in found}

    def numbers(name: str, *, also_boolean: bool = False) -> Column:
        column = by_name[name]
        if column.number is None and not (also_boolean and column.is_boolean):
            raise ValueError(f"{where}: column {name} holds {column.type}, not numbers: convert it")
        return column

    for kind in columns.kinds():
        name, labels = columns.of(kind)
        names = [name] if name in by_name else _numbered(name, by_name, where) if kind != "confidence" else []
        if not names or labels not in by_name:
            continue
        if kind == "confidence":
            return _pairs_of_confidence(dialect, table, numbers(name), numbers(labels, also_boolean=True))
        scores = [numbers(name) for name in names]
        classes = len(scores)
        if scores[0].is_list:
            quoted = dialect.name(name)
            first = rows(f"SELECT {dialect.length.format(quoted)} FROM {table} WHERE {quoted} IS NOT NULL LIMIT 1")
            classes = first[0][0] if first else 1
            if classes == 0:
                raise ValueError(f"{where}: column {name} holds empty lists: write a number for each class")
        target = numbers(labels, also_boolean=True)
        return _pairs_of_scores(dialect, table, scores, target, classes, name=name, logits=kind == "logits")
    wanted = ", or ".join(" and ".join(columns.of(kind)) for kind in columns.kinds())
    raise ValueError(f"{where}: needs the columns {wanted}; it has {', '.join(by_name)}: rename them, or name yours")


def _numbered(name: str, by_name: dict[str, Column], where: str) -> list[str]:
    """The columns ``name_0``, ``name_1`` and so on."""
    if f"{name}_0" not in by_name:
        return []
    count = sum(re.fullmatch(rf"{re.escape(name)}_\d+", other) is not None for other in by_name)
    names = [f"{name}_{i}" for i in range(count)]
    for absent in (other for other in names if other not in by_name):
        raise ValueError(f"{where}: there are {count} columns {name}_..., but no {absent}: number them from 0")
    return names


def _marks(dialect: Dialect, column: Column) -> str:
    """A column of labels or of right and wrong, as DOUBLE."""
    name = dialect.name(column.name)
    # DuckDB passes a cast on to its CSV reader, which then takes "True" for an invalid number.
    return f"CASE WHEN {name} THEN 1e0 WHEN NOT {name} THEN 0e0 END" if column.is_boolean else f"CAST({name} AS DOUBLE)"


def _pairs_of_confidence(dialect: Dialect, table: str, confidence: Column, correct: Column) -> Pairs:
    """Pairs that the source already holds."""
    kind = confidence.number or "DOUBLE"
    text = (
        f"pairs AS (SELECT CAST({dialect.name(confidence.name)} AS {kind}) AS z, "
        f"{_marks(dialect, correct)} AS c FROM {table})"
    )
    checks = (
        Check("z IS NULL OR isnan(z)", f"have no {confidence.name} (NaN or missing): fill it in or leave them out"),
        Check("NOT z BETWEEN 0 AND 1", f"have a {confidence.name} outside [0, 1]: write probabilities, not logits"),
        Check("c IS NULL OR c NOT IN (0, 1)", f"have a {correct.name} that is neither 0 nor 1: write 0 or 1"),
    )
    return Pairs(text, kind, checks)


def _pairs_of_scores(
    dialect: Dialect, table: str, scores: Sequence[Column], target: Column, classes: int, *, name: str, logits: bool
) -> Pairs:
    """Pairs of the predicted class, from probabilities or logits.

    Args:
        dialect: SQL dialect of the engine.
        table: Table to select from.
        scores: One column of lists, one plain column (the score of class 1), or one column for each class.
        target: Column of labels.
        classes: Number of scores per row; 1 means binary.
        name: Name of the scores in error messages.
        logits: Whether the scores are logits.
    """
    kind = "FLOAT" if all(column.number == "FLOAT" for column in scores) else "DOUBLE"
    label = f"{_marks(dialect, target)} AS t"
    checks = [Check("s IS NULL", f"have no {name}: fill them in or leave those rows out")]
    if scores[0].is_list or len(scores) > 1:
        quoted = [dialect.name(column.name) for column in scores]
        if scores[0].is_list:
            listed = f"CAST({quoted[0]} AS {dialect.list_type.format(kind)})"
        else:
            listed = dialect.make_list.format(", ".join(f"CAST({column} AS {kind})" for column in quoted))
        top, bottom = dialect.largest.format("s"), dialect.smallest.format("s")
        sources = (
            f"scores AS (SELECT {listed} AS s, {label} FROM {table}), "
            f"tops AS (SELECT s, t, {top} AS top, {bottom} AS bottom FROM scores)"
        )
        length, filled = dialect.length.format("s"), dialect.not_null.format("s")
        checks += [
            Check(f"{length} <> {classes}", f"have a different number of {name} than the {classes} of the first row: "
                                            "write lists of equal length"),
            Check(f"{filled} < {length}", f"have missing {name}: fill them in or leave those rows out"),
        ]  # fmt: skip
    else:
        column = f"CAST({dialect.name(scores[0].name)} AS {kind})"
        sources = (
            f"scores AS (SELECT {column} AS s, {label} FROM {table}), "
            "tops AS (SELECT s, t, s AS top, s AS bottom FROM scores)"
        )
    confidence, predicted, more = (_of_logits if logits else _of_probabilities)(dialect, kind, classes, name)
    highest = max(classes, 2) - 1
    checks += [
        *more,
        Check(f"t IS NULL OR NOT t BETWEEN 0 AND {highest} OR t <> floor(t)",
              f"have a {target.name} that is not a whole number from 0 to {highest}: "
              "number the classes from 0, and leave out rows without a label"),
    ]  # fmt: skip
    correct = f"CASE WHEN {predicted} = t THEN 1e0 ELSE 0e0 END"
    text = f"{sources}, pairs AS (SELECT *, {confidence} AS z, {correct} AS c FROM tops)"
    return Pairs(text, kind, tuple(checks))


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
