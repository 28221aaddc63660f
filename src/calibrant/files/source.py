"""Content of a file of predictions."""

import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibrant.files.arrays import Array, Npy, Npz
from calibrant.files.error import FileError, naming
from calibrant.files.tables import Table
from calibrant.metrics import InputWarning, Predictions, predictions
from calibrant.metrics.columns import Kind
from calibrant.tables import SUFFIXES as TABLES
from calibrant.tables import suffix_of

SUFFIXES = (".npz", ".npy", *TABLES)


def open_file(path: Path) -> Npz | Npy | Table:
    """Open a file of predictions; the caller closes it."""
    match suffix_of(path):
        case ".npz":
            return Npz(path)
        case ".npy":
            return Npy(path)
        case _:
            return Table(path)


@dataclass(frozen=True)
class Source:
    """Values of one kind, their labels if there are any, and what was assumed.

    Attributes:
        path: The file, folder or pattern.
        kind: Kind of the values.
        values: Logits or probabilities, ``(N, C)`` or ``(N,)``; or confidences, ``(N,)``.
        labels: Class indices, or correctness of confidences; ``(N, L)`` of several labels; None if there are none.
        names: Names of the classes, if known.
        weight: Weights of the samples, if named.
        used: Columns of the values.
        label: Column of the labels.
        rows: Indices of the rows that were kept, if some were left out.
        notices: What was assumed or left out, in sentences.
    """

    path: Path
    kind: Kind
    values: Array
    labels: Array | None = None
    names: tuple[str, ...] | None = None
    weight: Array | None = None
    used: tuple[str, ...] = ()
    label: str | None = None
    rows: Array | None = None
    notices: tuple[str, ...] = ()

    def predictions(self) -> Predictions:
        """Return checked predictions; what is doubtful is said in the notices, and not as a warning."""
        given: dict[str, Any] = {"sample_weight": self.weight, self.kind: self.values}
        if self.kind == "confidence":
            given |= {"correct": self.labels}
        else:
            given |= {"target": self.labels, "classes": self.names}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InputWarning)
            return predictions(minimum=3, name="an evaluation", **given)

    def keep(self, rows: Array, *notices: str) -> "Source":
        """Only some rows, by their indices."""
        return replace(
            self,
            values=self.values[rows],
            labels=None if self.labels is None else self.labels[rows],
            weight=None if self.weight is None else self.weight[rows],
            rows=rows if self.rows is None else self.rows[rows],
            notices=(*self.notices, *notices),
        )

    def others(self) -> tuple[str, ...]:
        """Names of the columns that hold no values: labels, ids, groups, times."""
        with naming(self.path), closing(open_file(self.path)) as opened:
            if isinstance(opened, Npy):  # the other arrays of its folder do not belong to it
                return () if self.label is None else (self.label,)
            return tuple(name for name in opened.names() if name not in self.used)

    def columns(self, names: Sequence[str]) -> dict[str, Array]:
        """Other columns by name, of the rows that were kept; empty cells are masked."""
        with naming(self.path), closing(open_file(self.path)) as opened:
            for name in names:
                if not isinstance(opened, Npy) and name not in opened.names():
                    raise FileError(self.path, f"has no {name!r}; it has {', '.join(opened.names()[:20])}")
            found = opened.read(names)
        rows = self.rows
        if rows is None:
            return found
        # An array of another length, such as the names of classes, is not one of rows.
        return {name: each[rows] if each.ndim == 1 and len(each) > rows.max() else each for name, each in found.items()}
