"""Several labels a sample: every label is a calibration problem of its own, and the objective is their mean."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import calibrant as cal
from calibrant.losses.base import PairObjective
from tests import reference
from tests.cases import value_and_gradient

Single = Callable[[Tensor, Tensor], Tensor]
CASES: dict[str, tuple[Callable[[], PairObjective], Single]] = {
    "esd": (lambda: cal.ESDLoss(root=False, view="multi-label"), reference.esd),
    "mmce": (lambda: cal.MMCELoss(root=False, view="multi-label"), reference.mmce),
    "mmce unbiased": (
        lambda: cal.MMCELoss(unbiased=True, root=False, view="multi-label"),
        lambda z, c: reference.mmce(z, c, unbiased=True),
    ),
    "ece": (lambda: cal.ECELoss(view="multi-label"), reference.ece),
}
ROOTED: dict[str, Callable[[], PairObjective]] = {
    "esd": lambda: cal.ESDLoss(view="multi-label"),
    "mmce": lambda: cal.MMCELoss(view="multi-label"),
}


def labelled(n: int = 20, labels: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Over-confident logits and the labels that apply."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, labels, generator=generator, dtype=torch.float64)
    return logits, (torch.rand(n, labels, generator=generator) < torch.sigmoid(logits / 3)).long()


def transcription(single: Single) -> Single:
    def mean_over_labels(logits: Tensor, target: Tensor) -> Tensor:
        values = []
        for k in range(logits.shape[1]):
            counts = target[:, k] != -100
            values.append(single(1 / (1 + torch.exp(-logits[counts, k])), target[counts, k].to(logits.dtype)))
        return sum(values, logits.new_zeros(())) / len(values)

    return mean_over_labels


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_mean_over_labels(name: str, ignored: bool) -> None:
    module, single = CASES[name]
    logits, target = labelled()
    if ignored:
        target[torch.rand(target.shape, generator=torch.Generator().manual_seed(1)) < 0.3] = -100
    ours = value_and_gradient(module(), torch.where(target == -100, torch.nan, logits), target)
    torch.testing.assert_close(ours, value_and_gradient(transcription(single), logits, target), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ROOTED)
def test_the_root_is_taken_after_the_mean(name: str) -> None:
    logits, target = labelled()
    squared = CASES[name][0]()(logits, target)
    assert squared > 0
    torch.testing.assert_close(ROOTED[name]()(logits, target), squared.sqrt())


@pytest.mark.parametrize("name", CASES)
def test_mask_and_ignored_labels_leave_labels_out(name: str) -> None:
    module = CASES[name][0]()
    logits, target = labelled()
    counts = torch.rand(target.shape, generator=torch.Generator().manual_seed(2)) < 0.6
    by_label = value_and_gradient(module, logits, target.masked_fill(~counts, -100))
    spoiled = torch.where(counts, logits, torch.nan)
    by_mask = value_and_gradient(lambda x, y: module(x, y, counts), spoiled, torch.where(counts, target, 7))
    torch.testing.assert_close(by_mask, by_label)
    assert (by_mask[1][~counts] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_every_type_holds_labels(name: str, dtype: torch.dtype) -> None:
    module = CASES[name][0]()
    logits, target = labelled()
    assert module(logits, target.to(dtype)) == module(logits, target)


@pytest.mark.parametrize("name", CASES)
def test_dense_logits_weights_and_ignored_labels_together(name: str) -> None:
    module = CASES[name][0]()
    logits, target = labelled(24)
    w = torch.randint(4, (24,), generator=torch.Generator().manual_seed(3)).double()
    target[[1, 2, 9], [0, 3, 3]] = -100
    value, gradient = value_and_gradient(lambda x, y: module(x, y, None, w), logits, target)
    folded, folded_target = (flat.reshape(4, 6, 4).movedim(-1, 1) for flat in (logits, target))
    folded_value, folded_gradient = value_and_gradient(
        lambda x, y: module(x, y, None, w.reshape(4, 6)), folded, folded_target
    )
    torch.testing.assert_close(folded_value, value)
    torch.testing.assert_close(folded_gradient.movedim(1, -1).reshape(24, 4), gradient)
    rows = []
    for k in range(4):
        times = torch.where(target[:, k] == -100, 0, w).long()
        z, c = torch.sigmoid(logits[:, k]).repeat_interleave(times), target[:, k].double().repeat_interleave(times)
        rows.append(CASES[name][1](z, c))
    torch.testing.assert_close(value, torch.stack(rows).mean(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_one_label_may_have_one_dimension(name: str) -> None:
    module, _ = CASES[name]
    logits, target = labelled(labels=1)
    expected = CASES[name][1](torch.sigmoid(logits[:, 0]), target[:, 0].to(logits.dtype))
    torch.testing.assert_close(module()(logits, target), expected)
    torch.testing.assert_close(module()(logits[:, 0], target[:, 0]), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3, "largest"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_finite(name: str, scale: Any, dtype: torch.dtype) -> None:
    logits, target = labelled()
    size = torch.finfo(dtype).max if scale == "largest" else scale
    leaf = (logits.sign().to(dtype) * size).requires_grad_()
    value = CASES[name][0]()(leaf, target)
    value.backward()
    assert value.isfinite()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()


def test_equal_logits_stay_tied_wherever_they_stand() -> None:
    logits = torch.full((37, 3), 1.2345, dtype=torch.float32)
    value = cal.ESDLoss(root=False, view="multi-label")(logits, torch.zeros(37, 3))
    assert value.item() == pytest.approx(torch.sigmoid(torch.tensor(1.2345)).item() ** 2, rel=1e-6)


def test_a_label_with_too_few_samples_is_left_out_of_the_mean() -> None:
    logits, target = labelled(labels=3)
    module = cal.ESDLoss(root=False, view="multi-label")
    expected = module(logits[:, :2], target[:, :2])
    target[2:, 2] = -100
    torch.testing.assert_close(module(logits, target), expected)
