"""Writing predictions: as arrays, or as a table that keeps the other columns of the one they came from."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calibrant.files.arrays import Array
from calibrant.files.error import FileError
from calibrant.files.source import Source
from calibrant.files.writing import whole_or_not_at_all
from calibrant.tables import CSV, SETTINGS, files_of, is_table, open_table, quote, suffix_of, text
from calibrant.tables import SUFFIXES as TABLES

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

WRITTEN = (".npz", *TABLES)
# Column that joins new columns to the rows they belong to.
ROW = "row of the source"


def output_beside(path: Path) -> Path:
    """File to write for a file of predictions, beside it.

    Example:
        >>> output_beside(Path("test.csv.gz")).name, output_beside(Path("test.npy")).name
        ('test-calibrated.csv.gz', 'test-calibrated.npz')
    """
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
    """Write the calibrated probabilities of a source in place of its values; all other columns stay as they are.

    Rows that were left out when the source was read are left out.

    Args:
        path: File to write; its name says the format.
        source: What was calibrated.
        probabilities: Calibrated probabilities, ``(N, C)``.
    """
    new = _by_class("probabilities", probabilities, source.names)
    if suffix_of(path) == ".npz":
        others = {name: _saveable(each) for name, each in _others(source).items() if name != "probabilities"}
        named = {} if source.names is None else {"classes_": np.array(source.names)}
        _write_npz(path, {"probabilities": probabilities, **others, **named})
    elif is_table(source.path):
        _write_joined(path, source, new)
    else:
        others = {name: each for name, each in _others(source).items() if each.shape == probabilities.shape[:1]}
        _write_table(path, others | new)


def _by_class(kind: str, values: Array, names: tuple[str, ...] | None = None) -> dict[str, Array]:
    """One column for each class."""
    suffixes = names or range(values.shape[1])
    return {f"{kind}_{suffix}": values[:, k] for k, suffix in enumerate(suffixes)}


def _others(source: Source) -> dict[str, Array]:
    """Columns that hold no values; labels that were flattened are those of the rows."""
    found = source.columns(source.others())
    if source.label in found and source.labels is not None and found[source.label].shape != source.labels.shape:
        found[source.label] = source.labels
    return found


def _saveable(column: Array) -> Array:
    """An array that NumPy saves without pickle: text of one width; empty cells are empty text or NaN."""
    if column.dtype.kind == "O":
        return np.array(["" if cell is None else str(cell) for cell in np.ma.filled(column, None).tolist()])
    return np.ma.filled(column.astype(np.float64), np.nan) if np.ma.isMaskedArray(column) else column


def _write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    with whole_or_not_at_all(path) as temporary, temporary.open("wb") as file:
        named: dict[str, Any] = dict(arrays)
        np.savez(file, **named)


def _write_table(path: Path, columns: Mapping[str, Array]) -> None:
    import duckdb

    with duckdb.connect(config=SETTINGS) as connection, whole_or_not_at_all(path) as temporary:
        connection.register("new", {name: _plain(column) for name, column in columns.items()})
        _copy(connection, "SELECT * FROM new", path, temporary)


def _write_joined(path: Path, source: Source, new: Mapping[str, Array]) -> None:
    import duckdb

    rows = np.arange(len(source.values)) if source.rows is None else source.rows
    with duckdb.connect(config=SETTINGS) as connection, whole_or_not_at_all(path) as temporary:
        connection.register("new", {ROW: rows, **{name: _plain(column) for name, column in new.items()}})
        # Cells of a CSV stay as they are written: an id 007 is not 7.
        opened = open_table(connection, str(source.path), as_text=True, written=temporary)
        taken = {name.lower() for name in (*source.used, *new)}
        kept = [quote(column.name) for column in opened.columns if column.name.lower() not in taken]
        written = [f"new.{quote(name)}" for name in new]  # the source may have columns of the same names
        _copy(
            connection,
            f"SELECT {', '.join([*kept, *written])} FROM new "  # noqa: S608 (quoted)
            f"JOIN (SELECT *, row_number() OVER () - 1 AS {quote(ROW)} FROM source) USING ({quote(ROW)}) "
            f"ORDER BY {quote(ROW)}",
            path, temporary,
        )  # fmt: skip


def _plain(column: Array) -> Array:
    """An array that DuckDB takes: text as objects, contiguous."""
    return column.astype(object) if column.dtype.kind == "U" else np.ascontiguousarray(column)


def _copy(connection: "DuckDBPyConnection", select: str, path: Path, temporary: Path) -> None:
    import duckdb

    suffix = suffix_of(path)
    match suffix:
        case ".parquet":
            options = "FORMAT parquet"
        case ".csv" | ".tsv":
            options = f"FORMAT csv, HEADER, DELIMITER {text(',' if suffix == CSV[0] else chr(9))}"
        case ".json" | ".jsonl" | ".ndjson":
            options = f"FORMAT json, ARRAY {suffix == '.json'}"
        case _:
            raise FileError(path, f"expected one of {', '.join(WRITTEN)}")
    if path.suffix.lower() == ".gz":
        options += ", COMPRESSION gzip"
    try:
        # The file is temporary already; DuckDB may write no other.
        connection.execute(f"COPY ({select}) TO {text(str(temporary))} ({options}, USE_TMP_FILE false)")
    except duckdb.Error as error:
        raise FileError(path, f"cannot be written: {str(error).splitlines()[0]}") from error
