"""Prior shift: Bayes' rule with given frequencies, and frequencies estimated from samples without labels."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant import posthoc
from calibrant.posthoc import FitWarning, PriorShift

OLD, NEW = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6])


def gaussians(prior: np.ndarray, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits that are right under ``OLD``, targets drawn from ``prior``, and the true probabilities under ``prior``."""
    rng = np.random.default_rng(seed)
    target = rng.choice(3, size=samples, p=prior)
    centres = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])
    x = centres[target] + rng.normal(size=(samples, 2))
    likelihood = -((x[:, None] - centres) ** 2).sum(2) / 2
    true = np.exp(likelihood) * prior
    return likelihood + np.log(OLD), target, true / true.sum(1, keepdims=True)


def fitted(prior: np.ndarray | None = None) -> PriorShift:
    logits, target, _ = gaussians(OLD, 20_000, seed=0)
    return PriorShift(None if prior is None else prior.tolist(), "temperature").fit(logits, target)


def test_given_frequencies_move_probabilities_by_bayes_rule() -> None:
    logits, _, true = gaussians(NEW, 5000, seed=1)
    assert np.abs(fitted(NEW).predict_proba(logits) - true).max() < 0.03
    assert np.abs(fitted().predict_proba(logits) - true).max() > 0.3


@pytest.mark.parametrize("method", ["em", "confusion"])
def test_frequencies_are_found_in_samples_without_labels(method: posthoc.prior.Estimate) -> None:
    logits, target, _ = gaussians(NEW, 20_000, seed=1)
    shift = fitted()
    found = shift.adapt(logits, method=method)
    np.testing.assert_allclose(found, np.bincount(target) / len(target), atol=0.02)
    np.testing.assert_allclose(found.sum(), 1)
    assert shift.prior == tuple(found)
    np.testing.assert_allclose(shift.predict_proba(logits).mean(0), NEW, atol=0.02)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.05, 1), min_size=3, max_size=3), st.integers(0, 1000))
def test_em_finds_the_fixed_point_of_the_em_iteration(share: list[float], seed: int) -> None:
    logits, _, _ = gaussians(np.array(share) / sum(share), 500, seed)
    shift = fitted()
    p = shift.predict_proba(logits)
    found, old = shift.adapt(logits), shift.source_.astype(np.float64)
    posterior = p * found / old
    np.testing.assert_allclose((posterior / posterior.sum(1, keepdims=True)).mean(0), found, atol=1e-6)


def test_the_same_frequencies_change_nothing() -> None:
    logits, _, _ = gaussians(OLD, 100, seed=1)
    same = fitted()
    before = same.predict_proba(logits)
    same.prior = tuple(same.source_.tolist())
    np.testing.assert_allclose(same.predict_proba(logits), before, atol=1e-6)
    np.testing.assert_allclose(before, same.calibrator.predict_proba(logits), atol=1e-6)


def test_a_frequency_of_zero_and_a_class_without_samples_stay_finite() -> None:
    logits, target, _ = gaussians(OLD, 1000, seed=0)
    shift = PriorShift([0.0, 0.5, 0.5], "temperature").fit(logits[target < 2], target[target < 2])
    p = shift.predict_proba(logits)
    assert np.isfinite(p).all()
    assert p[:, 0].max() < 1e-30
    for method in ("em", "confusion"):
        assert np.isfinite(shift.adapt(logits, method=method)).all()


def test_adapted_frequencies_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "shift.safetensors"
    logits, _, _ = gaussians(NEW, 1000, seed=1)
    shift = fitted()
    shift.adapt(logits)
    posthoc.save(shift, path)
    np.testing.assert_array_equal(posthoc.load(path).predict_proba(logits), shift.predict_proba(logits))


def test_few_samples_and_classes_that_look_alike_are_told() -> None:
    shift = fitted()
    logits, _, _ = gaussians(NEW, 50, seed=1)
    with pytest.warns(FitWarning, match="50 samples"):
        shift.adapt(logits)
    blind = PriorShift(method="temperature").fit(np.zeros((300, 2)), np.arange(300) % 2)
    with pytest.warns(FitWarning, match="hardly be separated"):
        blind.adapt(torch.zeros(200, 2), method="confusion")


@pytest.mark.parametrize(
    ("call", "token"),
    [
        (lambda: PriorShift([0.5, 0.6]), "sum to 1"),
        (lambda: PriorShift([-0.5, 1.5]), "at least 0"),
        (lambda: PriorShift([1.0]), "one frequency"),
        (lambda: fitted(np.array([0.5, 0.5])), "3 classes, got 2"),
        (lambda: fitted().adapt(np.zeros((0, 3))), "at least 1 sample"),
    ],
)
def test_frequencies_are_checked(call: Callable[[], object], token: str) -> None:
    with pytest.raises(ValueError, match=token):
        call()
