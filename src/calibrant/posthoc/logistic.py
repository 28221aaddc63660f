"""Logistic regressions of a few features, for all rows at once."""

import torch
from torch import Tensor


def logistic_regression(
    features: Tensor, target: Tensor, centre: Tensor, pull: float = 1e-8, *, weight: Tensor | None = None
) -> Tensor:
    r"""Minimise mean NLL plus :math:`\frac{pull}{2}|\theta - centre|^2` by Newton's method with step halving.

    Args:
        features: ``(rows, d, N)``, float64; a constant for the intercept is one of them.
        target: Probability of a hit, ``(rows, N)``, float64.
        centre: ``(d,)``: point that the coefficients start from and are pulled towards.
        weight: ``(N,)`` weights of the samples, or None.
        pull: Strength of the pull; it bounds the coefficients if data is separable or a feature is constant.

    Returns:
        Coefficients, ``(rows, d)``.
    """
    rows, count, samples = features.shape
    share = features.new_full((samples,), 1 / samples) if weight is None else weight / weight.sum()

    def log_odds(coefficients: Tensor) -> Tensor:
        return (coefficients.unsqueeze(1) @ features).squeeze(1)

    def objective(coefficients: Tensor, odds: Tensor) -> Tensor:
        nll = (torch.nn.functional.softplus(odds) - target * odds) @ share
        return nll + pull / 2 * (coefficients - centre).square().sum(1)

    coefficients = centre.expand(rows, count).clone()
    odds = log_odds(coefficients)
    value = objective(coefficients, odds)
    for _ in range(100):
        probability = odds.sigmoid()
        gradient = (features @ ((probability - target) * share).unsqueeze(2)).squeeze(2)
        gradient += pull * (coefficients - centre)
        spread = (probability * (1 - probability) * share).unsqueeze(1)
        curvature = (features * spread) @ features.mT
        curvature.diagonal(dim1=1, dim2=2).add_(pull)
        direction = -torch.linalg.solve(curvature, gradient)
        done = -(direction * gradient).sum(1) < 1e-12  # twice the gain that is left
        if done.all():
            break
        direction = direction.masked_fill(done.unsqueeze(1), 0.0)
        step = torch.ones_like(value)
        for _ in range(40):
            moved = coefficients + step.unsqueeze(1) * direction
            odds = log_odds(moved)
            reached = objective(moved, odds)
            worse = (reached > value) & ~done
            if not worse.any():
                break
            step = torch.where(worse, step / 2, step)
        if bool((reached >= value).all()):  # only rounding is left
            break
        coefficients, value = torch.where(worse.unsqueeze(1), coefficients, moved), torch.where(worse, value, reached)
        if worse.any():
            odds = log_odds(coefficients)
    return coefficients
