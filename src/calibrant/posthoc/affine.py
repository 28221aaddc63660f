"""Penalised multinomial regression: the affine map of logits that the scaling methods fit, solved to the optimum."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.posthoc.likelihood import CHUNK, nll_and_residual

# Newton's method below this many products per step; above, L-BFGS, whose steps are cheaper.
NEWTON_PRODUCTS = 1e7
# Above this many elements, products are in single precision: rounding stays below the tolerance, in half the time.
SINGLE_PRECISION = 2**18
# Pairs of steps and gradient changes that L-BFGS remembers.
MEMORY = 10
# Rows from which the second moments of the features are estimated for the preconditioner.
SOME_ROWS = 1024


class Affine(NamedTuple):
    """Difference from the identity: ``(C, C)`` matrix, or ``(C,)`` diagonal, and ``(C,)`` shift, in float64."""

    matrix: Tensor
    shift: Tensor

    def apply(self, features: Tensor) -> Tensor:
        """Return ``x + D x + b`` for every row x."""
        matrix, shift = self.matrix.to(features.dtype), self.shift.to(features.dtype)
        if matrix.dim() == 1:
            return torch.addcmul(shift, features, 1 + matrix)
        return torch.addmm(shift, features, matrix.T) + features


class Penalty(NamedTuple):
    """Factors of the squares of the off-diagonal entries, of the diagonal, and of the shifts."""

    off_diagonal: float
    diagonal: float
    shift: float


def fit_affine(
    features: Tensor, target: Tensor, weight: Tensor | None, penalty: Penalty, start: Affine, *, tolerance: float = 1e-8
) -> Affine:
    r"""Minimise the NLL of ``x + D x + b`` plus a penalty of squares.

    .. math:: \mathrm{NLL}(x + D x + b) + \lambda_o \sum_{i \ne j} D_{ij}^2 + \lambda_d \sum_j D_{jj}^2
        + \lambda_b \sum_j b_j^2

    The problem is convex. Small ones are solved by Newton's method, large ones by preconditioned L-BFGS.

    Args:
        features: ``(N, C)``.
        target: Class indices, ``(N,)``.
        weight: ``(N,)`` in float64, or None.
        penalty: The three factors; the NLL is a mean over samples.
        start: Initial position; a diagonal matrix given as ``(C,)`` stays diagonal.
        tolerance: Stop when the value is estimated to be this close to its minimum.

    Raises:
        ValueError: If the likelihood overflows.
    """
    problem = _Problem(features, target, weight, penalty, diagonal=start.matrix.dim() == 1)
    # Transposed, so that a column holds everything about one class.
    begin = torch.cat((torch.atleast_2d(start.matrix.t()), start.shift.unsqueeze(0)))
    solver = _newton if problem.products <= NEWTON_PRODUCTS else _lbfgs
    found = solver(problem, begin.to(problem.dtype), tolerance).double()
    if not found.isfinite().all():
        raise ValueError(
            "the likelihood of the held-out logits overflows: scale the logits to a sensible range, "
            "or leave out samples with huge logits"
        )
    return Affine(found[0] if problem.diagonal else found[:-1].T.contiguous(), found[-1])


class _Problem:
    """Value, gradient and curvature at a position: the transposed matrix, or its diagonal, above the shift."""

    def __init__(
        self, features: Tensor, target: Tensor, weight: Tensor | None, penalty: Penalty, *, diagonal: bool
    ) -> None:
        self.samples, self.classes = features.shape
        self.diagonal = diagonal
        width = 2 if diagonal else self.classes + 1
        self.products = float(self.classes * width) ** 2 * self.samples
        large = features.numel() > SINGLE_PRECISION and not diagonal
        self.dtype = torch.float32 if large else torch.float64
        self.features, self.target = features.to(self.dtype), target
        self.weight = None if weight is None else (weight / weight.mean()).to(self.dtype)
        if diagonal:
            factors = features.new_tensor([penalty.diagonal, penalty.shift], dtype=self.dtype)
            self.penalty = factors.unsqueeze(1).expand(2, self.classes)
        else:
            self.penalty = features.new_full((width, self.classes), penalty.off_diagonal, dtype=self.dtype)
            self.penalty[:-1].fill_diagonal_(penalty.diagonal)
            self.penalty[-1] = penalty.shift

    def chunks(self, elements: int = CHUNK) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        rows = max(1, elements // self.classes)
        pieces = [self.features.split(rows), self.target.split(rows)]
        weights = [None] * len(pieces[0]) if self.weight is None else self.weight.split(rows)
        yield from zip(*pieces, weights, strict=True)

    def logits(self, part: Tensor, position: Tensor) -> Tensor:
        if self.diagonal:
            return torch.addcmul(position[1], part, 1 + position[0])
        return torch.addmm(position[-1], part, position[:-1]).add_(part)

    def value_and_gradient(self, position: Tensor) -> tuple[float, Tensor]:
        value, slope = 0.0, torch.zeros_like(position)
        # Products of large matrices are quicker in one piece.
        for part, labels, weight in self.chunks(CHUNK if self.diagonal else 2**23):
            nll, residual = nll_and_residual(self.logits(part, position), labels, weight)
            value += nll
            slope[-1] += residual.sum(0)
            if self.diagonal:
                slope[0] += residual.mul_(part).sum(0)
            else:
                slope[:-1].addmm_(part.T, residual)
        squares = (self.penalty * position.square()).sum(dtype=torch.float64)
        return value / self.samples + float(squares), slope / self.samples + 2 * self.penalty * position

    def curvature(self, position: Tensor) -> Tensor:
        """Second derivatives, ``(width * C, width * C)``, in the order class by class."""
        width = len(self.penalty)
        size = self.classes * width
        blocks = position.new_zeros(self.classes, width, width)
        across = position.new_zeros(size, size)
        for part, _, weight in self.chunks(max(CHUNK, 2**20 // width)):
            probability = self.logits(part, position).softmax(1)
            one = torch.ones_like(part[:, :1])
            if self.diagonal:
                known = torch.stack((part, torch.ones_like(part)), dim=2)
            else:
                known = torch.cat((part, one), dim=1).unsqueeze(1)
            parts = probability.unsqueeze(2) * known  # (n, C, width)
            weighted = parts if weight is None else parts * weight[:, None, None]
            across.addmm_(weighted.flatten(1).T, parts.flatten(1))
            blocks += weighted.permute(1, 2, 0) @ known.permute(1, 0, 2).expand(self.classes, -1, -1)
        whole = -across / self.samples
        for k in range(self.classes):
            at = slice(k * width, (k + 1) * width)
            whole[at, at] += blocks[k] / self.samples
        whole.diagonal().add_(2 * self.penalty.T.flatten())
        return whole


def _newton(problem: _Problem, position: Tensor, tolerance: float) -> Tensor:
    """Newton's method with step halving."""
    value, gradient = problem.value_and_gradient(position)
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
        moved = _search(problem.value_and_gradient, position, value, direction, -gain)
        if moved is None:
            break
        position, value, gradient = moved
    return position


