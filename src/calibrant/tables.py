"""Tables of any size as a view of DuckDB: CSV, TSV, JSON Lines and Parquet, gzipped, in folders and patterns."""

import csv
import glob
import gzip
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

CSV = (".csv", ".tsv")
JSON = (".jsonl", ".ndjson", ".json")
PARQUET = (".parquet",)
SUFFIXES = CSV + JSON + PARQUET
# No extension is fetched: what reads CSV, JSON and Parquet is built in.
SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false", "autoload_known_extensions": "false"
}  # fmt: skip
# Rows of a CSV that say what its columns hold.
SAMPLED = 2000


class Column(NamedTuple):
    """A column of a table: its name, and its type as the engine calls it."""

    name: str
    type: str

    @property
    def is_list(self) -> bool:
        """Whether it holds lists: ``FLOAT[]`` or ``FLOAT[10]`` in DuckDB, ``array<float>`` in Spark."""
        return self.type.endswith("]") or self.type.lower().startswith("array<")

    @property
    def is_boolean(self) -> bool:
        """Whether it holds true and false."""
        return self.type.lower() == "boolean"

    @property
    def is_text(self) -> bool:
        """Whether it holds text."""
        return self.type.lower() in ("varchar", "string") or self.type.startswith("ENUM")

    @property
    def number(self) -> str | None:
        """The type to compute in: FLOAT stays, other numbers become DOUBLE; None if it holds no numbers."""
        element = re.sub(r"^array<(.*)>$|\[\d*\]$", r"\1", self.type.lower())
        if element == "float":
            return "FLOAT"
        return "DOUBLE" if re.fullmatch(r"double|decimal.*|u?(tiny|small|big|huge)?int(eger)?", element) else None


@dataclass(frozen=True)
class Opened:
    """A table that was opened: its columns, and what was assumed, in sentences."""

    columns: list[Column]
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Header:
    """How a CSV file begins: the names of its columns, what separates them, and what comes before them."""

    names: tuple[str, ...]
    separator: str
    skipped: int
    encoding: str


def suffix_of(path: Path | str) -> str:
    """Ending that says what a file holds, in small letters; ``.gz`` is left out.

    Example:
        >>> suffix_of("predictions.CSV.gz")
        '.csv'
    """
    path = Path(path)
    return Path(path.stem).suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def is_table(path: Path | str) -> bool:
    """Whether a file, a folder or a pattern is a table by its name.

    Example:
        >>> is_table("part-*.parquet"), is_table("predictions.npz")
        (True, False)
    """
    return suffix_of(path) in SUFFIXES or Path(path).is_dir()


def missing(path: Path) -> bool:
    """Whether there is no regular file, no folder, and no file of a pattern."""
    return not (path.is_file() or path.is_dir() or (not path.exists() and glob.glob(str(path), recursive=True)))  # noqa: PTH207


def files_of(where: str) -> list[str]:
    """Files of a path, a folder or a pattern, sorted; all of one format.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If their formats differ, or are unknown.
    """
    path = Path(where)
    if path.is_dir():
        inside = (str(each) for each in path.rglob("*") if each.is_file() and not each.name.startswith((".", "_")))
        found = sorted(name for name in inside if suffix_of(name) in SUFFIXES)
        if not found:
            raise FileNotFoundError(f"{where}: is a folder without a file that ends in {', '.join(SUFFIXES)}")
    else:
        found = [where] if path.exists() else sorted(glob.glob(where, recursive=True))  # noqa: PTH207 (may be absolute)
        if not found:
            raise FileNotFoundError(f"{where}: no such file: check the path")
    formats = {suffix_of(name) for name in found}
    if not formats <= set(SUFFIXES):
        raise ValueError(f"{where}: expected a .parquet or .csv file, .tsv or .jsonl: convert it, or rename it")
    if len(formats) > 1:
        raise ValueError(f"{where}: holds {' and '.join(sorted(formats))} files: give a pattern such as '*.parquet'")
    return found


def open_table(
    connection: "DuckDBPyConnection", where: str, *, as_text: bool = False, written: Path | None = None
) -> Opened:
    """Make the view ``source`` of a file, a folder or a pattern, and return its columns.

    Afterwards the connection can open these files only.

    Args:
        connection: Connection of DuckDB, opened with ``SETTINGS``.
        where: File, folder or pattern.
        as_text: Whether the cells of a CSV stay text, whatever they hold.
        written: File that the connection may write.
    """
    found = files_of(where)
    absolute = [str(Path(name).absolute()) for name in found]
    quoted = list_of(map(glob.escape, absolute))
    # DuckDB compares the name as it is given, and as it is found.
    allowed = [*absolute, *map(glob.escape, absolute), *([str(written.absolute())] if written else [])]
    [(restricted,)] = connection.execute("SELECT NOT current_setting('enable_external_access')").fetchall()
    if not restricted:
        connection.execute(f"SET allowed_paths = {list_of(allowed)}")
        connection.execute("SET enable_external_access = false")
    match suffix_of(found[0]):
        case ".parquet":
            return Opened(_describe(connection, f"read_parquet({quoted})"))
        case ".csv" | ".tsv":
            return _open_csv(connection, found, quoted, as_text=as_text)
        case _:
            return Opened(_unfold(connection, _open_json(connection, quoted)))


