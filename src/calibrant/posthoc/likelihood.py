"""The likelihood that the scaling methods maximise, in pieces that fit in memory, and its minimiser."""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Vector = npt.NDArray[np.float64]
Objective = Callable[[Vector], tuple[float, Vector]]

# Elements of one chunk: 1 MB in float64, which a core's cache holds.
CHUNK = 2**17
# Strength of the pull of every scale towards 1 and every shift towards 0. It is too weak to affect a fit with a
# finite optimum; on separable data, which has none, it keeps the numbers finite.
PULL = 1e-8


def row_pieces(features: Tensor, target: Tensor, elements: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and their labels in pieces of about ``elements`` elements."""
    rows = max(1, elements // features.shape[1])
    yield from zip(features.split(rows), target.split(rows), strict=True)


def chunks(features: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows in pieces, in float64."""
    for part, labels in row_pieces(features, target, CHUNK):
        yield part.double(), labels


def nll_and_residual(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> tuple[float, Tensor]:
    """Summed NLL, and its gradient in the logits: probabilities minus the one-hot target.

    Args:
        logits: ``(N, C)``.
        target: Class indices, ``(N,)``.
        weight: ``(N,)``, or None.
    """
    column = target.unsqueeze(1)
    log_probability = logits.log_softmax(1)
    losses = -log_probability.gather(1, column).squeeze(1)
    residual = log_probability.exp_()
    residual.scatter_add_(1, column, torch.full_like(column, -1, dtype=residual.dtype))
    if weight is not None:
        losses, residual = losses * weight, residual.mul_(weight.unsqueeze(1))
    return float(losses.sum(dtype=torch.float64)), residual


def minimise(
    objective: Objective, start: Vector, scale: Vector, *, gradient_tolerance: float = 1e-8, steps: int = 1000
) -> Vector:
    """Minimise a smooth convex function by L-BFGS, or raise ``ValueError`` if its values overflow.

    Args:
        objective: Function that returns value and gradient.
        start: Initial position.
        scale: Typical size of a step in each variable, the inverse root of the curvature: it brings variables
            of very different weight to one scale, so that few steps are needed.
        gradient_tolerance: Stop when the largest component of the gradient times ``scale`` is below this.
        steps: Maximum number of steps.
    """
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    def scaled(position: Vector) -> tuple[float, Vector]:
        value, gradient = objective(start + scale * position)
        return value, gradient * scale

    options = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": 20, "gtol": gradient_tolerance, "ftol": 1e-14}
    # In steps this small, threads that wait for each other make a busy machine ten times slower.
    with threadpool_limits(1, user_api="blas"):
        found = minimize(scaled, np.zeros_like(start), jac=True, method="L-BFGS-B", options=options)
    best = np.asarray(start + scale * found.x)
    if not (np.isfinite(found.fun) and np.isfinite(best).all() and (scale > 0).all()):
        raise ValueError(
            "the likelihood of the held-out logits overflows: scale the logits to a sensible range, "
            "or leave out samples with huge logits"
        )
    return best
