"""A batch of which everything is ignored does not stop training: 0, connected to the logits, and one warning."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import calibrant as cal
import calibrant.functional as F
from tests.cases import MODULES, random_logits, values_unread

LOGITS, TARGET = random_logits(8, 3, seed=0)
NOTHING = torch.zeros(8, dtype=torch.bool)
EVERYTHING_IGNORED = "every sample"


def zero_and_zero_gradient(function: Callable[[Tensor], Tensor]) -> bool:
    leaf = torch.full_like(LOGITS, torch.nan).requires_grad_()
    value = function(leaf)
    value.backward()
    assert leaf.grad is not None
    return bool(value == 0 and (leaf.grad == 0).all())


@pytest.mark.parametrize("name", MODULES)
def test_an_object_warns_and_gives_zero(name: str) -> None:
    module = MODULES[name]()
    for target, mask in ((TARGET, NOTHING), (torch.full((8,), -100), None)):
        with pytest.warns(UserWarning, match=EVERYTHING_IGNORED):
            assert zero_and_zero_gradient(lambda x, y=target, m=mask: module(x, y, mask=m))  # type: ignore[misc]
    assert module(LOGITS, TARGET) == MODULES[name]()(LOGITS, TARGET)


@pytest.mark.parametrize("name", MODULES)
def test_where_values_are_not_read_the_kernels_give_zero(name: str) -> None:
    module = MODULES[name]()
    with values_unread():
        assert zero_and_zero_gradient(lambda x: module(x, TARGET, mask=NOTHING))


@pytest.mark.parametrize("name", MODULES)
def test_a_transform_gives_zero_too(name: str) -> None:
    batches = torch.stack((LOGITS, LOGITS)), torch.stack((TARGET, torch.full((8,), -100)))
    values = torch.vmap(MODULES[name]())(*batches)
    gradients = torch.vmap(torch.func.grad(MODULES[name]()))(*batches)
    torch.testing.assert_close(values[0], MODULES[name]()(LOGITS, TARGET))
    assert values[1] == 0
    assert (gradients[1] == 0).all()


@pytest.mark.parametrize("left", [1, 2])
def test_too_few_that_are_left_count_as_none(left: int) -> None:
    with pytest.warns(UserWarning, match="too many samples"):
        assert zero_and_zero_gradient(
            lambda x: cal.ESDLoss(root=False)(torch.where(x.isnan(), LOGITS, x), TARGET, mask=torch.arange(8) < left)
        )
    with pytest.warns(UserWarning, match=r"needs at least 3"):
        assert cal.ESDLoss()(LOGITS[:2], torch.tensor([0, -100])) == 0


def test_weights_of_zero_ignore_samples_too() -> None:
    for module in (cal.ESDLoss(), cal.MMCELoss(), cal.ECELoss()):
        with pytest.warns(UserWarning, match=EVERYTHING_IGNORED):
            assert zero_and_zero_gradient(lambda x, m=module: m(x, TARGET, sample_weight=torch.zeros(8)))  # type: ignore[misc]


@pytest.mark.parametrize("module", [cal.ESDLoss, cal.MMCELoss, cal.ECELoss])
def test_labels_that_are_all_ignored_give_zero(module: Callable[..., nn.Module]) -> None:
    with pytest.warns(UserWarning, match=EVERYTHING_IGNORED):
        assert zero_and_zero_gradient(lambda x: module(view="multi-label")(x, torch.full((8, 3), -100.0)))
    with values_unread():
        assert zero_and_zero_gradient(lambda x: module(view="multi-label")(x, torch.full((8, 3), -100.0)))


PAIR_FUNCTIONS = [F.esd, F.mmce, F.mmce_weighted, F.soft_binned_ece, F.ece, F.dca]


@pytest.mark.parametrize("function", PAIR_FUNCTIONS, ids=lambda f: f.__name__)
def test_a_row_of_which_everything_is_ignored_is_zero(function: Callable[..., Tensor]) -> None:
    z = torch.full((2, 6), 0.3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 6, [False] * 6])
    value = function(z, torch.arange(12).reshape(2, 6) % 2, mask=mask)
    torch.testing.assert_close(value[0], function(z[0], torch.arange(6) % 2))
    assert value[1] == 0
    (gradient,) = torch.autograd.grad(value.sum(), z)
    assert gradient.isfinite().all()
    assert (gradient[1] == 0).all()
    with pytest.warns(UserWarning, match="every sample"):
        assert (function(z, torch.ones(2, 6), mask=mask & False) == 0).all()


def test_a_threshold_of_nothing_is_still_an_error() -> None:
    with pytest.raises(ValueError, match="got 0 right and 0 wrong"):
        cal.AvUCLoss().fit_threshold(LOGITS, TARGET, mask=NOTHING)
