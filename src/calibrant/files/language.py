"""Answers of language models: log-probabilities of options, and the logs of lm-evaluation-harness."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.files.arrays import Array
from calibrant.files.cells import numbers_of
from calibrant.files.source import Source
from calibrant.files.tables import Table
from calibrant.tables import Column

Options = list[float] | None
RESPONSES = ("filtered_resps", "resps")
SOFTMAX = "probabilities are the softmax of the log-probabilities over the options of a row"
# Names of columns whose rows may differ in the number of options, or lack them.
NAMES = ("logprobs", "log_probs", "logprob")


def is_harness(names: Iterable[str]) -> bool:
    """Whether columns are those of lm-evaluation-harness (``samples_*.jsonl``)."""
    return "target" in names and any(name in names for name in RESPONSES)


def read_harness(path: Path, table: Table) -> Source:
    """Read the samples of a multiple-choice task, as lm-evaluation-harness logs them.

    The log-probabilities of a row become probabilities by a softmax over its options; the highest is the answer.

    Raises:
        ValueError: If the task has no options.
    """
    there = table.names()
    options = [of_options(cell) for cell in table.json(next(name for name in RESPONSES if name in there))]
    if "acc_mutual_info" in there:  # the second half are the options without their question
        options = [each if each is None else each[: len(each) // 2] for each in options]
    if not any(each is not None and len(each) > 1 for each in options):
        raise ValueError("has no log-probabilities of options: of the harness, samples of multiple choice are read")
    said = table.json("acc") if "acc" in there else [None] * len(options)
    texts: Sequence[Any] = [None] * len(options)
    targets = table.json("target")
    if "arguments" in there and any(_index(target) is None for target in targets):
        texts = table.json("arguments")
    labels = [_index(target, _continuations(given)) for target, given in zip(targets, texts, strict=True)]
    correct = [_is_right(row, label, acc) for row, label, acc in zip(options, labels, said, strict=True)]
    kept = np.array([k for k, right in enumerate(correct) if right is not None], np.int64)
    if not len(kept):
        raise ValueError("has no row with log-probabilities of options and a target")
    differ = sum(
        acc is not None and label is not None and row is not None and bool(acc) != (int(np.argmax(row)) == label)
        for row, label, acc in zip(options, labels, said, strict=True)
    )
    notices = (f"in {differ:,} rows, acc disagrees with the highest log-probability, which is used",) * bool(differ)
    full = [row for k in kept if (row := options[k]) is not None]
    known = [labels[k] for k in kept]
    values = _even(full)
    source = Source(path, "logits", np.empty(0), rows=kept, notices=(*table.notices, SOFTMAX, *notices))
    source = _counted(source, len(kept), len(options), "log-probabilities or no target")
    if values is not None and all(label is not None for label in known):
        return replace(source, values=values, labels=np.array(known, np.int64))
    return _best(source, full, np.array([correct[k] for k in kept]), "the target is known only through acc")


def with_options(source: Source, cells: Sequence[Any]) -> Source:
    """A source with the options of each row as its values; rows without them are left out and counted.

    Raises:
        ValueError: If no row has them, or rows differ in their number and there are no labels.
    """
    options, names = read_options(cells)
    kept = np.array([k for k, row in enumerate(options) if row is not None], np.int64)
    full = [row for row in options if row is not None]
    if not full:
        raise ValueError(
            f"{source.used[0]!r} has no row of numbers: write a list of numbers, or a number for each name"
        )
    whole = replace(source, values=np.zeros(len(options)), names=names or source.names)
    source = whole if len(kept) == len(options) else _counted(whole.keep(kept), len(kept), len(options), source.used[0])
    if source.kind == "logits" and source.used[0].lower() in NAMES:
        source = replace(source, notices=(*source.notices, SOFTMAX))
    values = _even(full)
    if values is not None:
        return replace(source, values=values)
    if source.labels is None or source.kind != "logits":
        raise ValueError(f"lists in column {source.used[0]!r} must have one length")
    labels = numbers_of("target", source.labels)
    return _best(
        source, full, np.array([int(np.argmax(row)) == label for row, label in zip(full, labels, strict=True)])
    )


def holds_options(column: Column) -> bool:
    """Whether the cells of a column are dictionaries, or log-probabilities of options."""
    nested = column.type.startswith(("STRUCT", "MAP", "JSON"))
    return nested or (column.is_list and column.name.lower() in NAMES)


def read_options(cells: Sequence[Any]) -> tuple[list[Options], tuple[str, ...] | None]:
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


def of_options(cell: Any) -> Options:
    """Log-probabilities of one row; each is a number, or begins a list as in ``[[-1.2, False], [-0.3, True]]``."""
    if not isinstance(cell, list) or not cell:
        return None
    found = [_number(option) for option in cell]
    return None if any(each is None for each in found) else [each for each in found if each is not None]


def _number(option: Any) -> float | None:
    while isinstance(option, list) and option:
        option = option[0]
    try:
        value = float(option)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _continuations(arguments: Any) -> list[str]:
    """Text of each option: the last argument of each request."""
    requests = list(arguments.values()) if isinstance(arguments, dict) else arguments or []
    parts = [list(each.values()) if isinstance(each, dict) else each for each in requests]
    return [str(each[-1]).strip() if isinstance(each, list) and each else "" for each in parts]


def _index(target: Any, texts: Sequence[str] = ()) -> int | None:
    """The right option: a number, also as text; or the text of the option."""
    if isinstance(target, str) and target.strip() in texts:
        return texts.index(target.strip())
    try:
        return int(target)
    except (TypeError, ValueError):
        return None


def _is_right(row: Options, label: int | None, acc: Any) -> bool | None:
    if row is None or len(row) < 2:
        return None
    if label is not None:
        return int(np.argmax(row)) == label
    return None if acc is None else bool(acc)


def _even(rows: Sequence[Sequence[float]]) -> Array | None:
    return np.array(rows) if len({len(row) for row in rows}) == 1 else None


def _counted(source: Source, kept: int, rows: int, what: str) -> Source:
    if kept == rows:
        return replace(source, rows=None)
    notice = f"{rows - kept:,} of {rows:,} rows have no {what}: they are left out"
    return replace(source, notices=(*source.notices, notice))


def _best(source: Source, rows: Sequence[Sequence[float]], correct: Array, why: str = "") -> Source:
    """Confidences in the highest option."""
    counts = {len(row) for row in rows}
    if len(counts) > 1:
        why = f"rows have {min(counts)} to {max(counts)} options"
    notice = f"{why}: the confidence in the highest option is evaluated"
    return replace(
        source, kind="confidence", values=confidences(rows), labels=correct.astype(np.int64), names=None,
        notices=(*source.notices, notice),
    )  # fmt: skip


def confidences(rows: Sequence[Sequence[float]]) -> Array:
    """Largest probability of each row, by a softmax over as many options as it has.

    Example:
        >>> confidences([[0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
        array([0.5 , 0.25])
    """
    return np.array([1 / np.exp(np.array(row) - max(row)).sum() for row in rows])
