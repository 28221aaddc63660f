"""Losses that held-out data update: the rule of each update, and a state that resumes exactly."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import calibrant as cal
from calibrant.losses.ece_kde import KernelView
from tests import reference
from tests.cases import random_logits

Updated = cal.AdaFocalLoss | cal.CALSLoss
STATEFUL: dict[str, Callable[[], Updated]] = {
    "AdaFocalLoss": lambda: cal.AdaFocalLoss(rate=3.0),
    "CALSLoss": lambda: cal.CALSLoss(margin=2.0, rho_every=2),
}


def top_label(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    confidence, predicted = reference.softmax(logits).max(1)
    return confidence, (predicted == target).double()


@pytest.mark.slow
@given(n=st.integers(15, 60), classes=st.integers(2, 6), seed=st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_adafocal_updates_equal_the_transcription(n: int, classes: int, seed: int) -> None:
    loss = cal.AdaFocalLoss(rate=4.0).double()
    strengths = [1.0] * 15
    for epoch in range(4):
        logits, target = random_logits(n, classes, seed + epoch)
        loss.update(logits, target)
        strengths, edges = reference.adafocal_update(*top_label(logits, target), strengths, rate=4.0)
        torch.testing.assert_close(loss.strength.tolist(), strengths, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(loss.edges.tolist(), edges, rtol=1e-12, atol=0.0)
        logits, target = random_logits(n, classes, seed + 100)  # its own held-out samples lie on the edges
        expected = reference.adafocal(logits, target, strengths, edges)
        torch.testing.assert_close(loss(logits, target), expected, rtol=1e-10, atol=1e-12)


@given(n=st.integers(1, 30), classes=st.integers(2, 6), seed=st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_cals_updates_equal_the_transcription(n: int, classes: int, seed: int) -> None:
    loss = cal.CALSLoss(margin=2.0).double()
    multipliers = [1e-6] * classes
    for epoch in range(3):
        logits, target = random_logits(n, classes, seed + epoch)
        loss.update(logits)
        multipliers, excess = reference.cals_update(logits, multipliers, [1.0] * classes, 2.0)
        torch.testing.assert_close(loss.multiplier.tolist(), multipliers, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(loss.excess.tolist(), excess, rtol=1e-10, atol=1e-12)
        expected = reference.cals(logits, target, multipliers, [1.0] * classes, 2.0)
        torch.testing.assert_close(loss(logits, target), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_saved_state_resumes_exactly(name: str, tmp_path: Path) -> None:
    whole = STATEFUL[name]()
    for epoch in range(3):
        whole.update(*random_logits(50, 4, epoch))
    state = whole.state_dict()
    assert all(isinstance(value, Tensor) for value in state.values())
    torch.save(nn.ModuleDict({"loss": whole}).state_dict(), tmp_path / "state.pt")
    resumed = STATEFUL[name]()
    nn.ModuleDict({"loss": resumed}).load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for epoch in range(3, 6):
        held_out = random_logits(50, 4, epoch)
        whole.update(*held_out)
        resumed.update(*held_out)
    for key, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value)
    logits, target = random_logits(20, 4, seed=9)
    assert torch.equal(resumed(logits, target), whole(logits, target))


@pytest.mark.parametrize("name", STATEFUL)
def test_the_update_leaves_out_samples_that_do_not_count(name: str) -> None:
    logits, target = random_logits(60, 4, seed=0)
    counts = torch.rand(60, generator=torch.Generator().manual_seed(0)) < 0.7
    expected = STATEFUL[name]().update(logits[counts], target[counts]).state_dict()
    spoiled = torch.where(counts[:, None], logits, torch.nan)
    by_mask = STATEFUL[name]().update(spoiled, target, counts)
    by_label = STATEFUL[name]().update(spoiled, target.masked_fill(~counts, -100))
    dense = STATEFUL[name]().update(
        spoiled.reshape(6, 10, 4).movedim(-1, 1), target.reshape(6, 10), counts.reshape(6, 10)
    )
    for loss in (by_mask, by_label, dense):
        for key, value in expected.items():
            torch.testing.assert_close(loss.state_dict()[key], value)


@pytest.mark.parametrize("name", STATEFUL)
def test_the_update_takes_float16_and_saturated_logits(name: str) -> None:
    logits, target = random_logits(60, 10, seed=1)
    for held_out in (logits.half(), logits.sign() * 1e30, logits.float().sign() * torch.finfo(torch.float32).max):
        loss = STATEFUL[name]().update(held_out, target)
        assert all(value.isfinite().all() for value in loss.state_dict().values())
        assert loss(logits, target).isfinite()


def test_over_confident_bins_grow_stronger_and_under_confident_ones_turn_inverse() -> None:
    logits, target = random_logits(600, 5, seed=3)
    over, under = cal.AdaFocalLoss(), cal.AdaFocalLoss()
    for _ in range(20):
        over.update(4 * logits, target.roll(1))
        under.update(logits / 8, logits.argmax(1))
    assert (over.strength > 1).all()
    assert over.strength.max() == 20
    assert (under.strength < 0).all()
    assert under.strength.min() >= -2


def test_the_strength_changes_sign_at_the_switch() -> None:
    loss = cal.AdaFocalLoss(bins=1, rate=1.0, gamma=0.21)
    under_confident = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)  # confidence 1/2, always right
    loss.update(*under_confident)
    assert loss.strength.tolist() == pytest.approx([-0.2])
    loss.update(*under_confident)
    assert loss.strength.tolist() == pytest.approx([-0.2 * 2.718281828**0.5], rel=1e-6)


@pytest.mark.parametrize("switch", [0.2, 0.3, 0.7])
def test_a_strength_at_the_switch_stays_there_while_its_bin_is_calibrated(switch: float) -> None:
    loss = cal.AdaFocalLoss(bins=1, gamma=-switch, switch=switch)
    logits = torch.zeros(4, 2)
    assert loss.update(logits, torch.tensor([0, 0, 1, 1])).strength.tolist() == pytest.approx([-switch])


def test_rho_grows_where_the_excess_does_not_fall() -> None:
    loss = cal.CALSLoss(margin=1.0, rho_every=2, rho_max=1.3)
    logits = torch.tensor([[3.0, 0.0, 2.9]])  # the second class exceeds the margin, the others do not
    grown = [loss.update(logits).rho.tolist() for _ in range(6)]
    expected = [[1.0, 1.0, 1.0], [1.0, 1.2, 1.0], [1.0, 1.2, 1.0], [1.0, 1.3, 1.0], [1.0, 1.3, 1.0], [1.0, 1.3, 1.0]]
    torch.testing.assert_close(grown, expected)


def test_rho_stays_where_the_excess_falls() -> None:
    loss = cal.CALSLoss(margin=1.0, rho_every=1)
    for distance in (9.0, 5.0, 3.0):
        loss.update(torch.tensor([[distance, 0.0]]))
    assert loss.rho.tolist() == [1.0, 1.0]


def test_adafocal_needs_a_sample_for_each_bin() -> None:
    logits, target = random_logits(14, 3, seed=0)
    with pytest.raises(ValueError, match=r"AdaFocal .*15 samples, got 14"):
        cal.AdaFocalLoss().update(logits, target)


def test_cals_says_when_the_classes_are_not_those_of_its_update() -> None:
    loss = cal.CALSLoss().update(random_logits(9, 4, seed=0)[0])
    logits, target = random_logits(9, 3, seed=0)
    for call in (lambda: loss(logits, target), lambda: loss.update(logits)):
        with pytest.raises(ValueError, match=r"multiplier .*\(3,\) for 3 classes, got \(4,\)"):
            call()
    with pytest.raises(ValueError, match=r"CALS .*got none"):
        loss.update(random_logits(9, 4, seed=0)[0], mask=torch.zeros(9, dtype=torch.bool))


@pytest.mark.parametrize("view", ["canonical", "top-label"])
def test_the_bandwidth_is_the_most_likely_of_the_candidates(view: KernelView) -> None:
    logits, target = random_logits(40, 3, seed=0)
    f = reference.softmax(logits)
    if view == "top-label":
        f = torch.stack((f.max(1).values, 1 - f.max(1).values), dim=1)
    candidates = [*torch.logspace(-5, -1, 15).tolist(), 0.2, 0.4, 0.6, 0.8, 1.0]

    def likelihood(h: float) -> float:
        densities = torch.distributions.Dirichlet(f / h + 1, validate_args=False).log_prob(f[:, None])
        others = ~torch.eye(40, dtype=torch.bool)
        return sum(float(densities[j][others[j]].logsumexp(0)) for j in range(40))

    def chosen(*batch: Tensor | None) -> float:
        return cal.ECEKDELoss(view=view).fit_bandwidth(*batch).bandwidth  # type: ignore[arg-type]

    loss = cal.ECEKDELoss(view=view).fit_bandwidth(logits, target)
    assert loss.bandwidth == pytest.approx(max(candidates, key=likelihood), rel=1e-5)
    assert chosen(logits) == loss.bandwidth
    restored = cal.ECEKDELoss(view=view)
    restored.load_state_dict(loss.state_dict())
    assert restored.bandwidth == loss.bandwidth
    counts = torch.arange(40) < 30
    spoiled = torch.where(counts[:, None], logits, torch.nan)
    assert chosen(spoiled, None, counts) == chosen(logits[:30])


def test_the_largest_multipliers_and_the_smallest_margin_keep_cals_finite() -> None:
    logits, target = random_logits(12, 10, seed=0)
    leaf = (logits.sign() * 1e30).float().requires_grad_()
    loss = cal.CALSLoss(margin=0.1, rho=10.0)
    loss.multiplier = torch.tensor(1e6)
    value = loss(leaf, target)
    value.backward()
    assert value.isfinite()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
