"""The temperature in the loop is the post-hoc temperature of the latest held-out logits."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from calibrant.losses import checks
from calibrant.losses.checks import Classification
from calibrant.posthoc import TemperatureScaling
from calibrant.posthoc.scaling import best_temperature, standard_error
from calibrant.training.temperature_loop import TemperatureLoop, shrunk, solution
from tests.training.batches import with_settings


def made(samples: int, temperature: float, seed: int = 0, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Logits that are right after a division by the temperature."""
    generator = torch.Generator().manual_seed(seed)
    calibrated = 2 * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    target = torch.multinomial(calibrated.softmax(1), 1, generator=generator).squeeze(1)
    return calibrated * temperature, target


@pytest.mark.parametrize("temperature", [0.05, 0.7, 3.0, 400.0])
def test_temperature_equals_post_hoc_temperature_on_the_same_buffer(temperature: float) -> None:
    loop = with_settings(TemperatureLoop(), damping=1.0, patience=0)
    for step, seed in enumerate(range(6)):
        loop.observe(checks.classification(*made(200, temperature, seed)), step)
    logits, target, weight = loop.buffer()
    assert weight is None
    solved = solution(loop.buffer(), loop.log_temperature)
    assert solved is not None
    assert math.exp(solved) == pytest.approx(TemperatureScaling(strict=True).fit(logits, target).temperature_, rel=1e-6)
    assert loop.temperature == pytest.approx(max(temperature, 1), rel=0.3)


def test_buffer_holds_the_latest_samples_and_nothing_older_than_half_of_training() -> None:
    loop = with_settings(TemperatureLoop(), samples=300)
    for step in range(0, 100, 10):
        loop.observe(checks.classification(*made(100, 2.0, step)), step)
    logits, _, _ = loop.buffer()
    assert torch.equal(logits[-100:], made(100, 2.0, 90)[0])
    assert len(logits) == 300
    roomy = with_settings(TemperatureLoop(), samples=10**6)
    for step in (0, 10, 40, 60, 70):
        roomy.observe(checks.classification(*made(100, 2.0, step)), step)
    assert torch.equal(roomy.buffer()[0][:100], made(100, 2.0, 40)[0])


def test_temperature_moves_part_of_the_way() -> None:
    data = checks.classification(*made(500, 4.0))
    whole, part = (
        with_settings(TemperatureLoop(), damping=1.0, patience=0),
        with_settings(TemperatureLoop(), damping=0.25, patience=0),
    )
    whole.observe(data, 0)
    part.observe(data, 0)
    assert part.log_temperature == pytest.approx(whole.log_temperature / 4, rel=1e-9)


def test_temperature_is_solved_for_when_a_quarter_of_the_buffer_is_new() -> None:
    loop = with_settings(TemperatureLoop(), samples=400, damping=1.0, patience=0)
    moved = []
    for step in range(100, 112):
        before = loop.log_temperature
        loop.observe(checks.classification(*made(50, 2.0, step)), step)
        moved.append(loop.log_temperature != before)
    assert moved[-4:] in ([True, False, True, False], [False, True, False, True])


def test_temperature_is_one_until_the_log_loss_has_ceased_to_fall() -> None:
    loop = with_settings(TemperatureLoop(), samples=500, damping=1.0)

    def observe(step: int) -> None:
        logits, target = made(500, 1.0)
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=logits.dtype)
        noisy = 4 * abs(1 - step / 400)  # so the log loss falls until step 400, and rises from then on
        loop.observe(checks.classification(5 * (logits + noisy * noise), target), step)

    for step in range(0, 400, 10):
        observe(step)
    assert not loop.over_fits
    assert loop.temperature == 1
    while not loop.over_fits:
        step += 10
        observe(step)
    assert 1.3 * 400 < step < 700
    assert loop.temperature > 2


def chance(logit: float, seed: int, samples: int = 50) -> Classification:
    """Logits of a size that know nothing of the two classes."""
    generator = torch.Generator().manual_seed(seed)
    logits = logit * torch.randn(samples, 2, generator=generator)
    return checks.classification(logits, torch.randint(2, (samples,), generator=generator))


def test_a_plateau_at_chance_level_is_no_over_fitting() -> None:
    loop = TemperatureLoop()
    for step in range(0, 2000, 4):
        loop.observe(chance(0.3, step), step)
        assert loop.temperature == 1


def test_a_network_at_chance_level_that_is_sure_of_itself_over_fits() -> None:
    loop = TemperatureLoop()
    for step in range(0, 400, 4):
        loop.observe(chance(10.0, step), step)
    assert loop.temperature > 3


