"""Writing files, whole or not at all: predictions as arrays or tables, and JSON."""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibrant.atomic import FileError, checked_place, whole_or_not_at_all, write_whole
from calibrant.files.formats import SETTINGS, TABLES, Array, files_of, is_table, open_table, quote, suffix_of, text
from calibrant.files.read import Source

WRITTEN = (".npz", *TABLES)
# Column that joins new columns to the rows they belong to.
ROW = "row of the source"


def check_output(path: Path, option: str, used: Iterable[Path | None]) -> None:
    """Refuse a place that cannot be written, or a file in use; links and files of a folder are the same file."""
    real = checked_place(path)
    for each in used:
        files = [] if each is None else [each]
        if each is not None and is_table(each):
            with suppress(OSError, ValueError):  # reading it says what is wrong
                files += map(Path, files_of(str(each)))
        for file in files:
            is_same = real.exists() and file.exists() and real.samefile(file)
            if is_same or os.path.realpath(file) == str(real):
                raise FileError(path, f"would be overwritten: choose another {option}")


def write_json(path: Path, content: Any) -> None:
    """Write plain values; NaN and infinity become null."""
    write_whole(path, json_text(content) + "\n")


def json_text(content: Any, *, ensure_ascii: bool = True) -> str:
    """Plain values as JSON; NaN and infinity, which JSON does not have, become null."""
    finite = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return json.dumps(finite, indent=2, ensure_ascii=ensure_ascii)


def read_json(path: Path) -> Any:
    """Read a file written by :func:`write_json`; errors name the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileError(path, f"is not valid JSON: {error}") from error


def output_beside(path: Path) -> Path:
    """File to write for a file of predictions, beside it: ``test-calibrated.csv.gz`` for ``test.csv.gz``."""
    if path.is_dir():
        return path.with_name(f"{path.name}-calibrated{suffix_of(files_of(str(path))[0])}")
    zipped = path.suffix if path.suffix.lower() == ".gz" else ""
    bare = path.with_suffix("") if zipped else path
    suffix = ".npz" if bare.suffix.lower() == ".npy" else bare.suffix
    return bare.with_name(f"{bare.stem}-calibrated{suffix}{zipped}")


def write_predictions(
    path: Path, values: Array, target: Array | None, *, kind: Literal["logits", "probabilities"] = "probabilities"
) -> None:
    """Write ``(N, C)`` logits or probabilities, and the target if known, in the format of the file's name."""
    labels = {} if target is None else {"target": target}
    if suffix_of(path) == ".npz":
        _write_npz(path, {kind: values, **labels})
    else:
        _write_table(path, _by_class(kind, values) | labels)


def write_calibrated(path: Path, source: Source, probabilities: Array) -> None:
    """Write the calibrated probabilities of the rows of a source in place of its values; other columns stay."""
    new = _by_class("probabilities", probabilities, source.names)
    if suffix_of(path) != ".npz" and is_table(source.path):
        _write_table(path, new, source)
        return
    others = source.columns(source.others())
    if source.label in others and source.labels is not None and others[source.label].shape != source.labels.shape:
        others[source.label] = source.labels  # they were flattened
    if suffix_of(path) == ".npz":
        named = {} if source.names is None else {"classes_": np.array(source.names)}
        _write_npz(path, {name: _saveable(each) for name, each in others.items()}
                   | {"probabilities": probabilities} | named)  # fmt: skip
    else:
        _write_table(path, {name: each for name, each in others.items() if each.shape == probabilities.shape[:1]} | new)


def _by_class(kind: str, values: Array, names: tuple[str, ...] | None = None) -> dict[str, Array]:
    """One column for each class."""
    suffixes = names or range(values.shape[1])
    return {f"{kind}_{suffix}": values[:, k] for k, suffix in enumerate(suffixes)}


def _saveable(column: Array) -> Array:
    """An array that NumPy saves without pickle: text of one width; empty cells are empty text or NaN."""
    empty = np.ma.getmaskarray(column)
    if column.dtype.kind == "O":
        cells = zip(np.ma.getdata(column).tolist(), empty.tolist(), strict=True)
        return np.array(["" if hidden or cell is None else str(cell) for cell, hidden in cells])
    return np.ma.filled(column.astype(np.float64), np.nan) if empty.any() else np.ma.getdata(column)


def _write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    with whole_or_not_at_all(path) as temporary, temporary.open("wb") as file:
        named: dict[str, Any] = dict(arrays)
        np.savez(file, **named)


def _write_table(path: Path, columns: Mapping[str, Array], source: Source | None = None) -> None:
    """Write columns as a table, joined to the other columns of a source if there is one."""
    import duckdb

    new = {
        name: column.astype(object) if column.dtype.kind == "U" else np.ascontiguousarray(column)
        for name, column in columns.items()
    }
    options = TABLES[suffix_of(path)] + ", COMPRESSION gzip" * (path.suffix.lower() == ".gz")
    with duckdb.connect(config=SETTINGS) as connection, whole_or_not_at_all(path) as temporary:
        select = "FROM new"
        if source is not None:
            new[ROW] = np.arange(len(source.values)) if source.rows is None else source.rows
            # Cells of a CSV stay as they are written: an id 007 is not 7.
            columns_of_source, _ = open_table(connection, str(source.path), as_text=True, written=temporary)
            taken = {name.lower() for name in (*source.used, *columns)}
            kept = [quote(column.name) for column in columns_of_source if column.name.lower() not in taken]
            written = [f"new.{quote(name)}" for name in columns]  # the source may have columns of the same names
            select = (
                f"SELECT {', '.join([*kept, *written])} FROM new "  # noqa: S608 (quoted)
                f"JOIN (SELECT *, row_number() OVER () - 1 AS {quote(ROW)} FROM source) USING ({quote(ROW)}) "
                f"ORDER BY {quote(ROW)}"
            )
        connection.register("new", new)
        try:
            # The file is temporary already; DuckDB may write no other.
            connection.execute(f"COPY ({select}) TO {text(str(temporary))} ({options}, USE_TMP_FILE false)")
        except duckdb.Error as error:
            raise FileError(path, f"cannot be written: {str(error).splitlines()[0]}") from error
