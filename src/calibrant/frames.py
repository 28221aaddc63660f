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
    """A data frame or a series behind narwhals' interface; None if it is neither. A lazy frame is a ``TypeError``."""
    if value is None or isinstance(value, PLAIN) or is_tensor(value):
        return None
    import narwhals.stable.v1 as nw

    found = nw.from_native(value, pass_through=True, allow_series=True)
    if isinstance(found, nw.LazyFrame):
        raise TypeError(f"a {type(value).__name__} has no values yet: collect it into a data frame first")
    return found if isinstance(found, nw.DataFrame | nw.Series) else None


def as_array(value: Any, name: str = "values") -> Marks:
    """A data frame, a series, a list or an array as a NumPy array; what is missing becomes NaN or None."""
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
    """An array as the kind of data frame or series that was given, if any, with its index, and these or its names."""
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
    """A data frame of these columns, of the library ``backend``; by default of the first one that is installed."""
    installed = [name for name in ("pandas", "polars", "pyarrow") if find_spec(name) is not None]
    if backend is None and not installed:
        raise ImportError("a data frame needs pandas, polars or pyarrow: install one of them")
    import narwhals.stable.v1 as nw

    chosen: Any = installed[0] if backend is None else backend
    return nw.from_dict(data, backend=chosen).to_native()


def columns_of(results: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """A column for each field of results of one data class; of an interval three; other results are left out."""
    found: dict[str, Sequence[Any]] = {}
    for field in fields(results[0]):
        values = [getattr(result, field.name) for result in results]
        if not is_dataclass(values[0]):
            found[field.name] = values
        elif hasattr(values[0], "low"):
            ends = {"": "value", "_low": "low", "_high": "high"}
            found |= {field.name + end: [getattr(value, part) for value in values] for end, part in ends.items()}
    return found
