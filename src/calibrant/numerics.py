"""Numerical methods of the losses: sums over sorted samples, known gradients, safe roots and logarithms."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.torch_private import is_forward_mode, is_transformed

PLAIN = (Tensor, torch.nn.Parameter)
# Roots below this count as 0: near 0 their slope grows without bound, and a value that small is rounding.
SMALLEST_ROOT = 1e-8
# A tensor, or an array of its values.
Values = Any


def traced() -> bool:
    """Whether operations are compiled, recorded or transformed, so that there may be no values to read."""
    return torch.compiler.is_compiling() or is_transformed()


def readable(tensor: Tensor) -> bool:
    """Whether NumPy can read the values now, without waiting for a device or breaking a graph."""
    return (
        not torch.compiler.is_compiling()
        and type(tensor) in PLAIN
        and tensor.is_cpu
        and not tensor.is_neg()
        and not is_transformed()
        and not is_forward_mode()
    )


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype sums are accumulated in: float64, or float32 if the device has no float64."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def at_least_float32(tensor: Tensor) -> Tensor:
    """Upcast float16 and bfloat16, whose eight to eleven bits of precision are too few for a confidence."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def on_arrays(kernel: Callable[..., tuple[Values, Values]], *given: Tensor | float | None) -> tuple[Tensor, Tensor]:
    """A kernel of tensors or arrays: of arrays if no graph is wanted and these can be read, with less overhead."""
    tensors = [each for each in given if isinstance(each, Tensor)]
    if torch.is_grad_enabled() or tensors[0].dim() != 1 or not all(map(readable, tensors)):
        return kernel(*given)
    with np.errstate(all="ignore"):  # whatever the caller has set
        value, slope = kernel(*(each.detach().numpy() if isinstance(each, Tensor) else each for each in given))
    return torch.from_numpy(np.asarray(value)), torch.from_numpy(slope)


def tie_bounds(ascending: Values) -> tuple[Values, Values]:
    """First and last index of each element's tie group: ``[0, 1, 1]`` and ``[0, 2, 2]`` for 0.2, 0.5, 0.5."""
    if isinstance(ascending, Tensor):
        values = ascending.detach().contiguous()
        return torch.searchsorted(values, values), torch.searchsorted(values, values, right=True) - 1
    index = np.arange(len(ascending))
    differs = ascending[1:] != ascending[:-1]
    if differs.all():
        return index, index
    edges = np.concatenate(([0], index[1:][differs], [len(ascending)]))
    sizes = np.diff(edges)
    return np.repeat(edges[:-1], sizes), np.repeat(edges[1:] - 1, sizes)


def take(values: Values, index: Values) -> Values:
    """The values at an index, along the last dimension."""
    return values.gather(-1, index) if isinstance(values, Tensor) else values[index]


def unsorted(values: Values, order: Values) -> Values:
    """Values of sorted samples, in the order that they had before: ``order`` is that of the sort."""
    if isinstance(values, Tensor):
        return torch.empty_like(values).scatter(-1, order, values)
    before = np.empty_like(values)
    before[order] = values
    return before


def widened(values: Values) -> Values:
    """The values in the dtype that sums are accumulated in."""
    return values.to(accumulation_dtype(values)) if isinstance(values, Tensor) else values.astype(np.float64)


def flipped(values: Values) -> Values:
    """The values in reverse order, along the last dimension."""
    return values.flip(-1) if isinstance(values, Tensor) else values[::-1]


def exclusive_cumsum(values: Values) -> Values:
    """Prefix sums from zero, ``(..., N + 1)``: exact for small terms too, which a subtraction would not be."""
    return shifted(values.cumsum(-1), 1)


def shifted(values: Values, steps: int) -> Values:
    """The values after as many zeros, along the last dimension."""
    return F.pad(values, (steps, 0)) if isinstance(values, Tensor) else np.concatenate((np.zeros(steps), values))


def exponential(values: Values) -> Values:
    """The exponential function of each value."""
    return values.exp() if isinstance(values, Tensor) else np.exp(values)


