"""Solvers: penalised multinomial regression, the weights of a mixture, and logistic regressions of many rows."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from calibrant.frames import Array, IndexArray
from calibrant.posthoc.fit import HeldOut

# Newton's method below this many products per step, or unknowns; above, L-BFGS, whose steps are cheaper. With few
# unknowns the curvature of so many rows for each is enough.
NEWTON_PRODUCTS, NEWTON_UNKNOWNS, NEWTON_ROWS = 1e7, 110, 64
# Above this many elements, products are in single precision: rounding stays below the tolerance, in half the time.
SINGLE_PRECISION = 2**18
# Elements of a chunk: what a cache holds; with a full matrix more, since large products are quicker in one piece.
CHUNK, LARGE_CHUNK = 2**16, 2**23
# Rows from which the moments of the features are estimated.
SOME_ROWS = 1024
# Pairs of steps and gradient changes that L-BFGS remembers.
MEMORY = 10
# Gain in mean NLL, times two, at which logistic regressions end.
TOLERANCE = 1e-12
# Share of the distance to the optimum that an interior point keeps to the edges.
CENTRING = 0.03


class Penalty(NamedTuple):
    """Factors of the squares of the off-diagonal entries, of the diagonal, and of the shifts."""

    off_diagonal: float
    diagonal: float
    shift: float


class Correction(NamedTuple):
    """``x + D x + b``: ``(C, C)`` matrix D, or its ``(C,)`` diagonal, and ``(C,)`` shift b."""

    matrix: Array
    shift: Array

    def apply(self, features: Array) -> Array:
        """The mapped rows."""
        product = features * self.matrix if self.matrix.ndim == 1 else features @ self.matrix.T
        return features + product + self.shift


class Spread(NamedTuple):
    """How far probabilities p of each class are from 0 and 1, for a preconditioner, by s = p (1 - p)."""

    own: Array  # (3, C): means of s, of s times the feature of the same class, and of s times its square
    features: Array  # (2, C): mean and variance of every feature over samples weighted by the sum of their s


def fit_affine(data: HeldOut, penalty: Penalty, start: Correction, *, tolerance: float = 1e-8) -> Correction:
    """Minimise the mean NLL of ``x + D x + b`` of logits x plus the penalty; a start with a diagonal stays diagonal."""
    problem = AffineProblem(data, penalty, diagonal=start.matrix.ndim == 1)
    # Transposed, so that a column holds everything about one class.
    begin = np.vstack((start.matrix.T, start.shift)).astype(problem.features.dtype)
    few = begin.size <= NEWTON_UNKNOWNS or problem.products <= NEWTON_PRODUCTS
    solver = newton if few else lbfgs
    with np.errstate(all="ignore"):
        found = solver(problem, begin, tolerance).astype(np.float64)
    if not np.isfinite(found).all():
        raise ValueError(
            "the likelihood of the held-out logits overflows: scale the logits to a sensible range, "
            "or leave out samples with huge logits"
        )
    matrix = found[0] if problem.diagonal else np.ascontiguousarray(found[:-1].T)
    return Correction(matrix, found[-1])


def nll_and_residual(logits: Array, target: IndexArray, weight: Array | None = None) -> tuple[float, Array]:
    """Summed NLL, and its gradient in the logits: probabilities minus the one-hot target. Overwrites the logits."""
    each = np.arange(len(target))
    logits -= logits.max(1, keepdims=True)
    true = logits[each, target]
    residual = np.exp(logits, out=logits)
    total = residual.sum(1, keepdims=True)
    losses = np.log(total[:, 0]) - true
    residual /= total
    residual[each, target] -= 1
    if weight is not None:
        losses, residual = losses * weight, np.multiply(residual, weight[:, None], out=residual)
    return float(losses.sum(dtype=np.float64)), residual


class AffineProblem:
    """Value, gradient and curvature at a position: the transposed matrix, or its diagonal, above the shift."""

    def __init__(self, data: HeldOut, penalty: Penalty, *, diagonal: bool) -> None:
        self.samples, self.classes = data.logits.shape
        self.diagonal = diagonal
        width = 2 if diagonal else self.classes + 1
        self.products = float(self.classes * width) ** 2 * self.samples
        dtype: Any = np.float32 if data.logits.size > SINGLE_PRECISION and not diagonal else np.float64
        self.features, self.target = data.logits.astype(dtype, copy=False), data.target
        self.weight = None if data.weight is None else (data.weight / data.weight.mean()).astype(dtype)
        self.penalty = np.full((width, self.classes), penalty.off_diagonal, dtype)
        if diagonal:
            self.penalty[0] = penalty.diagonal
        else:
            np.fill_diagonal(self.penalty[:-1], penalty.diagonal)
        self.penalty[-1] = penalty.shift

    def chunks(self, elements: int, stride: int = 1) -> Iterator[tuple[Array, IndexArray, Array | None]]:
        """Features, labels and weights of every so many samples, in pieces of about so many elements."""
        rows = max(1, elements // self.classes) * stride
        for start in range(0, self.samples, rows):
            at = slice(start, start + rows, stride)
            yield self.features[at], self.target[at], None if self.weight is None else self.weight[at]

    def logits(self, part: Array, position: Array) -> Array:
        """The mapped features of some samples."""
        if self.diagonal:
            return np.asarray(part * (1 + position[0]) + position[1])
        found = part @ position[:-1]
        found += part
        found += position[-1]
        return found

    def evaluate(self, position: Array, *, with_spread: bool = True) -> tuple[float, Array, Spread]:
        """Value, gradient, and the spread of the probabilities, or zeros."""
        value, total, slope = 0.0, 0.0, np.zeros_like(position)
        own, known = np.zeros((3, self.classes)), np.zeros((2, self.classes))
        for part, labels, weight in self.chunks(CHUNK if self.diagonal else LARGE_CHUNK):
            nll, residual = nll_and_residual(self.logits(part, position), labels, weight)
            value += nll
            slope[-1] += residual.sum(0)
            if self.diagonal:
                slope[0] += np.einsum("nc,nc->c", residual, part)
            else:
                slope[:-1] += part.T @ residual
            if with_spread:
                # The residual of a label is p - 1 and others are p: the spread is the same function of both.
                distance = np.abs(residual, out=residual)
                spread = distance - distance * (distance if weight is None else distance / weight[:, None])
                own[0] += spread.sum(0)
                some = slice(None, None, max(1, len(part) // SOME_ROWS))
                of_rows = spread[some].sum(1)
                known[0] += of_rows @ part[some]
                known[1] += of_rows @ np.square(part[some])
                total += float(of_rows.sum())
                spread *= part
                own[1] += spread.sum(0)
                own[2] += np.einsum("nc,nc->c", spread, part)
        known /= max(total, 1e-30)
        known[1] -= known[0] ** 2
        squares = float((self.penalty * np.square(position)).sum(dtype=np.float64))
        slope = slope / slope.dtype.type(self.samples) + 2 * self.penalty * position
        return value / self.samples + squares, slope, Spread(own / self.samples, known)

    def curvature(self, position: Array) -> Array:
        """Second derivatives, ``(width * C, width * C)``, in the order class by class; of many rows, some are used."""
        width, classes = len(self.penalty), self.classes
        enough = self.samples if self.products <= NEWTON_PRODUCTS else NEWTON_ROWS * width * classes
        stride = max(1, self.samples // enough)
        rows = 0
        blocks = np.zeros((classes, width, width))
        across = np.zeros((classes * width, classes * width))
        for part, _, weight in self.chunks(max(CHUNK, 2**20 // width), stride):
            rows += len(part)
            probability = self.logits(part, position)
            probability = np.exp(probability - probability.max(1, keepdims=True))
            probability /= probability.sum(1, keepdims=True)
            if self.diagonal:
                known = np.stack((part, np.ones_like(part)), axis=2)  # (n, C, 2)
            else:
                known = np.pad(part, ((0, 0), (0, 1)), constant_values=1)[:, None]  # (n, 1, C + 1)
            parts = probability[:, :, None] * known  # (n, C, width)
            weighted = parts if weight is None else parts * weight[:, None, None]
            across += weighted.reshape(len(part), -1).T @ parts.reshape(len(part), -1)
            blocks += weighted.transpose(1, 2, 0) @ known.transpose(1, 0, 2)
        curvature = -across / rows
        for k in range(classes):
            at = slice(k * width, (k + 1) * width)
            curvature[at, at] += blocks[k] / rows
        curvature[np.diag_indices_from(curvature)] += 2 * self.penalty.T.ravel()
        return curvature


def newton(problem: AffineProblem, position: Array, tolerance: float) -> Array:
    """Newton's method."""
    evaluate = partial(problem.evaluate, with_spread=False)
    value, gradient, _ = evaluate(position)
    for _ in range(100):
        curvature = problem.curvature(position)
        if not (math.isfinite(value) and np.isfinite(curvature).all()):
            return np.full_like(position, np.nan)
        # Classes have a common shift that changes nothing: a little more keeps the matrix positive.
        diagonal = np.diagonal(curvature)
        curvature[np.diag_indices_from(curvature)] += 1e-12 * float(diagonal.mean()) + 1e-14
        step = np.linalg.solve(curvature, gradient.T.ravel())
        direction = -step.reshape(problem.classes, -1).T
        gain = -float((direction * gradient).sum())
        if not gain > tolerance:
            return position + direction if gain > 0 else position
        moved = _search(evaluate, position, value, direction, -gain)
        if moved is None:
            break
        position, value, gradient, _ = moved
    return position


