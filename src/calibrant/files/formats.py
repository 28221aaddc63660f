"""The formats of files of predictions, opened as named columns, and errors in one line that name the file."""

import glob
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.tables import SETTINGS, Column, list_of, open_table, quote, suffix_of
from calibrant.tables import SUFFIXES as TABLES

Array = np.ndarray[Any, Any]
SUFFIXES = (".npz", ".npy", *TABLES)
UNREADABLE = (ValueError, zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError)
ZIP = b"PK\x03\x04"


class FileError(ValueError):
    """Error of a file that a user gave: one line that names the file and the remedy."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {' '.join(problem.split())}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Prefix errors about the contents of a file with its name."""
    try:
        yield
    except FileError:
        raise
    except MemoryError as error:
        raise FileError(path, "does not fit into memory: write it as .parquet or .csv for --engine duckdb") from error
    except PermissionError as error:
        raise FileError(path, "permission denied: change its mode, or run as its owner") from error
    except (ValueError, TypeError) as error:
        raise FileError(path, str(error).removeprefix(f"{path}: ")) from error


class Npz:
    """Arrays by name, as ``numpy.savez`` writes them."""

    notices: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = path.open("rb")  # by hand, because numpy leaves it open when it is not a zip file
        try:
            self.file = np.load(self.handle, allow_pickle=False)
        except UNREADABLE as error:
            self.handle.seek(0)
            begins = self.handle.read(len(ZIP)) == ZIP
            self.handle.close()
            what = "is cut short: save it again" if begins else "is not an .npz file: write it with numpy.savez"
            raise FileError(path, what) from error
        if not isinstance(self.file, np.lib.npyio.NpzFile):
            self.handle.close()
            raise FileError(path, "holds a single array: write it with numpy.savez and a name for each array")

    def close(self) -> None:
        """Close the file."""
        self.file.close()
        self.handle.close()

    def names(self) -> list[str]:
        """Names of the arrays."""
        return list(self.file.files)

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        """Arrays by name."""
        found = {}
        for name in names:
            try:
                found[name] = self.file[name]
            except UNREADABLE as error:
                raise FileError(self.path, f"{name!r} {DAMAGED}") from error
            if not isinstance(found[name], np.ndarray):
                raise FileError(self.path, f"{name!r} is not an array: write it with numpy.savez")
        return found


class Npy:
    """One array, as ``numpy.save`` writes it, and the arrays beside it, named after their files.

    ``test_logits.npy`` is ``logits``, and ``test_target.npy`` belongs to it.
    """

    notices: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        start, _, _ = path.stem.rpartition("_")
        beside = sorted(path.parent.glob("*.npy"))
        same = {each.stem.removeprefix(f"{start}_"): each for each in beside if each.stem.startswith(f"{start}_")}
        self.files = {each.stem: each for each in beside} | (same if start else {})

    def close(self) -> None:
        """Nothing stays open."""

    def names(self) -> list[str]:
        """Names of the arrays; that of the given file comes first."""
        return sorted(self.files, key=lambda name: self.files[name] != self.path)

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        """Arrays by name."""
        return {name: _read_npy(self.files[name]) for name in names}


DAMAGED = "holds Python objects, or is damaged or cut short: save it again, as numbers, or as text with .astype(str)"


def _read_npy(path: Path) -> Array:
    try:
        array: Any = np.load(path, allow_pickle=False)
    except UNREADABLE as error:
        raise FileError(path, DAMAGED) from error
    if not isinstance(array, np.ndarray):
        raise FileError(path, "is not an .npy file: write it with numpy.save")
    return array


