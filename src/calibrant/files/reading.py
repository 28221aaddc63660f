"""Reading predictions: which arrays of a file to read, and whether it fits into memory."""

import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.files.error import FileError, naming
from calibrant.files.formats import SUFFIXES, Column, Parquet, open_file
from calibrant.metrics import Predictions, predictions
from calibrant.metrics.columns import Columns, Kind


@dataclass(frozen=True)
class Source:
    """Content of a file: values of one kind, and their labels if there are any."""

    kind: Kind
    values: Column
    labels: Column | None

    def predictions(self) -> Predictions:
        """Return checked predictions."""
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
        names: Names of the arrays or columns, if they are different.
    """
    source = read_source(path, names)
    if source.labels is None:
        missing = "correct" if source.kind == "confidence" else "target"
        called = (names or Columns()).of(source.kind)[1]
        raise FileError(path, f"has {source.kind} but no {called!r}: add it, or name yours with --{missing}")
    with naming(path):
        return source.predictions()


def read_source(path: Path, names: Columns | None = None) -> Source:
    """Read logits, probabilities or confidences, and the target or correctness if there is one."""
    names = names or Columns()
    _check_is_there(path)
    with naming(path), closing(open_file(path)) as opened:
        there = opened.names()
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


def _check_is_there(path: Path) -> None:
    if path.is_dir():
        raise FileError(path, "is a folder: name a file in it")
    if path.suffix.lower() not in SUFFIXES:
        raise FileError(path, f"expected one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise FileError(path, "is not a regular file" if path.exists() else "no such file")
    if path.stat().st_size == 0:
        raise FileError(path, "is empty: was it written to the end?")


def _choose(path: Path, there: list[str], names: Columns) -> Kind:
    """Which of the three kinds to read: the one the user named, else the most informative one."""
    with_labels = [kind for kind in names.kinds() if set(names.of(kind)) <= set(there)]
    alone = [kind for kind in names.kinds() if names.of(kind)[0] in there]
    for kind in with_labels + alone:
        return kind
    looked_for = " or ".join(repr(names.of(kind)[0]) for kind in names.kinds())
    found = ", ".join(there[:20]) + (", ..." if len(there) > 20 else "") or "no arrays"
    raise FileError(
        path, f"has no {looked_for}; it has {found}: name yours with --logits, --probabilities or --confidence"
    )


def fits_in_memory(path: Path) -> bool:
    """Whether a table can be processed in memory, by its size and the free memory."""
    if path.suffix.lower() == ".parquet":
        with naming(path), closing(Parquet(path)) as opened:
            read = 8 * opened.values()
    else:
        read = path.stat().st_size
    # Copies: as read, as float64, sorted, and one work array.
    return 4 * read < free_memory()


def free_memory() -> int:
    """Bytes available without swapping."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
        if found:
            return 1024 * int(found[1])
    return 4 << 30  # not Linux: assume a small machine
