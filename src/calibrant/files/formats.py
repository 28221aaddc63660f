"""The formats of files of predictions, opened as named columns, and errors in one line that name the file."""

import codecs
import csv
import glob
import gzip
import itertools
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrant.atomic import FileError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Array = np.ndarray[Any, Any]
UNREADABLE = (ValueError, zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError)
# No extension is fetched: what reads CSV, JSON and Parquet is built in.
SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false", "autoload_known_extensions": "false"
}  # fmt: skip
# Rows of a CSV that say what its columns hold.
SAMPLED = 2000


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


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn DuckDB's errors into one line about the file."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise MemoryError(str(error)) from error
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
        elif suffix_of(path) == ".parquet" and not isinstance(error, duckdb.ConversionException):
            problem = f"is not a Parquet file, or is cut short: {message.splitlines()[0]}"
        else:
            problem = f"cannot be read: {message.splitlines()[0]}"
        raise FileError(path, problem) from error


class Arrays:
    """Arrays of NumPy by name: those of an .npz; or of an .npy and those beside it, named after their files.

    ``test_logits.npy`` is ``logits``, and ``test_target.npy`` belongs to it.
    """

    notices: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_npy = suffix_of(path) == ".npy"
        self.files = _files_beside(path) if self.is_npy else dict.fromkeys(_names_in(path), path)

    def close(self) -> None:
        """Nothing stays open."""

    def names(self) -> list[str]:
        return sorted(self.files, key=lambda name: self.files[name] != self.path)

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        return {name: _array(self.files[name], None if self.is_npy else name) for name in names}


def _files_beside(path: Path) -> dict[str, Path]:
    start, _, _ = path.stem.rpartition("_")
    beside = sorted(path.parent.glob("*.npy"))
    same = {each.stem.removeprefix(f"{start}_"): each for each in beside if each.stem.startswith(f"{start}_")}
    return {each.stem: each for each in beside} | (same if start else {})


def _names_in(path: Path) -> list[str]:
    with path.open("rb") as handle:  # by hand, because NumPy leaves it open when it is not a zip file
        try:
            found = np.load(handle, allow_pickle=False)
        except UNREADABLE as error:
            raise FileError(path, "is no .npz file, or is cut short: save it with numpy.savez") from error
    if not isinstance(found, np.lib.npyio.NpzFile):
        raise FileError(path, "holds a single array: write it with numpy.savez and a name for each array")
    return list(found.files)


def _array(path: Path, member: str | None) -> Array:
    """The array of an .npy, or a member of an .npz."""
    what = "" if member is None else f"{member!r} "
    try:
        with path.open("rb") as handle:
            found = np.load(handle, allow_pickle=False)
            found = found if member is None else found[member]
    except UNREADABLE as error:
        raise FileError(
            path, f"{what}holds Python objects, or is damaged or cut short: save it again, as numbers, or as text with "
            ".astype(str)"
        ) from error  # fmt: skip
    if not isinstance(found, np.ndarray):
        raise FileError(path, f"{what}is not an array: write it with NumPy")
    return found


class Column(NamedTuple):
    """A column of a table: its name, and its type as the engine calls it."""

    name: str
    type: str

    @property
    def is_list(self) -> bool:
        """Whether it holds lists: ``FLOAT[]`` or ``FLOAT[10]`` in DuckDB, ``array<float>`` in Spark."""
        return self.type.endswith("]") or self.type.lower().startswith("array<")

    @property
    def is_dictionary(self) -> bool:
        return self.type.startswith(("STRUCT", "MAP", "JSON"))

    @property
    def is_boolean(self) -> bool:
        return self.type.lower() == "boolean"

    @property
    def is_text(self) -> bool:
        return self.type.lower() in ("varchar", "string") or self.type.startswith("ENUM")

    @property
    def number(self) -> str | None:
        """The type to compute in: FLOAT stays, other numbers become DOUBLE; None if it holds no numbers."""
        element = re.sub(r"^array<(.*)>$|\[\d*\]$", r"\1", self.type.lower())
        if element == "float":
            return "FLOAT"
        return "DOUBLE" if re.fullmatch(r"double|decimal.*|u?(tiny|small|big|huge)?int(eger)?", element) else None


