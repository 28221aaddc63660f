"""A sample of weight 2 counts as two samples, in every view and loss that takes weights."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import calibrant as cal
import calibrant.functional as F
from tests.cases import WEIGHTED, random_logits, value_and_gradient

Weighted = Callable[..., Tensor]
FUNCTIONS: dict[str, Weighted] = {
    "esd": F.esd,
    "mmce": F.mmce,
    "mmce unbiased": lambda z, c, **k: F.mmce(z, c, unbiased=True, **k),
    "mmce narrow, unbiased": lambda z, c, **k: F.mmce(z, c, 1e-4, unbiased=True, **k),
    "mmce weighted": F.mmce_weighted,
    "ece": F.ece,
    "soft-binned ece": F.soft_binned_ece,
    "soft-binned ece, binned": lambda z, c, **k: F.soft_binned_ece(z, c, form="binned", **k),
    "dca": F.dca,
}
MODULES = {name: module for name, module in WEIGHTED.items() if "multi-label" not in name}
SCALE_MATTERS = ("esd", "mmce unbiased", "mmce narrow, unbiased")


@st.composite
def samples(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Confidences (some tied), correctness, and how often each sample counts; three count at least once."""
    n = draw(st.integers(3, 20))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    z = torch.rand(n, generator=generator, dtype=torch.float64)
    z = 0.9 * ((z * 4).round() / 4 if draw(st.booleans()) else z) + 0.0123456  # no bin has a gap of exactly 0
    c = (torch.rand(n, generator=generator, dtype=torch.float64) < z).double()
    times = torch.randint(5, (n,), generator=generator)
    times[:3] = times[:3].clamp_min(1)
    return z, c, times


@pytest.mark.parametrize("name", FUNCTIONS)
@given(data=samples())
@settings(max_examples=40, deadline=None)
def test_whole_weights_repeat_samples(name: str, data: tuple[Tensor, Tensor, Tensor]) -> None:
    z, c, times = data
    ours = value_and_gradient(lambda x, y: FUNCTIONS[name](x, y, sample_weight=times), z, c)
    repeated = value_and_gradient(
        lambda x, y: FUNCTIONS[name](x.repeat_interleave(times), y.repeat_interleave(times)), z, c
    )
    torch.testing.assert_close(ours, repeated, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODULES)
def test_whole_weights_repeat_samples_of_a_module(name: str) -> None:
    module = MODULES[name]
    logits, target = random_logits(40, 5, seed=1)
    target[::7] = -100
    times = torch.randint(4, (40,), generator=torch.Generator().manual_seed(1))
    ours = value_and_gradient(lambda x, y: module(x, y, sample_weight=times), logits, target)
    repeated = value_and_gradient(
        lambda x, y: module(x.repeat_interleave(times, 0), y.repeat_interleave(times)), logits, target
    )
    torch.testing.assert_close(ours, repeated)


@pytest.mark.parametrize("name", ["esd", "mmce unbiased", "ece"])
def test_the_metric_is_the_same_number(name: str) -> None:
    metrics: dict[str, Callable[..., float]] = {
        "esd": cal.metrics.esd,
        "mmce unbiased": cal.metrics.mmce_unbiased,
        "ece": lambda z, c, **k: cal.metrics.ece(z, c, bins=20, **k),
    }
    generator = torch.Generator().manual_seed(0)
    z, w = torch.rand(2, 200, generator=generator, dtype=torch.float64)
    c = torch.rand(200, generator=generator) < z
    value = FUNCTIONS[name](z, c, sample_weight=3 * w).item()
    assert value == pytest.approx(metrics[name](z.numpy(), c.numpy(), sample_weight=3 * w.numpy()), rel=1e-10)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in SCALE_MATTERS])
@given(data=samples(), exponent=st.integers(-10, 10))
@settings(max_examples=20, deadline=None)
def test_the_scale_of_weights_does_not_matter_where_nothing_is_corrected_for_n(
    name: str, data: tuple[Tensor, Tensor, Tensor], exponent: int
) -> None:
    z, c, w = data
    value = value_and_gradient(lambda x, y: FUNCTIONS[name](x, y, sample_weight=w), z, c)
    scaled = value_and_gradient(lambda x, y: FUNCTIONS[name](x, y, sample_weight=w.double() * 10.0**exponent), z, c)
    torch.testing.assert_close(scaled, value, rtol=1e-9, atol=1e-12)


