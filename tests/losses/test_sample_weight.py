"""Sample weights: repetition where that has a meaning, the weighted U-statistic elsewhere, and nothing if equal."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import calibrant as cal
import calibrant.functional as F
from calibrant.losses.pairs import ViewedObjective
from tests import reference
from tests.cases import random_logits, value_and_gradient

CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
Weighted = Callable[..., Tensor]

FUNCTIONS: dict[str, tuple[Weighted, Weighted]] = {
    "esd": (F.esd, reference.weighted_esd),
    "mmce": (F.mmce, reference.weighted_mmce),
    "mmce unbiased": (
        lambda z, c, **k: F.mmce(z, c, unbiased=True, **k),
        lambda z, c, w: reference.weighted_mmce(z, c, w, unbiased=True),
    ),
    "mmce narrow, unbiased": (
        lambda z, c, **k: F.mmce(z, c, 1e-4, unbiased=True, **k),
        lambda z, c, w: reference.weighted_mmce(z, c, w, 1e-4, unbiased=True),
    ),
    "ece": (F.ece, reference.weighted_ece),
}
MODULES: dict[str, Callable[[], ViewedObjective]] = {
    "esd": lambda: cal.ESDLoss(root=False),
    "esd rooted": cal.ESDLoss,
    "esd class-wise": lambda: cal.ESDLoss(root=False, view="class-wise"),
    "mmce": cal.MMCELoss,
    "mmce unbiased": lambda: cal.MMCELoss(unbiased=True, root=False),
    "mmce class-wise": lambda: cal.MMCELoss(view="class-wise"),
    "ece": cal.ECELoss,
    "ece class-wise": lambda: cal.ECELoss(view="class-wise"),
}


@st.composite
def samples(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Confidences (some tied), correctness, and even, whole, uneven or partly zero weights; three are positive."""
    n = draw(st.integers(3, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    z = torch.rand(n, generator=generator, dtype=torch.float64)
    if draw(st.booleans()):
        z = (z * 4).round() / 4
    c = (torch.rand(n, generator=generator, dtype=torch.float64) < z).double()
    w = torch.rand(n, generator=generator, dtype=torch.float64) + 0.01
    kind = draw(st.sampled_from(["even", "whole", "uneven", "very uneven", "zeros"]))
    if kind == "whole":
        w = (4 * w).ceil()
    elif kind == "uneven":
        w = w**10
    elif kind == "very uneven":
        w = 10.0 ** (-25 * torch.rand(n, generator=generator, dtype=torch.float64))
    elif kind == "zeros":
        w = torch.where(torch.rand(n, generator=generator) < 0.5, 0.0, w)
        w[:3] = 1
    return z, c, w


@pytest.mark.parametrize("name", FUNCTIONS)
@given(data=samples())
@settings(max_examples=40, deadline=None)
def test_weights_equal_the_transcription(name: str, data: tuple[Tensor, Tensor, Tensor]) -> None:
    function, transcription = FUNCTIONS[name]
    z, c, w = data
    ours = value_and_gradient(lambda x, y: function(x, y, sample_weight=w), z, c)
    theirs = value_and_gradient(lambda x, y: transcription(x, y, w), z, c)
    torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("name", ["mmce", "ece"])
@given(data=samples(), seed=st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_whole_weights_repeat_samples(name: str, data: tuple[Tensor, Tensor, Tensor], seed: int) -> None:
    function, _ = FUNCTIONS[name]
    z, c, _ = data
    z = 0.9 * z + 0.0123456  # no bin has a gap of exactly 0, where the gradient jumps
    times = torch.randint(5, (len(z),), generator=torch.Generator().manual_seed(seed))
    times[0] = 1
    value, gradient = value_and_gradient(lambda x, y: function(x, y, sample_weight=times), z, c)
    repeated = value_and_gradient(lambda x, y: function(x.repeat_interleave(times), y.repeat_interleave(times)), z, c)
    torch.testing.assert_close((value, gradient), repeated, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("weight", [1.0, 0.3, 7e5])
def test_equal_weights_change_no_bit(name: str, weight: float) -> None:
    function, _ = FUNCTIONS[name]
    z = torch.rand(50, generator=torch.Generator().manual_seed(0))
    c = torch.arange(50) % 3 > 0
    plain = value_and_gradient(function, z, c)
    weighted = value_and_gradient(lambda x, y: function(x, y, sample_weight=torch.full((50,), weight)), z, c)
    torch.testing.assert_close(weighted, plain, rtol=0, atol=0)


@pytest.mark.parametrize("name", MODULES)
def test_equal_weights_change_no_bit_of_a_module(name: str) -> None:
    module = MODULES[name]()
    logits, target = random_logits(40, 5, seed=1)
    target[::7] = -100
    plain = value_and_gradient(module, logits, target)
    weighted = value_and_gradient(lambda x, y: module(x, y, sample_weight=torch.full((40,), 0.7)), logits, target)
    torch.testing.assert_close(weighted, plain, rtol=0, atol=0)


@pytest.mark.parametrize("name", FUNCTIONS)
@given(data=samples(), exponent=st.integers(-60, 60))
@settings(max_examples=20, deadline=None)
def test_the_scale_of_the_weights_does_not_matter(
    name: str, data: tuple[Tensor, Tensor, Tensor], exponent: int
) -> None:
    function, _ = FUNCTIONS[name]
    z, c, w = data
    value, gradient = value_and_gradient(lambda x, y: function(x, y, sample_weight=w), z, c)
    scaled = value_and_gradient(lambda x, y: function(x, y, sample_weight=w * 10.0**exponent), z, c)
    torch.testing.assert_close(scaled, (value, gradient), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_weight_zero_is_a_mask(name: str) -> None:
    function, _ = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(2)
    z = torch.rand(30, generator=generator, dtype=torch.float64)
    c, counts = torch.rand(30, generator=generator) < 0.5, torch.rand(30, generator=generator) < 0.7
    w = torch.rand(30, generator=generator)
    spoiled = torch.where(counts, z, torch.nan)
    masked = function(spoiled, c, mask=counts, sample_weight=torch.where(counts, w, torch.nan))
    torch.testing.assert_close(function(spoiled, c, sample_weight=w * counts), masked)
    torch.testing.assert_close(masked, function(z[counts], c[counts], sample_weight=w[counts]))
    torch.testing.assert_close(function(spoiled, c, sample_weight=counts), function(z[counts], c[counts]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_have_weights_of_their_own(name: str) -> None:
    function, _ = FUNCTIONS[name]
    z, c, w = torch.rand(3, 3, 20, generator=torch.Generator().manual_seed(3), dtype=torch.float64).unbind()
    c = (c < 0.5).double()
    rows = torch.stack([function(z[i], c[i], sample_weight=w[i]) for i in range(3)])
    torch.testing.assert_close(function(z, c, sample_weight=w), rows)


@pytest.mark.parametrize("name", MODULES)
def test_gradcheck_with_weights(name: str) -> None:
    module = MODULES[name]()
    logits, target = random_logits(9, 4, seed=5)
    target[:5] = (target[:5] + 1) % 4  # over-confident, so that the rooted U-statistics are positive
    w = torch.rand(9, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    w[7] = 0
    assert module(logits, target, sample_weight=w) != 0
    assert torch.autograd.gradcheck(lambda x: module(x, target, sample_weight=w), logits.requires_grad_())


@pytest.mark.parametrize("name", ["esd", "mmce", "mmce unbiased"])
def test_second_derivatives_with_weights(name: str) -> None:
    z = torch.rand(7, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=True)
    c, w = torch.arange(7) % 2, torch.arange(1, 8)
    assert torch.autograd.gradgradcheck(lambda x: FUNCTIONS[name][0](x, c, sample_weight=w), z)


@pytest.mark.parametrize("weights", ["uneven", "one", "two", "three", "denormal", "huge"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_no_weights_make_a_gradient_infinite(name: str, weights: str, dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    largest = torch.ones(12, dtype=dtype)
    given_weights: dict[str, Tensor] = {
        "uneven": 10 ** -torch.arange(0, 36, 3, dtype=dtype),
        "one": largest * info.tiny,
        "two": largest * info.tiny,
        "three": largest * info.tiny,
        "denormal": torch.arange(12, dtype=dtype) * info.smallest_normal * info.eps * 2,
        "huge": info.max / torch.arange(1, 13, dtype=dtype),
    }
    w = given_weights[weights]
    w[: {"one": 1, "two": 2, "three": 3}.get(weights, 0)] = 1
    logits, target = random_logits(12, 4, seed=6)
    logits[:4] = 0  # ties
    leaf = logits.to(dtype).requires_grad_()
    value = MODULES[name]()(leaf, target, sample_weight=w)
    value.backward()
    assert leaf.grad is not None
    assert value.isfinite()
    assert abs(value) <= 1
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(24,), (4, 6), (2, 3, 4)])
@pytest.mark.parametrize("name", MODULES)
def test_dense_logits_with_weights_and_ignored_labels(name: str, shape: tuple[int, ...]) -> None:
    module = MODULES[name]()
    logits, target = random_logits(24, 5, seed=7)
    generator = torch.Generator().manual_seed(8)
    w, mask = torch.rand(24, generator=generator), torch.rand(24, generator=generator) < 0.8
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
    w = torch.rand(20, generator=torch.Generator().manual_seed(9))
    logit = two[:, 1] - two[:, 0]
    expected = cal.ESDLoss(root=False)(two, target, sample_weight=w)
    torch.testing.assert_close(cal.ESDLoss(root=False)(logit, target, sample_weight=w), expected)
    column = cal.ESDLoss(root=False)(logit[:, None], target[:, None], sample_weight=w[:, None])
    torch.testing.assert_close(column, expected)


def test_weighted_esd_centres_on_zero_when_calibrated() -> None:
    generator = torch.Generator().manual_seed(10)
    z = 0.5 + 0.5 * torch.rand(20_000, 16, generator=generator, dtype=torch.float64)
    c = torch.rand(z.shape, generator=generator, dtype=torch.float64) < z
    values = F.esd(z, c, sample_weight=(z * 10).exp())
    assert abs(float(values.mean())) < 4 * float(values.std()) / len(values) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.usefixtures("fresh_compiler")
def test_weights_compile_into_one_graph(name: str) -> None:
    module = MODULES[name]()
    logits, target = random_logits(40, 5, seed=0)
    w = torch.rand(40, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        value_and_gradient(lambda x, y: compiled(x, y, None, w), logits, target),
        value_and_gradient(lambda x, y: module(x, y, None, w), logits, target),
    )


@pytest.mark.parametrize("name", MODULES)
def test_weights_are_not_read_on_an_accelerator(name: str) -> None:
    logits = torch.randn(40, 5, device="meta", requires_grad=True)
    target = torch.zeros(40, dtype=torch.long, device="meta")
    value = MODULES[name]()(logits, target, sample_weight=torch.ones(40, device="meta"))
    value.backward()
    assert value.shape == ()


def test_weights_map_over_batches() -> None:
    module = cal.ESDLoss(root=False)
    logits, target = random_logits(40, 5, seed=0)
    w = torch.rand(40, generator=torch.Generator().manual_seed(0))
    batches = (logits.reshape(2, 20, 5), target.reshape(2, 20), None, w.reshape(2, 20))
    mapped = torch.vmap(module, in_dims=(0, 0, None, 0))(*batches)
    expected = [module(logits[part], target[part], None, w[part]) for part in (slice(20), slice(20, 40))]
    torch.testing.assert_close(mapped, torch.stack(expected))


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "negative": (torch.arange(8) - 1.0, ValueError, "finite and not negative, got values from -1 to 6"),
    "NaN": (torch.full((8,), torch.nan), ValueError, "sample_weight must be finite"),
    "infinite": (torch.full((8,), torch.inf), ValueError, "sample_weight must be finite"),
    "too short": (torch.ones(7), ValueError, r"sample_weight must have shape \(8,\) to match target, got \(7,\)"),
    "a list": ([1.0] * 8, TypeError, "sample_weight must be a torch.Tensor, got list"),
    "complex": (torch.ones(8, dtype=torch.complex64), TypeError, "sample_weight must be real"),
    "elsewhere": (torch.ones(8, device="meta"), ValueError, "sample_weight is on meta but target on cpu"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_weights_are_named(bad: str) -> None:
    weight, error, message = BAD[bad]
    logits, target = random_logits(8, 3, seed=0)
    with pytest.raises(error, match=message):
        cal.ECELoss()(logits, target, sample_weight=weight)
    with pytest.raises(error, match=message.replace("target", "confidence")):
        F.ece(torch.rand(8), target == 0, sample_weight=weight)
