"""Predictions as people hold them, torch tensors, NumPy arrays, data frames or lists, to tensors and back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant import frames, hints

Array = npt.NDArray[Any]


def as_tensor(value: Any, name: str = "logits") -> Tensor:
    """Convert an array, a data frame or a list of numbers to a tensor, without a copy if that is safe."""
    if isinstance(value, Tensor):
        return value
    if frames.opened(value) is None and (hint := hints.of_logits(value)):
        raise TypeError(f"{name} must be a tensor, an array or a data frame, got {type(value).__name__}: {hint}")
    array = frames.as_array(value)
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
    return result if isinstance(given, Tensor) else frames.like(given, result.cpu().numpy(), columns)


def in_order(given: Any, labels: Sequence[Any] | None) -> Any:
    """Values of a data frame with its columns in the order of the labels, if these are their names; else as given.

    Raises:
        ValueError: If only some of the labels are names of columns.
    """
    columns = [str(name) for name in frames.columns(given)]
    names = [str(label) for label in (range(len(columns)) if labels is None else labels)]
    if len(columns) < 2 or columns == names or not set(columns) & set(names):
        return given
    if set(columns) != set(names):
        raise ValueError(
            f"the columns {columns} are not the classes {names} that it was fitted on: name all columns after the "
            "classes, or none"
        )
    return frames.as_array(given)[:, [columns.index(name) for name in names]]


def whole_numbers(values: Tensor, given: Any) -> Tensor:
    """Targets of an array or a data frame that are whole numbers stored as floats, as integers."""
    if isinstance(given, Tensor) or not values.is_floating_point() or not bool((values == values.round()).all()):
        return values
    return values.long()


def class_indices(target: Any, labels: Sequence[Any], ignore_index: int | None = None) -> Tensor:
    """Positions of the targets in ``labels``; raises ``ValueError`` for one that is not among them."""
    array = frames.as_array(target)
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
    array = frames.as_array(target)
    if array.dtype.kind == "O":
        values = array.ravel()
        return len(values) > 0 and not all(isinstance(value, int | float | np.number) for value in values[:100])
    return bool(array.dtype.kind not in "biuf")


def names_in(target: Any, logits: Any, count: int) -> list[Any]:
    """Labels of the columns: the names of a data frame's columns if the targets are among them, else sorted targets."""
    values = set(frames.as_array(target).ravel().tolist())
    columns = frames.columns(logits)
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
