"""Every kernel equals an independent transcription of its formula, value and gradient."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import calibrant as cal
from tests.cases import LOGIT_CASES, MODULES, PAIR_CASES, random_logits, value_and_gradient

CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Random, tied, saturated and sorted confidences with correctness drawn beside them."""
    n = draw(st.integers(3, 24))
    kind = draw(st.sampled_from(["random", "tied", "saturated", "sorted", "reversed", "all right", "all wrong"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    z = torch.rand(n, generator=generator, dtype=torch.float64)
    c = (torch.rand(n, generator=generator, dtype=torch.float64) < z).double()
    if kind == "tied":
        z = (z * 4).round() / 4
    elif kind == "saturated":
        z = torch.where(z < 0.5, torch.where(z < 0.25, 1.0, 1 - 2.0**-24), torch.where(z < 0.75, 2.0**-30, z))
    elif kind == "sorted":
        z = z.sort().values
    elif kind == "reversed":
        z = z.sort(descending=True).values
    elif kind == "all right":
        c = torch.ones_like(c)
    elif kind == "all wrong":
        c = torch.zeros_like(c)
    return z, c


@pytest.mark.parametrize("name", PAIR_CASES)
@given(data=pairs())
@settings(max_examples=40, deadline=None)
def test_pairs_equal_the_transcription(name: str, data: tuple[Tensor, Tensor]) -> None:
    case = PAIR_CASES[name]
    ours = value_and_gradient(case.function, *data)
    theirs = value_and_gradient(case.reference, *data)
    torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("name", LOGIT_CASES)
@given(n=st.integers(3, 16), classes=st.integers(2, 6), seed=st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_logits_equal_the_transcription(name: str, n: int, classes: int, seed: int) -> None:
    case = LOGIT_CASES[name]
    logits, target = random_logits(n, classes, seed)
    ours = value_and_gradient(case.function, logits, target)
    theirs = value_and_gradient(case.reference, logits, target)
    torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("BSCEGRA")])
def test_gradcheck(name: str) -> None:
    # Dissonant logits keep finite differences away from ties, bin edges and kinks.
    logits, target = random_logits(9, 4, seed=5)
    target[:5] = (target[:5] + 1) % 4  # over-confident, so that the rooted U-statistics are positive
    module = MODULES[name]()
    # A bandwidth of 1e-4 bends on the scale of the finite difference itself.
    step = 1e-9 if "narrow" in name else 1e-6
    atol = 1e-4 if "narrow" in name else 1e-6
    assert module(logits, target) != 0
    assert torch.autograd.gradcheck(lambda x: module(x, target), logits.clone().requires_grad_(), eps=step, atol=atol)


def test_the_gradient_of_bsce_gra_is_that_of_the_nll_times_the_brier_score() -> None:
    # The weight is a constant to autograd, so finite differences of the value would not be this gradient.
    logits, target = random_logits(9, 4, seed=5)
    weight = (logits.softmax(1) - torch.eye(4)[target]).square().sum(1)
    _, gradient = value_and_gradient(cal.BSCEGRALoss(), logits, target)
    step = 1e-6
    for i, k in [(0, 0), (3, 2), (8, 3)]:
        moved = torch.zeros_like(logits)
        moved[i, k] = step
        above, below = (torch.nn.functional.cross_entropy(logits + s * moved, target) for s in (1, -1))
        assert gradient[i, k].item() == pytest.approx(float(weight[i] * (above - below) / (2 * step)), rel=1e-7)


@pytest.mark.parametrize("name", ["esd", "mmce", "mmce weighted", "soft-binned ece"])
def test_second_derivatives_are_exact_too(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    z = torch.rand(7, generator=generator, dtype=torch.float64, requires_grad=True)
    c = (torch.rand(7, generator=generator) < 0.6).double()
    assert torch.autograd.gradgradcheck(lambda x: PAIR_CASES[name].function(x, c), z)


@pytest.mark.parametrize("name", PAIR_CASES)
def test_rows_are_independent(name: str) -> None:
    # One row is computed on arrays, several on tensors.
    function = PAIR_CASES[name].function
    generator = torch.Generator().manual_seed(2)
    z = torch.rand(3, 20, generator=generator, dtype=torch.float64)
    z[:, :6] = (z[:, :6] * 8).round() / 8
    c = (torch.rand(3, 20, generator=generator) < 0.5).double()
    values, gradients = zip(*(value_and_gradient(function, z[i], c[i]) for i in range(3)), strict=True)
    torch.testing.assert_close(function(z, c), torch.stack(values), **CLOSE)
    _, gradient = value_and_gradient(lambda x, y: function(x, y).sum(), z, c)
    torch.testing.assert_close(gradient, torch.stack(gradients), **CLOSE)


@pytest.mark.parametrize("bandwidth", [1e-5, 1e-4, 0.002, 0.01, 0.4, 10.0])
def test_mmce_against_a_long_double_recurrence(bandwidth: float) -> None:
    z = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[:5_000] = (z[:5_000] * 100).round() / 100
    c = torch.arange(20_000) % 3 > 0
    order = z.argsort()
    position = z[order].numpy().astype(np.longdouble)
    residual = c[order].numpy().astype(np.longdouble) - position
    running, total = np.longdouble(0), np.longdouble(0)
    for i in range(len(position)):
        if i:
            running *= np.exp(-(position[i] - position[i - 1]) / np.longdouble(bandwidth))
        total += residual[i] * (2 * running + residual[i])
        running += residual[i]
    ours = cal.functional.mmce(z, c, bandwidth).item()
    assert ours * 20_000**2 == pytest.approx(float(total), rel=1e-10)


def test_narrow_kernels_do_not_overflow() -> None:
    z = torch.tensor([0.0, 0.0, 0.3, 1.0, 1.0] * 100, dtype=torch.float64)
    c = torch.zeros(500)
    value, gradient = value_and_gradient(lambda x, y: cal.functional.mmce(x, y, 1e-12), z, c)
    assert value.item() == pytest.approx((30**2 + 200**2) / 500**2)
    assert gradient.isfinite().all()
