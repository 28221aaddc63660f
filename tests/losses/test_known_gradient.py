"""Losses whose gradient is computed beside the value: it is that of autograd, and differentiable again."""

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import calibrant as cal
from tests.cases import MODULES, random_logits

KNOWN: dict[str, Callable[[], nn.Module]] = {
    "esd": lambda: cal.ESDLoss(root=False),
    "esd rooted": cal.ESDLoss,
    "mmce": lambda: cal.MMCELoss(root=False),
    "mmce rooted": cal.MMCELoss,
    "mmce unbiased": lambda: cal.MMCELoss(unbiased=True),
    "mmce weighted": cal.WeightedMMCELoss,
}


def over_confident(n: int = 10) -> tuple[Tensor, Tensor]:
    logits, target = random_logits(n, 4, seed=5)
    target[: n // 2] = (target[: n // 2] + 1) % 4
    return logits.requires_grad_(), target


@pytest.mark.parametrize("name", KNOWN)
def test_modules_have_exact_second_derivatives(name: str) -> None:
    module = KNOWN[name]()
    logits, target = over_confident()
    assert module(logits, target) > 0
    assert torch.autograd.gradgradcheck(lambda x: module(x, target), logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [2.0, 8.0, 17.0])
@pytest.mark.parametrize("name", KNOWN)
def test_rows_that_are_permutations_of_each_other_stay_tied(name: str, scale: float, dtype: torch.dtype) -> None:
    # Every row holds the same logits in another order: one confidence, all wrong, so d = -z throughout.
    row = torch.randn(10, generator=torch.Generator().manual_seed(0), dtype=dtype)
    row[3] += scale
    logits = torch.stack([row[torch.randperm(10, generator=torch.Generator().manual_seed(k))] for k in range(24)])
    target = (logits.argmax(1) + 1) % 10
    confidence = float(row.double().softmax(0).max())
    if "weighted" in name:
        pytest.skip("0 where no prediction is right")
    expected = confidence if "rooted" in name or "unbiased" in name else confidence**2
    module = KNOWN[name]()
    logits.requires_grad_()
    trained = module(logits, target)
    with torch.no_grad():
        evaluated = module(logits, target)
    assert trained.item() == pytest.approx(expected, rel=1e-6)
    assert evaluated.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", KNOWN)
def test_a_target_changed_after_the_forward_pass_changes_nothing(name: str) -> None:
    logits, target = over_confident()
    value = KNOWN[name]()(logits, target)
    (before,) = torch.autograd.grad(value, logits, retain_graph=True)
    target.zero_()
    (after,) = torch.autograd.grad(value, logits, create_graph=True)
    torch.testing.assert_close(after.detach(), before)


@pytest.mark.parametrize("create_graph", [False, True])
def test_hooks_on_the_logits_run_once(create_graph: bool) -> None:
    logits, target = over_confident()
    calls: list[Tensor] = []
    logits.register_hook(lambda gradient: calls.append(gradient))
    torch.autograd.grad(cal.MMCELoss()(logits, target), logits, create_graph=create_graph)
    assert len(calls) == 1


def test_a_kept_loss_does_not_keep_the_logits() -> None:
    logits, target = over_confident()
    middle = logits * 1
    watch = weakref.ref(middle)
    loss = cal.ESDLoss()(middle, target)
    loss.backward()
    del middle
    gc.collect()
    assert watch() is None
    assert loss > 0


@pytest.mark.parametrize("name", KNOWN)
def test_tracing_sees_the_operations(name: str) -> None:
    module = KNOWN[name]()
    logits, target = over_confident(20)
    other = random_logits(20, 4, seed=9)[0].requires_grad_()
    graph = make_fx(lambda x: module(x, target))(logits)
    torch.testing.assert_close(graph(other), module(other, target))


@pytest.mark.parametrize("name", KNOWN)
def test_forward_mode_differentiation(name: str) -> None:
    module = KNOWN[name]()
    logits, target = over_confident()
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (gradient,) = torch.autograd.grad(module(logits, target), logits)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(logits, direction)
        slope = forward_ad.unpack_dual(module(dual, target)).tangent
    assert slope is not None
    torch.testing.assert_close(slope.detach(), (gradient * direction).sum())


def test_values_are_checked_in_forward_mode_too() -> None:
    logits, target = over_confident()
    with forward_ad.dual_level(), pytest.raises(ValueError, match="logits must be finite"):
        cal.ESDLoss()(torch.full_like(logits, torch.nan), target)
    with forward_ad.dual_level():
        assert cal.ESDLoss()(logits, target, mask=torch.arange(10) < 2) == 0


def test_the_default_device_is_not_used() -> None:
    logits, target = over_confident()
    with torch.device("meta"):
        value = cal.ESDLoss()(logits, target)
    assert value.device.type == "cpu"
    value.backward()


@pytest.mark.parametrize("name", MODULES)
def test_strict_numpy_errors_find_nothing(name: str) -> None:
    logits, target = random_logits(12, 5, seed=0)
    with np.errstate(all="raise"):
        MODULES[name]()((logits * 100).float().requires_grad_(), target).backward()


def test_correctness_carries_no_gradient() -> None:
    z = torch.rand(20, requires_grad=True)
    for mask in (None, torch.arange(20) < 15):
        for function in (cal.functional.esd, cal.functional.mmce, cal.functional.ece, cal.functional.dca):
            c = torch.ones(20, requires_grad=True)
            function(z, c, mask=mask).backward()
            assert c.grad is None