def _search(
    evaluate: Any, position: Array, value: float, direction: Array, slope: float
) -> tuple[Array, float, Array, Spread] | None:
    """Halve the step until the value falls enough; None if only rounding is left."""
    size, rounding = 1.0, 8 * float(np.finfo(position.dtype).eps) * abs(value)
    while size > 1e-6:
        there = position + size * direction
        reached, gradient, spread = evaluate(there)
        if reached <= value + 1e-4 * size * slope:
            return there, reached, gradient, spread
        # Where rounding hides the fall of a value, its slope shows whether the step went too far.
        if reached <= value + rounding and float((direction * gradient).sum()) <= -0.8 * slope:
            return there, reached, gradient, spread
        size /= 2
    return None


class _Preconditioner:
    """An approximate inverse of the curvature; the page of matrix scaling in the documentation has the formula."""

    def __init__(self, problem: AffineProblem, spread: Spread) -> None:
        classes, (mean, variance) = problem.classes, spread.features
        first, second, third = spread.own
        # The least limits the step of a class that is hardly ever likely.
        size = np.maximum(first, max(1e-6 * float(first.max()), 1e-30))
        of_own = second / size
        rest = np.maximum(third - second * of_own, max(1e-6 * float(third.max()), 1e-12))
        diagonal = 2 * problem.penalty
        direction = np.ones_like(diagonal)
        if problem.diagonal:
            direction[0], diagonal[0] = of_own, diagonal[0] + rest
        else:
            direction[:-1] = mean[:, None]
            np.fill_diagonal(direction[:-1], of_own)
            own = np.diagonal(diagonal[:-1]) + rest
            diagonal[:-1] += np.maximum(variance, 0)[:, None] * size
            diagonal[np.arange(classes), np.arange(classes)] = own
        size = size.astype(diagonal.dtype)
        np.maximum(diagonal, max(1e-6 * float(size.max()), 1e-12), out=diagonal)
        self.inverse = 1 / diagonal
        self.shared = direction * self.inverse
        self.factor = size / (1 + size * (direction * self.shared).sum(0))

    def apply(self, gradient: Array) -> Array:
        """The preconditioned gradient."""
        along = (self.shared * gradient).sum(0)
        along -= (self.factor * along).sum() / self.factor.sum()
        return np.asarray(self.inverse * gradient - self.shared * (self.factor * along))


