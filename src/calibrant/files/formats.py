"""The three formats: each lists the names of its arrays, and reads one of them."""

import csv
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.files.error import FileError

Column = np.ndarray[Any, Any]
SUFFIXES = (".npz", ".csv", ".parquet")


def open_file(path: Path) -> "Npz | Csv | Parquet":
    """Open a file of predictions; the caller closes it."""
    match path.suffix.lower():
        case ".npz":
            return Npz(path)
        case ".csv":
            return Csv(path)
        case _:
            return Parquet(path)


class Npz:
    """Arrays by name, as NumPy saves them; nothing is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = path.open("rb")  # by hand, because numpy leaves it open when it is not a zip file
        try:
            loaded = np.load(self.handle, allow_pickle=False)
        except (zipfile.BadZipFile, OSError, ValueError, EOFError) as error:
            self.handle.close()
            raise FileError(path, "is not an .npz file: write it with numpy.savez") from error
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            self.handle.close()
            raise FileError(path, "holds a single array: write it with numpy.savez and a name for each array")
        self.file = loaded

    def close(self) -> None:
        """Close the file."""
        self.file.close()
        self.handle.close()

    def names(self) -> list[str]:
        """Names of the arrays."""
        return list(self.file.files)

    def read(self, name: str) -> Column:
        """One array."""
        damage = (ValueError, zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError)
        try:
            array: Any = self.file[name]
        except damage as error:
            if "allow_pickle" in str(error):
                raise FileError(self.path, f"{name!r} holds Python objects: save it as an array of numbers") from error
            raise FileError(
                self.path, f"{name!r} cannot be read, as it is damaged or cut short: save it again"
            ) from error
        if not isinstance(array, np.ndarray):
            raise FileError(self.path, f"{name!r} is not an array: write it with numpy.savez")
        return array


class Table:
    """Base class of CSV and Parquet: values of classes are one column per class, numbered from 0."""

    path: Path
    columns: list[str]

    def close(self) -> None:
        """Only Parquet keeps its file open."""

    def names(self) -> list[str]:
        """Names of the columns, and prefixes of numbered ones."""
        found = dict.fromkeys(self.columns)
        found.update(dict.fromkeys(re.sub(r"_0$", "", column) for column in self.columns if column.endswith("_0")))
        return list(found)

    def members(self, name: str) -> list[str]:
        """The columns that make up one array."""
        wanted = [name]
        if name not in self.columns:
            count = sum(bool(re.fullmatch(re.escape(name) + r"_\d+", column)) for column in self.columns)
            wanted = [f"{name}_{k}" for k in range(count)]
        for column in wanted:
            if column not in self.columns:
                raise FileError(self.path, f"has {len(wanted)} columns {name}_*, but no {column!r}: number them from 0")
            if self.columns.count(column) > 1:
                raise FileError(self.path, f"has {self.columns.count(column)} columns {column!r}: rename all but one")
        return wanted


class Csv(Table):
    """Comma-separated numbers below a line of names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file)
                header = self._header(reader)
                self.first = next((row for row in reader if row), None)
        except UnicodeDecodeError as error:
            raise FileError(path, "is not a text file: write it as UTF-8 CSV with a header line") from error
        except csv.Error as error:
            raise FileError(path, f"cannot be read as CSV: {error}") from error
        self.columns = [name.strip() for name in header]
        if not header:
            raise FileError(path, "holds no line: write a header line and a row for each sample")
        if len(header) == 1 and re.search(r"[;\t]", header[0]):
            raise FileError(path, "has columns separated by something else: separate them with commas")
        if all(_is_number(name) for name in self.columns):
            raise FileError(path, "begins with numbers: the first line must hold the names of the columns")
        if self.first is None:
            raise FileError(path, "has no rows below its header")

    @staticmethod
    def _header(reader: Any) -> list[str]:
        """The first line that is not blank."""
        return next((row for row in reader if row), [])

    def read(self, name: str) -> Column:
        """One array, from the columns that make it up."""
        places = [self.columns.index(column) for column in self.members(name)]
        convert: dict[int | str, Callable[[str], float]] | None = None
        if self.first is not None and len(self.first) > places[0] and not _is_number(self.first[places[0]]):
            convert = {places[0]: _truth}
        # The csv module reads the header, since quoted names may contain line ends; NumPy reads the rest.
        with self.path.open(newline="", encoding="utf-8-sig") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing rows, which are checked elsewhere
            self._header(csv.reader(iter(file.readline, "")))
            try:
                table: Column = np.loadtxt(
                    file, delimiter=",", usecols=places, ndmin=2, quotechar='"', comments=None, converters=convert
                )
            except (ValueError, IndexError) as error:
                raise FileError(self.path, f"column {name!r} must hold a number in every row{_place(error)}") from error
        values: Column = table[:, 0] if len(places) == 1 else table
        return values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _truth(text: str) -> float:
    """Parse a number, or true and false as words."""
    word = text.strip().lower()
    return {"true": 1.0, "false": 0.0}[word] if word in ("true", "false") else float(text)