def with_known_gradient(evaluate: Callable[[Tensor], tuple[Tensor, Tensor]], variable: Tensor) -> Tensor:
    """The value that ``evaluate`` returns beside its gradient, which is cheaper than that of autograd."""
    # Autograd must see the operations, as it must for second derivatives.
    if traced() or is_forward_mode():
        return evaluate(variable)[0]
    with torch.no_grad():
        value, gradient = evaluate(variable)
    if not variable.requires_grad:
        return value
    known: Tensor = _KnownGradient.apply(variable, (value, gradient.to(variable.dtype), evaluate))  # type: ignore[no-untyped-call]
    return known


class _KnownGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, variable: Tensor, known: tuple[Tensor, Tensor, Callable[..., Any]]) -> Tensor:
        value, gradient, ctx.evaluate = known
        ctx.save_for_backward(variable, gradient)
        return value

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        variable, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # as in backward(create_graph=True)
            alias = variable.view_as(variable)  # so that hooks on the variable run once, outside
            (gradient,) = torch.autograd.grad(ctx.evaluate(alias)[0].sum(), alias, create_graph=True)
        return upstream[0].to(gradient.dtype).unsqueeze(-1) * gradient, None


def safe_root(value: Tensor, degree: float = 2.0) -> Tensor:
    """The ``degree``-th root of ``max(value, 0)``, with value and gradient 0 if it is below ``SMALLEST_ROOT``."""
    positive = value > SMALLEST_ROOT**degree
    # This keeps the infinite slope at 0 out of the graph: times a zero gradient it would become NaN.
    inside = torch.where(positive, value, 1.0)
    root = inside.sqrt() if degree == 2 else inside.pow(1.0 / degree)
    return torch.where(positive, root, 0.0)


def root_and_slope(value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """The :func:`safe_root` of a number, and its slope, from those of the number."""
    if not torch.is_grad_enabled() and readable(value):  # operations on a single number are overhead
        root = math.sqrt(value) if value > SMALLEST_ROOT**2 else 0.0
        return value.new_tensor(root), slope * (0.5 / root if root else 0.0)
    rooted = safe_root(value)
    return rooted, slope * torch.where(rooted > 0, 0.5 / rooted, 0.0)


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """``numerator / denominator``, and 0 with zero gradient where the denominator is practically 0."""
    # Below this the derivative, which divides twice, would overflow.
    empty = denominator.abs() < torch.finfo(denominator.dtype).tiny ** 0.5
    return torch.where(empty, 0.0, numerator / torch.where(empty, 1.0, denominator))


def sum_in_any_order(terms: Tensor) -> Tensor:
    """Sums of the rows of ``(N, C)``, rounded alike in any order of the terms, so that equal confidences stay tied."""
    # The rounding of float64 disappears when the quotient is rounded to float32.
    ordered = terms.sort(1).values if terms.dtype == torch.float64 else terms
    return ordered.sum(1, dtype=accumulation_dtype(terms))


def softmax(logits: Tensor) -> Tensor:
    """Softmax of ``(N, C)`` logits in their dtype, in which rows with the same logits have the same probabilities."""
    # The shift is a constant to autograd: it cancels.
    powers = torch.exp(logits - logits.detach().amax(1, keepdim=True))
    return (powers / sum_in_any_order(powers).unsqueeze(1)).to(logits.dtype)


def bounded_power(base: Tensor, exponent: float) -> Tensor:
    """Power of a base in [0, 1] whose first and second derivatives stay finite at 0."""
    smooth = exponent >= 2 or exponent in (0, 1)
    return base.pow(exponent) if smooth else base.clamp_min(torch.finfo(base.dtype).eps).pow(exponent)


def log_softmax(logits: Tensor) -> Tensor:
    """Log-softmax over the last dimension that stays finite when the span of the logits overflows."""
    return F.log_softmax(logits, dim=-1).clamp_min(torch.finfo(logits.dtype).min)