class Table:
    """CSV, TSV, JSON Lines or Parquet in a file, a folder or a pattern; columns are read when they are needed."""

    def __init__(self, path: Path) -> None:
        import duckdb

        self.path = path
        self.connection = duckdb.connect(config=SETTINGS)
        self._open()

    def _open(self, *, as_text: bool = False) -> None:
        try:
            with explained(self.path):
                opened = open_table(self.connection, str(self.path), as_text=as_text)
        except FileNotFoundError as error:
            raise FileError(self.path, str(error).removeprefix(f"{self.path}: ")) from error
        self.columns = {column.name: column for column in opened.columns}
        self.notices = opened.notices

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self.columns)

    def limit(self, rows: int) -> None:
        """Keep the first rows only."""
        self.connection.execute("ALTER VIEW source RENAME TO unlimited")
        self.connection.execute(f"CREATE VIEW source AS SELECT * FROM unlimited LIMIT {rows:d}")  # noqa: S608 (a number)

    def fetch(self, expressions: str, more: str = "") -> list[tuple[Any, ...]]:
        """Rows of a query about the table."""
        with explained(self.path):
            return self.connection.execute(f"SELECT {expressions} FROM source {more}").fetchall()  # noqa: S608 (quoted)

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        """Columns by name, in one pass over the file; text is an array of objects, lists are ``(N, C)``.

        Empty cells are masked. A CSV in which a column turns from numbers into words is read as text.
        """
        import duckdb

        plain = [self.columns[name] for name in names if not self.columns[name].is_list]
        found: dict[str, Array] = {}
        if plain:
            expressions = ", ".join(f"{_expression(column)} AS c{k}" for k, column in enumerate(plain))
            try:
                with explained(self.path):
                    arrays = self.connection.execute(f"SELECT {expressions} FROM source").fetchnumpy()  # noqa: S608
            except FileError as error:
                if not isinstance(error.__cause__, duckdb.ConversionException) or not self._has_doubles():
                    raise
                self._open(as_text=True)
                return self.read(names)
            found = {column.name: arrays[f"c{k}"] for k, column in enumerate(plain)}
        return {name: found[name] if name in found else self._lists(name) for name in names}

    def _has_doubles(self) -> bool:
        return any(column.type == "DOUBLE" for column in self.columns.values())

    def _lists(self, name: str) -> Array:
        """A column of lists of one length as ``(N, C)``."""
        column = quote(name)
        rows, filled, shortest, longest = self.fetch(
            f"count(*), count({column}), min(len({column})), max(len({column}))"
        )[0]
        if filled < rows:
            raise ValueError(empty_cells(name, rows - filled))
        if rows and shortest != longest:
            raise ValueError(f"lists in column {name!r} must have one length, got {shortest} to {longest}")
        if self.columns[name].number is None:
            raise ValueError(f"column {name!r} must hold numbers, got {self.columns[name].type}")
        flat = self.connection.execute(f"SELECT unnest({column}) AS c FROM source").fetchnumpy()["c"]  # noqa: S608
        if np.ma.getmaskarray(flat).any():
            raise ValueError(f"column {name!r} has lists with empty values: fill or drop those rows")
        array: Array = np.ma.getdata(flat).reshape(rows, -1)
        return array

    def json(self, name: str) -> list[Any]:
        """A column of anything, as JSON has it."""
        cells = self.fetch(f"CAST(to_json({quote(name)}) AS VARCHAR)")
        return [None if cell is None else json.loads(cell) for (cell,) in cells]


def open_file(path: Path) -> Npz | Npy | Table:
    """Open a file of predictions; the caller closes it."""
    match suffix_of(path):
        case ".npz":
            return Npz(path)
        case ".npy":
            return Npy(path)
        case _:
            return Table(path)


def cells_of_parquet(path: Path, files: Sequence[str]) -> int:
    """Number of values in Parquet files, including those in lists."""
    import duckdb

    counted = f"SELECT sum(num_values) FROM parquet_metadata({list_of(map(glob.escape, files))})"  # noqa: S608 (quoted)
    with explained(path), duckdb.connect(config=SETTINGS) as connection:
        return int(connection.execute(counted).fetchall()[0][0] or 0)


def empty_cells(name: str, missing: int) -> str:
    """Error of a column with empty cells."""
    return f"column {name!r} has {missing:,} empty value{'s'[: missing != 1]}: fill or drop the rows"


def _expression(column: Column) -> str:
    """How a plain column is fetched: numbers and text as they are, decimals as DOUBLE, the rest as text."""
    name = quote(column.name)
    if column.number is not None and column.type.startswith("DECIMAL"):
        return f"CAST({name} AS DOUBLE)"
    return name if column.number or column.is_boolean or column.type == "VARCHAR" else f"CAST({name} AS VARCHAR)"


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn DuckDB's errors into one line about the file."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        message = str(error)
        fields = re.search(r"on Line: (\d+).*?Expected Number of Columns: (\d+) Found: (\d+)", message, re.DOTALL)
        if fields:
            problem = (
                f"line {fields[1]} has {fields[3]} field{'s' * (fields[3] != '1')}, but the header has {fields[2]}: "
                "write as many, and quote cells that contain the separator"
            )
        elif "not utf-8" in message:
            problem = "is not a UTF-8 text file: write it as UTF-8"
        elif suffix_of(path) == ".parquet":
            problem = f"is not a Parquet file, or is cut short: {message.splitlines()[0]}"
        else:
            problem = f"cannot be read: {message.splitlines()[0]}"
        raise FileError(path, problem) from error
