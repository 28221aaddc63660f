"""Reading predictions: a source of checked values and labels, and what was assumed or is doubtful about them."""

import hashlib
import re
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.files import cells, language_models
from calibrant.files.formats import Array, Arrays, Table, cells_of_parquet, files_of, naming, open_file, suffix_of
from calibrant.files.layout import (
    LOG_PROBABILITIES,
    NOT_TWO,
    Columns,
    Layout,
    class_indices,
    class_labels,
    find_layout,
    is_harness,
    names_of_classes,
    refuse_stray,
    without_labels,
)
from calibrant.inputs import InputWarning, flattened
from calibrant.metrics import Predictions, predictions

# Names of weights, which are never assumed, and of the classes, as scikit-learn has them.
WEIGHTS = ("sample_weight", "sample_weights", "weight", "weights")
CLASSES = ("classes_", "classes")


@dataclass(frozen=True)
class Source:
    """Values of one kind, their labels if there are any, and what was assumed."""

    path: Path
    kind: cells.Kind
    values: Array  # logits or probabilities, (N, C) or (N,); or confidences, (N,)
    labels: Array | None = None  # class indices, or correctness of confidences; (N, L) of several labels
    names: tuple[str, ...] | None = None  # of the classes, if known
    weight: Array | None = None
    used: tuple[str, ...] = ()  # columns of the values
    label: str | None = None  # column of the labels
    rows: Array | None = None  # indices of the rows that were kept, if some were left out
    notices: tuple[str, ...] = ()

    def predictions(self) -> Predictions:
        """Return checked predictions; what is doubtful is said in the notices, and not as a warning."""
        given: dict[str, Any] = {"sample_weight": self.weight, self.kind: self.values}
        if self.kind == "confidence":
            given |= {"correct": self.labels}
        else:
            given |= {"target": self.labels, "classes": self.names}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InputWarning)
            return predictions(minimum=3, name="an evaluation", **given)

    def noting(self, *notices: str) -> "Source":
        """The same source with more notices."""
        return replace(self, notices=(*self.notices, *notices))

    def keep(self, rows: Array, *notices: str) -> "Source":
        """Only some rows, by their indices."""
        return replace(
            self.noting(*notices),
            values=self.values[rows],
            labels=None if self.labels is None else self.labels[rows],
            weight=None if self.weight is None else self.weight[rows],
            rows=rows if self.rows is None else self.rows[rows],
        )

    def others(self) -> tuple[str, ...]:
        """Names of the columns that hold no values: labels, ids, groups, times."""
        with naming(self.path), closing(open_file(self.path)) as opened:
            if isinstance(opened, Arrays) and opened.is_npy:  # the other arrays of its folder do not belong to it
                return () if self.label is None else (self.label,)
            return tuple(name for name in opened.names() if name not in self.used)

    def columns(self, names: Sequence[str]) -> dict[str, Array]:
        """Other columns by name, of the rows that were kept; empty cells are masked."""
        with naming(self.path), closing(_opened(self.path, names)) as opened:
            _check_columns(opened, names)
            found = opened.read(names)
        if self.rows is not None:
            for name, each in found.items():
                if each.ndim == 1 and len(each) > self.rows.max():  # one of rows, and not the names of classes
                    found[name] = each[self.rows]
        return found


def read_predictions(path: Path, names: Columns | None = None) -> Predictions:
    """Read a file of predictions with labels.

    Args:
        path: ``.npz``, ``.npy``, ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``, or a folder or pattern of tables.
        names: Names of the arrays or columns, if they are not the usual ones.
    """
    source = read_source(path, names, labelled=True)
    with naming(path):
        return source.predictions()


def read_source(path: Path, names: Columns | None = None, *, labelled: bool = False) -> Source:
    """Read a file, folder or pattern of predictions, with labels if there are any; an error if they must be there."""
    names = names or Columns()
    with naming(path), closing(_opened(path, [names.target or ""])) as opened:
        if isinstance(opened, Table):
            if not opened.fetch("1", "LIMIT 1"):
                raise ValueError("has no rows below its header, or none at all")
            if names.names_none() and is_harness(opened.names()):
                return _of_options(Source(path, "logits", np.empty(0)), language_models.read_harness(opened))
        layout = find_layout(opened.names(), names)
        source = _read(path, opened, layout, names)
        if labelled and not layout.labels:
            raise ValueError(without_labels(layout, names, opened.names()))
        source = _without_ignored(source, names.ignore_index)
        if source.names is None and not isinstance(opened, Table):
            saved = next((each for each in CLASSES if each in opened.names()), None)
            if saved is not None:
                source = replace(source, names=tuple(map(str, opened.read([saved])[saved].tolist())))
        return _checked(source, layout, names)


def _opened(path: Path, more: Sequence[str]) -> Arrays | Table:
    """An open file; more arrays of an .npy may be named by the paths of their files."""
    opened = open_file(path)
    if isinstance(opened, Arrays) and opened.is_npy:
        opened.files |= {name: Path(name) for name in more if name not in opened.files and Path(name).is_file()}
    return opened


