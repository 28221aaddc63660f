"""Containers: tensors without importing torch, and data frames and series of any library, to NumPy arrays and back."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Array = np.ndarray[tuple[int, ...], np.dtype[np.floating[Any]]]
IndexArray = np.ndarray[tuple[int, ...], np.dtype[np.intp]]
# An array of any type, such as 0 and 1.
Marks = np.ndarray[tuple[int, ...], Any]
PLAIN = (np.ndarray, list, tuple, Mapping, int, float)


def is_tensor(value: object) -> "TypeGuard[Tensor]":
    """Whether this is a torch tensor; if nobody has imported torch, it is not."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def of_tensor(tensor: "Tensor", name: str = "values") -> np.ndarray[Any, Any]:
    """The values of a tensor on any device; bfloat16, which NumPy does not have, as float32."""
    if tensor.layout != sys.modules["torch"].strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else str(tensor.layout)
        raise TypeError(f"{name} must be a dense tensor, got {kind}: call {name}.to_dense() or pad it")
    plain = tensor.detach().cpu().resolve_neg().resolve_conj()
    array: np.ndarray[Any, Any] = (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()
    return array


def opened(value: Any) -> Any:
    """Return a data frame or a series behind narwhals' interface; None if it is neither.

    Raises:
        TypeError: If it is a lazy frame, whose values are not there yet.
    """
    if value is None or isinstance(value, PLAIN) or is_tensor(value):
        return None
    import narwhals.stable.v1 as nw

    found = nw.from_native(value, pass_through=True, allow_series=True)
    if isinstance(found, nw.LazyFrame):
        raise TypeError(f"a {type(value).__name__} has no values yet: collect it into a data frame first")
    return found if isinstance(found, nw.DataFrame | nw.Series) else None


def as_array(value: Any, name: str = "values") -> Marks:
    """Convert a data frame, a series, a list or an array to a NumPy array; what is missing becomes NaN or None."""
    if is_tensor(value):
        return of_tensor(value, name)
    frame = opened(value)
    array: Marks = np.asarray(value) if frame is None else frame.to_numpy()
    return array


def columns(value: Any) -> list[Any]:
    """Names of the columns of a data frame; none for anything else."""
    frame = opened(value)
    return list(getattr(frame, "columns", ()))


def like(given: Any, array: Marks, names: Sequence[Any] | None = None) -> Any:
    """Convert an array to the kind of data frame or series that was given; leave it as it is if none was.

    Args:
        given: A data frame or a series; an index, as pandas has it, is kept.
        array: ``(N,)`` for a series or ``(N, C)`` for a data frame.
        names: Names of the columns; if they are not as many as the columns, these keep the names they had.
    """
    frame = opened(given)
    if frame is None or array.ndim > 2:
        return array
    if names is not None and array.ndim == 2 and len(names) != array.shape[1]:
        names = columns(given)
    if frame.implementation.is_pandas_like():
        if array.ndim == 1:
            return type(given)(array, index=given.index)
        return (type(given) if given.ndim == 2 else type(given.to_frame()))(array, index=given.index, columns=names)
    import narwhals.stable.v1 as nw

    if array.ndim == 1:
        return nw.new_series(str(getattr(frame, "name", "")), array, backend=frame.implementation).to_native()
    texts = [str(name) for name in (range(array.shape[1]) if names is None else names)]
    return nw.from_numpy(np.ascontiguousarray(array), texts, backend=frame.implementation).to_native()


def made(data: Mapping[str, Sequence[Any]], backend: str | None = None) -> Any:
    """Return a data frame of these columns.

    Args:
        data: Values of each column.
        backend: Library of the frame; by default the first of pandas, polars and pyarrow that is installed.
    """
    installed = [name for name in ("pandas", "polars", "pyarrow") if find_spec(name) is not None]
    if backend is None and not installed:
        raise ImportError("a data frame needs pandas, polars or pyarrow: install one of them")
    import narwhals.stable.v1 as nw

    chosen: Any = installed[0] if backend is None else backend
    return nw.from_dict(data, backend=chosen).to_native()


def columns_of(results: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Return a column for each field of results of one data class; of an interval its value and both ends.

    Fields that are other results, such as a test, are left out.
    """
    found: dict[str, Sequence[Any]] = {}
    for field in fields(results[0]):
        values = [getattr(result, field.name) for result in results]
        if not is_dataclass(values[0]):
            found[field.name] = values
        elif hasattr(values[0], "low"):
            ends = {"": "value", "_low": "low", "_high": "high"}
            found |= {field.name + end: [getattr(value, part) for value in values] for end, part in ends.items()}
    return found


def in_order(given: Any, labels: Sequence[Any] | None) -> Any:
    """Values of a data frame with its columns in the order of the labels, if these are their names; else as given.

    Raises:
        ValueError: If only some of the labels are names of columns.
    """
    own = [str(name) for name in columns(given)]
    names = [str(label) for label in (range(len(own)) if labels is None else labels)]
    if len(own) < 2 or own == names or not set(own) & set(names):
        return given
    if set(own) != set(names):
        raise ValueError(f"the columns {own} are not the classes {names}: name all columns after the classes, or none")
    return as_array(given)[:, [own.index(name) for name in names]]


def class_indices(target: Any, labels: Sequence[Any], ignore_index: int | None = None) -> Marks:
    """Positions of the targets in ``labels``; raises ``ValueError`` for one that is not among them."""
    array = as_array(target)
    place = {label: index for index, label in enumerate(labels)}
    if ignore_index is not None:
        place.setdefault(ignore_index, ignore_index)
    try:
        indices = [place[label] for label in array.ravel().tolist()]
    except KeyError as unknown:
        known = ", ".join(repr(label) for label in list(labels)[:5]) + (", ..." if len(labels) > 5 else "")
        raise ValueError(
            f"target holds {unknown.args[0]!r}, which is not one of the {len(labels)} classes {known}: "
            "pass classes= with the label of every column, in their order"
        ) from None
    return np.array(indices, dtype=np.int64).reshape(array.shape)


def has_names(target: Any) -> bool:
    """Whether the targets are names, strings for example, rather than numbers."""
    if is_tensor(target):
        return False
    array = target if type(target) is np.ndarray else as_array(target)
    if array.dtype.kind == "O":
        values = array.ravel()
        return len(values) > 0 and not all(isinstance(value, int | float | np.number) for value in values[:100])
    return array.dtype.kind not in "biuf"