class Table:
    """Any other file, a folder or a pattern, as DuckDB's view ``source``; columns are read when they are needed."""

    def __init__(self, path: Path) -> None:
        import duckdb

        self.path = path
        self.connection = duckdb.connect(config=SETTINGS)
        self._open()

    def _open(self, *, as_text: bool = False) -> None:
        try:
            with explained(self.path):
                columns, self.notices = open_table(self.connection, str(self.path), as_text=as_text)
        except FileNotFoundError as error:
            raise FileError(self.path, str(error).removeprefix(f"{self.path}: ")) from error
        self.columns = {column.name: column for column in columns}

    def close(self) -> None:
        self.connection.close()

    def names(self) -> list[str]:
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
        """Columns by name, lists as ``(N, C)``; a CSV in which a column turns from numbers into words is all text."""
        import duckdb

        plain = [self.columns[name] for name in names if not self.columns[name].is_list]
        found: dict[str, Array] = {}
        if plain:
            expressions = ", ".join(f"{_fetched(column)} AS c{k}" for k, column in enumerate(plain))
            try:
                with explained(self.path):
                    arrays = self.connection.execute(f"SELECT {expressions} FROM source").fetchnumpy()  # noqa: S608
            except FileError as error:
                has_numbers = any(column.type == "DOUBLE" for column in self.columns.values())
                if not isinstance(error.__cause__, duckdb.ConversionException) or not has_numbers:
                    raise
                self._open(as_text=True)
                return self.read(names)
            found = {column.name: arrays[f"c{k}"] for k, column in enumerate(plain)}
        return {name: found[name] if name in found else self._lists(name) for name in names}

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


def cells_of_parquet(path: Path, files: Sequence[str]) -> int:
    """Number of values in Parquet files, including those in lists."""
    import duckdb

    counted = f"SELECT sum(num_values) FROM parquet_metadata({list_of(map(glob.escape, files))})"  # noqa: S608 (quoted)
    with explained(path), duckdb.connect(config=SETTINGS) as connection:
        return int(connection.execute(counted).fetchall()[0][0] or 0)


def empty_cells(name: str, missing: int) -> str:
    """Error of a column with empty cells."""
    return f"column {name!r} has {missing:,} empty value{'s'[: missing != 1]}: fill or drop the rows"


def _fetched(column: Column) -> str:
    """How a plain column is fetched: numbers and text as they are, decimals as DOUBLE, the rest as text."""
    name = quote(column.name)
    if column.number is not None and column.type.startswith("DECIMAL"):
        return f"CAST({name} AS DOUBLE)"
    return name if column.number or column.is_boolean or column.type == "VARCHAR" else f"CAST({name} AS VARCHAR)"


def suffix_of(path: Path | str) -> str:
    """Ending that says what a file holds, in small letters; ``.gz`` is left out."""
    path = Path(path)
    return Path(path.stem).suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def is_table(path: Path | str) -> bool:
    """Whether a file, a folder or a pattern is a table by its name."""
    return suffix_of(path) in TABLES or Path(path).is_dir()


def check_file(path: Path) -> None:
    """Raise an error unless this is a regular file that is not empty."""
    if not path.is_file():
        raise FileError(path, "is not a regular file" if path.exists() else "no such file: check the path")
    if path.stat().st_size == 0:
        raise FileError(path, "is empty: was it written to the end?")


def files_of(where: str) -> list[str]:
    """Files of a path, a folder or a pattern, sorted; an error unless all are of one known format."""
    path = Path(where)
    if path.is_dir():
        inside = (str(each) for each in path.rglob("*") if each.is_file() and not each.name.startswith((".", "_")))
        found = sorted(name for name in inside if suffix_of(name) in TABLES)
        if not found:
            raise FileNotFoundError(f"{where}: is a folder without a file that ends in {', '.join(TABLES)}")
    else:
        found = [where] if path.exists() else sorted(glob.glob(where, recursive=True))  # noqa: PTH207 (may be absolute)
        if not found:
            raise FileNotFoundError(f"{where}: no such file: check the path")
    formats = {suffix_of(name) for name in found}
    if not formats <= set(TABLES):
        raise ValueError(f"{where}: expected one of {', '.join(TABLES)}: convert it, or rename it")
    if len(formats) > 1:
        raise ValueError(f"{where}: holds {' and '.join(sorted(formats))} files: give a pattern such as '*.parquet'")
    if path.exists() and not path.is_dir():
        check_file(path)
    return found