def lbfgs(problem: AffineProblem, position: Array, tolerance: float) -> Array:
    """Preconditioned L-BFGS."""
    value, gradient, spread = problem.evaluate(position)
    preconditioner = _Preconditioner(problem, spread)
    steps: list[tuple[Array, Array, float]] = []  # step, change of the gradient, and one over their product
    before = math.inf
    for _ in range(1000):
        if not (math.isfinite(value) and np.isfinite(gradient).all()):
            return np.full_like(position, np.nan)
        direction = -_two_loops(gradient, steps, preconditioner)
        gain = -float((direction * gradient).sum())
        if not gain > tolerance:
            return position + direction if gain > 0 else position
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


def _two_loops(gradient: Array, steps: list[tuple[Array, Array, float]], preconditioner: _Preconditioner) -> Array:
    """The gradient times the approximate inverse curvature."""
    result = gradient.copy()
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


def mixture_weights(likelihood: Array, sample_weight: Array | None = None, prior: Array | None = None) -> Array:
    r"""Weights on the simplex that maximise :math:`\sum_i s_i \ln \sum_j w_j L_{ij} + \sum_j a_j \ln w_j`.

    L, ``(N, m)``, is each component's probability of the right class, s are sample weights, and the prior a is a number
    of samples that only one component finds likely. A primal-dual interior point method.
    """
    samples, count = likelihood.shape
    counts = np.ones(samples) if sample_weight is None else sample_weight
    known = np.zeros(count) if prior is None else prior
    total = counts.sum() + known.sum()
    share, goal = counts / total, known / total
    weights = np.full(count, 1 / count)
    slopes = np.maximum(goal / weights, 1e-3)  # of the prior, unknowns of their own
    for _ in range(200):
        ratio = likelihood / (likelihood @ weights)[:, None]
        barrier = goal + CENTRING * max(0.0, float(weights @ slopes - goal.sum())) / count
        # The sum of the weights has a multiplier of 1, since all shares sum to 1.
        curvature = (ratio.T * share) @ ratio + np.diag(slopes / weights + 1e-13)
        step = np.linalg.solve(curvature, share @ ratio - 1 + barrier / weights)
        rise = (barrier - slopes * (weights + step)) / weights
        part = _inside(weights, step)
        weights, slopes = weights + part * step, slopes + _inside(slopes, rise) * rise
        if part > 0.9 and np.abs(step).max() < 1e-10:
            break
    weights = np.where((known == 0) & (weights < 1e-8), 0.0, weights)
    return np.asarray(weights / weights.sum())


