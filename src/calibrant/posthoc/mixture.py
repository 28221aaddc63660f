"""Weights of a mixture of predictions: convex, and best on held-out data."""

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


def mixture_weights(likelihood: Matrix, sample_weight: Matrix | None = None) -> Matrix:
    """Weights on the simplex that maximise the mean log of a mixture.

    A weighted sum of ``m`` components is optimal exactly when ``mean(component / mixture)`` is 1 for every
    component with weight and at most 1 for the others. Newton's method on the components with weight, which drops
    one at the edge of the simplex and adds one that would help, reaches that in a few steps.

    Args:
        likelihood: ``(N, m)``, each component's probability of the right class; no row may be all zeros.
        sample_weight: ``(N,)`` weights of the samples, or None.
    """
    samples, count = likelihood.shape
    share = np.full(samples, 1 / samples) if sample_weight is None else sample_weight / sample_weight.sum()
    weights = np.full(count, 1 / count)
    active = np.ones(count, dtype=bool)
    for _ in range(200):
        ratio = likelihood / (likelihood @ weights)[:, None]
        gradient = share @ ratio
        ascent = _newton_direction(ratio[:, active], gradient[active], share)
        if np.abs(ascent).max() < 1e-10:
            better = np.where(active, 0.0, gradient - 1)
            if better.max() < 1e-9:
                break
            active[better.argmax()] = True
            continue
        direction = np.zeros(count)
        direction[active] = ascent
        weights = _line_search(likelihood, weights, direction, share)
        active = weights > 0
    return np.asarray(weights / weights.sum())


def mixture_weights_with_prior(likelihood: Matrix, prior: Matrix, sample_weight: Matrix | None = None) -> Matrix:
    r"""Weights on the simplex that maximise the log-likelihood of a mixture with a Dirichlet prior.

    .. math:: \max_w \ \sum_i s_i \ln \sum_j w_j L_{ij} + \sum_j a_j \ln w_j

    Newton's steps of :func:`mixture_weights` would be cut short again and again by weights on their way to a small
    multiple of the prior. Here the slopes :math:`z_j = a_j / w_j` of the prior are unknowns of their own (a primal-dual
    interior point method), which usually takes less than ten steps.

    Args:
        likelihood: ``(N, m)``, each component's probability of the right class; no row may be all zeros.
        prior: ``(m,)`` positive numbers of samples that only one component finds likely.
        sample_weight: ``(N,)`` weights of the samples, or None.
    """
    samples, count = likelihood.shape
    counts = np.ones(samples) if sample_weight is None else sample_weight
    total = counts.sum() + prior.sum()
    share, barrier = counts / total, prior / total
    weights = np.full(count, 1 / count)
    slopes = np.maximum(barrier / weights, 1e-3)
    for _ in range(50):
        ratio = likelihood / (likelihood @ weights)[:, None]
        gradient = share @ ratio
        # The sum of the weights has a multiplier of 1, since all shares sum to 1.
        curvature = (ratio.T * share) @ ratio + np.diag(slopes / weights)
        step = np.linalg.solve(curvature, gradient - 1 + barrier / weights)
        rise = (barrier - slopes * (weights + step)) / weights
        part = _inside(weights, step)
        weights, slopes = weights + part * step, slopes + _inside(slopes, rise) * rise
        if part == 1 and np.abs(step).max() < 1e-10:
            return np.asarray(weights / weights.sum())
    return mixture_weights(np.vstack((likelihood, np.eye(count))), np.concatenate((counts, prior)))


def _inside(values: Matrix, step: Matrix) -> float:
    """Length of a step that keeps all values positive, at most 1."""
    falling = step < 0
    return min(1.0, 0.995 * float((values[falling] / -step[falling]).min())) if falling.any() else 1.0


def _newton_direction(ratio: Matrix, gradient: Matrix, share: Matrix) -> Matrix:
    """Newton's step of the mean log mixture among weights whose sum stays the same."""
    count = len(gradient)
    if count == 1:
        return np.zeros(1)
    # Move weight from the last component to each of the others, which keeps the constraint.
    moves = np.vstack((np.eye(count - 1), -np.ones(count - 1)))
    change = ratio @ moves
    curvature = (change.T * share) @ change
    ridge = 1e-12 * np.trace(curvature) + 1e-300
    return np.asarray(moves @ np.linalg.solve(curvature + ridge * np.eye(count - 1), moves.T @ gradient))


def _line_search(likelihood: Matrix, weights: Matrix, direction: Matrix, share: Matrix) -> Matrix:
    """A step along ``direction`` that raises the likelihood and stays in the simplex."""
    falling = direction < 0
    room = np.where(falling, -weights / np.where(falling, direction, -1.0), np.inf)
    step = min(1.0, float(room.min()))
    edge = int(room.argmin()) if step == room.min() else None
    with np.errstate(divide="ignore"):
        before = share @ np.log(likelihood @ weights)
        for _ in range(60):
            moved = np.maximum(weights + step * direction, 0.0)
            if edge is not None:
                moved[edge] = 0.0
            if share @ np.log(likelihood @ moved) >= before:
                return moved
            step, edge = step / 2, None
    return weights


def brier_weights(predictions: Matrix, target: npt.NDArray[np.int64], sample_weight: Matrix | None = None) -> Matrix:
    """Weights on the simplex that minimise the Brier score of a mixture.

    The score is a quadratic function of the weights: an active set method solves it exactly in a few steps.

    Args:
        predictions: ``(m, N, C)`` probabilities of every component.
        target: ``(N,)`` class indices.
        sample_weight: ``(N,)`` weights of the samples, or None.
    """
    count, samples, _ = predictions.shape
    share = np.full(samples, 1 / samples) if sample_weight is None else sample_weight / sample_weight.sum()
    residual = predictions.copy()
    residual[:, np.arange(samples), target] -= 1
    weighted = residual * share[None, :, None]
    products = np.einsum("anc,bnc->ab", weighted, residual) + 1e-12 * np.eye(count)
    # Weights that sum to 1, with the rest at 0: solve on the active ones, drop the most negative, until none is.
    active = np.ones(count, dtype=bool)
    while True:
        solved = np.linalg.solve(products[np.ix_(active, active)], np.ones(active.sum()))
        solved /= solved.sum()
        if solved.min() >= 0:
            break
        active[np.flatnonzero(active)[solved.argmin()]] = False
    weights = np.zeros(count)
    weights[active] = solved
    return weights