def open_table(
    connection: "DuckDBPyConnection", where: str, *, as_text: bool = False, written: Path | None = None
) -> tuple[list[Column], tuple[str, ...]]:
    """Make the view ``source``, of a CSV ``as_text`` if asked; return its columns and what was assumed, in sentences.

    Afterwards the connection, opened with ``SETTINGS``, can read these files and write ``written`` only.
    """
    found = files_of(where)
    absolute = [str(Path(name).absolute()) for name in found]
    # DuckDB compares the name as it is given, and as it is found.
    allowed = [*absolute, *map(glob.escape, absolute), *([str(written.absolute())] if written else [])]
    [(restricted,)] = connection.execute("SELECT NOT current_setting('enable_external_access')").fetchall()
    if not restricted:
        connection.execute(f"SET allowed_paths = {list_of(allowed)}")
        connection.execute("SET enable_external_access = false")
    quoted, suffix = list_of(map(glob.escape, absolute)), suffix_of(found[0])
    if suffix == ".parquet":
        return _describe(connection, f"read_parquet({quoted})"), ()
    if suffix in (".csv", ".tsv"):
        return _view_csv(connection, found, quoted, as_text=as_text)
    return _view_json(connection, quoted), ()


def _describe(connection: "DuckDBPyConnection", reader: str) -> list[Column]:
    connection.execute(f"CREATE OR REPLACE VIEW source AS SELECT * FROM {reader}")  # noqa: S608 (quoted by the caller)
    return [Column(*row[:2]) for row in connection.execute("DESCRIBE source").fetchall()]


def _view_json(connection: "DuckDBPyConnection", quoted: str) -> list[Column]:
    """Find the columns once, in all rows; one object of lists, ``{"logits": [...]}``, has a row for each element."""
    whole = f"read_json({quoted}, sample_size = -1, union_by_name = true)"
    found = [Column(*row[:2]) for row in connection.execute(f"DESCRIBE SELECT * FROM {whole}").fetchall()]  # noqa: S608
    pairs = ", ".join(f"{text(column.name)}: {text(column.type)}" for column in found)
    # One column called json is what DuckDB makes of rows that are no objects.
    named = f"read_json({quoted}, columns = {{{pairs}}})" if [each.name for each in found] != ["json"] else whole
    columns = _describe(connection, named)
    lists = [quote(column.name) for column in columns if column.is_list]
    if len(lists) < 2 or connection.execute("SELECT count(*) FROM (FROM source LIMIT 2)").fetchall() != [(1,)]:
        return columns
    lengths = connection.execute(f"SELECT {', '.join(f'len({name})' for name in lists)} FROM source").fetchall()[0]  # noqa: S608
    longest = max(length or 0 for length in lengths)
    chosen = [name for name, length in zip(lists, lengths, strict=True) if length == longest]
    if len(chosen) < 2:
        return columns
    connection.execute("ALTER VIEW source RENAME TO folded")
    unnested = ", ".join(f"unnest({name}) AS {name}" for name in chosen)
    return _describe(connection, f"(SELECT {unnested} FROM folded)")  # noqa: S608 (quoted)


def _view_csv(
    connection: "DuckDBPyConnection", found: list[str], quoted: str, *, as_text: bool
) -> tuple[list[Column], tuple[str, ...]]:
    header, *others = [_read_header(Path(name)) for name in found]
    for name, other in zip(found[1:], others, strict=True):
        if other != header:
            raise ValueError(
                f"{name}: names, orders, separates or encodes its columns otherwise than {found[0]}: write all alike"
            )
    options = (
        f"auto_detect = false, header = true, quote = '\"', escape = '\"', skip = {header.skipped}, "
        f"delim = {text(header.separator)}, encoding = {text(header.encoding)}"
    )
    names = distinct(header.names)

    def describe(types: Sequence[str], more: str = "") -> list[Column]:
        pairs = ", ".join(f"{text(name)}: {text(kind)}" for name, kind in zip(names, types, strict=True))
        return _describe(connection, f"read_csv({quoted}, {options}{more}, columns = {{{pairs}}})")

    columns = describe(["VARCHAR"] * len(names))
    notices = ("it is not UTF-8, and read as Latin-1",) * (header.encoding == "latin-1")
    if as_text:
        return columns, notices
    types, comma = _sampled_types(connection, names)
    if comma:
        notices += ("numbers are read with decimal commas",)
    return describe(types, ", decimal_separator = ','" if comma else ""), notices


