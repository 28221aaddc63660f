"""Answers of language models: log-probabilities of the options of each row, and the logs of lm-evaluation-harness."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from calibrant.files.cells import Kind, check_lengths, numbers_of
from calibrant.files.formats import Array, Table
from calibrant.files.layout import LOG_PROBABILITIES, RESPONSES

Row = list[float] | None
SOFTMAX = "probabilities are the softmax of the log-probabilities over the options of a row"


class Answers(NamedTuple):
    """Log-probabilities of the options of the rows that have them, or confidences in the highest option."""

    values: Array  # (N, C) log-probabilities; or (N,) confidences if rows differ in the number of options
    labels: Array | None  # of these rows, or whether the highest option is right
    rows: Array | None  # indices of the rows that have them; None if all do
    notices: tuple[str, ...]
    names: tuple[str, ...] | None = None  # of the options


def read_harness(table: Table) -> Answers:
    """Read the samples of a multiple-choice task, as lm-evaluation-harness logs them."""
    there = table.names()
    options = [_log_probabilities(cell) for cell in table.json(next(name for name in RESPONSES if name in there))]
    if "acc_mutual_info" in there:  # the second half are the options without their question
        options = [each and each[: len(each) // 2] for each in options]
    targets = table.json("target")
    texts: Sequence[Any] = [None] * len(options)
    if "arguments" in there and any(_index(target, ()) is None for target in targets):
        texts = table.json("arguments")
    labels = [_index(target, _continuations(given)) for target, given in zip(targets, texts, strict=True)]
    rows = []
    for row, label in zip(options, labels, strict=True):
        usable = row is not None and len(row) > 1 and label is not None
        rows.append(row if usable else None)
    if not any(rows):
        raise ValueError(
            "has no row with a target and log-probabilities of options: of the harness, samples of multiple choice "
            "are read"
        )
    found = _answers(
        rows, np.array([-1 if label is None else label for label in labels]), "target or log-probabilities"
    )
    notices = (*table.notices, SOFTMAX, *found.notices)
    if "acc" in there:
        differ = sum(
            row is not None and accuracy is not None and bool(accuracy) != (np.argmax(row) == label)
            for row, label, accuracy in zip(rows, labels, table.json("acc"), strict=True)
        )
        if differ:
            notices += (f"in {differ:,} rows, acc disagrees with the highest log-probability, which is used",)
    return found._replace(notices=notices)


def read_column(table: Table, name: str, kind: Kind, labels: Array | None) -> Answers:
    """Read a column of lists or dictionaries of options; rows without all of them are left out and counted."""
    cells = table.json(name)
    names = tuple(dict.fromkeys(key for cell in cells if isinstance(cell, dict) for key in cell))
    if names:
        cells = [[cell.get(key) for key in names] if isinstance(cell, dict) else None for cell in cells]
    rows = [_log_probabilities(cell) for cell in cells]
    if not any(rows):
        raise ValueError(f"{name!r} has no row of numbers: write a list of numbers, or a number for each name")
    lengths = {len(row) for row in rows if row is not None}
    if labels is None or kind != "logits":
        check_lengths(name, lengths)
    found = _answers(rows, labels, name)
    notices = (SOFTMAX,) * (kind == "logits" and name.lower() in LOG_PROBABILITIES)
    return found._replace(notices=notices + found.notices, names=names or None)


def _answers(rows: Sequence[Row], labels: Array | None, what: str) -> Answers:
    """Log-probabilities if all rows have as many; else confidences in the highest option, and whether it is right."""
    kept = np.array([k for k, row in enumerate(rows) if row is not None], np.int64)
    full = [row for row in rows if row is not None]
    labels = None if labels is None else labels[kept]
    places = None
    notices: list[str] = []
    if len(kept) < len(rows):
        places = kept
        notices.append(f"{len(rows) - len(kept):,} of {len(rows):,} rows have no {what}: they are left out")
    counts = {len(row) for row in full}
    if len(counts) == 1 or labels is None:
        return Answers(np.array(full), labels, places, tuple(notices))
    right = np.array([np.argmax(row) for row in full]) == numbers_of("target", labels)
    # The softmax of a row at its largest value.
    confidence = np.array([1 / np.exp(np.array(row) - max(row)).sum() for row in full])
    notices.append(
        f"rows have {min(counts)} to {max(counts)} options: the confidence in the highest option is evaluated"
    )
    return Answers(confidence, right.astype(np.int64), places, tuple(notices))


def _log_probabilities(cell: Any) -> Row:
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