def _inside(values: Array, step: Array) -> float:
    """Length of a step that keeps all values positive, at most 1."""
    falling = step < 0
    if not falling.any():
        return 1.0
    return min(1.0, 0.995 * float((values[falling] / -step[falling]).min()))


def logistic_regression(
    features: Array, target: Array, centre: Array, pull: float = 1e-8, *, weight: Array | None = None
) -> Array:
    r"""Minimise mean NLL plus :math:`\frac{pull}{2}|\theta - centre|^2` for each row, which bounds separable fits.

    Features are ``(rows, d, N)``, with a constant for the intercept; targets are probabilities of a hit, ``(rows, N)``;
    and weights ``(N,)``. The coefficients are ``(rows, d)``.
    """
    counts = np.ones(features.shape[2]) if weight is None else weight
    share = counts / counts.sum()
    with np.errstate(all="ignore"):
        rows = [_regression(*row, centre, pull, share) for row in zip(features, target, strict=True)]
    return np.array(rows)


def _regression(features: Array, target: Array, centre: Array, pull: float, share: Array) -> Array:
    """Newton's method with step halving, from the centre."""
    # What the labels contribute: the NLL is the mean softplus of the log-odds minus the product with these.
    moments = features @ (target * share)

    def value_at(coefficients: Array, odds: Array) -> float:
        distance = coefficients - centre
        return float(softplus(odds) @ share - moments @ coefficients + pull / 2 * (distance @ distance))

    found, odds = centre, centre @ features
    value = value_at(found, odds)
    for _ in range(100):
        probability = 1 / (1 + np.exp(-odds))
        gradient = features @ (probability * share) - moments + pull * (found - centre)
        spread = probability * (1 - probability) * share
        curvature = (features * spread) @ features.T + pull * np.eye(len(centre))
        try:
            step = -np.linalg.solve(curvature, gradient)
        except np.linalg.LinAlgError:  # it overflowed
            break
        left = -float(step @ gradient)  # twice the gain that is left
        # Log-odds are linear in the coefficients: half the way there is half the way here.
        change = step @ features
        reached = value_at(found + step, odds + change)
        for _ in range(40):
            if reached <= value:
                break
            step, change = step / 2, change / 2
            reached = value_at(found + step, odds + change)
        if not reached < value:  # only rounding is left
            break
        found, odds, value = found + step, odds + change, reached
        # A step that changes no log-odds by more than s leaves about s squared of the gain.
        largest = float(np.abs(change).max())
        if left * largest**2 <= TOLERANCE / 10 and largest <= 0.1:
            break
    return found


def softplus(odds: Array) -> Array:
    """The logarithm of 1 + exp(odds)."""
    # Not log1p, which takes several times as long: the error is that of rounding a number near 1.
    return np.asarray(np.maximum(odds, 0) + np.log(1 + np.exp(-np.abs(odds))))