def _check_columns(opened: Arrays | Table, names: Sequence[str]) -> None:
    """Raise an error unless each column is there, once."""
    there = opened.names()
    for name in names:
        if name not in there:
            raise ValueError(f"has no {name!r}; it has {', '.join(there[:20])}")
        twins = [other for other in there if re.fullmatch(rf"{re.escape(name)} \(column \d+\)", other)]
        if twins:
            raise ValueError(f"has {1 + len(twins)} columns {name!r}: rename all but one")


def _read(path: Path, opened: Arrays | Table, layout: Layout, names: Columns) -> Source:
    """The columns as they are: values as one array, labels and weights."""
    first, label = layout.values[0], layout.labels[0] if layout.labels else None
    wanted = [*layout.labels, *(name for name in (layout.prediction, names.weight) if name)]
    _check_columns(opened, [*layout.values, *wanted])
    column = opened.columns[first] if isinstance(opened, Table) else None
    by_options = column is not None and (
        column.is_dictionary or (column.is_list and first.lower() in LOG_PROBABILITIES)
    )
    columns = opened.read(wanted if by_options else [*layout.values, *wanted])
    for name, each in columns.items():
        if each.ndim == 0:
            raise ValueError(f"{name!r} is a single number: it must have a row for each sample")
    labels = None if label is None else columns[label]
    if len(layout.labels) > 1:
        labels = _stacked(layout.labels, columns)
    source = Source(
        path,
        layout.kind,
        np.empty(0) if by_options else _values(layout, columns),
        labels,
        names=layout.classes,
        weight=None if names.weight is None else cells.numbers_of(names.weight, columns[names.weight]),
        used=layout.values,
        label=label,
        notices=(*_notices_of_columns(opened, layout), *_unused_weights(opened.names(), names)),
    )
    if isinstance(opened, Table) and by_options:
        return _of_options(source, language_models.read_column(opened, first, layout.kind, labels))
    if labels is not None and labels.ndim > 1 and source.values.shape[:-1] == labels.shape:  # of tokens or pixels
        source = _as_rows(source, source.values.reshape(-1, source.values.shape[-1]))
    for other_name, other in ((label, source.labels), (names.weight, source.weight)):
        if other is not None and len(other) != len(source.values):
            raise ValueError(f"{first!r} has {len(source.values)} rows but {other_name!r} has {len(other)}")
    if layout.prediction is not None and labels is not None:
        predicted = cells.filled(layout.prediction, columns[layout.prediction])
        correct, notices = cells.correctness_of_prediction(predicted, cells.filled(str(label), labels))
        notices += cells.looks_like_a_class(first, source.values, layout.prediction, predicted, percent=names.percent)
        source = replace(source.noting(*notices), labels=correct)
    return source


def _notices_of_columns(opened: Arrays | Table, layout: Layout) -> tuple[str, ...]:
    if isinstance(opened, Table) or not opened.is_npy:
        return layout.notices + opened.notices
    if opened.files[layout.values[0]] != opened.path:
        stem = opened.path.stem
        raise ValueError(f"its name does not say what it holds: give --logits {stem} or --probabilities {stem}")
    return tuple(f"the labels are read from {opened.files[name].name}" for name in layout.labels)


def _unused_weights(there: Sequence[str], names: Columns) -> tuple[str, ...]:
    unused = [name for name in there if names.weight is None and name.lower() in WEIGHTS]
    return tuple(f"column {name!r} is not used: give --weight {name} if samples are to be weighted" for name in unused)


def _values(layout: Layout, columns: dict[str, Array]) -> Array:
    first = columns[layout.values[0]]
    if len(layout.values) > 1:
        return _stacked(layout.values, columns)
    return first if first.dtype.kind == "U" else cells.numbers_of(layout.values[0], first)


def _stacked(names: Sequence[str], columns: dict[str, Array]) -> Array:
    """Columns of plain numbers side by side."""
    if any(columns[name].ndim > 1 for name in names):
        raise ValueError(f"columns {names[0]!r} and so on must hold plain numbers")
    return np.stack([cells.numbers_of(name, columns[name]) for name in names], 1)


def _of_options(source: Source, found: language_models.Answers) -> Source:
    """A source with what a language model says of the options of each row."""
    several = found.values.ndim > 1
    return replace(
        source.noting(*found.notices),
        kind=source.kind if several else "confidence",
        values=found.values,
        labels=found.labels,
        names=found.names or (source.names if several else None),
        weight=source.weight if source.weight is None or found.rows is None else source.weight[found.rows],
        rows=found.rows,
    )


def _as_rows(source: Source, rows: Array) -> Source:
    """The same source with a row for each token or pixel."""
    labels, weight = np.asanyarray(source.labels), source.weight
    if weight is not None and weight.shape != labels.shape:
        raise ValueError(f"weights must have the shape of {source.label!r}, {labels.shape}, got {weight.shape}")
    return replace(source, values=rows, labels=labels.ravel(), weight=None if weight is None else weight.ravel())


