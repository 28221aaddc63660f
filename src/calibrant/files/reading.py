"""Reading predictions: which arrays of a file to read, what they mean, and whether they fit into memory."""

import hashlib
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibrant.files import doubts, language
from calibrant.files.arrays import Array, Npy, Npz
from calibrant.files.cells import alike, correctness_of, filled, numbers_of
from calibrant.files.error import FileError, naming
from calibrant.files.ignored import without_ignored
from calibrant.files.labels import class_indices, names_of_classes, refuse_one_hot, refuse_stray
from calibrant.files.source import SUFFIXES, Source, open_file
from calibrant.files.tables import Table, cells_of_parquet
from calibrant.files.values import checked, flattened, looks_normalised
from calibrant.metrics import Predictions
from calibrant.metrics.columns import Columns
from calibrant.metrics.layouts import Layout, find_layout, name_of_target, name_of_values
from calibrant.metrics.two_classes import NOT_TWO
from calibrant.tables import files_of, is_table, suffix_of


def read_predictions(path: Path, names: Columns | None = None) -> Predictions:
    """Read a file of predictions.

    Args:
        path: ``.npz``, ``.npy``, ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``, or a folder or pattern of tables, with
            ``logits`` or ``probabilities`` and ``target``, or with ``confidence`` and ``correct``. In a table,
            ``(N, C)`` values are columns ``logits_0``, ``logits_1``, ..., or one column of lists.
        names: Names of the arrays or columns, if they are different.
    """
    source = read_source(path, names, labelled=True)
    with naming(path):
        return source.predictions()


def read_source(path: Path, names: Columns | None = None, *, labelled: bool = False) -> Source:
    """Read logits, probabilities or confidences, and the target or correctness if there is one.

    Args:
        path: File, folder or pattern.
        names: Names of the arrays or columns, and what they mean.
        labelled: Whether labels must be there.

    Raises:
        FileError: If it cannot be read; one line that names the file and the remedy.
    """
    names = names or Columns()
    _check_is_there(path)
    with naming(path), closing(open_file(path)) as opened:
        if isinstance(opened, Table):
            if opened.is_empty():
                raise FileError(path, "has no rows below its header, or none at all")
            if names.names_none() and language.is_harness(opened.names()):
                return language.read_harness(path, opened)
        if isinstance(opened, Npy) and names.target is not None:
            opened.add(names.target)
        layout = _layout(opened, names)
        read = _read(path, opened, layout, names)
        if labelled and not layout.labels:
            raise FileError(path, _without_labels(layout, names, opened.names()))
        return _finished(read, opened, layout, names)


def _layout(opened: Npz | Npy | Table, names: Columns) -> Layout:
    try:
        return find_layout(opened.names(), names)
    except ValueError as error:
        called = _called_by_labels(opened, names) if isinstance(opened, Table) and names.names_none() else None
        if called is None:
            raise
        raise ValueError(
            f"its columns {called} are called by the values of the target: give --probabilities {called}, or --logits"
        ) from error


def _called_by_labels(table: Table, names: Columns) -> str | None:
    """Columns that are called exactly by the names of the classes in the target, separated by commas."""
    target = name_of_target(table.names(), names)
    if target is None or not table.columns[target].is_text:
        return None
    labels = {str(cell).strip() for cell in np.ma.compressed(table.read([target])[target])}
    called = [name for name in table.names() if name in labels]
    return ",".join(called) if len(called) == len(labels) > 1 else None


def _check_is_there(path: Path) -> None:
    if not is_table(path) and suffix_of(path) not in SUFFIXES:
        raise FileError(
            path, f"expected one of {', '.join(SUFFIXES)}, a folder or a pattern of them: save it as CSV or Parquet"
        )
    if path.is_dir() and suffix_of(path) in (".npz", ".npy"):
        raise FileError(path, "is a folder: name a file in it")
    if path.is_dir() or (not path.exists() and re.search(r"[*?\[]", str(path))):
        return
    if not path.is_file():
        raise FileError(path, "is not a regular file" if path.exists() else "no such file")
    if path.stat().st_size == 0:
        raise FileError(path, "is empty: was it written to the end?")


