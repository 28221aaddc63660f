"""Data frames and series of any library, such as pandas, polars and Arrow, to NumPy arrays and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

Array = np.ndarray[tuple[int, ...], Any]


def opened(value: Any) -> Any:
    """Return a data frame or a series behind narwhals' interface; None if it is neither.

    Raises:
        TypeError: If it is a lazy frame, whose values are not there yet.
    """
    if value is None or isinstance(value, Tensor | np.ndarray | list | tuple | Mapping | int | float):
        return None
    import narwhals.stable.v2 as nw

    found = nw.from_native(value, pass_through=True, allow_series=True)
    if isinstance(found, nw.LazyFrame):
        raise TypeError(f"a {type(value).__name__} has no values yet: collect it into a data frame first")
    return found if isinstance(found, nw.DataFrame | nw.Series) else None


def as_array(value: Any) -> Array:
    """Convert a data frame, a series, a list or an array to a NumPy array; what is missing becomes NaN or None."""
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    frame = opened(value)
    array: Array = np.asarray(value) if frame is None else frame.to_numpy()
    return array


def columns(value: Any) -> list[Any]:
    """Names of the columns of a data frame; none for anything else."""
    frame = opened(value)
    return list(getattr(frame, "columns", ()))


def like(given: Any, array: Array, names: Sequence[Any] | None = None) -> Any:
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
    import narwhals.stable.v2 as nw

    if array.ndim == 1:
        return nw.new_series(str(getattr(frame, "name", "")), array, backend=frame.implementation).to_native()
    texts = [str(name) for name in (range(array.shape[1]) if names is None else names)]
    return nw.DataFrame.from_numpy(np.ascontiguousarray(array), texts, backend=frame.implementation).to_native()
