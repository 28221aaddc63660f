"""Predictions as people hold them, torch tensors, NumPy arrays, data frames or lists, to tensors and back."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant import frames, inputs
from calibrant.frames import class_indices as class_indices
from calibrant.frames import has_names as has_names
from calibrant.frames import in_order as in_order
from calibrant.posthoc.notices import counted

Array = npt.NDArray[Any]


def as_tensor(value: Any, name: str = "logits") -> Tensor:
    """Convert an array, a data frame or a list of numbers to a tensor, without a copy if that is safe."""
    if isinstance(value, Tensor):
        return value
    array = value if type(value) is np.ndarray else _array(value, name)
    if array.dtype == object:
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise TypeError(
                f"{name} must hold numbers, got {type(value).__name__} with values such as {_first(array)!r}: "
                f"pass the columns with the {name} only"
            ) from None
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold numbers, got {type(value).__name__} of {array.dtype}")
    if name == "logits" and array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # A read-only array would make torch warn about writes that never happen.
    return torch.from_numpy(array if array.flags.carray else np.require(array, requirements=["C", "W"]))


def plain(logits: Any, target: Any, ignore_index: int | None) -> tuple[Tensor, Tensor] | None:
    """Tensors of the most common input, arrays in which nothing is to convert, to ignore or to refuse; else None.

    These are finite ``(N, C)`` logits and 64-bit class indices. It takes a third of the time of the general way, which
    matters for some hundred samples.
    """
    if not (type(logits) is np.ndarray and type(target) is np.ndarray and logits.ndim == 2 and target.ndim == 1):
        return None
    count, classes = logits.shape
    usual = logits.dtype in (np.float32, np.float64) and target.dtype == np.int64 and count == len(target) > 0
    if not (usual and classes > 1 and logits.flags.carray and target.flags.carray):
        return None
    if not (ignore_index is None or (type(ignore_index) is int and -(2**63) <= ignore_index < 0)):
        return None
    in_range = target.min() >= 0 and target.max() < classes
    finite = -math.inf < logits.min() and logits.max() < math.inf
    return (torch.from_numpy(logits), torch.from_numpy(target)) if in_range and finite else None


def _array(value: Any, name: str) -> Array:
    if np.ma.is_masked(value):
        raise ValueError(f"{name} has masked values: pass only the rows that count, or a target of ignore_index")
    if frames.opened(value) is None and (hint := inputs.hint_for_logits(value)):
        raise TypeError(f"{name} must be a tensor, an array or a data frame, got {type(value).__name__}: {hint}")
    try:
        return frames.as_array(value)
    except ValueError:
        raise ValueError(f"all rows of {name} must have the same length{_lengths(value)}") from None


def _lengths(rows: Any) -> str:
    """Where the lengths of rows differ, as a part of a message."""
    lengths = [len(row) if isinstance(row, Sequence | np.ndarray) else 1 for row in rows]
    other = next((place for place, length in enumerate(lengths) if length != lengths[0]), None)
    return "" if other is None else f", got {lengths[0]} in row 0 and {lengths[other]} in row {other}"


def like(given: Any, result: Tensor, columns: Any = None) -> Any:
    """Convert a result to the kind of container that the logits came in.

    Args:
        given: The logits as the user passed them.
        result: Tensor to convert.
        columns: Names of the columns, if the result is to become a data frame.
    """
    return result if isinstance(given, Tensor) else frames.like(given, result.cpu().numpy(), columns)


def whole_numbers(values: Tensor, given: Any) -> Tensor:
    """Targets of an array or a data frame that are whole numbers stored as floats, as integers."""
    if isinstance(given, Tensor) or not values.is_floating_point():
        return values
    if missing := int(values.isnan().sum()):
        raise ValueError(f"target has {counted(missing, 'missing value')} (NaN): leave out samples without a target")
    if not bool((values == values.round()).all()):
        return values
    return values.long()


def names_in(target: Any, logits: Any, count: int) -> list[Any]:
    """Labels of the columns: the names of a data frame's columns if the targets are among them, else sorted targets.

    A single column is that of the second of two classes, and if it has the name of a target, that is the second.
    """
    values = set(frames.as_array(target).ravel().tolist())
    columns = frames.columns(logits)
    if columns and values <= set(columns) and len(columns) == count:
        return columns
    if len(columns) == 1 and len(values) == 2 and columns[0] in values:
        return [*(values - set(columns)), *columns]
    if len(values) != count:
        raise ValueError(
            f"target holds {counted(len(values), 'different label')}, but the logits have {count} classes: "
            "pass classes= with the label of every column of the logits, in their order"
        )
    try:
        return sorted(values)
    except TypeError:
        raise ValueError(
            "target holds labels of different types, such as a name and None: leave samples without a label out, or "
            "pass classes="
        ) from None


def _first(array: Array) -> object:
    values = array.ravel()
    return next((value for value in values if not isinstance(value, int | float)), values[0] if len(values) else None)
