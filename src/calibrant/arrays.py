"""NumPy arrays: their types, conversion of tensors without importing torch, and sums over sorted samples."""

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Array = np.ndarray[tuple[int, ...], np.dtype[np.floating[Any]]]
IndexArray = np.ndarray[tuple[int, ...], np.dtype[np.intp]]
# 0 and 1 in any type.
Marks = np.ndarray[tuple[int, ...], Any]


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


def tie_bounds_of_array(ascending: Array) -> tuple[IndexArray, IndexArray]:
    """Like :func:`calibrant.numerics.tie_bounds`, for a one-dimensional NumPy array."""
    differs = ascending[1:] != ascending[:-1]
    if differs.all():
        each_alone = np.arange(len(ascending))
        return each_alone, each_alone
    edges = np.concatenate(([0], np.flatnonzero(differs) + 1, [len(ascending)]))
    sizes = np.diff(edges)
    return np.repeat(edges[:-1], sizes), np.repeat(edges[1:] - 1, sizes)


def laplace_sums_of_array(position: Array, weight: Array, bandwidth: float) -> tuple[Array, Array, Array]:
    """Kernel-weighted sums over the samples below, tied with and above each one, positions ascending."""
    first, last = tie_bounds_of_array(position)
    up = np.exp((position - 0.5) / bandwidth)
    down = 1 / up
    growing, shrinking = np.zeros((2, len(position) + 1))
    np.cumsum(weight * up, out=growing[1:])
    shrinking[:-1] = (weight * down)[::-1].cumsum()[::-1]
    if first is last:  # there are no ties
        return down * growing[:-1], weight, up * shrinking[1:]
    prefix = np.zeros(len(position) + 1)
    np.cumsum(weight, out=prefix[1:])
    return down * growing[first], prefix[last + 1] - prefix[first], up * shrinking[last + 1]
