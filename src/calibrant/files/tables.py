"""Columns of a table as arrays, by way of DuckDB."""

import glob
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.files.arrays import Array
from calibrant.files.cells import empty
from calibrant.files.error import FileError
from calibrant.tables import SETTINGS, Column, list_of, open_table, quote


class Table:
    """A file, a folder or a pattern of CSV, TSV, JSON Lines or Parquet; columns are read when they are needed."""

    def __init__(self, path: Path) -> None:
        import duckdb

        self.path = path
        self.connection = duckdb.connect(config=SETTINGS)
        self._open()

    def _open(self, *, as_text: bool = False) -> None:
        import duckdb

        try:
            opened = open_table(self.connection, str(self.path), as_text=as_text)
        except duckdb.Error as error:
            raise FileError(self.path, _explained(str(error))) from error
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
        self.connection.execute("ALTER VIEW source RENAME TO whole")
        self.connection.execute(f"CREATE VIEW source AS SELECT * FROM whole LIMIT {rows:d}")  # noqa: S608 (a number)

    def is_empty(self) -> bool:
        """Whether there is no row."""
        return not self._fetch("1", "LIMIT 1")

    def _fetch(self, expressions: str, more: str = "") -> list[tuple[Any, ...]]:
        import duckdb

        try:
            return self.connection.execute(f"SELECT {expressions} FROM source {more}").fetchall()  # noqa: S608 (quoted)
        except duckdb.Error as error:
            raise FileError(self.path, _explained(str(error))) from error

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        """Columns by name, in one pass over the file; text is an array of objects, lists are ``(N, C)``.

        Empty cells are masked. A CSV in which a column turns from numbers into words is read as text.
        """
        import duckdb

        plain = [self.columns[name] for name in names if not self.columns[name].is_list]
        expressions = [f"{_expression(column)} AS c{k}" for k, column in enumerate(plain)]
        found: dict[str, Array] = {}
        if plain:
            try:
                statement = f"SELECT {', '.join(expressions)} FROM source"  # noqa: S608 (quoted)
                arrays = self.connection.execute(statement).fetchnumpy()
            except duckdb.Error as error:
                if "could not convert" in str(error).lower() and self._is_csv():
                    self._open(as_text=True)
                    return self.read(names)
                raise FileError(self.path, _explained(str(error))) from error
            found = {column.name: arrays[f"c{k}"] for k, column in enumerate(plain)}
        return {name: found[name] if name in found else self.lists(name) for name in names}

    def _is_csv(self) -> bool:
        return any(column.type == "DOUBLE" for column in self.columns.values())

    def lists(self, name: str) -> Array:
        """A column of lists of one length as ``(N, C)``."""
        column = quote(name)
        (rows, filled, shortest, longest), *_ = self._fetch(
            f"count(*), count({column}), min(len({column})), max(len({column}))"
        )
        if filled < rows:
            raise FileError(self.path, empty(name, rows - filled))
        if rows and shortest != longest:
            lengths = sorted(each for (each,) in self._fetch(f"DISTINCT len({column})"))
            raise FileError(self.path, f"lists in column {name!r} must have one length, got {lengths[:5]}")
        if self.columns[name].number is None:
            raise FileError(self.path, f"column {name!r} must hold numbers, got {self.columns[name].type}")
        flat = self.connection.execute(f"SELECT unnest({column}) AS c FROM source").fetchnumpy()["c"]  # noqa: S608
        if np.ma.isMaskedArray(flat) and np.ma.getmaskarray(flat).any():
            raise FileError(self.path, f"column {name!r} has lists with empty values: fill or drop those rows")
        array: Array = np.ma.getdata(flat).reshape(rows, -1)
        return array

    def json(self, name: str) -> list[Any]:
        """A column of anything, as JSON has it."""
        cells = self._fetch(f"CAST(to_json({quote(name)}) AS VARCHAR)")
        return [None if cell is None else json.loads(cell) for (cell,) in cells]


def cells_of_parquet(path: Path, files: Sequence[str]) -> int:
    """Number of values in Parquet files, including those in lists."""
    import duckdb

    pattern = list_of(map(glob.escape, files))
    try:
        with duckdb.connect(config=SETTINGS) as connection:
            counted = f"SELECT sum(num_values) FROM parquet_metadata({pattern})"  # noqa: S608 (quoted)
            return int(connection.execute(counted).fetchall()[0][0] or 0)
    except duckdb.Error as error:
        raise FileError(path, _explained(str(error))) from error


def _expression(column: Column) -> str:
    """How a plain column is fetched: numbers and text as they are, decimals as DOUBLE, the rest as text."""
    name = quote(column.name)
    if column.number is not None and column.type.startswith("DECIMAL"):
        return f"CAST({name} AS DOUBLE)"
    return name if column.number or column.is_boolean or column.type == "VARCHAR" else f"CAST({name} AS VARCHAR)"


def _explained(message: str) -> str:
    """DuckDB's error in one line, in the words of a file."""
    fields = re.search(r"Error on Line: (\d+).*?Expected Number of Columns: (\d+) Found: (\d+)", message, re.DOTALL)
    if fields:
        return (
            f"line {fields[1]} has {fields[3]} field{'s' * (fields[3] != '1')}, but the header has {fields[2]}: "
            "write as many, and quote cells that contain the separator"
        )
    if "not utf-8" in message:
        return "is not a UTF-8 text file: write it as UTF-8"
    if re.search(r"No magic bytes|too small to be a Parquet|Parquet (magic|file)|\.parquet", message):
        return f"is not a Parquet file, or is cut short: {message.splitlines()[0]}"
    return f"cannot be read: {message.splitlines()[0]}"