def _place(error: Exception) -> str:
    """Row of NumPy's error, counted from 1; NumPy counts rows from 0, and short ones from 1."""
    found = re.search(r"at row (\d+)", str(error))
    if not found:
        return ""
    short = "invalid column index" in str(error)
    word = re.search(r"could not convert string ('.*') to", str(error))
    detail = f" has {word[1]}" if word else " is too short" if short else ""
    return f"; row {int(found[1]) + (0 if short else 1)}{detail}"


class Parquet(Table):
    """Columns of numbers, or of lists of numbers."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise FileError(path, 'reading Parquet needs pyarrow: pip install "calibrant[scale]"') from error
        self.path = path
        try:
            self.file = pyarrow.parquet.ParquetFile(path)
        except PermissionError:
            raise
        except (pyarrow.ArrowException, OSError) as error:
            raise FileError(path, "is not a Parquet file, or is cut short") from error
        self.columns = list(self.file.schema_arrow.names)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def values(self) -> int:
        """Number of values, including those in lists."""
        metadata = self.file.metadata
        groups = (metadata.row_group(k) for k in range(metadata.num_row_groups))
        return sum(group.column(k).num_values for group in groups for k in range(group.num_columns))

    def read(self, name: str) -> Column:
        """One array, from the columns that make it up."""
        import pyarrow

        members = self.members(name)
        try:
            table = self.file.read(columns=members)
        except (pyarrow.ArrowException, OSError) as error:
            raise FileError(self.path, f"column {name!r} cannot be read: is the file cut short?") from error
        arrays = [self._numbers(column, table.column(column)) for column in members]
        if any(array.ndim > 1 for array in arrays) and len(arrays) > 1:
            raise FileError(self.path, f"columns {name}_* must hold plain numbers, or {name!r} lists")
        return arrays[0] if len(arrays) == 1 else np.stack(arrays, 1)

    def _numbers(self, name: str, column: Any) -> Column:
        import pyarrow
        from pyarrow import types

        if isinstance(column, pyarrow.ChunkedArray):
            column = pyarrow.concat_arrays(column.chunks) if column.num_chunks else pyarrow.array([], column.type)
        if column.null_count:
            raise FileError(self.path, f"column {name!r} has {column.null_count} empty values: fill or drop those rows")
        kind = column.type
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            lengths = column.value_lengths().unique().to_pylist()
            if len(lengths) > 1:
                raise FileError(self.path, f"lists in column {name!r} must have one length, got {sorted(lengths)[:5]}")
            return self._numbers(name, column.flatten()).reshape(len(column), -1)
        if types.is_decimal(kind):
            column, kind = column.cast(pyarrow.float64()), pyarrow.float64()
        if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
            raise FileError(self.path, f"column {name!r} must hold numbers, got {kind}")
        array: Column = column.to_numpy(zero_copy_only=False)
        return array