def _without_ignored(source: Source, ignored: int | None) -> Source:
    """A source without rows or pixels that are ignored; what predictions leave out by themselves is only counted."""
    if source.labels is None or cells.is_text(source.labels) or source.kind == "confidence":
        return source
    labels = cells.filled(str(source.label), source.labels)
    mark = cells.LEFT_OUT if ignored is None else ignored
    left_out = labels == mark
    if not left_out.any() or (ignored is None and (labels.ndim < 2 or left_out.all())):
        return source
    if left_out.all():
        raise ValueError(f"has the label {mark} in every row: --ignore-index {mark} leaves none")
    several = labels.ndim > 1 and labels.shape == source.values.shape
    what = "labels" if several else "rows" if labels.ndim == 1 else "places"
    notice = f"{left_out.sum():,} of {left_out.size:,} {what} with the label {mark} are left out"
    if several:
        if rows := int(left_out.all(1).sum()):
            notice += f"; {rows:,} of {len(labels):,} samples have no other"
        return replace(source.noting(notice), labels=np.where(left_out, cells.LEFT_OUT, labels))
    if ignored is None:
        return source.noting(notice)
    if labels.ndim > 1 and source.values.shape[:1] + source.values.shape[2:] == labels.shape:
        source = _as_rows(source, flattened(source.values))
    return source.keep(np.flatnonzero(~left_out), notice)


def _checked(source: Source, layout: Layout, names: Columns) -> Source:
    """Number the classes, check the values, and note what is doubtful."""
    kind, shape, labels, label = source.kind, source.values.shape, source.labels, str(source.label)
    several = labels is not None and labels.ndim > 1 and labels.shape == shape
    values, changed = cells.checked_values(kind, source.values, layout.option, percent=names.percent, several=several)
    source = replace(source, values=values)
    if names.positive is not None and (kind == "confidence" or (labels is not None and labels.ndim > 1)):
        raise ValueError(NOT_TWO)
    if kind == "confidence":
        correct = None if labels is None else cells.numbers_of(label, labels)
        return replace(source.noting(*changed), labels=correct, names=None)
    count = shape[1] if len(shape) > 1 and shape[1] > 1 else 2
    of_classes = names_of_classes(names, source.names, count)
    order_is_known = of_classes is not None
    if labels is not None and labels.ndim == 1:
        labels = cells.filled(label, labels)
        found = set(labels.tolist())
        if cells.is_text(labels):
            found = {str(cell).strip() for cell in found}
        column = layout.values[0] if len(shape) == 1 or shape[1:] == (1,) else None
        meaning = class_labels(label, found, of_classes, count, column=column, positive=names.positive)
        labels, of_classes = class_indices(label, labels, meaning), meaning.names
        source = source.noting(*meaning.notices)
    if labels is not None and (names.ignore_index is None or labels.ndim == 1):
        refuse_stray(label, labels, 2 if several else count)
    source = replace(source, labels=labels, names=of_classes)
    source = source.noting(*changed, *cells.looks_like_another_kind(kind, values, layout.option, several=several))
    if several:
        source.predictions()  # says that a target is one-hot, before a command says that it has several labels
    elif labels is not None:
        if labels.size > 2 and (labels == labels.flat[0]).all():
            source = source.noting(cells.only_class(labels.flat[0], of_classes, label))
        if labels.ndim == 1 and not order_is_known and count == 2:
            counted = cells.counted_by_risk(kind, values, labels, source.weight)
            source = source.noting(*cells.fits_other(layout.option, of_classes[0] if of_classes else "0", *counted))
    return source


def notices_of_start(path: Path, names: Columns) -> tuple[str, ...]:
    """What is doubtful in the first rows of a table that is not read into memory."""
    with naming(path), closing(Table(path)) as table:
        table.limit(1000)
        layout = find_layout(table.names(), names)
        start = _read(path, table, layout, names)
        more = cells.looks_like_another_kind(layout.kind, start.values, layout.option, several=False)
        return start.notices + more


def fits_in_memory(path: Path) -> bool:
    """Whether a table can be processed in memory, by its size and the free memory; one that is not there can."""
    with naming(path):
        try:
            files = [Path(name) for name in files_of(str(path))]
        except FileNotFoundError:
            return True
        if suffix_of(files[0]) == ".parquet":
            size = 8 * cells_of_parquet(path, [str(file) for file in files])
        else:  # compressed numbers take a fifth of their text at most
            size = sum(file.stat().st_size * (5 if file.suffix.lower() == ".gz" else 1) for file in files)
    # Copies: as read, as float64, sorted, and one work array.
    return 4 * size < free_memory()


def free_memory() -> int:
    """Bytes available without swapping."""
    meminfo = Path("/proc/meminfo")
    found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text()) if meminfo.exists() else None
    return 1024 * int(found[1]) if found else 4 << 30  # not Linux: assume a small machine


def digest(path: Path) -> str:
    """SHA-256 of a file's content; of a folder or a pattern, nothing."""
    if not path.is_file():
        return ""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
