"""Predictions as people hold them, torch tensors, NumPy arrays, data frames or lists, to tensors and back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant import hints

Array = npt.NDArray[Any]


def is_frame(value: object) -> bool:
    """Whether this is a data frame or a series of pandas, or of a library that works like it."""
    return hasattr(value, "to_numpy") and hasattr(value, "index")


def as_tensor(value: Any, name: str = "logits") -> Tensor:
    """Convert an array, a data frame or a list of numbers to a tensor, without a copy if that is safe."""
    if isinstance(value, Tensor):
        return value
    if hint := hints.of_logits(value):
        raise TypeError(f"{name} must be a tensor, an array or a data frame, got {type(value).__name__}: {hint}")
    array = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
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
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    # A read-only array would make torch warn about writes that never happen.
    return torch.from_numpy(np.require(native, requirements=["C", "W"]))


def like(given: Any, result: Tensor, columns: Any = None) -> Any:
    """Convert a result to the kind of container that the logits came in.

    Args:
        given: The logits as the user passed them.
        result: Tensor to convert.
        columns: Names of the columns, if the result is to become a data frame.
    """
    if isinstance(given, Tensor):
        return result
    array = result.cpu().numpy()
    if not is_frame(given) or array.ndim > 2:
        return array
    if array.ndim == 1:
        return type(given)(array, index=given.index)
    frame = type(given) if given.ndim == 2 else type(given.to_frame())
    return frame(array, index=given.index, columns=columns)


def in_order(frame: Any, labels: Sequence[Any] | None) -> Any:
    """A data frame with its columns in the order of the labels, if these are their names; else as it is.

    Raises:
        ValueError: If only some of the labels are names of columns.
    """
    columns = list(getattr(frame, "columns", ()))
    names = list(range(len(columns))) if labels is None else list(labels)
    if not columns or columns == names or not set(columns) & set(names):
        return frame
    if set(columns) != set(names):
        raise ValueError(
            f"the columns {columns} are not the classes {names} that it was fitted on: name all columns after the "
            "classes, or none"
        )
    return frame[names]


def whole_numbers(values: Tensor, given: Any) -> Tensor:
    """Targets of an array or a data frame that are whole numbers stored as floats, as integers."""
    if isinstance(given, Tensor) or not values.is_floating_point() or not bool((values == values.round()).all()):
        return values
    return values.long()


def class_indices(target: Any, labels: Sequence[Any], ignore_index: int | None = None) -> Tensor:
    """Positions of the targets in ``labels``; raises ``ValueError`` for one that is not among them."""
    array = target.detach().cpu().numpy() if isinstance(target, Tensor) else np.asarray(target)
    place = {label: index for index, label in enumerate(labels)}
    if ignore_index is not None:
        place.setdefault(ignore_index, ignore_index)
    try:
        indices = [place[label] for label in array.ravel().tolist()]
    except KeyError as unknown:
        known = ", ".join(repr(label) for label in list(labels)[:5]) + (", ..." if len(labels) > 5 else "")
        raise ValueError(
            f"target holds {unknown.args[0]!r}, which is not one of the {len(labels)} classes {known}: "
            "pass classes= with the label of every column of the logits, in their order"
        ) from None
    found = torch.tensor(indices, dtype=torch.long).reshape(array.shape)
    return found.to(target.device) if isinstance(target, Tensor) else found


def has_names(target: Any) -> bool:
    """Whether the targets are names, strings for example, rather than numbers."""
    if isinstance(target, Tensor):
        return False
    kind = getattr(target, "dtype", None)
    array = np.asarray(target) if kind is None or not hasattr(kind, "kind") else target
    if array.dtype.kind == "O":
        values = np.asarray(array).ravel()
        return len(values) > 0 and not all(isinstance(value, int | float | np.number) for value in values[:100])
    return bool(array.dtype.kind not in "biuf")


def names_in(target: Any, logits: Any, count: int) -> list[Any]:
    """Labels of the columns: the names of a data frame's columns if the targets are among them, else sorted targets."""
    values = set(np.asarray(target).ravel().tolist())
    columns = [] if not hasattr(logits, "columns") else list(logits.columns)
    if columns and values <= set(columns):
        return columns
    if len(values) != count:
        raise ValueError(
            f"target holds {len(values)} different labels, but the logits have {count} classes: "
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