def _without_labels(layout: Layout, names: Columns, there: list[str]) -> str:
    called = names.of(layout.kind)[1]
    others = [name for name in there if name not in layout.values]
    shown = f"; it also has {', '.join(others[:20])}{', ...' * (len(others) > 20)}" if others else ""
    options = "--correct, or --prediction and --target" if layout.kind == "confidence" else "--target"
    return f"has {layout.kind} but no {called!r}{shown}: add it, or name yours with {options}"


def _read(path: Path, opened: Npz | Npy | Table, layout: Layout, names: Columns) -> Source:
    """The columns as they are: values as one array, labels and weights."""
    by_options = isinstance(opened, Table) and language.holds_options(opened.columns[layout.values[0]])
    wanted = [*layout.labels, *(name for name in (layout.prediction, names.weight) if name)]
    if names.weight is not None and names.weight not in opened.names():
        raise FileError(path, f"has no weights {names.weight!r}; it has {', '.join(opened.names()[:20])}")
    for name in (*layout.values, *wanted):
        twins = [other for other in opened.names() if re.fullmatch(rf"{re.escape(name)} \(column \d+\)", other)]
        if twins:
            raise ValueError(f"has {1 + len(twins)} columns {name!r}: rename all but one")
    columns = opened.read(wanted if by_options else [*layout.values, *wanted])
    for name, column in columns.items():
        if column.ndim == 0:
            raise FileError(path, f"{name!r} is a single number: it must have a row for each sample")
    labels = None
    if layout.labels:
        parts = [columns[name] for name in layout.labels]
        labels = parts[0] if len(parts) == 1 else np.stack(list(map(numbers_of, layout.labels, parts)), 1)
    weight = None if names.weight is None else numbers_of(names.weight, columns[names.weight])
    said = layout.notices + (opened.notices if isinstance(opened, Table) else ())
    if isinstance(opened, Npy):
        said = opened.check_values(layout.values[0], layout.labels)
    if names.weight is None:
        said += doubts.of_weights(opened.names())
    source = Source(path, layout.kind, np.empty(0), labels, layout.classes, weight, layout.values, notices=said)
    source = replace(source, label=layout.labels[0] if layout.labels else None)
    if isinstance(opened, Table) and by_options:
        return language.with_options(source, opened.json(layout.values[0]))
    values, labels, weight = flattened(_stacked(layout, columns), labels, weight)
    _check_lengths({layout.values[0]: values, source.label: labels, names.weight: weight})
    if layout.prediction is not None and labels is not None:
        predicted = filled(layout.prediction, columns[layout.prediction])
        labels, more = alike(predicted, filled(layout.labels[0], labels))
        half = 50.0 if names.percent else 0.5
        more += doubts.of_confidence(layout.values[0], values, layout.prediction, predicted, half)
        source = replace(source, notices=source.notices + more)
    return replace(source, values=values, labels=labels, weight=weight)


def _check_lengths(columns: dict[str | None, Array | None]) -> None:
    (first, values), *others = ((name, column) for name, column in columns.items() if column is not None)
    for name, column in others:
        if len(column) != len(values):
            raise ValueError(f"{first!r} has {len(values)} rows but {name!r} has {len(column)}")


def _stacked(layout: Layout, columns: dict[str, Array]) -> Array:
    arrays = [columns[name] for name in layout.values]
    if len(arrays) == 1:
        return arrays[0] if arrays[0].dtype.kind == "U" else numbers_of(layout.values[0], arrays[0])
    if any(array.ndim > 1 for array in arrays):
        raise ValueError(f"columns {layout.values[0]!r} and so on must hold plain numbers")
    return np.stack(list(map(numbers_of, layout.values, arrays)), 1)