def test_weighted_esd_centres_on_zero_when_calibrated() -> None:
    # Weights that are not counts, multiplied as the docstring says.
    generator = torch.Generator().manual_seed(10)
    z, w = 0.5 + 0.5 * torch.rand(2, 20_000, 16, generator=generator, dtype=torch.float64)
    c = torch.rand(z.shape, generator=generator, dtype=torch.float64) < z
    w = (4 * w).exp()
    w *= w.sum(-1, keepdim=True) / w.square().sum(-1, keepdim=True)
    values = F.esd(z, c, sample_weight=w)
    assert abs(float(values.mean())) < 4 * float(values.std()) / len(values) ** 0.5


@pytest.mark.parametrize("name", FUNCTIONS)
def test_weight_zero_is_a_mask(name: str) -> None:
    function = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(2)
    z = torch.rand(3, 30, generator=generator, dtype=torch.float64)
    c, counts = torch.rand(3, 30, generator=generator) < 0.5, torch.rand(3, 30, generator=generator) < 0.7
    w = 1 + torch.rand(3, 30, generator=generator)
    spoiled = torch.where(counts, z, torch.nan)
    masked = function(spoiled, c, mask=counts, sample_weight=torch.where(counts, w, torch.nan))
    torch.testing.assert_close(function(spoiled, c, sample_weight=w * counts), masked)
    rows = [function(z[i][counts[i]], c[i][counts[i]], sample_weight=w[i][counts[i]]) for i in range(3)]
    torch.testing.assert_close(masked, torch.stack(rows))
    torch.testing.assert_close(function(spoiled, c, sample_weight=counts), function(spoiled, c, mask=counts))


@pytest.mark.parametrize("shape", [(24,), (4, 6), (2, 3, 4)])
@pytest.mark.parametrize("name", MODULES)
def test_dense_logits_with_weights_and_ignored_labels(name: str, shape: tuple[int, ...]) -> None:
    module = MODULES[name]
    logits, target = random_logits(24, 5, seed=7)
    generator = torch.Generator().manual_seed(8)
    w, mask = 1 + torch.rand(24, generator=generator), torch.rand(24, generator=generator) < 0.8
    target[[1, 5, 6]] = -100
    counts = mask & (target != -100)
    value, gradient = value_and_gradient(
        lambda x, y: module(x, y, sample_weight=w[counts]), logits[counts], target[counts]
    )
    folded = torch.where(counts[:, None], logits, torch.nan).reshape(*shape, 5).movedim(-1, 1)
    folded_value, folded_gradient = value_and_gradient(
        lambda x, y: module(x, y, mask.reshape(shape), w.reshape(shape)), folded, target.reshape(shape)
    )
    flat = folded_gradient.movedim(1, -1).reshape(24, 5)
    torch.testing.assert_close(folded_value, value)
    torch.testing.assert_close(flat[counts], gradient)
    assert (flat[~counts] == 0).all()


def test_binary_logits_take_weights() -> None:
    two, target = random_logits(20, 2, seed=9)
    w = 1 + torch.rand(20, generator=torch.Generator().manual_seed(9))
    logit = two[:, 1] - two[:, 0]
    expected = cal.ESDLoss(root=False)(two, target, sample_weight=w)
    torch.testing.assert_close(cal.ESDLoss(root=False)(logit, target, sample_weight=w), expected)
    column = cal.ESDLoss(root=False)(logit[:, None], target[:, None], sample_weight=w[:, None])
    torch.testing.assert_close(column, expected)


def test_weights_map_over_batches() -> None:
    module = cal.ESDLoss(root=False)
    logits, target = random_logits(40, 5, seed=0)
    w = 2 * torch.rand(40, generator=torch.Generator().manual_seed(0))
    batches = (logits.reshape(2, 20, 5), target.reshape(2, 20), None, w.reshape(2, 20))
    mapped = torch.vmap(module, in_dims=(0, 0, None, 0))(*batches)
    expected = [module(logits[part], target[part], None, w[part]) for part in (slice(20), slice(20, 40))]
    torch.testing.assert_close(mapped, torch.stack(expected))


def test_weights_that_are_too_small_give_zero_where_they_are_not_read() -> None:
    logits, target = random_logits(8, 3, seed=0)
    w = torch.full((8,), 0.2)
    mapped = torch.vmap(cal.ESDLoss(root=False), in_dims=(0, 0, None, 0))
    assert mapped(logits[None], target[None], None, w[None]) == 0
