"""Value and gradient in one step, for speed on a CPU: ESD and MMCE.

On a batch of hundreds of samples, torch spends more time on overhead than on arithmetic. NumPy has less overhead.
The closed forms repeat the differentiable torch code of :mod:`calibrant.numerics`; tests compare the two, and
``benchmarks/objectives.py`` measures the gain. The choice never depends on whether a gradient is needed, so that
training and evaluation see the same number.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.frames import Array, Marks
from calibrant.losses import checks
from calibrant.losses.checks import Classification, Pairs
from calibrant.numerics import SMALLEST_ROOT, accumulation_dtype, readable, safe_root, softmax_parts

# Maps (confidence, correct) of one row to value and gradient with respect to the confidence, in float64.
ClosedForm = Callable[[Array, Marks], tuple[float, Array]]


def value_of_row(pairs: Pairs, closed_form: ClosedForm | None, plain: Callable[[Pairs], Tensor]) -> Tensor:
    """Return the objective of pairs, by its closed form if they are one row without mask and weights.

    Args:
        pairs: Samples along the last dimension.
        closed_form: Function that returns the objective and its gradient, if there is one.
        plain: The objective in differentiable torch, for all other pairs and for second derivatives.
    """
    lone = pairs.mask is None and pairs.weight is None and pairs.confidence.dim() == 1
    if closed_form is None or not lone or not readable(pairs.confidence):
        return plain(pairs)
    correct = pairs.correct.clone()  # the caller may change it before the gradient is differentiated
    return _known(
        pairs.confidence,
        lambda confidence: closed_form(confidence.numpy(), correct.numpy()),
        lambda confidence: plain(Pairs(confidence, correct)),
    )


def known_gradient_pays(data: Classification) -> bool:
    """Whether :func:`value_of_logits` is faster: on a small batch on a CPU, without mask and weights.

    On a large batch torch's threads outweigh its overhead.
    """
    lone = data.mask is None and data.weight is None
    return lone and data.logits.numel() <= 2**16 and readable(data.logits)


def value_of_logits(
    data: Classification, closed_form: ClosedForm, plain: Callable[[Pairs], Tensor], *, root: bool
) -> Tensor:
    """Return the objective of the top-label pairs of logits, or its :func:`safe_root`."""
    target = data.target.clone()  # the caller may change it before the gradient is differentiated
    return _known(
        data.logits,
        lambda logits: _through_softmax(logits, target, closed_form),
        lambda logits: plain(checks.top_label_pairs(Classification(logits, target))),
        root=root,
    )


def _known(
    variable: Tensor,
    closed_form: Callable[[Tensor], tuple[float, Array]],
    plain: Callable[[Tensor], Tensor],
    *,
    root: bool = False,
) -> Tensor:
    value: Tensor = _KnownGradient.apply(variable, closed_form, plain, root)  # type: ignore[no-untyped-call]
    return value


class _KnownGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        variable: Tensor,
        closed_form: Callable[[Tensor], tuple[float, Array]],
        plain: Callable[[Tensor], Tensor],
        root: bool,
    ) -> Tensor:
        # The exponential of a large negative logit is 0, whatever the caller's NumPy error settings.
        with np.errstate(over="ignore", under="ignore"):
            value, gradient = closed_form(variable.detach())
            if root:
                value = math.sqrt(value) if value > SMALLEST_ROOT**2 else 0.0
                gradient *= 0.5 / value if value else 0.0
            known = torch.from_numpy(gradient).to(variable.dtype)
        ctx.save_for_backward(variable, known)
        ctx.plain, ctx.root = plain, root
        return torch.tensor(value, dtype=accumulation_dtype(variable), device=variable.device)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        variable, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # as in backward(create_graph=True)
            alias = variable.view_as(variable)  # so that hooks on the variable run once, outside
            value = safe_root(ctx.plain(alias)) if ctx.root else ctx.plain(alias)
            (gradient,) = torch.autograd.grad(value, alias, create_graph=True)
        return upstream[0].to(gradient.dtype) * gradient, None, None, None


def _through_softmax(logits: Tensor, target: Tensor, closed_form: ClosedForm) -> tuple[float, Array]:
    """Value and gradient with respect to ``(N, C)`` logits of a closed form of (confidence, correct) pairs.

    The exponentials are torch's, as in plain torch: NumPy's differ in the last bit, which is enough to make or break a
    tie of two confidences near 1, where ESD jumps.
    """
    predicted = logits.argmax(1)
    powers, total = (part.numpy() for part in softmax_parts(logits))
    confidence = (1 / total[:, 0]).astype(powers.dtype)
    value, slope = closed_form(confidence, (predicted == target).numpy())
    # d confidence / d logit k = confidence (1[k is predicted] - p_k), with p = powers * confidence.
    slope = slope * confidence
    gradient = powers * (-slope * confidence)[:, np.newaxis]
    gradient[np.arange(len(logits)), predicted.numpy()] += slope
    return value, gradient
