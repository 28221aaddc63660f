"""No finite logits give a NaN or infinite gradient."""

import pytest
import torch
from torch import Tensor, nn

import calibrant as cal
from tests.cases import MODULES, random_logits

N = 12


def saturated(right: bool, classes: int, scale: float) -> tuple[Tensor, Tensor]:
    target = torch.arange(N) % classes
    predicted = target if right else (target + 1) % classes
    return torch.nn.functional.one_hot(predicted, classes).double() * scale, target


def signs(classes: int, scale: float) -> tuple[Tensor, Tensor]:
    logits, target = random_logits(N, classes, seed=0)
    return logits.sign() * scale, target


def mixed(classes: int) -> tuple[Tensor, Tensor]:
    """Saturated right, saturated wrong, undecided and ordinary samples in one batch."""
    logits, target = random_logits(N, classes, seed=1)
    logits[:4] = saturated(True, classes, 1e4)[0][:4]
    logits[4:6] = saturated(False, classes, 1e4)[0][4:6]
    logits[6] = 0
    return logits, target


SCENES: dict[str, tuple[Tensor, Tensor]] = {
    "saturated right": saturated(True, 10, 100.0),
    "saturated wrong": saturated(False, 10, 100.0),
    "barely saturated": saturated(True, 10, 18.0),
    "all equal": (torch.zeros(N, 10, dtype=torch.float64), torch.arange(N) % 10),
    "+-1e30": signs(10, 1e30),
    "1e30 right": saturated(True, 10, 1e30),
    "1e30 wrong": saturated(False, 10, 1e30),
    "two classes": saturated(False, 2, 50.0),
    "two classes, mixed": mixed(2),
    "1000 classes": random_logits(N, 1000, seed=2),
    "1000 classes, mixed": mixed(1000),
    "one wrong among saturated": (
        torch.cat((saturated(True, 10, 100.0)[0][:-1], saturated(False, 10, 100.0)[0][-1:])),
        torch.arange(N) % 10,
    ),
    "binary": (torch.tensor([1e30, -1e30, 0.0, 50.0, -50.0, 1e-30] * 2, dtype=torch.float64), torch.arange(N) % 2),
}


def gradient_of(module: nn.Module, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    value = module(leaf, target)
    value.backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("name", MODULES)
def test_gradient_is_finite(name: str, scene: str, dtype: torch.dtype) -> None:
    logits, target = SCENES[scene]
    value, gradient = gradient_of(MODULES[name](), logits.to(dtype), target)
    assert value.isfinite()
    assert value.dtype == dtype
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_gradient_is_finite_at_the_largest_finite_logits(name: str, dtype: torch.dtype) -> None:
    logits, target = signs(10, 1.0)
    gradient = gradient_of(MODULES[name](), logits.to(dtype) * torch.finfo(dtype).max, target)[1]
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", MODULES)
def test_half_precision_logits_give_a_float32_loss(name: str) -> None:
    logits, target = random_logits(N, 10, seed=3)
    value, gradient = gradient_of(MODULES[name](), logits.half(), target)
    assert value.dtype == torch.float32
    assert gradient.dtype == torch.float16
    assert gradient.isfinite().all()
    torch.testing.assert_close(value, gradient_of(MODULES[name](), logits.half().float(), target)[0])


def test_rooted_esd_is_silent_where_esd_is_not_positive() -> None:
    logits, target = random_logits(40, 10, seed=0, scale=1.1)
    raw, _ = gradient_of(cal.ESDLoss(root=False), logits, target)
    value, gradient = gradient_of(cal.ESDLoss(), logits, target)
    assert raw < 0
    assert value == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("module", [cal.ESDLoss(), cal.MMCELoss(), cal.SoftBinnedECELoss(temperature=1e-4)])
def test_zero_residuals_give_zero_with_zero_gradient(module: nn.Module) -> None:
    logits, target = saturated(True, 10, 200.0)
    value, gradient = gradient_of(module, logits.float(), target)
    assert value == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("right", [True, False])
def test_weighted_mmce_of_a_one_sided_batch_is_zero(right: bool) -> None:
    logits, target = saturated(right, 10, 2.0)
    value, gradient = gradient_of(cal.WeightedMMCELoss(), logits, target)
    assert value == 0
    assert (gradient == 0).all()
