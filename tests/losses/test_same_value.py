"""Evaluation and training see the same number: asking for a gradient does not change a value."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import calibrant as cal
from tests.cases import LOGIT_CASES, MODULES, PAIR_CASES, random_logits

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
Function = Callable[[Tensor, Tensor], Tensor]


def values_with_and_without(function: Function, x: Tensor, y: Tensor) -> list[Tensor]:
    """The value with a gradient, without one, and in the two contexts that switch gradients off."""
    leaf = x.clone().requires_grad_()
    values = [function(leaf, y).detach(), function(x, y)]
    with torch.no_grad():
        values.append(function(leaf, y))
    with torch.inference_mode():
        values.append(function(x.clone(), y))
    return values


def assert_all_equal(values: list[Tensor]) -> None:
    for value in values[1:]:
        assert value.dtype == values[0].dtype
        assert torch.equal(value, values[0]), [each.item() for each in values]


@pytest.mark.slow_after(24)
@pytest.mark.parametrize("name", [*MODULES, *LOGIT_CASES])
@given(
    dtype=st.sampled_from(DTYPES),
    n=st.integers(3, 40),
    classes=st.integers(2, 10),
    scale=st.sampled_from([1.0, 8.0, 30.0]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=12, deadline=None)
def test_objectives_of_logits(name: str, dtype: torch.dtype, n: int, classes: int, scale: float, seed: int) -> None:
    logits, target = random_logits(n, classes, seed, scale)
    function = MODULES[name]() if name in MODULES else LOGIT_CASES[name].function
    assert_all_equal(values_with_and_without(function, logits.to(dtype), target))


@pytest.mark.parametrize("name", PAIR_CASES)
@given(dtype=st.sampled_from(DTYPES), n=st.integers(3, 40), seed=st.integers(0, 2**31), tied=st.booleans())
@settings(max_examples=12, deadline=None)
def test_objectives_of_pairs(name: str, dtype: torch.dtype, n: int, seed: int, tied: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.rand(n, generator=generator, dtype=torch.float64)
    confidence = ((confidence * 4).round() / 4 if tied else confidence).to(dtype)
    correct = torch.rand(n, generator=generator) < 0.7
    assert_all_equal(values_with_and_without(PAIR_CASES[name].function, confidence, correct))


@pytest.mark.parametrize("module", [cal.ESDLoss, cal.MMCELoss])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(5))
def test_saturated_confidences_are_tied_in_the_closed_form_as_in_plain_torch(
    module: Callable[[], torch.nn.Module], dtype: torch.dtype, seed: int
) -> None:
    # Within some roundings of 1, two exponentials that differ in the last bit tie other samples, and ESD jumps.
    generator = torch.Generator().manual_seed(seed)
    logits = 30 * torch.randn(200, 10, generator=generator, dtype=torch.float64).to(dtype)
    target = torch.randint(10, (200,), generator=generator)
    plain = torch.vmap(module())(logits[None], target[None])[0]
    torch.testing.assert_close(module()(logits.requires_grad_(), target).detach(), plain)