def _describe(connection: "DuckDBPyConnection", reader: str, name: str = "source") -> list[Column]:
    connection.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {reader}")  # noqa: S608 (quoted by the caller)
    return [Column(*row[:2]) for row in connection.execute(f"DESCRIBE {name}").fetchall()]


def _open_json(connection: "DuckDBPyConnection", quoted: str) -> list[Column]:
    """Find the columns once, in all rows, and name them, so that no later statement looks for them again."""
    whole = f"read_json({quoted}, sample_size = -1, union_by_name = true)"
    found = [Column(*row[:2]) for row in connection.execute(f"DESCRIBE SELECT * FROM {whole}").fetchall()]  # noqa: S608
    pairs = ", ".join(f"{text(column.name)}: {text(column.type)}" for column in found)
    # One column called json is what DuckDB makes of rows that are no objects.
    named = f"read_json({quoted}, columns = {{{pairs}}})" if [each.name for each in found] != ["json"] else whole
    return _describe(connection, named)


def _unfold(connection: "DuckDBPyConnection", columns: list[Column]) -> list[Column]:
    """One object of lists, ``{"predictions": [...], "label_ids": [...]}``, becomes a row for each element."""
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


def _open_csv(connection: "DuckDBPyConnection", found: list[str], quoted: str, *, as_text: bool) -> Opened:
    header, *others = [read_header(Path(name)) for name in found]
    for name, other in zip(found[1:], others, strict=True):
        if other != header and sorted(other.names) == sorted(header.names):
            how = "separates or encodes" if other.names == header.names else "orders"
            raise ValueError(f"{name}: {how} its columns otherwise than {found[0]}: write all alike")
        if other != header:
            raise ValueError(f"{name}: has other columns than {found[0]}: write all alike")
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
        return Opened(columns, notices)
    types, comma = _sampled_types(connection, names)
    if comma:
        notices += ("numbers are read with decimal commas",)
    return Opened(describe(types, ", decimal_separator = ','" if comma else ""), notices)


def _sampled_types(connection: "DuckDBPyConnection", names: Sequence[str]) -> tuple[list[str], bool]:
    """What the columns of a CSV hold, by its first rows; and whether numbers have decimal commas."""
    tests = ", ".join(
        f"[count({column}), count(TRY_CAST({column} AS DOUBLE)), "
        f"count(TRY_CAST(replace({column}, ',', '.') AS DOUBLE)), "
        f"count(*) FILTER (lower(trim({column})) IN ('true', 'false'))]"
        for column in map(quote, names)
    )
    counts = connection.execute(f"SELECT {tests} FROM (FROM source LIMIT {SAMPLED})").fetchall()[0]  # noqa: S608
    comma = not any(0 < plain < filled == commas for filled, plain, commas, _ in counts) and any(
        0 == plain < filled == commas for filled, plain, commas, _ in counts
    )

    def kind(filled: int, plain: int, commas: int, booleans: int) -> str:
        if filled and booleans == filled:
            return "BOOLEAN"
        return "DOUBLE" if filled and (filled == plain or (comma and filled == commas)) else "VARCHAR"

    return [kind(*each) for each in counts], comma


def read_header(path: Path) -> Header:
    """Read the first line of a CSV that is neither blank nor a comment; it must hold the names of the columns.

    DuckDB would take the first line that fits the rows below, and lose lines without a word.

    Raises:
        ValueError: If there is no such line, or the file is no text.
    """
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            start = file.read(1 << 20)
    except (gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path}: is not gzipped, or is cut short: compress it again, or leave out .gz") from error
    whole = start[: start.rfind(b"\n") + 1] or start  # the last line may end within a character
    encoding = "utf-16" if start.startswith(b"\xff\xfe") else "utf-8" if _decodes(whole) else "latin-1"
    decoded = start.decode(encoding, errors="replace").removeprefix("\ufeff")
    if start.startswith(b"\xfe\xff"):
        raise ValueError(f"{path}: is UTF-16 in big-endian order: write it as UTF-8, with iconv -f UTF-16 -t UTF-8")
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
    if all(_is_number(name) for name in stripped):
        raise ValueError(f"{path}: begins with numbers: the first line must hold the names of the columns")
    return Header(stripped, separator, len(before), encoding)


def _decodes(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True


def distinct(names: Sequence[str]) -> list[str]:
    """Names that differ also in small letters, as DuckDB needs: a later one that repeats gets its place.

    Example:
        >>> distinct(["id", "correct", "Correct"])
        ['id', 'correct', 'Correct (column 3)']
    """
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
