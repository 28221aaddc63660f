"""Statistical claims of the docstrings, by simulation with fixed seeds."""

import math

import pytest
import torch
from torch import Tensor

import calibrant.functional as F


def calibrated(batches: int, n: int, seed: int, excess: float = 0.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = 0.5 + 0.5 * torch.rand(batches, n, generator=generator, dtype=torch.float64)
    c = torch.rand(batches, n, generator=generator, dtype=torch.float64) < z - excess
    return z, c


@pytest.mark.parametrize("excess", [0.0, 0.2])
def test_esd_is_unbiased(excess: float) -> None:
    # Confidence uniform on [0.5, 1], accuracy lower throughout: D(z) = -excess F(z), E[D^2] = excess^2 / 3.
    values = F.esd(*calibrated(20_000, 16, seed=1, excess=excess))
    standard_error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - excess**2 / 3) < 4 * standard_error


def test_two_thirds_of_calibrated_batches_are_silent() -> None:
    share = (F.esd(*calibrated(5_000, 128, seed=2)) <= 0).double().mean()
    assert 0.62 < share < 0.72


def test_unbiased_mmce_centres_on_zero_and_the_published_one_does_not() -> None:
    z, c = calibrated(5_000, 64, seed=3)
    unbiased, published = F.mmce(z, c, unbiased=True), F.mmce(z, c)
    assert abs(float(unbiased.mean())) < 4 * float(unbiased.std()) / math.sqrt(5_000)
    assert float(published.mean()) > 20 * float(published.std()) / math.sqrt(5_000)


def over_confident_logistic(theta: Tensor, x: Tensor) -> Tensor:
    """Confidence of a two-feature model whose true accuracy is sigmoid(x_0)."""
    return torch.sigmoid(x @ theta)


def test_the_gradient_of_esd_is_biased() -> None:
    # Common random numbers: how the *mean value* moves with theta, against the mean gradient autograd gives.
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(400_000, 2, generator=generator, dtype=torch.float64)
    truth = torch.rand(len(x), generator=generator, dtype=torch.float64) < torch.sigmoid(x[:, 0])
    theta = torch.tensor([1.5, 0.7], dtype=torch.float64, requires_grad=True)
    (autograd,) = torch.autograd.grad(F.esd(over_confident_logistic(theta, x), truth), theta)
    moved = []
    for k in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[k] = 0.02
        above, below = (F.esd(over_confident_logistic(theta.detach() + s, x), truth) for s in (step, -step))
        moved.append((above - below) / 0.04)
    difference = torch.stack(moved) - autograd
    assert difference.abs().max() > 0.1 * autograd.abs().max()