def _search(
    function: Callable[[Tensor], tuple[float, Tensor]], position: Tensor, value: float, direction: Tensor, slope: float
) -> tuple[Tensor, float, Tensor] | None:
    """Halve the step until the value falls enough; None if only rounding is left."""
    size = 1.0
    while size > 1e-6:
        there = position + size * direction
        reached, gradient = function(there)
        if reached <= value + 1e-4 * size * slope:
            return there, reached, gradient
        size /= 2
    return None


class _Preconditioner:
    """An approximate inverse of the curvature at the start, as the sum of two parts.

    The entries of one class share a matrix of second moments of the features; with the mean spread of each class in
    place of that of each sample, one eigendecomposition inverts it for all classes. The diagonal entry and the shift
    of a class, which have weaker penalties, add the inverse of their own two by two block.
    """

    def __init__(self, problem: _Problem, start: Tensor) -> None:
        classes, penalty = problem.classes, problem.penalty
        self.moments: Tensor | None = None
        sums = start.new_zeros(3, classes)
        shared = None if problem.diagonal else start.new_zeros(classes + 1, classes + 1)
        # In units in which the shift has the penalty of the other entries.
        off_diagonal, of_shift = (max(float(part), 1e-12) for part in (penalty[-2, 0], penalty[-1, 0]))
        self.unit = min(max(math.sqrt(off_diagonal / of_shift), 1e-3), 1e3)
        total = 0.0
        for part, _, weight in problem.chunks(CHUNK if problem.diagonal else 2**23):
            probability = problem.logits(part, start).softmax(1)
            spread = probability.mul_(1 - probability)
            if weight is not None:
                spread *= weight.unsqueeze(1)
            sums[0] += spread.sum(0)
            if shared is not None:
                some = slice(None, None, max(1, len(part) // SOME_ROWS))
                known = torch.cat((part[some], torch.full_like(part[some, :1], self.unit)), dim=1)
                of_rows = spread[some].sum(1, keepdim=True)
                shared.addmm_((known * of_rows).T, known)
                total += float(of_rows.sum())
            mixed = spread.mul_(part)
            sums[1] += mixed.sum(0)
            sums[2] += mixed.mul_(part).sum(0)
        sums /= problem.samples
        if shared is not None:
            eigenvalues, self.vectors = torch.linalg.eigh(shared / max(total, 1e-30))
            self.moments = eigenvalues.clamp_min(0).unsqueeze(1) * sums[0] + 2 * off_diagonal
            self.moments.clamp_min_(1e-6 * float(self.moments.max()))
        diagonal = penalty[0] if problem.diagonal else penalty[:-1].diagonal()
        # The least limits the step of a class that is hardly ever likely.
        least = max(1e-6 * float(sums[0].max()), 1e-12)
        self.shift = sums[0] + 2 * penalty[-1] + least
        self.both = sums[1]
        self.scale = sums[2] + 2 * diagonal + max(1e-6 * float(sums[2].max()), 1e-12)
        self.determinant = (self.scale * self.shift - self.both.square()).clamp_min(1e-6 * self.scale * self.shift)

    def apply(self, gradient: Tensor) -> Tensor:
        """Return the preconditioned gradient."""
        if self.moments is None:
            result = torch.zeros_like(gradient)
            own, of_own = gradient[0], result[0]
        else:
            own = gradient[:-1].diagonal()
            scaled = torch.cat((gradient[:-1], self.unit * gradient[-1:]))
            result = self.vectors @ ((self.vectors.T @ scaled) / self.moments)
            result[-1] *= self.unit
            of_own = result[:-1].diagonal()
        shift = gradient[-1]
        of_own += (self.shift * own - self.both * shift) / self.determinant
        result[-1] += (self.scale * shift - self.both * own) / self.determinant
        return result


def _lbfgs(problem: _Problem, position: Tensor, tolerance: float) -> Tensor:
    """Preconditioned L-BFGS with step halving."""
    preconditioner = _Preconditioner(problem, position)
    value, gradient = problem.value_and_gradient(position)
    steps: list[tuple[Tensor, Tensor, float]] = []  # step, change of the gradient, and one over their product
    for _ in range(1000):
        if not (math.isfinite(value) and gradient.isfinite().all()):
            return position.fill_(math.nan)
        direction = -_two_loops(gradient, steps, preconditioner)
        slope = float((direction * gradient).sum())
        if not -slope > tolerance:
            break
        moved = _search(problem.value_and_gradient, position, value, direction, slope)
        if moved is None:
            if not steps:
                break
            steps = []  # what was remembered misleads, perhaps by rounding: begin anew from the gradient
            continue
        there, reached, new = moved
        change = float(((there - position) * (new - gradient)).sum())
        if change > 0:
            steps = [*steps[1 - MEMORY :], (there - position, new - gradient, 1 / change)]
        position, value, gradient = there, reached, new
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
    elif preconditioner.moments is not None:
        result /= 2  # two parts overlap
    for (step, change, inverse), factor in zip(steps, reversed(factors), strict=True):
        result += (factor - inverse * float((change * result).sum())) * step
    return result
