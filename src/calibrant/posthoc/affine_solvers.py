"""Solvers of penalised multinomial regression: Newton's method, and L-BFGS with a preconditioner of the problem."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from calibrant.posthoc.affine_problem import Problem, Spread

Evaluate = Callable[[Tensor], tuple[float, Tensor, Spread]]
# Pairs of steps and gradient changes that L-BFGS remembers.
MEMORY = 10


def newton(problem: Problem, position: Tensor, tolerance: float) -> Tensor:
    """Newton's method with step halving."""
    evaluate = partial(problem.evaluate, with_spread=False)
    value, gradient, _ = evaluate(position)
    for _ in range(100):
        if not math.isfinite(value):
            return position.fill_(math.nan)
        curvature = problem.curvature(position)
        # Classes have a common shift that changes nothing: a little more keeps the matrix positive.
        curvature.diagonal().add_(1e-12 * float(curvature.diagonal().mean()) + 1e-14)
        if not curvature.isfinite().all():
            return position.fill_(math.nan)
        factor, failed = torch.linalg.cholesky_ex(curvature)
        right = gradient.T.flatten().unsqueeze(1)
        step = -(torch.linalg.lstsq(curvature, right).solution if failed else torch.cholesky_solve(right, factor))
        direction = step.view(problem.classes, -1).T
        gain = -float((direction * gradient).sum())
        if not gain > tolerance:
            break
        moved = _search(evaluate, position, value, direction, -gain)
        if moved is None:
            break
        position, value, gradient, _ = moved
    return position


def _search(
    evaluate: Evaluate, position: Tensor, value: float, direction: Tensor, slope: float
) -> tuple[Tensor, float, Tensor, Spread] | None:
    """Halve the step until the value falls enough; None if only rounding is left."""
    size = 1.0
    while size > 1e-6:
        there = position + size * direction
        reached, gradient, spread = evaluate(there)
        if reached <= value + 1e-4 * size * slope:
            return there, reached, gradient, spread
        size /= 2
    return None


class _Preconditioner:
    r"""An approximate inverse of the curvature.

    The curvature of the NLL is the mean over samples of :math:`(\mathrm{diag}(p) - p p^T) \otimes x x^T`. With
    :math:`s_k` the mean of :math:`p_k (1 - p_k)`, it is taken as that of one mean sample u plus uncorrelated
    deviations, which together with the penalties are the diagonal matrix d:

    .. math:: H = d + (\mathrm{diag}(s) - s s^T / \textstyle\sum_k s_k) \otimes u u^T

    The second term vanishes for a change that all classes have in common, as the curvature does. With
    :math:`v_k = d_k^{-1} u_k` and :math:`c_k = s_k / (1 + s_k u_k^T v_k)`, two rank-one updates invert it:

    .. math:: (H^{-1} g)_k = d_k^{-1} g_k - c_k (v_k^T g_k - \textstyle\sum_l c_l v_l^T g_l / \sum_l c_l)\, v_k
    """

    def __init__(self, problem: Problem, spread: Spread) -> None:
        classes, (mean, variance) = problem.classes, spread.features
        first, second, third = spread.own
        # The least limits the step of a class that is hardly ever likely.
        size = first.clamp_min(max(1e-6 * float(first.max()), 1e-30))
        of_own = second / size
        rest = (third - second * of_own).clamp_min(max(1e-6 * float(third.max()), 1e-12))
        diagonal = 2 * problem.penalty
        direction = torch.ones_like(diagonal)
        if problem.diagonal:
            direction[0], diagonal[0] = of_own, diagonal[0] + rest
        else:
            direction[:-1] = mean.unsqueeze(1)
            direction[:-1].diagonal().copy_(of_own)
            own = diagonal[:-1].diagonal() + rest
            diagonal[:-1].addcmul_(variance.clamp_min(0).unsqueeze(1), size.expand(classes, classes))
            diagonal[:-1].diagonal().copy_(own)
        diagonal.clamp_min_(max(1e-6 * float(size.max()), 1e-12))
        self.inverse = diagonal.reciprocal_()
        self.shared = direction * self.inverse
        self.factor = size / (1 + size * (direction * self.shared).sum(0))

    def apply(self, gradient: Tensor) -> Tensor:
        """Return the preconditioned gradient."""
        along = (self.shared * gradient).sum(0)
        along -= (self.factor * along).sum() / self.factor.sum()
        return (self.inverse * gradient).addcmul_(self.shared, self.factor * along, value=-1)


def lbfgs(problem: Problem, position: Tensor, tolerance: float) -> Tensor:
    """Preconditioned L-BFGS with step halving."""
    value, gradient, spread = problem.evaluate(position)
    preconditioner = _Preconditioner(problem, spread)
    steps: list[tuple[Tensor, Tensor, float]] = []  # step, change of the gradient, and one over their product
    before = math.inf
    for _ in range(1000):
        if not (math.isfinite(value) and gradient.isfinite().all()):
            return position.fill_(math.nan)
        direction = -_two_loops(gradient, steps, preconditioner)
        gain = -float((direction * gradient).sum())
        if not gain > tolerance:
            break
        # The gain falls by a growing factor: after this step it would be below the tolerance.
        if 4 * gain * gain < tolerance * before < math.inf:
            return position + direction
        before = gain
        moved = _search(problem.evaluate, position, value, direction, -gain)
        if moved is None:
            if not steps:
                break
            steps, before = [], math.inf  # what was remembered misleads, perhaps by rounding: begin anew
            continue
        there, value, new, spread = moved
        change = float(((there - position) * (new - gradient)).sum())
        if change > 0:
            steps = [*steps[1 - MEMORY :], (there - position, new - gradient, 1 / change)]
        position, gradient, preconditioner = there, new, _Preconditioner(problem, spread)
    return position


def _two_loops(gradient: Tensor, steps: list[tuple[Tensor, Tensor, float]], preconditioner: _Preconditioner) -> Tensor:
    """The gradient times the approximate inverse curvature."""
    result = gradient.clone()
    factors = []
    for step, change, inverse in reversed(steps):
        factors.append(inverse * float((step * result).sum()))
        result -= factors[-1] * change
    result = preconditioner.apply(result)
    if steps:
        _, change, inverse = steps[-1]
        result /= inverse * float((change * preconditioner.apply(change)).sum())
    for (step, change, inverse), factor in zip(steps, reversed(factors), strict=True):
        result += (factor - inverse * float((change * result).sum())) * step
    return result
