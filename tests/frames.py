"""Data frames and series of every library that the tests know, made from arrays."""

from collections.abc import Iterable
from typing import Any

import pytest

LIBRARIES = ("pandas", "polars", "pyarrow")


def frame_of(library: str, array: Any, names: Iterable[str]) -> Any:
    """A data frame with these columns."""
    module = pytest.importorskip(library)
    make = module.table if library == "pyarrow" else module.DataFrame
    return make({name: array[:, place] for place, name in enumerate(names)})


def series_of(library: str, values: Any) -> Any:
    """A series of these values."""
    module = pytest.importorskip(library)
    return module.chunked_array([values]) if library == "pyarrow" else module.Series(values)