def test_temperature_returns_to_one_when_the_network_learns_again() -> None:
    loop = with_settings(TemperatureLoop(), samples=500)
    for step in range(0, 400, 10):
        loop.observe(checks.classification(*made(100, 2.0, step)), step)
    assert loop.over_fits
    assert loop.temperature > 1.5
    for step in range(400, 600, 10):
        logits, _ = made(100, 2.0, step)
        loop.observe(checks.classification(logits, (5 * logits).softmax(1).multinomial(1).squeeze(1)), step)
    assert not loop.over_fits
    assert loop.temperature == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("temperature", [0.05, 0.7])
def test_temperature_is_never_below_one(temperature: float) -> None:
    loop = with_settings(TemperatureLoop(), patience=0)
    loop.observe(checks.classification(*made(500, 3.0)), 0)
    assert loop.temperature > 1
    for step in range(1, 12):
        loop.observe(checks.classification(*made(500, temperature, step)), 10 * step)
    assert loop.temperature == pytest.approx(1, abs=1e-3)


def test_predictions_all_right_are_the_lowest_log_loss() -> None:
    loop = with_settings(TemperatureLoop(), samples=500)
    logits, target = made(500, 1.0)
    loop.observe(checks.classification(logits, target), 0)
    loop.observe(checks.classification(logits, logits.argmax(1)), 100)
    assert loop._lowest_at == 100


def test_standard_error_is_the_spread_over_samples() -> None:
    found, errors = [], []
    for seed in range(200):
        logits, target = made(400, 3.0, seed)
        log_temperature = math.log(best_temperature(logits, target, start=1.0))
        found.append(log_temperature)
        errors.append(standard_error(logits, target, log_temperature))
    assert torch.tensor(errors).mean().item() == pytest.approx(torch.tensor(found).std().item(), rel=0.2)


@pytest.mark.parametrize("case", ["no better than chance", "all the same", "few"])
def test_logits_without_a_best_temperature_leave_it_alone(case: str) -> None:
    logits, target = made(8 if case == "few" else 100, 1.0)
    if case == "no better than chance":
        logits, target = logits / 20, logits.argmin(1)
    elif case == "all the same":
        logits = torch.zeros_like(logits)
    loop = with_settings(TemperatureLoop(), patience=0)
    loop.log_temperature = 0.5
    loop.observe(checks.classification(logits, target), 0)
    assert loop.log_temperature == 0.5


def test_sure_predictions_no_better_than_chance_become_nearly_uniform() -> None:
    logits, _ = made(100, 5.0)
    loop = with_settings(TemperatureLoop(), patience=0)
    for step in range(20):
        loop.observe(checks.classification(logits, logits.argmin(1)), step)
    assert float((logits / loop.temperature).softmax(1).max()) < 0.3


def test_predictions_that_are_all_right_return_the_temperature_to_one() -> None:
    logits, _ = made(100, 1.0)
    loop = with_settings(TemperatureLoop(), patience=0)
    loop.log_temperature = 0.5
    for step in range(20):
        loop.observe(checks.classification(logits, logits.argmax(1)), step)
    assert loop.temperature == pytest.approx(1)


@pytest.mark.parametrize("saved", [5, 20, 60])
def test_state_goes_on_to_the_bit(saved: int) -> None:
    def observe(loop: TemperatureLoop, step: int) -> None:
        loop.observe(checks.classification(*made(100, 2.0 + step, step)), step)

    def numbers(loop: TemperatureLoop) -> dict[str, Any]:
        return {name: value for name, value in loop.state_dict().items() if name != "_entries"}

    one, other = TemperatureLoop(), TemperatureLoop()
    for step in range(saved):
        observe(one, step)
    other.load_state_dict(one.state_dict())
    assert numbers(one) == numbers(other)
    for loop in (one, other):
        for step in range(saved, 120):
            observe(loop, step)
    assert one.over_fits
    assert numbers(one) == numbers(other)


def test_earlier_weights_were_trained_at_a_smaller_temperature() -> None:
    loop = with_settings(TemperatureLoop(), patience=0)
    for step in range(8):
        loop.observe(checks.classification(*made(500, 10.0, step)), step)
    logits, _ = made(100, 10.0, 9)
    assert loop.trained_at(logits) == loop.trained_at(1.3 * logits) == loop.log_temperature
    assert loop.trained_at(logits / 5) == pytest.approx(loop.log_temperature - math.log(5), abs=0.1)
    assert loop.trained_at(logits / 50) == 0
    never = TemperatureLoop()
    never.observe(checks.classification(*made(500, 10.0)), 0)
    assert never.trained_at(logits / 5) == 0


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(0, 5))
def test_shrinking_stays_between_the_estimate_and_the_other_value(estimate: float, toward: float, error: float) -> None:
    result = shrunk(estimate, toward, error)
    assert min(estimate, toward) - 1e-9 <= result <= max(estimate, toward) + 1e-9
    # Two independent normal estimates of one number, weighted by their precision.
    expected = np.average([estimate, toward], weights=[1 / max(error, 1e-9) ** 2, 1 / 0.5**2])
    assert result == pytest.approx(expected, abs=1e-9)
