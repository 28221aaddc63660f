"""Deterministic data whose values were computed independently, to twelve digits."""

import math

import pytest
import torch

import calibrant as cal
import calibrant.functional as F
from calibrant.losses.checks import Pairs
from tests.cases import Function, value_and_gradient

I = torch.arange(1, 1001, dtype=torch.float64)  # noqa: E741
U, V = (0.6180339887498949 * I) % 1, (0.7548776662466927 * I) % 1
CONTINUOUS = 0.1 + 0.9 * U**0.2
CORRECT = (CONTINUOUS + 0.12 * torch.sin(3 * math.pi * CONTINUOUS) - 0.02).clip(0, 1) > V
TIED = torch.round(50 * CONTINUOUS) / 50

GOLDEN: dict[str, tuple[Function, float, float]] = {
    "esd": (F.esd, 6.344652845941e-04, 6.870861370388e-04),
    "mmce 0.4": (F.mmce, 1.751840776154e-03, 1.728500021850e-03),
    "mmce 0.2": (lambda z, c: F.mmce(z, c, 0.2), 1.693537740450e-03, 1.668917495516e-03),
    "mmce unbiased": (lambda z, c: F.mmce(z, c, unbiased=True), 1.677203103337e-03, 1.653662884735e-03),
    "mmce weighted": (F.mmce_weighted, 2.136886733679e-01, 2.141728737259e-01),
    "soft-binned ece": (F.soft_binned_ece, 8.540695234887e-02, 8.513074001128e-02),
    "soft-binned ece, cold": (
        lambda z, c: F.soft_binned_ece(z, c, temperature=1e-4), 7.672234287000e-02, 7.658264960354e-02
    ),
    "soft-binned ece, binned": (
        lambda z, c: F.soft_binned_ece(z, c, form="binned"), 6.080633021015e-02, 6.028734674080e-02
    ),
    "ece 15": (lambda z, c: F.ece(z, c, 15), 6.143280037420e-02, 6.126000000000e-02),
    "ece 20": (F.ece, 6.257116286720e-02, 5.990000000000e-02),
}  # fmt: skip


def test_the_data_are_the_golden_data() -> None:
    assert CONTINUOUS.mean().item() == pytest.approx(0.850116483972, rel=1e-11)
    assert CORRECT.double().mean().item() == 0.89


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_value(name: str) -> None:
    function, continuous, tied = GOLDEN[name]
    assert function(CONTINUOUS, CORRECT).item() == pytest.approx(continuous, rel=1e-10)
    assert function(TIED, CORRECT).item() == pytest.approx(tied, rel=1e-10)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_value_in_float32(name: str) -> None:
    # Rounding may move a tied confidence across a bin edge or a tie group, so only the continuous set.
    function, continuous, _ = GOLDEN[name]
    value = function(CONTINUOUS.float(), CORRECT)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(continuous, rel=3e-6)


def test_golden_gradient_of_esd() -> None:
    _, gradient = value_and_gradient(F.esd, CONTINUOUS, CORRECT)
    assert gradient[CONTINUOUS.argmin()].item() == pytest.approx(-3.600617365750e-05, rel=1e-10)
    assert gradient[CONTINUOUS.argmax()].item() == 0
    assert gradient.sum().item() == pytest.approx(-2.859903192397e-02, rel=1e-10)
    assert gradient.abs().max().item() == pytest.approx(4.048755235926e-05, rel=1e-10)


def test_golden_accuracy_versus_uncertainty() -> None:
    pairs = Pairs(CONTINUOUS, CORRECT)
    p = torch.stack((CONTINUOUS, 0.7 * (1 - CONTINUOUS), 0.3 * (1 - CONTINUOUS)), dim=-1)
    entropy = -(p * p.log()).sum(1)
    assert cal.AvUCLoss(0.5).value(pairs, entropy, 3).item() == pytest.approx(0.2804781311765, rel=1e-10)
    assert cal.SoftAvUCLoss(0.5, 0.1).value(pairs, entropy, 3).item() == pytest.approx(0.2814594820874, rel=1e-10)
    assert cal.SoftAvUCLoss(0.3, 1.0).value(pairs, entropy, 3).item() == pytest.approx(0.4886056256334, rel=1e-10)
