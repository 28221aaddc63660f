"""Cells of columns as numbers: text that holds numbers, true and false, percent signs, lists."""

import re
from typing import Any

import numpy as np

from calibrant.files.arrays import Array
from calibrant.metrics.columns import RIGHT

WORDS = {"true": 1.0, "false": 0.0}


def filled(name: str, column: Array) -> Array:
    """A column without a mask.

    Raises:
        ValueError: If it has empty cells.
    """
    missing = int(np.ma.getmaskarray(column).sum()) if np.ma.isMaskedArray(column) else 0
    if missing:
        raise ValueError(empty(name, missing))
    array: Array = np.ma.getdata(column)
    return array


def empty(name: str, missing: int) -> str:
    """Error of a column with empty cells.

    Example:
        >>> empty("label", 1)
        "column 'label' has 1 empty value: fill or drop its row"
    """
    rest = " empty value: fill or drop its row" if missing == 1 else " empty values: fill or drop their rows"
    return f"column {name!r} has {missing:,}{rest}"


def is_text(column: Array) -> bool:
    """Whether a column holds text."""
    return column.dtype.kind in "OUS"


def numbers_of(name: str, column: Array) -> Array:
    """Numbers of a column; those of text are parsed.

    Raises:
        ValueError: If a cell is empty or holds no number; the message names it.

    Example:
        >>> import numpy as np
        >>> numbers_of("confidence", np.array(["90%", "65 %"], dtype=object))
        array([90., 65.])
        >>> numbers_of("probabilities", np.array(["[0.9, 0.1]", "[0.5 0.5]"], dtype=object))
        array([[0.9, 0.1],
               [0.5, 0.5]])
    """
    if not is_text(column):
        return filled(name, column)
    for row, cell in enumerate(np.ma.getdata(column).tolist(), 1):
        if cell is not None and not isinstance(cell, str):
            raise ValueError(f"column {name!r} must hold numbers, got {type(cell).__name__} in row {row}")
    cells = [cell.strip() for cell in filled(name, column).tolist()]
    if cells and all(cell.startswith("[") for cell in cells):
        return _lists(name, cells)
    return np.array([_number(name, row, cell.removesuffix("%")) for row, cell in enumerate(cells, 1)])


def correctness_of(name: str, column: Array) -> Array:
    """1 where a prediction is right and 0 where it is wrong; also in words.

    Example:
        >>> import numpy as np
        >>> correctness_of("correct", np.array(["Yes", "no"], dtype=object))
        array([1., 0.])
    """
    if is_text(column):
        cells = [str(cell).strip() for cell in filled(name, column).tolist()]
        column = np.array([RIGHT.get(cell.lower(), cell) for cell in cells], dtype=object)
    return numbers_of(name, column)


def _number(name: str, row: int, cell: str) -> float:
    try:
        return WORDS[cell.lower()] if cell.lower() in WORDS else float(cell)
    except ValueError:
        raise ValueError(f"column {name!r} must hold a number in every row; row {row} has {cell!r}") from None


def _lists(name: str, cells: list[str]) -> Array:
    """Lists of numbers, as Python and NumPy print them."""
    rows = [
        [_number(name, row, part) for part in re.split(r"[\s,]+", cell.strip("[] \n")) if part]
        for row, cell in enumerate(cells, 1)
    ]
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise ValueError(f"lists in column {name!r} must have one length, got {sorted(lengths)[:5]}")
    return np.array(rows)


def alike(prediction: Array, target: Array) -> tuple[Array, tuple[str, ...]]:
    """Where two columns of classes agree, and a notice if capital letters were ignored.

    Raises:
        ValueError: If they name classes in different ways.
    """
    if is_text(prediction) != is_text(target):
        raise ValueError("names classes in two ways: the prediction and the target must both be names or both numbers")
    if not is_text(prediction):
        return prediction == target, ()
    one, other = ([str(cell).strip() for cell in column.tolist()] for column in (prediction, target))
    exact, small = (np.array([fold(a) == fold(b) for a, b in zip(one, other, strict=True)], bool)
                    for fold in (str, str.lower))  # fmt: skip
    if not set(map(str.lower, one)) & set(map(str.lower, other)):
        raise ValueError(f"no prediction is ever a class of the target: it has {_few(one)} against {_few(other)}")
    notices = () if (exact == small).all() else ("capital letters of predicted and true classes are ignored",)
    return small, notices


def _few(cells: list[Any]) -> str:
    found = sorted(set(cells))
    return ", ".join(map(repr, found[:3])) + ", ..." * (len(found) > 3)
