"""The statements of docs/science.md, one test each."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.corrected_esd import DECAY, CorrectedESDLoss, corrected_esd
from benchmarks.own_labels import NETWORKS, ROWS, Row, flip
from torch import Tensor, nn

import calibrant as cal
from calibrant.losses.checks import Classification
from calibrant.training import CalibratedLoss
from calibrant.training.temperature_loop import solution
from tests.training.batches import with_settings

Batch = tuple[Tensor, Tensor]


def calibrated_samples(count: int, seed: int, excess: float = 0.0) -> Batch:
    """Confidences in 64ths, so that sums are exact, and whether the predictions are right."""
    draw = torch.Generator().manual_seed(seed)
    confidence = torch.randint(32, 64, (count,), generator=draw).double() / 64
    return confidence, (torch.rand(count, generator=draw) < confidence - excess).double()


def gradient(objective: Any, confidence: Tensor, correct: Tensor) -> Tensor:
    leaf = confidence.clone().requires_grad_()
    (found,) = torch.autograd.grad(objective(leaf, correct), leaf)
    return found


def flipped(correct: Tensor, place: int) -> Tensor:
    other = correct.clone()
    other[place] = 1 - other[place]
    return other


def leave_one_out_gradient(confidence: Tensor, correct: Tensor) -> Tensor:
    """The formula of the page, term by term."""
    n, d = len(confidence), correct - confidence
    found = torch.zeros_like(confidence)
    for j, i, k in itertools.permutations(range(n), 3):
        if confidence[i] >= confidence[j] and confidence[k] <= confidence[i]:
            found[j] -= 2 * d[k] / (n * (n - 1) * (n - 2))
    return found


def test_the_gradient_of_esd_leaves_the_sample_out() -> None:
    confidence, correct = calibrated_samples(12, 0)
    expected = leave_one_out_gradient(confidence, correct)
    assert torch.allclose(gradient(cal.functional.esd, confidence, correct), expected, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("place", range(0, 64, 9))
def test_the_own_label_is_not_in_the_gradient_of_esd(place: int) -> None:
    confidence, correct = calibrated_samples(64, 1)
    one, other = (gradient(cal.functional.esd, confidence, c) for c in (correct, flipped(correct, place)))
    assert one[place] == other[place]  # to the bit
    assert not torch.equal(one, other)


@pytest.mark.parametrize("row", [row for row in ROWS if row.name != "ESD"], ids=lambda row: row.name)
def test_the_own_label_is_in_every_other_gradient(row: Row) -> None:
    found = flip(row, NETWORKS["Beta(20, 1), mean 0.95"], 128, 2000)
    assert found.value > 3 * found.error > 0


def test_the_mean_over_batches_is_the_gradient_of_the_whole_set() -> None:
    confidence, correct = calibrated_samples(8, 2)
    total = torch.zeros_like(confidence)
    batches = [list(rows) for rows in itertools.combinations(range(8), 4)]
    for rows in batches:
        total[rows] += gradient(cal.functional.esd, confidence[rows], correct[rows])
    whole = gradient(cal.functional.esd, confidence, correct)
    assert torch.allclose(total / len(batches), whole, rtol=1e-12, atol=1e-17)


def balanced_set(repeats: int = 5) -> Batch:
    """Groups of equal confidence in which as many are right as the confidence says: every cumulated gap is 0."""
    groups = [(0.5, 2, 1), (0.75, 4, 3), (0.875, 8, 7)]
    confidence = torch.cat([torch.full((size * repeats,), value).double() for value, size, _ in groups])
    correct = torch.cat([(torch.arange(size * repeats) < right * repeats).double() for _, size, right in groups])
    return confidence, correct


def test_at_calibration_esd_pushes_right_samples_down_and_wrong_ones_up() -> None:
    confidence, correct = balanced_set()
    push = -gradient(cal.functional.esd, confidence, correct)
    assert (push[correct == 1] < 0).all()
    assert (push[correct == 0] > 0).all()


def test_with_the_diagonal_of_the_whole_set_nothing_pushes_at_calibration() -> None:
    confidence, correct = balanced_set()
    count = len(confidence)
    left = gradient(cal.functional.esd, confidence, correct)
    corrected = gradient(lambda z, c: corrected_esd(z, c, count), confidence, correct)
    # Not exactly 0: a cumulated gap of 0 counts sample i itself, and A_i does not.
    assert corrected.abs().max() < 0.1 * left.abs().max()


def test_the_corrected_value_is_the_sum_of_squares_over_the_set() -> None:
    confidence, correct = calibrated_samples(9, 3)
    d, below = correct - confidence, (confidence[None, :] <= confidence[:, None]).double().fill_diagonal_(0)
    expected = (below @ d).square().sum() / (9 * 8 * 7)
    assert corrected_esd(confidence, correct, 9).item() == pytest.approx(expected.item(), rel=1e-12)
    values = [
        corrected_esd(confidence[list(rows)], correct[list(rows)], 9) for rows in itertools.combinations(range(9), 5)
    ]
    assert torch.stack(values).mean().item() == pytest.approx(expected.item(), rel=1e-12)


def test_the_running_root_is_its_transcription_and_holds_no_label_of_the_batch() -> None:
    torch.manual_seed(0)
    loss, values = CorrectedESDLoss(500), list[float]()
    for step in range(12):
        logits, target = 3 * torch.randn(64, 5, dtype=torch.float64), torch.randint(5, (64,))
        found = loss(logits, target)
        confidence, predicted = logits.softmax(1).max(1)
        value = corrected_esd(confidence, predicted == target, 500).item()
        if step < 2:
            assert found == 0
            values.append(value)
            continue
        weights = [DECAY ** (len(values) - 1 - k) for k in range(len(values))]
        mean = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
        variance = sum(w * v * v for w, v in zip(weights, values, strict=True)) / sum(weights) - mean**2
        error = math.sqrt(max(variance, 0) * (1 - DECAY) / (1 + DECAY))
        assert found.item() == pytest.approx(value / (2 * math.sqrt(max(mean, error))), rel=1e-6)
        values.append(value)


def test_the_mean_of_roots_is_not_the_root_of_the_mean() -> None:
    draw = torch.Generator().manual_seed(0)

    def values(excess: float) -> Tensor:
        confidence = 0.5 + 0.5 * torch.rand(4000, 64, generator=draw, dtype=torch.float64)
        return cal.functional.esd(confidence, torch.rand(4000, 64, generator=draw) < confidence - excess)

    calibrated, sure = values(0.0), values(0.1)
    error = calibrated.std() / math.sqrt(len(calibrated))
    assert calibrated.mean().abs() < 3 * error  # ESD is unbiased, so the root of its mean is near 0
    assert calibrated.relu().sqrt().mean() > 0.005
    assert sure.relu().sqrt().mean() < 0.95 * sure.mean().sqrt()


class Scales(nn.Module):
    """Fixed logits times exp(a + b * flag): the flag marks held-out inputs, which the network can tell from others."""

    def __init__(self, tells: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()), requires_grad=tells)

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :-1] * (self.a + self.b * x[:, -1:]).exp()


def test_a_network_that_can_tell_held_out_inputs_is_unsure_on_those_alone() -> None:
    draw = torch.Generator().manual_seed(0)

    def data(flag: float, fitted: bool) -> Batch:
        logits = 2 * torch.randn(2000, 4, generator=draw)
        target = logits.argmax(1) if fitted else logits.softmax(1).multinomial(1, generator=draw).squeeze(1)
        return torch.cat((logits, torch.full((2000, 1), flag)), 1), target

    train, held_out, new = data(0, True), data(1, False), data(0, False)

    def ece(model: nn.Module, batch: Batch, temperature: float = 1.0) -> float:
        with torch.no_grad():
            return cal.metrics.ece(logits=(model(batch[0]) / temperature).numpy(), target=batch[1].numpy())

    def fit(model: Scales, method: Any) -> CalibratedLoss:
        loss = CalibratedLoss(model, method, every=1)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.02)
        for _ in range(150):
            optimizer.zero_grad()
            loss(*train, *held_out).backward()
            optimizer.step()
        return loss

    telling, blind = Scales(True), Scales(False)
    fit(telling, "published")
    assert ece(telling, held_out) < 0.05
    assert ece(telling, new) > 0.15
    loop = fit(blind, "temperature")
    assert ece(blind, new, loop.temperature) < 0.03


def test_the_loss_of_the_loop_does_not_change_when_all_logits_grow() -> None:
    draw = torch.Generator().manual_seed(0)
    held_out = 3 * torch.randn(500, 5, generator=draw, dtype=torch.float64)
    target = (held_out + 3 * torch.randn(500, 5, generator=draw, dtype=torch.float64)).argmax(1)
    train = 3 * torch.randn(100, 5, generator=draw, dtype=torch.float64)
    losses = []
    for growth in (1.0, 10.0, 1000.0):
        log_t = solution(Classification(growth * held_out, target), 0.0)
        assert log_t is not None
        losses.append(F.cross_entropy(growth * train / math.exp(log_t), train.argmin(1)).item())
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


def test_one_label_moves_the_temperature_by_one_over_the_number_of_samples() -> None:
    def moved(count: int) -> float:
        draw = torch.Generator().manual_seed(0)
        logits = 2 * torch.randn(count, 4, generator=draw, dtype=torch.float64)
        target = logits.softmax(1).multinomial(1, generator=draw).squeeze(1)
        other = target.clone()
        logits[0] = torch.tensor([3.0, 0.0, 0.0, 0.0])
        target[0], other[0] = 0, 1
        one, two = (solution(Classification(logits, labels), 0.0) for labels in (target, other))
        assert one is not None
        assert two is not None
        return two - one

    assert 0 < moved(4000) < moved(500) < 0.02
    assert moved(500) / moved(4000) == pytest.approx(8, rel=0.3)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_linear_model_that_does_not_over_fit_is_left_as_it_is(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)

    def data(count: int) -> Batch:
        x = torch.randn(count, 5, generator=draw)
        return x, (2 * x[:, :4]).softmax(1).multinomial(1, generator=draw).squeeze(1)

    train, held_out = data(20000), data(4000)
    torch.manual_seed(seed)
    model = nn.Linear(5, 4)
    calibrated = with_settings(CalibratedLoss(model, every=1), samples=4000)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    for _ in range(200):
        optimizer.zero_grad()
        calibrated(*train, *held_out).backward()
        optimizer.step()
        scheduler.step()
    assert calibrated.temperature == pytest.approx(1, abs=0.05)
    finished = calibrated.finish([held_out])
    assert finished.error < 0.05
    assert abs(math.log(finished.temperature)) < 3 * finished.error
    with torch.no_grad():
        best = solution(Classification(model(train[0]), train[1]), 0.0)
    assert best is not None
    assert abs(best) < 3 * finished.error
