"""Files of predictions: read with errors that name the file and the fix, written whole or not at all."""

import csv
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibrant.metrics import Predictions, predictions
from calibrant.metrics.columns import Columns, Kind

Column = np.ndarray[Any, Any]
SUFFIXES = (".npz", ".csv", ".parquet")


class FileError(ValueError):
    """Something is wrong with a file a user gave: one line that names it and says what to do."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


@dataclass(frozen=True)
class Source:
    """What a file holds: two of its arrays, by the names the metrics know them by."""

    kind: Kind
    values: Column
    labels: Column | None

    def predictions(self) -> Predictions:
        """As checked predictions."""
        if self.kind == "confidence":
            return predictions(self.values, self.labels, minimum=3, name="an evaluation")
        given: dict[str, Any] = {self.kind: self.values, "target": self.labels}
        return predictions(minimum=3, name="an evaluation", **given)


def read_predictions(path: Path, names: Columns | None = None) -> Predictions:
    """Read a file of predictions.

    Args:
        path: ``.npz``, ``.csv`` or ``.parquet`` with ``logits`` or ``probabilities`` and ``target``, or with
            ``confidence`` and ``correct``. In a table, ``(N, C)`` values are columns ``logits_0``, ``logits_1``, ...,
            or in Parquet one column of lists.
        names: What they are called, where not that.
    """
    source = read_source(path, names)
    if source.labels is None:
        missing = "correct" if source.kind == "confidence" else "target"
        called = getattr(names or Columns(), missing)
        raise FileError(path, f"has {source.kind} but no {called!r}: add it, or name yours with --{missing}")
    with _naming(path):
        return source.predictions()


def read_source(path: Path, names: Columns | None = None) -> Source:
    """Read logits, probabilities or confidences, and the target or correctness if there is one."""
    names = names or Columns()
    if path.suffix.lower() not in SUFFIXES:
        raise FileError(path, f"expected one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise FileError(path, "is a folder" if path.is_dir() else "no such file")
    if path.stat().st_size == 0:
        raise FileError(path, "is empty: was it written to the end?")
    with closing(_open(path)) as opened:
        there = opened.groups()
        kind = _choose(path, there, names)
        name, labels_name = names.of(kind)
        values = opened.read(name)
        labels = opened.read(labels_name) if labels_name in there else None
    for array, called in ((values, name), (labels, labels_name)):
        if array is not None and array.ndim == 0:
            raise FileError(path, f"{called!r} is a single number: it must have a row for each sample")
    if labels is not None and len(labels) != len(values):
        raise FileError(path, f"{name!r} has {len(values)} rows but {labels_name!r} has {len(labels)}")
    return Source(kind, values, labels)


def _open(path: Path) -> "_Npz | _Csv | _Parquet":
    match path.suffix.lower():
        case ".npz":
            return _Npz(path)
        case ".csv":
            return _Csv(path)
        case _:
            return _Parquet(path)


def _choose(path: Path, there: list[str], names: Columns) -> Kind:
    """Which of the three kinds to read: the one the user named, else the one that says most."""
    with_labels = [kind for kind in names.kinds() if set(names.of(kind)) <= set(there)]
    alone = [kind for kind in names.kinds() if names.of(kind)[0] in there]
    for kind in with_labels + alone:
        return kind
    looked_for = " or ".join(repr(names.of(kind)[0]) for kind in names.kinds())
    raise FileError(
        path,
        f"has no {looked_for}; it has {', '.join(there) or 'no arrays'}: name yours with --logits, --probabilities "
        "or --confidence",
    )


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the file's name in front of what is wrong with its contents."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise FileError(path, " ".join(str(error).split())) from error


def fits_in_memory(path: Path) -> bool:
    """Whether a table can be read whole and worked on, going by its size and what memory is free."""
    if path.suffix.lower() == ".parquet":
        with closing(_Parquet(path)) as opened:
            metadata = opened.file.metadata
        read = metadata.num_rows * max(metadata.num_columns, 1) * 8
    else:
        read = path.stat().st_size
    # As read, as float64, sorted, and one array for work.
    return bool(4 * read < _free_memory())


def _free_memory() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
        if found:
            return 1024 * int(found[1])
    return 4 << 30  # not Linux: assume a small machine


class _Npz:
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
        self.file.close()
        self.handle.close()

    def groups(self) -> list[str]:
        return list(self.file.files)

    def read(self, name: str) -> Column:
        try:
            array: Column = self.file[name]
        except (ValueError, zipfile.BadZipFile, OSError, EOFError) as error:
            reason = (
                "holds Python objects" if "allow_pickle" in str(error) else "cannot be read: is the file cut short?"
            )
            raise FileError(self.path, f"{name!r} {reason}; save it again as an array of numbers") from error
        return array


class _Table:
    """What CSV and Parquet share: a value per class is a column per class, numbered from 0."""

    path: Path
    columns: list[str]

    def close(self) -> None:
        """Nothing is kept open but by Parquet."""

    def groups(self) -> list[str]:
        found = dict.fromkeys(self.columns)
        found.update(dict.fromkeys(re.sub(r"_0$", "", column) for column in self.columns if column.endswith("_0")))
        return list(found)

    def members(self, name: str) -> list[str]:
        """The columns that make up one array."""
        if name in self.columns:
            return [name]
        count = sum(bool(re.fullmatch(re.escape(name) + r"_\d+", column)) for column in self.columns)
        wanted = [f"{name}_{k}" for k in range(count)]
        missing = [column for column in wanted if column not in self.columns]
        if missing:
            raise FileError(self.path, f"has {count} columns {name}_*, but no {missing[0]!r}: number classes from 0")
        return wanted


class _Csv(_Table):
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file)
                self.columns = [name.strip() for name in next(reader, [])]
                self.first = next(reader, None)
        except (UnicodeDecodeError, csv.Error) as error:
            raise FileError(path, "is not a text file: write it as UTF-8 CSV with a header line") from error
        if self.first is None:
            raise FileError(path, "has no rows below its header")

    def read(self, name: str) -> Column:
        places = [self.columns.index(column) for column in self.members(name)]
        assert self.first is not None  # noqa: S101 (checked on opening)
        truths = {"true": 1.0, "false": 0.0}
        convert: dict[int | str, Callable[[str], float]] | None = None
        if len(self.first) > places[0] and self.first[places[0]].strip().lower() in truths:
            convert = {places[0]: lambda text: truths[text.strip().lower()]}
        try:
            table: Column = np.loadtxt(
                self.path, delimiter=",", skiprows=1, usecols=places, ndmin=2, quotechar='"', comments=None,
                encoding="utf-8-sig", converters=convert,
            )  # fmt: skip
        except (ValueError, KeyError, IndexError) as error:
            detail = re.sub(r"\s+", " ", str(error)).rstrip(".")
            raise FileError(self.path, f"column {name!r} must hold a number in every row ({detail})") from error
        values: Column = table[:, 0] if len(places) == 1 else table
        return values


class _Parquet(_Table):
    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise FileError(path, 'reading Parquet needs pyarrow: pip install "calibrant[scale]"') from error
        self.path = path
        try:
            self.file = pyarrow.parquet.ParquetFile(path)
        except (pyarrow.ArrowException, OSError) as error:
            raise FileError(path, "is not a Parquet file, or is cut short") from error
        self.columns = list(self.file.schema_arrow.names)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def read(self, name: str) -> Column:
        import pyarrow

        members = self.members(name)
        try:
            table = self.file.read(columns=members)
        except (pyarrow.ArrowException, OSError) as error:
            raise FileError(self.path, f"column {name!r} cannot be read: is the file cut short?") from error
        arrays = [self._numbers(column, table.column(column).combine_chunks()) for column in members]
        return arrays[0] if len(arrays) == 1 else np.stack(arrays, 1)

    def _numbers(self, name: str, column: Any) -> Column:
        import pyarrow

        if isinstance(column, pyarrow.ChunkedArray):
            column = pyarrow.concat_arrays(column.chunks) if column.num_chunks else pyarrow.array([], column.type)
        if column.null_count:
            raise FileError(self.path, f"column {name!r} has {column.null_count} empty values: fill or drop those rows")
        kind = column.type
        if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
            lengths = column.value_lengths().unique().to_pylist()
            if len(lengths) != 1:
                raise FileError(self.path, f"lists in column {name!r} must have one length, got {sorted(lengths)[:5]}")
            values: Column = self._numbers(name, column.flatten()).reshape(len(column), lengths[0])
            return values
        if pyarrow.types.is_decimal(kind):
            column = column.cast(pyarrow.float64())
            kind = column.type
        if not (pyarrow.types.is_floating(kind) or pyarrow.types.is_integer(kind) or pyarrow.types.is_boolean(kind)):
            raise FileError(self.path, f"column {name!r} must hold numbers, got {kind}")
        array: Column = column.to_numpy(zero_copy_only=False)
        return array


@contextmanager
def whole_or_not_at_all(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``, and rename it to that only when the block has ended well."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem[:50]}-", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # temporary files are private; results are like any other file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_predictions(
    path: Path, values: Column, target: Column | None, *, kind: Literal["logits", "probabilities"] = "probabilities"
) -> None:
    """Write ``(N, C)`` logits or probabilities, and the target if known, in the format of the file's name."""
    labels = {} if target is None else {"target": target}
    if path.suffix.lower() not in SUFFIXES:
        raise FileError(path, f"expected one of {', '.join(SUFFIXES)}")
    with whole_or_not_at_all(path) as temporary:
        if path.suffix.lower() == ".npz":
            arrays: dict[str, Any] = {kind: values, **labels}
            np.savez(temporary, **arrays)
            return
        columns = {f"{kind}_{k}": values[:, k] for k in range(values.shape[1])} | labels
        if path.suffix.lower() == ".csv":
            digits = "%.9g" if values.dtype == np.float32 else "%.17g"
            formats = [digits] * values.shape[1] + ["%d"] * len(labels)
            table = np.column_stack(list(columns.values()))
            np.savetxt(temporary, table, delimiter=",", header=",".join(columns), comments="", fmt=formats)
            return
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(columns), temporary)