def _sampled_types(connection: "DuckDBPyConnection", names: Sequence[str]) -> tuple[list[str], bool]:
    """What the columns of a CSV hold, by its first rows; and whether numbers have decimal commas."""
    tests = ", ".join(
        f"[count({column}), count(TRY_CAST({column} AS DOUBLE)), "
        f"count(TRY_CAST(replace({column}, ',', '.') AS DOUBLE)), "
        f"count(*) FILTER (lower(trim({column})) IN ('true', 'false'))]"
        for column in map(quote, names)
    )
    counts = connection.execute(f"SELECT {tests} FROM (FROM source LIMIT {SAMPLED})").fetchall()[0]  # noqa: S608
    with_commas = [plain for filled, plain, commas, _ in counts if plain < filled == commas]
    comma = 0 in with_commas and not any(with_commas)
    types = []
    for filled, plain, commas, booleans in counts:
        kind = "VARCHAR"
        if filled and booleans == filled:
            kind = "BOOLEAN"
        elif filled and (filled == plain or (comma and filled == commas)):
            kind = "DOUBLE"
        types.append(kind)
    return types, comma


class Header(NamedTuple):
    """How a CSV file begins: the names of its columns, what separates them, and what comes before them."""

    names: tuple[str, ...]
    separator: str
    skipped: int
    encoding: str


def _read_header(path: Path) -> Header:
    """Read the first line of a CSV that is neither blank nor a comment; DuckDB would lose lines without a word."""
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            start = file.read(1 << 20)
    except (gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path}: is not gzipped, or is cut short: compress it again, or leave out .gz") from error
    if start.startswith(b"\xfe\xff"):
        raise ValueError(f"{path}: is UTF-16 in big-endian order: write it as UTF-8, with iconv -f UTF-16 -t UTF-8")
    encoding = "utf-16" if start.startswith(b"\xff\xfe") else "utf-8"
    try:
        # The last character may be cut in two.
        decoded = codecs.getincrementaldecoder(encoding)().decode(start).removeprefix("\ufeff")
    except UnicodeDecodeError:
        encoding = "latin-1"
        decoded = start.decode(encoding)
    if "\0" in decoded:
        raise ValueError(f"{path}: is not a text file: write it as UTF-8 CSV with a header line")
    lines = decoded.splitlines(keepends=True)
    before = [*itertools.takewhile(lambda line: re.fullmatch(r"\s*|sep=.\s*|#[^,;\t|]*", line), lines)]
    rest = decoded[sum(map(len, before)) :]
    if not rest:
        raise ValueError(f"{path}: holds no line: write a header line and a row for each sample")
    bare = re.sub(r'"[^"]*"', "", rest).splitlines()[0]
    told = next((line[4] for line in before if line.startswith("sep=")), None)
    separator = told or max(",;\t|", key=bare.count)
    names = next(csv.reader(rest.splitlines(keepends=True), delimiter=separator, skipinitialspace=True))
    # NumPy's savetxt writes the names behind a hash.
    stripped = tuple(name.strip() for name in (names[0].removeprefix("#"), *names[1:]))
    if all(re.fullmatch(r"[-+]?[\d.,]+(e[-+]?\d+)?|nan", name, re.IGNORECASE) for name in stripped):
        raise ValueError(f"{path}: begins with numbers: the first line must hold the names of the columns")
    return Header(stripped, separator, len(before), encoding)


def distinct(names: Sequence[str]) -> list[str]:
    """Names that differ also in small letters, as DuckDB needs: a later one that repeats gets its place."""
    seen: set[str] = set()
    found = []
    for place, name in enumerate(names, 1):
        found.append(f"{name} (column {place})" if name.lower() in seen or not name else name)
        seen.add(name.lower())
    return found


def text(value: str) -> str:
    """A string in SQL."""
    return "'" + value.replace("'", "''") + "'"


def quote(name: str) -> str:
    """The name of a column in SQL."""
    return '"' + name.replace('"', '""') + '"'


def list_of(values: Iterable[str]) -> str:
    """A list of strings in SQL."""
    return f"[{', '.join(map(text, values))}]"


ARRAYS = (".npz", ".npy")
# Formats of tables, which folders and patterns may hold, and the options of DuckDB's COPY that write them.
TABLES = {
    ".csv": "FORMAT csv, HEADER, DELIMITER ','",
    ".tsv": "FORMAT csv, HEADER, DELIMITER '\t'",
    ".jsonl": "FORMAT json",
    ".ndjson": "FORMAT json",
    ".json": "FORMAT json, ARRAY true",
    ".parquet": "FORMAT parquet",
}


def open_file(path: Path) -> Arrays | Table:
    """Open a file of predictions; the caller closes it."""
    if is_table(path):
        return Table(path)
    if suffix_of(path) not in ARRAYS:
        known = ", ".join((*ARRAYS, *TABLES))
        raise FileError(path, f"expected one of {known}, a folder or a pattern of them: save it as CSV or Parquet")
    check_file(path)
    return Arrays(path)
