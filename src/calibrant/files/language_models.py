"""Answers of language models: log-probabilities of the options of each row, and the logs of lm-evaluation-harness."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from calibrant.files.cells import Kind, numbers_of
from calibrant.files.formats import Array, Table
from calibrant.files.layout import LOG_PROBABILITIES, RESPONSES

Row = list[float] | None
SOFTMAX = "probabilities are the softmax of the log-probabilities over the options of a row"


class Answers(NamedTuple):
    """Log-probabilities of the options of the rows that have them, or confidences in the highest option.

    Attributes:
        values: ``(N, C)`` log-probabilities; or ``(N,)`` confidences if rows differ in the number of options.
        labels: Indices of the right options, or whether the highest is right; None if there are none.
        rows: Indices of the rows that have them; None if all do.
        names: Names of the options, if they have any.
        notices: What was assumed or left out, in sentences.
    """

    values: Array
    labels: Array | None
    rows: Array | None
    names: tuple[str, ...] | None
    notices: tuple[str, ...]


def read_harness(table: Table) -> Answers:
    """Read the samples of a multiple-choice task, as lm-evaluation-harness logs them."""
    there = table.names()
    options = [of_options(cell) for cell in table.json(next(name for name in RESPONSES if name in there))]
    if "acc_mutual_info" in there:  # the second half are the options without their question
        options = [each if each is None else each[: len(each) // 2] for each in options]
    if not any(each is not None and len(each) > 1 for each in options):
        raise ValueError("has no log-probabilities of options: of the harness, samples of multiple choice are read")
    accuracies = table.json("acc") if "acc" in there else [None] * len(options)
    targets = table.json("target")
    texts: Sequence[Any] = [None] * len(options)
    if "arguments" in there and any(_index(target, ()) is None for target in targets):
        texts = table.json("arguments")
    labels = [_index(target, _continuations(given)) for target, given in zip(targets, texts, strict=True)]
    rows: list[Row] = list(options)
    right: list[bool] = []
    differ = 0
    for k, (row, label, accuracy) in enumerate(zip(options, labels, accuracies, strict=True)):
        if row is None or len(row) < 2 or (label is None and accuracy is None):
            rows[k] = None
            continue
        right.append(bool(accuracy) if label is None else int(np.argmax(row)) == label)
        differ += accuracy is not None and bool(accuracy) != right[-1]
    if not right:
        raise ValueError("has no row with log-probabilities of options and a target")
    notices = (*table.notices, SOFTMAX)
    if differ:
        notices += (f"in {differ:,} rows, acc disagrees with the highest log-probability, which is used",)
    known = [label for row, label in zip(rows, labels, strict=True) if row is not None]
    indices = None if None in known else np.array(known, np.int64)
    return _answers(rows, indices, right, None, notices, "log-probabilities or no target")


def read_column(table: Table, name: str, kind: Kind, labels: Array | None) -> Answers:
    """Read a column of lists or dictionaries of options; rows without them are left out and counted."""
    rows, names = read_options(table.json(name))
    kept = [k for k, row in enumerate(rows) if row is not None]
    full = [row for row in rows if row is not None]
    if not full:
        raise ValueError(f"{name!r} has no row of numbers: write a list of numbers, or a number for each name")
    labels = None if labels is None else labels[kept]
    notices = (SOFTMAX,) * (kind == "logits" and name.lower() in LOG_PROBABILITIES)
    right = None
    if len({len(row) for row in full}) > 1:
        if labels is None or kind != "logits":
            raise ValueError(f"lists in column {name!r} must have one length")
        right = [int(np.argmax(row)) == label for row, label in zip(full, numbers_of("target", labels), strict=True)]
    return _answers(rows, labels, right, names, notices, name)


def _answers(
    rows: Sequence[Row],
    labels: Array | None,
    right: Sequence[bool] | None,
    names: tuple[str, ...] | None,
    notices: tuple[str, ...],
    what: str,
) -> Answers:
    """Log-probabilities if all rows have as many; else, or without labels, confidences in the highest option.

    Rows that are None are left out, since they have no ``what``; ``labels`` and ``right`` are those of the others.
    """
    kept = [k for k, row in enumerate(rows) if row is not None]
    full = [row for row in rows if row is not None]
    if len(kept) < len(rows):
        notices += (f"{len(rows) - len(kept):,} of {len(rows):,} rows have no {what}: they are left out",)
    places = np.array(kept, np.int64) if len(kept) < len(rows) else None
    counts = {len(row) for row in full}
    if len(counts) == 1 and (labels is not None or right is None):
        return Answers(np.array(full), labels, places, names, notices)
    why = f"rows have {min(counts)} to {max(counts)} options"
    if len(counts) == 1:
        why = "the target is known only through acc"
    notices += (f"{why}: the confidence in the highest option is evaluated",)
    return Answers(confidences(full), np.array(right, np.int64), places, None, notices)


def read_options(cells: Sequence[Any]) -> tuple[list[Row], tuple[str, ...] | None]:
    """Log-probabilities of options, in lists or in dictionaries, and the names of the options if they have any.

    A row without all of its log-probabilities is None.

    Example:
        >>> read_options([{"A": -0.1, "B": -2.3}, {"A": -1.2}, None])
        ([[-0.1, -2.3], None, None], ('A', 'B'))
    """
    names = tuple(dict.fromkeys(key for cell in cells if isinstance(cell, dict) for key in cell))
    if names:
        cells = [[cell.get(name) for name in names] if isinstance(cell, dict) else None for cell in cells]
    return [of_options(cell) for cell in cells], names or None


def of_options(cell: Any) -> Row:
    """Log-probabilities of one row; each is a number, or begins a list as in ``[[-1.2, False], [-0.3, True]]``."""
    if not isinstance(cell, list) or not cell:
        return None
    found = [_number(option) for option in cell]
    return found if all(map(math.isfinite, found)) else None


def _number(option: Any) -> float:
    while isinstance(option, list) and option:
        option = option[0]
    try:
        return float(option)
    except (TypeError, ValueError):
        return math.nan


def _continuations(arguments: Any) -> list[str]:
    """Text of each option: the last argument of each request."""
    requests = list(arguments.values()) if isinstance(arguments, dict) else arguments or []
    parts = [list(each.values()) if isinstance(each, dict) else each for each in requests]
    return [str(each[-1]).strip() if isinstance(each, list) and each else "" for each in parts]


def _index(target: Any, texts: Sequence[str]) -> int | None:
    """The right option: a number, also as text; or the text of the option."""
    if isinstance(target, str) and target.strip() in texts:
        return texts.index(target.strip())
    try:
        return int(target)
    except (TypeError, ValueError):
        return None


def confidences(rows: Sequence[Sequence[float]]) -> Array:
    """Largest probability of each row, by a softmax over as many options as it has.

    Example:
        >>> confidences([[0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
        array([0.5 , 0.25])
    """
    return np.array([1 / np.exp(np.array(row) - max(row)).sum() for row in rows])
