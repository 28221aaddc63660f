"""Numerical methods of the losses: tie groups, known gradients, safe roots and logarithms.

Everything here is differentiable torch, so that second derivatives are exact too, and ``torch.compile`` and
``torch.func`` see through it.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.torch_private import is_forward_mode, is_transformed

PLAIN = (Tensor, torch.nn.Parameter)
# Roots below this count as 0: near 0 their slope grows without bound, and a value that small is
# rounding, not miscalibration.
SMALLEST_ROOT = 1e-8
# Up to so many samples a binary search for each of them is the faster way to find ties.
FEW = 1024
# Maps confidences ``(..., N)`` to values ``(...)``, and to their gradient.
Kernel = Callable[[Tensor], tuple[Tensor, Tensor]]


def traced() -> bool:
    """Whether operations are recorded or transformed, so that there may be no values to read.

    That is ``torch.compile``, a ``torch.func`` transform, or a tracer such as ``make_fx`` or ``torch.jit.trace``.
    """
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


def tie_bounds(ascending: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last index of each element's tie group, along the last dimension.

    Args:
        ascending: Values in ascending order, shape ``(..., N)``.

    Example:
        >>> tie_bounds(torch.tensor([0.2, 0.5, 0.5, 0.9]))
        (tensor([0, 1, 1, 3]), tensor([0, 2, 2, 3]))
    """
    values, end = ascending.detach().contiguous(), ascending.shape[-1] - 1
    if end < FEW:
        return torch.searchsorted(values, values), torch.searchsorted(values, values, right=True) - 1
    index = torch.arange(end + 1, device=values.device)
    differs = values[..., 1:] != values[..., :-1]
    starts = F.pad(torch.where(differs, index[1:], 0), (1, 0))
    ends = F.pad(torch.where(differs, index[:-1], end), (0, 1), value=end)
    return starts.cummax(-1).values, ends.flip(-1).cummin(-1).values.flip(-1)


def exclusive_cumsum(values: Tensor) -> Tensor:
    """Prefix sums that start at zero: ``(..., N)`` becomes ``(..., N + 1)``.

    Padding, rather than subtracting the element again, keeps small terms next to large ones exact.
    """
    return F.pad(values.cumsum(-1), (1, 0))


def with_known_gradient(kernel: Kernel, confidence: Tensor) -> Tensor:
    """Return the value of a kernel, with the gradient that it computes beside it.

    Autograd would record and replay each of some twenty operations on small tensors, which takes longer than they do.
    Under ``torch.compile`` and ``torch.func`` the value is differentiated as any other code: it is the same number.
    """
    if torch.is_grad_enabled() and confidence.requires_grad and not traced() and not is_forward_mode():
        value: Tensor = _KnownGradient.apply(confidence, kernel)  # type: ignore[no-untyped-call]
        return value
    return kernel(confidence)[0]


class _KnownGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, confidence: Tensor, kernel: Kernel) -> Tensor:
        value, gradient = kernel(confidence)
        ctx.save_for_backward(confidence, gradient)
        ctx.kernel = kernel
        return value

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        confidence, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # as in backward(create_graph=True)
            gradient = ctx.kernel(confidence)[1]
        return (upstream[0].unsqueeze(-1) * gradient).to(confidence.dtype), None


def safe_root(value: Tensor, degree: float = 2.0) -> Tensor:
    """The ``degree``-th root of ``max(value, 0)``, with value and gradient 0 where ``value <= 0``.

    The same holds for roots below ``SMALLEST_ROOT``. The inner ``where`` keeps the infinite slope at 0 out of
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


def safe_divide(numerator: Tensor, denominator: Tensor | float) -> Tensor:
    """``numerator / denominator``, and 0 with zero gradient where a denominator tensor is practically 0.

    Below the root of the smallest normal number the derivative, which divides twice, would overflow.
    """
    if isinstance(denominator, float):
        return numerator / denominator
    empty = denominator.abs() < torch.finfo(denominator.dtype).tiny ** 0.5
    return torch.where(empty, 0.0, numerator / torch.where(empty, 1.0, denominator))


def sum_in_any_order(terms: Tensor) -> Tensor:
    """Sums of the rows of ``(N, C)``, rounded alike in any order of the terms.

    Two rows with the same logits in another order have equal confidence, and must stay tied: float32 terms are summed
    in float64, whose rounding disappears when the quotient is rounded to float32; float64 terms are sorted first.
    """
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


def entropy(probabilities: Tensor) -> Tensor:
    """Shannon entropy in nats over the last dimension, with a finite gradient at probability 0."""
    tiny = torch.finfo(probabilities.dtype).tiny
    return -(probabilities * probabilities.clamp_min(tiny).log()).sum(-1)