def _finished(source: Source, opened: Npz | Npy | Table, layout: Layout, names: Columns) -> Source:
    """Leave out what is ignored, number the classes, and make the values ready."""
    source = without_ignored(source, names.ignore_index)
    count = source.values.shape[1] if source.values.ndim > 1 and source.values.shape[1] > 1 else 2
    labels, several = source.labels, source.labels is not None and source.labels.ndim > 1
    column = layout.values[0] if source.values.ndim == 1 or source.values.shape[1:] == (1,) else None
    of_classes: tuple[str, ...] | None = None
    assumed = False
    more: tuple[str, ...] = ()
    if source.kind != "confidence":
        of_columns = source.names or _names_of_arrays(opened)
        of_classes = names_of_classes(of_columns, names.class_names(), count)
        if labels is not None and not several:
            assumed = of_classes is None
            labels, of_classes, more = class_indices(
                layout.labels[0], labels, of_classes, count, column=column, positive=names.positive
            )
        if labels is not None and (names.ignore_index is None or not several):
            refuse_stray(layout.labels[0], labels, 2 if labels.shape == source.values.shape and several else count)
    elif labels is not None:
        labels = correctness_of(layout.labels[0], labels)
    if labels is not None and labels.ndim == 2 and labels.shape == source.values.shape:
        refuse_one_hot(layout.labels[0], labels, None if source.kind == "logits" else source.values)
    if "label_ids" in layout.labels and source.kind == "logits" and looks_normalised(source.values):
        raise ValueError("rows of 'predictions' sum to 1, as probabilities do: give --probabilities predictions, "
                         "or --logits predictions")  # fmt: skip
    if names.positive is not None and (source.kind == "confidence" or several):
        raise ValueError(NOT_TWO)
    called = name_of_values(layout, names)
    values, changed = checked(source.kind, source.values, called, percent=names.percent, several=several)
    source = replace(source, values=values, labels=labels, names=of_classes)
    doubtful = doubts.of_values(source, called) + doubts.of_labels(source)
    if assumed and count == 2:
        doubtful += doubts.of_two_classes(source, called)
    return replace(source, notices=source.notices + more + changed + doubtful)


def doubts_of_start(path: Path, names: Columns, rows: int = 1000) -> tuple[str, ...]:
    """What is doubtful in the first rows of a table that is not read into memory.

    Args:
        path: File, folder or pattern.
        names: Names of the columns, and what they mean.
        rows: Number of rows to look at.
    """
    with naming(path), closing(Table(path)) as table:
        table.limit(rows)
        layout = find_layout(table.names(), names)
        columns = table.read([*layout.values, *(name for name in (layout.prediction,) if name)])
        values = _stacked(layout, columns)
        found = doubts.of_weights(table.names()) if names.weight is None else ()
        if layout.prediction is not None:
            predicted = filled(layout.prediction, columns[layout.prediction])
            half = 50.0 if names.percent else 0.5
            found += doubts.of_confidence(layout.values[0], values, layout.prediction, predicted, half)
        source = Source(path, layout.kind, values, used=layout.values)
        return found + doubts.of_values(source, name_of_values(layout, names))


def _names_of_arrays(opened: Npz | Npy | Table) -> tuple[str, ...] | None:
    """Names of the classes that are saved with the arrays, as ``classes_`` of scikit-learn."""
    name = next((each for each in ("classes_", "classes") if each in opened.names()), None)
    if isinstance(opened, Table) or name is None:
        return None
    return tuple(str(each) for each in opened.read([name])[name].tolist())


def fits_in_memory(path: Path) -> bool:
    """Whether a table can be processed in memory, by its size and the free memory."""
    with naming(path):
        files = files_of(str(path))
        read = 8 * cells_of_parquet(path, files) if suffix_of(files[0]) == ".parquet" else sum(map(_bytes, files))
    # Copies: as read, as float64, sorted, and one work array.
    return 4 * read < free_memory()


def _bytes(name: str) -> int:
    """Size of a text file; compressed numbers take a fifth of it at most."""
    path = Path(name)
    return path.stat().st_size * (5 if path.suffix.lower() == ".gz" else 1)


def free_memory() -> int:
    """Bytes available without swapping."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
        if found:
            return 1024 * int(found[1])
    return 4 << 30  # not Linux: assume a small machine


def digest(path: Path) -> str:
    """SHA-256 of a file's content; of a folder or a pattern, nothing."""
    if not path.is_file():
        return ""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
