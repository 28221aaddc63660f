"""Logistic regressions of a few features, for all rows at once."""

import torch
from torch import Tensor


def logistic_regression(features: Tensor, target: Tensor, centre: Tensor, pull: float = 1e-8) -> Tensor:
    r"""Minimise mean NLL plus :math:`\frac{pull}{2}|\theta - centre|^2` by Newton's method with step halving.

    Args:
        features: ``(rows, d, N)``, float64; a constant for the intercept is one of them.
        target: Probability of a hit, ``(rows, N)``, float64.
        centre: ``(d,)``: where the coefficients are drawn to, and start from.
        pull: How strongly; it bounds the coefficients where data is separable or a feature is constant.

    Returns:
        Coefficients, ``(rows, d)``.
    """
    rows, count, samples = features.shape

    def objective(coefficients: Tensor) -> Tensor:
        odds = torch.einsum("rd,rdn->rn", coefficients, features)
        nll = (torch.nn.functional.softplus(odds) - target * odds).mean(1)
        return nll + pull / 2 * (coefficients - centre).square().sum(1)

    coefficients = centre.expand(rows, count).clone()
    value = objective(coefficients)
    for _ in range(100):
        probability = torch.einsum("rd,rdn->rn", coefficients, features).sigmoid()
        away = coefficients - centre
        gradient = torch.einsum("rn,rdn->rd", probability - target, features) / samples + pull * away
        weight = probability * (1 - probability) / samples
        curvature = torch.einsum("rn,rdn,ren->rde", weight, features, features)
        curvature.diagonal(dim1=1, dim2=2).add_(pull)
        direction = -torch.linalg.solve(curvature, gradient)
        if float((direction * gradient).sum(1).abs().max()) < 1e-16:
            break
        step = torch.ones_like(value)
        for _ in range(40):
            moved = coefficients + step.unsqueeze(1) * direction
            reached = objective(moved)
            worse = reached > value
            if not worse.any():
                break
            step = torch.where(worse, step / 2, step)
        coefficients = torch.where(worse.unsqueeze(1), coefficients, moved)
        if bool((worse | (reached >= value - 1e-16)).all()):
            break
        value = torch.where(worse, value, reached)
    return coefficients
