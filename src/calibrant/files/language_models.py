"""Answers of language models: log-probabilities of the options of each row, and the logs of lm-evaluation-harness."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrant.files.formats import Array, Table
from calibrant.files.values import numbers_of
from calibrant.metrics.columns import Kind
from calibrant.tables import Column

if TYPE_CHECKING:
    from calibrant.files.read import Source

Row = list[float] | None
RESPONSES = ("filtered_resps", "resps")
SOFTMAX = "probabilities are the softmax of the log-probabilities over the options of a row"
# Names of columns whose rows may differ in the number of options, or lack them.
NAMES = ("logprobs", "log_probs", "logprob")


class Options(NamedTuple):
    """Log-probabilities of the options of the rows that have them, or confidences in the highest option.

    Attributes:
        kind: ``"logits"``; or ``"confidence"`` if rows differ in the number of options.
        values: ``(N, C)`` log-probabilities, or ``(N,)`` confidences.
        labels: Indices of the right options, or whether the highest is right; None if there are none.
        rows: Indices of the rows that have them.
        all_kept: Whether these are all rows.
        names: Names of the options, if they have any.
        notices: What was assumed or left out, in sentences.
    """

    kind: Kind
    values: Array
    labels: Array | None
    rows: Sequence[int]
    all_kept: bool
    names: tuple[str, ...] | None
    notices: tuple[str, ...]


def is_harness(names: Iterable[str]) -> bool:
    """Whether columns are those of lm-evaluation-harness (``samples_*.jsonl``)."""
    return "target" in names and any(name in names for name in RESPONSES)


def holds_options(column: Column) -> bool:
    """Whether the cells of a column are dictionaries, or log-probabilities of options."""
    nested = column.type.startswith(("STRUCT", "MAP", "JSON"))
    return nested or (column.is_list and column.name.lower() in NAMES)


def read_harness(table: Table) -> Options:
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
    found: list[tuple[int, list[float], int | None, bool]] = []
    differ = 0
    for k, (row, label, accuracy) in enumerate(zip(options, labels, accuracies, strict=True)):
        if row is not None and len(row) > 1 and (label is not None or accuracy is not None):
            right = bool(accuracy) if label is None else int(np.argmax(row)) == label
            differ += accuracy is not None and bool(accuracy) != right
            found.append((k, row, label, right))
    if not found:
        raise ValueError("has no row with log-probabilities of options and a target")
    rows, full, known, correct = zip(*found, strict=True)
    notices = (*table.notices, SOFTMAX)
    if differ:
        notices += (f"in {differ:,} rows, acc disagrees with the highest log-probability, which is used",)
    notices += _left_out(len(rows), len(options), "log-probabilities or no target")
    indices = None if None in known else np.array(known, np.int64)
    return _options(full, indices, np.array(correct, np.int64), rows, len(options), None, notices)


def read_column(table: Table, name: str, source: "Source") -> Options:
    """Read a column of lists or dictionaries of options; rows without them are left out and counted."""
    cells = table.json(name)
    options, names = read_options(cells)
    rows = [k for k, row in enumerate(options) if row is not None]
    full = [row for row in options if row is not None]
    if not full:
        raise ValueError(f"{name!r} has no row of numbers: write a list of numbers, or a number for each name")
    notices = _left_out(len(rows), len(options), name)
    if source.kind == "logits" and name.lower() in NAMES:
        notices += (SOFTMAX,)
    labels = None if source.labels is None else source.labels[rows]
    if len({len(row) for row in full}) == 1:
        return Options(source.kind, np.array(full), labels, rows, len(rows) == len(cells), names, notices)
    if labels is None or source.kind != "logits":
        raise ValueError(f"lists in column {name!r} must have one length")
    right = [int(np.argmax(row)) == label for row, label in zip(full, numbers_of("target", labels), strict=True)]
    return _options(full, None, np.array(right, np.int64), rows, len(cells), names, notices)


def _options(
    full: Sequence[list[float]],
    labels: Array | None,
    right: Array,
    rows: Sequence[int],
    total: int,
    names: tuple[str, ...] | None,
    notices: tuple[str, ...],
) -> Options:
    """Log-probabilities if all rows have as many and a label; else confidences in the highest option."""
    counts = {len(row) for row in full}
    all_kept = len(rows) == total
    if len(counts) == 1 and labels is not None:
        return Options("logits", np.array(full), labels, rows, all_kept, names, notices)
    why = "the target is known only through acc"
    if len(counts) > 1:
        why = f"rows have {min(counts)} to {max(counts)} options"
    notices += (f"{why}: the confidence in the highest option is evaluated",)
    return Options("confidence", confidences(full), right, rows, all_kept, None, notices)


def _left_out(kept: int, total: int, what: str) -> tuple[str, ...]:
    return (f"{total - kept:,} of {total:,} rows have no {what}: they are left out",) * (kept < total)


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
