"""The temperature is solved for, not approximated."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant.posthoc import EnsembleTemperatureScaling, TemperatureScaling
from calibrant.posthoc import scaling as solver
from calibrant.posthoc.solvers import mixture_weights
from tests.posthoc.data import ece, nll, overconfident
from tests.real_data import real


def by_bisection(logits: Tensor, target: Tensor) -> float:
    """Bisect on the sign of the slope of the NLL in 1/T, float64."""
    true = logits.gather(1, target.unsqueeze(1)).squeeze(1)
    low, high = -12.0, 12.0
    for _ in range(60):
        middle = (low + high) / 2
        slope = ((logits * (logits * math.exp(middle)).softmax(1)).sum(1) - true).mean()
        low, high = (middle, high) if slope < 0 else (low, middle)
    return math.exp(-low)


@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
@pytest.mark.parametrize("temperature", [0.1, 0.3, 0.7, 1.0, 2.5, 8.0, 20.0])
def test_temperature_is_the_optimum(temperature: float, classes: int) -> None:
    logits, target = overconfident(1000 if classes < 1000 else 300, classes, temperature, seed=classes)
    exact = by_bisection(logits, target)
    assert exact == pytest.approx(temperature, rel=0.2)
    for dtype in (torch.float64, torch.float32):
        found = TemperatureScaling().fit(logits.to(dtype), target).temperature_
        reference = exact if dtype == torch.float64 else by_bisection(logits.float().double(), target)
        assert found == pytest.approx(reference, rel=1e-6)


@pytest.mark.parametrize("misleading", [False, True])
def test_many_samples_take_the_way_over_a_few_to_the_same_optimum(
    misleading: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solver, "SAMPLE", 2**13)
    logits, target = overconfident(5000, 10, 3.0, seed=0)
    assert len(logits) * 10 // 2**13 == 6
    if misleading:  # every sixth row, which the search starts on, is right: alone they have no temperature
        target[::6] = logits[::6].argmax(1)
    assert TemperatureScaling().fit(logits, target).temperature_ == pytest.approx(
        by_bisection(logits, target), rel=1e-7
    )


@pytest.mark.parametrize("scale", [1e-25, 1e-3, 1.0, 1e3, 1e30])
@pytest.mark.parametrize(("samples", "dtype"), [(500, torch.float64), (3000, torch.float32)])
def test_temperature_follows_the_scale_of_the_logits(samples: int, dtype: torch.dtype, scale: float) -> None:
    logits, target = overconfident(samples, 5, 1.0, seed=2)
    logits = (logits * scale).to(dtype)
    reference = by_bisection(logits.double() / scale, target) * scale
    assert TemperatureScaling().fit(logits, target).temperature_ == pytest.approx(reference, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("zeros", [-87.3, -900.0])
def test_exponentials_that_underflow_add_nothing(zeros: float, dtype: torch.dtype) -> None:
    logits, target = overconfident(3000, 5, 0.4, seed=6)
    logits = logits.log_softmax(1)
    logits[logits < -3] = zeros  # times 1/T, below what float32 has; with the second also below what float64 has
    target = torch.where(torch.arange(3000) % 9 > 0, logits.argmax(1), logits.argsort(1)[:, -2])
    logits = logits.to(dtype)
    exact = by_bisection(logits.double(), target)
    assert TemperatureScaling().fit(logits, target).temperature_ == pytest.approx(exact, rel=1e-6)


def test_huge_and_ordinary_logits_together() -> None:
    logits, target = overconfident(500, 5, 2.0, seed=3)
    logits[0] = torch.tensor([3e38, -3e38, 0.0, 0.0, 0.0])
    target[0] = 0
    found = TemperatureScaling().fit(logits.float(), target)
    assert found.temperature_ == pytest.approx(TemperatureScaling().fit(logits[1:], target[1:]).temperature_, rel=1e-6)


def test_ordered_by_a_constant_shift_nothing_changes() -> None:
    logits, target = overconfident(500, 5, 2.0, seed=3)
    shifted = logits + torch.linspace(-500, 500, 500, dtype=torch.float64).unsqueeze(1)
    one = TemperatureScaling().fit(logits, target).temperature_
    assert TemperatureScaling().fit(shifted, target).temperature_ == pytest.approx(one, rel=1e-9)


def test_no_finite_temperature_is_explained() -> None:
    logits, drawn = overconfident(200, 5, 1.0, seed=4)
    for given, target, token in [
        (logits, logits.argmax(1), "temperature is 0"),
        (logits, logits.argmin(1), "infinite"),
        (torch.tensor([[1.0, 1.0, 0.0]]).repeat(10, 1), torch.arange(10) % 2, "tied"),
        (torch.arange(10.0).unsqueeze(1).expand(10, 3), torch.arange(10) % 3, "all equal"),
        (logits * 1e200, drawn, r"exp\(80\)"),
    ]:
        with pytest.raises(ValueError, match=token):
            TemperatureScaling(strict=True).fit(given, target)


def test_published_numbers_of_a_densenet() -> None:
    data = np.load(real("logits/nncal_densenet40_c10.npz"))
    logits, target = data["test_logits"], data["test_labels"].astype(np.int64)
    before = torch.from_numpy(logits).double().softmax(1)
    scaling = TemperatureScaling(strict=True).fit(data["val_logits"], data["val_labels"])
    after = scaling.predict_proba(logits.astype(np.float64))
    assert ece(before.numpy(), target) == pytest.approx(0.055003, abs=2e-6)
    assert ece(after, target) == pytest.approx(0.009464, abs=2e-6)
    labels = torch.from_numpy(target)
    # The published NLL floors probabilities at 1e-15; exactly it is 0.430059 before, and the same after.
    assert nll(before.clamp_min(1e-15), labels) == pytest.approx(0.428207, abs=1e-6)
    assert nll(before, labels) == pytest.approx(0.430059, abs=1e-6)
    assert nll(torch.from_numpy(after), labels) == pytest.approx(0.225086, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_ensemble_weights_are_the_optimum_on_the_simplex(seed: int) -> None:
    generator = np.random.default_rng(seed)
    likelihood = generator.beta(0.3, 1.0, size=(400, 3)) * generator.uniform(0.2, 1.0, 3) + 1e-9
    weights = mixture_weights(likelihood)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    gain = (likelihood / (likelihood @ weights)[:, None]).mean(0)
    assert gain.max() <= 1 + 1e-7  # no component would help more than those that are there
    assert gain[weights > 0] == pytest.approx(1, abs=1e-7)


def test_ensemble_is_never_worse_than_its_parts() -> None:
    logits, target = overconfident(2000, 10, 2.0, seed=6)
    logits[::10] *= -1  # a tenth of the samples is misleading: room for the uniform part
    ensemble = EnsembleTemperatureScaling().fit(logits, target)
    mixed = nll(ensemble.predict_proba(logits), target)
    assert ensemble.weights_[2] > 0.05
    assert ensemble.temperature_ == TemperatureScaling().fit(logits, target).temperature_
    for part in (logits.softmax(1), TemperatureScaling().fit(logits, target).predict_proba(logits)):
        assert mixed < nll(part, target)


@pytest.mark.parametrize("error", [21.0, 1000.0, math.inf])
def test_an_interval_without_end_is_no_overflow(monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    monkeypatch.setattr("calibrant.posthoc.scaling.standard_error", lambda *_, **__: error)
    fitted = TemperatureScaling().fit(*overconfident(200, 5, 3.0, seed=4))
    assert fitted.temperature_ == pytest.approx(3.0, rel=0.3)
