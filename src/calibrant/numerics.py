"""The one home of numerical tricks: tie groups, the Laplace-kernel form, safe roots and logarithms.

Everything here is plain differentiable torch, so that autograd gives exact first and second derivatives
and ``torch.compile`` and ``torch.func`` see through it. Where nothing but speed is wanted of the first
derivative, :func:`with_known_gradient` takes it from a closed form instead.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Array = np.ndarray[tuple[int, ...], np.dtype[np.floating[Any]]]
IndexArray = np.ndarray[tuple[int, ...], np.dtype[np.intp]]
# (confidence, correct) to value and gradient with respect to the confidence.
ClosedForm = Callable[[Array, np.ndarray[tuple[int, ...], Any]], tuple[float, Array]]

# Roots below this count as 0: next to 0 their slope grows without bound, and a value that small is
# rounding, not miscalibration.
SMALLEST_ROOT = 1e-8


def traced() -> bool:
    """Whether ``torch.compile`` or a ``torch.func`` transform is looking on."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype sums are accumulated in: float64, or float32 where the device has no other."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def at_least_float32(tensor: Tensor) -> Tensor:
    """Upcast float16 and bfloat16, whose eight to eleven bits of precision cannot hold a confidence."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def wants_known_gradient(variable: Tensor) -> bool:
    """Whether a closed-form gradient pays: eager training on a CPU."""
    return variable.device.type == "cpu" and variable.requires_grad and torch.is_grad_enabled() and not traced()


def with_known_gradient(
    variable: Tensor,
    closed_form: Callable[[Array], tuple[float, Array]],
    plain: Callable[[Tensor], Tensor],
    *,
    root: bool = False,
) -> Tensor:
    """Return a scalar function of ``variable`` whose gradient is computed beside its value.

    On a batch of hundreds, torch spends more on bookkeeping than on arithmetic. NumPy has less of it.

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
        value, gradient = closed_form(array)
        if root:
            value = math.sqrt(value) if value > SMALLEST_ROOT**2 else 0.0
            gradient *= 0.5 / value if value else 0.0
        ctx.save_for_backward(variable, torch.from_numpy(gradient.astype(array.dtype, copy=False)))
        ctx.plain, ctx.root = plain, root
        return torch.tensor(value, dtype=variable.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        variable, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # as in backward(create_graph=True)
            value = safe_root(ctx.plain(variable)) if ctx.root else ctx.plain(variable)
            (gradient,) = torch.autograd.grad(value, variable, create_graph=True)
        return upstream[0] * gradient, None, None, None


def through_softmax(logits: Array, target: IndexArray, closed_form: ClosedForm) -> tuple[float, Array]:
    """Value and gradient with respect to ``(N, C)`` logits of a closed form of (confidence, correct) pairs."""
    predicted = logits.argmax(1)
    rows = np.arange(len(logits))
    with np.errstate(over="ignore"):  # a span beyond the largest number is minus infinity, whose power is 0
        powers = np.exp(logits - logits[rows, predicted][:, np.newaxis])
    confidence = 1 / powers.sum(1)
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


def tie_bounds(ascending: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last index of each element's tie group, along the last dimension.

    Args:
        ascending: Values in ascending order, shape ``(..., N)``.

    Example:
        >>> tie_bounds(torch.tensor([0.2, 0.5, 0.5, 0.9]))
        (tensor([0, 1, 1, 3]), tensor([0, 2, 2, 3]))
    """
    values = ascending.detach().contiguous()
    first = torch.searchsorted(values, values)
    last = torch.searchsorted(values, values, right=True) - 1
    return first, last


def exclusive_cumsum(values: Tensor) -> Tensor:
    """Prefix sums that start at zero: ``(..., N)`` becomes ``(..., N + 1)``.

    Padding rather than subtracting the element again keeps small terms beside large ones exact.
    """
    return F.pad(values.cumsum(-1), (1, 0))


def laplace_quadratic_form(position: Tensor, weight: Tensor, bandwidth: float) -> Tensor:
    r"""Exact :math:`\sum_{ij} w_i w_j \exp(-|x_i - x_j| / \phi)` in :math:`O(N \log N)`.

    Sorted, the kernel factorises into :math:`e^{-x_i/\phi} e^{x_j/\phi}` for :math:`x_j < x_i`, so
    one prefix sum serves all pairs. Pairs of tied positions are summed apart, with the kernel a
    constant 1: the slope of :math:`|\cdot|` at 0 is 0, and autograd must not see their positions.

    Args:
        position: Positions in [0, 1], shape ``(..., N)``.
        weight: Signed weights, same shape.
        bandwidth: Kernel width :math:`\phi`.
    """
    position, order = position.sort(dim=-1)
    weight = weight.gather(-1, order)
    first, last = tie_bounds(position)
    below = _decayed_sum_below(position, weight, first, bandwidth)
    prefix = exclusive_cumsum(weight)
    tied = prefix.gather(-1, last + 1) - prefix.gather(-1, first)
    return (weight * (2 * below + tied)).sum(-1)


def _decayed_sum_below(position: Tensor, weight: Tensor, first: Tensor, bandwidth: float) -> Tensor:
    """Sum w_j exp(-(x_i - x_j) / bandwidth) over all x_j strictly below x_i, positions ascending."""
    if exponential_is_safe(bandwidth, position.dtype):
        growth = (position - 0.5) / bandwidth
        prefix = exclusive_cumsum(weight * torch.exp(growth))
        return torch.exp(-growth) * prefix.gather(-1, first)
    # Doubling scan: after step k each element holds its 2^k predecessors. Nothing ever grows.
    total = weight
    step = 1
    while step < position.shape[-1]:
        decay = torch.exp((position[..., :-step] - position[..., step:]) / bandwidth)
        total = total + F.pad(decay * total[..., :-step], (step, 0))
        step *= 2
    before = (first - 1).clamp_min(0)
    decay = torch.exp((position.gather(-1, before) - position) / bandwidth)
    return torch.where(first > 0, decay * total.gather(-1, before), 0.0)


def exponential_is_safe(bandwidth: float, dtype: torch.dtype) -> bool:
    """Whether exp(x / bandwidth) stays in range for positions in [0, 1], centred.

    Positions span at most 1, so the bandwidth alone tells: a static choice that costs no look at the data.
    """
    return bandwidth * (1000.0 if dtype == torch.float64 else 100.0) >= 1.0


def laplace_sums_of_array(position: Array, weight: Array, bandwidth: float) -> tuple[Array, Array, Array]:
    """Kernel-weighted sums over the samples below, tied with and above each one, positions ascending."""
    first, last = tie_bounds_of_array(position)
    up = np.exp((position - 0.5) / bandwidth)
    down = 1 / up
    prefix, growing, shrinking = np.zeros((3, len(position) + 1))
    np.cumsum(weight, out=prefix[1:])
    np.cumsum(weight * up, out=growing[1:])
    shrinking[:-1] = (weight * down)[::-1].cumsum()[::-1]
    return down * growing[first], prefix[last + 1] - prefix[first], up * shrinking[last + 1]


def safe_root(value: Tensor, degree: float = 2.0) -> Tensor:
    """The ``degree``-th root of ``max(value, 0)``, with value and gradient 0 where ``value <= 0``.

    So it is for roots below ``SMALLEST_ROOT``. The inner ``where`` keeps the infinite slope at 0 out of
    the graph: multiplied by a zero gradient it would become NaN.

    Example:
        >>> x = torch.tensor([4.0, 0.0, -1.0], requires_grad=True)
        >>> root = safe_root(x); root.sum().backward(); root.detach(), x.grad
        (tensor([2., 0., 0.]), tensor([0.2500, 0.0000, 0.0000]))
    """
    positive = value > SMALLEST_ROOT**degree
    inside = torch.where(positive, value, 1.0)
    root = inside.sqrt() if degree == 2 else inside.pow(1.0 / degree)
    return torch.where(positive, root, 0.0)


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """``numerator / denominator``, and 0 with zero gradient where the denominator is as good as 0.

    Below the root of the smallest normal number the derivative, which divides twice, would overflow.
    """
    empty = denominator.abs() < torch.finfo(denominator.dtype).tiny ** 0.5
    return torch.where(empty, 0.0, numerator / torch.where(empty, 1.0, denominator))


def log_softmax(logits: Tensor) -> Tensor:
    """Log-softmax over the last dimension that stays finite when the span of the logits overflows."""
    return F.log_softmax(logits, dim=-1).clamp_min(torch.finfo(logits.dtype).min)


def entropy(probabilities: Tensor) -> Tensor:
    """Shannon entropy in nats over the last dimension, with a finite gradient at probability 0."""
    tiny = torch.finfo(probabilities.dtype).tiny
    return -(probabilities * probabilities.clamp_min(tiny).log()).sum(-1)
