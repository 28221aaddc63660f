"""Numerical methods: tie groups, the Laplace-kernel form, safe roots and logarithms.

Everything here is plain differentiable torch, so that autograd gives exact first and second derivatives,
and ``torch.compile`` and ``torch.func`` see through it.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.torch_private import is_forward_mode, is_transformed

PLAIN = (Tensor, torch.nn.Parameter)
# Roots below this count as 0: near 0 their slope grows without bound, and a value that small is
# rounding, not miscalibration.
SMALLEST_ROOT = 1e-8


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
    values = ascending.detach().contiguous()
    first = torch.searchsorted(values, values)
    last = torch.searchsorted(values, values, right=True) - 1
    return first, last


def exclusive_cumsum(values: Tensor) -> Tensor:
    """Prefix sums that start at zero: ``(..., N)`` becomes ``(..., N + 1)``.

    Padding, rather than subtracting the element again, keeps small terms next to large ones exact.
    """
    return F.pad(values.cumsum(-1), (1, 0))


def laplace_quadratic_form(position: Tensor, weight: Tensor, bandwidth: float) -> Tensor:
    r"""Exact :math:`\sum_{ij} w_i w_j \exp(-|x_i - x_j| / \phi)` in :math:`O(N \log N)`.

    Sorted, the kernel factorises into :math:`e^{-x_i/\phi} e^{x_j/\phi}` for :math:`x_j < x_i`, so
    one prefix sum serves all pairs. Pairs of tied positions are summed separately, with a constant
    kernel of 1: the slope of :math:`|\cdot|` at 0 is 0, and autograd must not see their positions.

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


def laplace_sum_over_pairs(position: Tensor, weight: Tensor, bandwidth: float) -> Tensor:
    r"""Exact :math:`\sum_{i \ne j} w_i w_j \exp(-|x_i - x_j| / \phi)` in :math:`O(N \log N)`.

    It is :func:`laplace_quadratic_form` without its diagonal, which is never added: subtracting one large weight
    among small ones again would leave only rounding errors.
    """
    position, order = position.sort(dim=-1)
    weight = weight.gather(-1, order)
    first, _ = tie_bounds(position)
    below = _decayed_sum_below(position, weight, first, bandwidth)
    prefix = exclusive_cumsum(weight)
    tied_before = prefix[..., :-1] - prefix.gather(-1, first)
    return 2 * (weight * (below + tied_before)).sum(-1)


def relative_weight(weight: Tensor) -> Tensor:
    """Weights divided by the largest of their row, so that products of three neither overflow nor underflow."""
    largest = weight.amax(-1, keepdim=True)
    return weight / torch.where(largest > 0, largest, 1.0)


def sum_over_distinct(weight: Tensor, size: int) -> Tensor:
    r"""Sum of the products of ``size`` distinct weights over all ordered tuples, along the last dimension.

    For three, :math:`\sum w_i w_j w_k` over distinct :math:`i, j, k`. Each prefix sum adds one factor. Nothing
    is ever subtracted, so that no digits are lost if a few weights are large.

    Example:
        >>> sum_over_distinct(torch.ones(5), 3), sum_over_distinct(torch.tensor([2.0, 3.0]), 2)
        (tensor(60.), tensor(12.))
    """
    products = weight
    for _ in range(size - 1):
        products = weight * exclusive_cumsum(products)[..., :-1]
    return math.factorial(size) * products.sum(-1)


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

    Positions span at most 1, so only the bandwidth matters, and the choice does not depend on the data.
    """
    return bandwidth * (1000.0 if dtype == torch.float64 else 100.0) >= 1.0


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


def softmax_parts(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Numerators ``exp(l - max l)``, ``(N, C)``, and denominators, ``(N, 1)``, of the softmax of ``(N, C)`` logits.

    Two rows with the same logits in another order have equal confidence, and must stay tied. So the
    denominator must not depend on the order of its terms: float32 terms are summed in float64, whose rounding
    disappears when the quotient is rounded to float32; float64 terms are sorted first.
    """
    # The shift is a constant to autograd: it cancels.
    powers = torch.exp(logits - logits.detach().amax(1, keepdim=True))
    terms = powers.sort(1).values if powers.dtype == torch.float64 else powers
    return powers, terms.sum(1, keepdim=True, dtype=accumulation_dtype(powers))


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
