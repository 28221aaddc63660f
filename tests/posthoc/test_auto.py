"""The default method: a cross-fitted mixture, explained, and no worse than its members."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.posthoc import AutoCalibration, auto
from calibrant.posthoc.fit import HeldOut
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.solvers import mixture_weights
from tests.posthoc.data import nll, overconfident


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("shape", ["temperature", "bias", "bend"])
def test_it_is_nearly_as_good_as_the_best_member(shape: str, classes: int) -> None:
    logits, target = overconfident(6000, classes, 1.0, seed=3)
    if shape == "temperature":
        given = 2.5 * logits
    elif shape == "bias":
        given = logits + torch.linspace(0, 2, classes, dtype=torch.float64)
    else:
        given = 3 * logits.sign() * logits.abs().sqrt()
    fit, new = slice(0, 2000), slice(2000, None)
    mixed = AutoCalibration().fit(given[fit], target[fit])
    losses = {
        name: nll(METHODS[name]().fit(given[fit], target[fit]).predict_proba(given[new]), target[new])
        for name in ("temperature", "sms", "beta", "isotonic", "spline")
    }
    assert nll(mixed.predict_proba(given[new]), target[new]) < min(losses.values()) + 0.003
    assert sum(mixed.weights_.values()) == pytest.approx(1)
    before = nll(given[new].softmax(1), target[new])
    after = nll(mixed.predict_proba(given[new]), target[new])
    assert mixed.gain_[1] - 0.03 < before - after < mixed.gain_[2] + 0.03


def test_the_ranking_is_kept_if_asked() -> None:
    logits, target = overconfident(3000, 5, 2.0, seed=4)
    biased = logits + torch.linspace(0, 3, 5, dtype=torch.float64)
    free, kept = AutoCalibration().fit(biased, target), AutoCalibration(accuracy="keep").fit(biased, target)
    assert (free.predict_proba(biased).argmax(1) != biased.argmax(1)).any()
    rows = kept.predict_proba(biased)
    assert torch.equal(rows.argsort(1), biased.argsort(1))
    assert set(kept.weights_) <= {"unchanged", "temperature"}
    assert nll(rows, target) < nll(biased.softmax(1), target)


@pytest.mark.parametrize(("samples", "classes", "expected"), [
    (9, 2, "unchanged"),
    (49, 2, "unchanged, temperature"),
    (200, 50, "unchanged, temperature"),
    (5000, 100, "unchanged, temperature, svs, sms, loose sms"),
    (50, 2, "unchanged, temperature, smooth, beta, centred isotonic, class-wise spline, venn-abers"),
    (5000, 10, "unchanged, temperature, sms, beta, isotonic, spline"),
])  # fmt: skip
def test_members_follow_the_size_of_the_data(samples: int, classes: int, expected: str) -> None:
    data = HeldOut(np.zeros((samples, classes), np.float32), np.arange(samples) % classes, None)
    assert ", ".join(AutoCalibration()._candidates(data)[0]) == expected


def test_a_class_without_samples_that_is_often_expected_leaves_a_temperature() -> None:
    logits, target = overconfident(200, 2, 1.0, seed=0)
    fitted = AutoCalibration().fit(logits, target.clamp_min(1))
    assert set(fitted.weights_) <= {"unchanged", "temperature"}
    assert fitted.predict_proba(torch.tensor([[4.0, 0.0]])).argmax() == 0  # a sure prediction of it stays one


def test_half_of_a_gain_within_one_standard_error_is_taken() -> None:
    logits, target = overconfident(400, 2, 1.0, seed=1)
    fitted = AutoCalibration().fit(logits, target)
    assert 0 < fitted.gain_[0] < (fitted.gain_[2] - fitted.gain_[0]) / 1.96
    assert 0.5 <= fitted.weights_["unchanged"] < 0.7
    assert any("corrected by half" in text for text in fitted.notices_)


def test_a_class_that_was_called_impossible_refutes_the_predictions() -> None:
    # Nearly always right and nearly certain, and once wrong: a huge gain, with a standard error as large as itself.
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(60, generator=draw, dtype=torch.float64).sign() * 2
    target = torch.bernoulli(logits.sigmoid(), generator=draw).long()
    sure = logits.clone()
    sure[:1] = torch.where(target[:1] == 1, -60.0, 60.0)
    fitted = AutoCalibration().fit(sure, target)
    assert set(fitted.weights_) != {"unchanged"}
    assert fitted.gain_[0] < 2 * (fitted.gain_[2] - fitted.gain_[0])  # the usual rule has its doubts
    assert fitted.predict_proba(torch.tensor([-60.0, 60.0], dtype=torch.float64)).min() > 1e-3


def test_calibrated_predictions_are_promised_no_gain() -> None:
    # With neighbours in different folds this mean was .005, and what was fitted made the predictions worse by .0025.
    promised = [AutoCalibration().fit(*overconfident(400, 2, 1.0, seed=seed)).gain_[0] for seed in range(12)]
    assert np.mean(promised) < 0.0015


@pytest.mark.parametrize(("classes", "seed"), [(3, 3), (3, 6)])
def test_without_a_gain_the_predictions_are_kept_to_within_a_millionth(classes: int, seed: int) -> None:
    logits, target = overconfident(400, classes, 1.0, seed=seed)
    fitted = AutoCalibration().fit(logits, target)
    assert fitted.weights_ == {"unchanged": 1.0}
    assert fitted.gain_[0] <= 0
    assert any("no evidence" in notice for notice in fitted.notices_)
    impossible = torch.full((1, classes), -1000.0, dtype=torch.float64)
    impossible[0, 0] = 0
    for new in (logits, impossible):
        cost = new.softmax(1).log() - fitted.predict_proba(new).log()
        assert cost.max() < 1e-6
    assert fitted.predict_proba(impossible).min() > 0


@pytest.mark.parametrize("samples", [1, 2, 3, 7, 20])
def test_a_handful_of_samples_changes_little(samples: int) -> None:
    logits, target = overconfident(samples, 3, 1.0, seed=5)
    fitted = AutoCalibration().fit(logits, target)
    assert fitted.predict_proba(logits).isfinite().all()
    assert torch.equal(fitted.predict_proba(logits).argmax(1), logits.argmax(1))


def test_more_rows_than_are_stacked_take_one_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target = overconfident(4000, 3, 2.0, seed=6)
    whole = AutoCalibration().fit(logits, target)
    monkeypatch.setattr(auto, "RULES", auto.Rules(elements=3000))
    part = AutoCalibration().fit(logits, target)
    assert nll(part.predict_proba(logits), target) == pytest.approx(nll(whole.predict_proba(logits), target), abs=0.01)
    assert part.gain_[0] > 0


@given(
    seed=st.integers(0, 2**31), members=st.integers(1, 8), rows=st.integers(1, 60), sharpness=st.floats(0, 30),
    strength=st.floats(1e-4, 3), weighted=st.booleans(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_a_prior_of_the_weights_is_like_samples_that_one_member_finds_likely(
    seed: int, members: int, rows: int, sharpness: float, strength: float, weighted: bool
) -> None:
    generator = np.random.default_rng(seed)
    likelihood = np.exp(np.maximum(-sharpness * generator.exponential(size=(rows, members)), -87.0))
    prior = strength * generator.uniform(0.1, 1, size=members)
    counts = generator.uniform(0.1, 4, size=rows) if weighted else None
    found = mixture_weights(likelihood, counts, prior)
    # Where the objective is at its maximum on the simplex, its slope is the same in every weight.
    slope = (np.ones(rows) if counts is None else counts) @ (likelihood / (likelihood @ found)[:, None]) + prior / found
    np.testing.assert_allclose(slope, (rows if counts is None else counts.sum()) + prior.sum(), rtol=1e-5)
    assert found.sum() == pytest.approx(1)


@pytest.mark.parametrize(("options", "message"), [
    ({"accuracy": "lose"}, "accuracy .*keep"),
    ({"folds": 1}, "folds .*at least 2"),
])  # fmt: skip
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AutoCalibration(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_prediction_changes_where_there_is_no_best_temperature(wrong: bool, dtype: torch.dtype) -> None:
    logits = torch.randn(3000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    target = logits.argmin(1) if wrong else logits.argmax(1)
    for method in (AutoCalibration(accuracy="keep"), METHODS["temperature"]()):
        method.fit(logits[:200], target[:200])
        assert torch.equal(method.predict_proba(logits).argmax(1), logits.argmax(1))


def test_too_few_samples_have_one_notice() -> None:
    logits, target = overconfident(5, 3, 2.0, seed=0)
    auto = AutoCalibration().fit(logits, target)
    assert auto.weights_ == {"unchanged": 1.0}
    assert [text for text in auto.notices_ if "95 % interval" in text or "unlikely" in text] == []
    assert any("5 samples cannot show" in text for text in auto.notices_)
