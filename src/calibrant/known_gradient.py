"""Value and gradient at once: the short way for eager training on a CPU.

On a batch of hundreds, torch spends more on bookkeeping than on arithmetic. NumPy has less of it. What is
here repeats, as closed forms in NumPy, what :mod:`calibrant.numerics` says in differentiable torch; a test
holds the two together.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.numerics import SMALLEST_ROOT, readable, safe_root

Array = np.ndarray[tuple[int, ...], np.dtype[np.floating[Any]]]
IndexArray = np.ndarray[tuple[int, ...], np.dtype[np.intp]]
# 0 and 1 in any type.
Marks = np.ndarray[tuple[int, ...], Any]
# (confidence, correct) to value and gradient with respect to the confidence.
ClosedForm = Callable[[Array, Marks], tuple[float, Array]]


def wants_known_gradient(variable: Tensor) -> bool:
    """Whether a closed-form gradient pays: eager training on a CPU."""
    return variable.requires_grad and torch.is_grad_enabled() and readable(variable)


def with_known_gradient(
    variable: Tensor,
    closed_form: Callable[[Array], tuple[float, Array]],
    plain: Callable[[Tensor], Tensor],
    *,
    root: bool = False,
) -> Tensor:
    """Return a scalar function of ``variable`` whose gradient is computed beside its value.

    Args:
        variable: What to differentiate by, for which :func:`wants_known_gradient` holds.
        closed_form: Returns value and gradient as float64.
        plain: The same function in differentiable torch; used where the gradient itself is differentiated.
        root: Return the :func:`safe_root` of the value.
    """
    value: Tensor = _KnownGradient.apply(variable, closed_form, plain, root)  # type: ignore[no-untyped-call]
    return value


class _KnownGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        variable: Tensor,
        closed_form: Callable[[Array], tuple[float, Array]],
        plain: Callable[[Tensor], Tensor],
        root: bool,
    ) -> Tensor:
        array = variable.detach().numpy()
        # The power of a vast negative logit is 0, whatever the caller has told NumPy to say to that.
        with np.errstate(over="ignore", under="ignore"):
            value, gradient = closed_form(array)
            if root:
                value = math.sqrt(value) if value > SMALLEST_ROOT**2 else 0.0
                gradient *= 0.5 / value if value else 0.0
            gradient = gradient.astype(array.dtype, copy=False)
        ctx.save_for_backward(variable, torch.from_numpy(gradient))
        ctx.plain, ctx.root = plain, root
        return torch.tensor(value, dtype=variable.dtype, device=variable.device)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        variable, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # as in backward(create_graph=True)
            alias = variable.view_as(variable)  # so that hooks on the variable run once, outside
            value = safe_root(ctx.plain(alias)) if ctx.root else ctx.plain(alias)
            (gradient,) = torch.autograd.grad(value, alias, create_graph=True)
        return upstream[0] * gradient, None, None, None


def through_softmax(logits: Array, target: IndexArray, closed_form: ClosedForm) -> tuple[float, Array]:
    """Value and gradient with respect to ``(N, C)`` logits of a closed form of (confidence, correct) pairs."""
    predicted = logits.argmax(1)
    rows = np.arange(len(logits))
    powers = np.exp(logits - logits[rows, predicted][:, np.newaxis])
    # Ties must survive the order of the classes: see numerics.softmax_parts.
    terms = np.sort(powers, 1) if powers.dtype == np.float64 else powers
    confidence = (1 / terms.sum(1, dtype=np.float64)).astype(logits.dtype)
    value, slope = closed_form(confidence, predicted == target)
    # d confidence / d logit k = confidence (1[k is predicted] - p_k), with p = powers * confidence.
    slope = slope * confidence
    gradient = powers * (-slope * confidence)[:, np.newaxis]
    gradient[rows, predicted] += slope
    return value, gradient


def tie_bounds_of_array(ascending: Array) -> tuple[IndexArray, IndexArray]:
    """Return what :func:`tie_bounds` does, for a NumPy array of one dimension."""
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
    if first is last:  # nobody is tied but with themselves
        return down * growing[:-1], weight, up * shrinking[1:]
    prefix = np.zeros(len(position) + 1)
    np.cumsum(weight, out=prefix[1:])
    return down * growing[first], prefix[last + 1] - prefix[first], up * shrinking[last + 1]
