"""Venn-Abers prediction against two isotonic regressions for every new score."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from calibrant.posthoc import VennAbers
from tests.posthoc.data import overconfident

Array = npt.NDArray[np.float64]


def isotonic_value(scores: Array, hits: Array, weight: Array, at: float) -> float:
    """Value of the isotonic regression at one of its scores: the largest lowest mean of an interval around it."""
    places = np.unique(scores)
    mass = np.array([weight[scores == place].sum() for place in places])
    right = np.array([(weight * hits)[scores == place].sum() for place in places])
    here = int(np.flatnonzero(places == at)[0])
    return max(
        min(float(right[low : high + 1].sum() / mass[low : high + 1].sum()) for high in range(here, len(places)))
        for low in range(here + 1)
    )


def brute_force(scores: Array, hits: Array, weight: Array, new: Array) -> Array:
    """Vovk et al. 2015, definition: the new sample as a miss and as a hit, ``(N, 2)``."""
    return np.array([
        [
            isotonic_value(np.append(scores, at), np.append(hits, label), np.append(weight, 1.0), at)
            for label in (0.0, 1.0)
        ]
        for at in new
    ])  # fmt: skip


def drawn(kind: str, samples: int, seed: int) -> tuple[Array, Array]:
    draw = np.random.default_rng(seed)
    scores = 3 * draw.normal(size=samples)
    if kind == "tied":
        scores = scores.round()
    if kind == "saturated":
        scores = np.clip(40 * scores, -80, 80)
    hits = draw.random(samples) < (0.1 if kind == "rare" else 1 / (1 + np.exp(-scores / 2)))
    return scores, hits.astype(np.float64)


@pytest.mark.slow_after(4)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("samples", [1, 2, 7, 30])
@pytest.mark.parametrize("kind", ["random", "tied", "saturated", "rare", "sorted"])
def test_the_interval_is_that_of_two_isotonic_regressions(kind: str, samples: int, weighted: bool) -> None:
    for seed in range(4):
        scores, hits = drawn(kind, samples, seed)
        if kind == "sorted":
            scores, hits = np.sort(scores), np.sort(hits)
        draw = np.random.default_rng(seed + 100)
        weight = draw.uniform(0.2, 3, samples) if weighted else np.ones(samples)
        new = np.concatenate((scores[:8], 3 * draw.normal(size=8), [-85.0, 85.0]))
        fitted = VennAbers().fit(torch.tensor(scores), torch.tensor(hits).long(), sample_weight=torch.tensor(weight))
        lower, upper = fitted.predict_interval(torch.tensor(new))
        expected = brute_force(scores, hits, weight, new)
        np.testing.assert_allclose(torch.stack((lower[:, 1], upper[:, 1]), dim=1).numpy(), expected, atol=1e-12)
        torch.testing.assert_close(lower[:, 0], 1 - upper[:, 1])
        merged = expected[:, 1] / (1 - expected[:, 0] + expected[:, 1])
        np.testing.assert_allclose(fitted.predict_proba(torch.tensor(new))[:, 1].numpy(), merged, atol=1e-12)


def test_every_class_has_its_own_interval_and_rows_are_normalised() -> None:
    logits, target = overconfident(60, 3, 2.0, seed=0)
    new, _ = overconfident(10, 3, 2.0, seed=1)
    fitted = VennAbers().fit(logits, target)
    lower, upper = fitted.predict_interval(new)

    def odds(rows: Tensor, k: int) -> Array:
        return np.asarray(torch.logit(rows.softmax(1)[:, k]))

    for k in range(3):
        hits = (target == k).double().numpy()
        expected = brute_force(odds(logits, k), hits, np.ones(60), odds(new, k))
        np.testing.assert_allclose(torch.stack((lower[:, k], upper[:, k]), dim=1), expected, atol=1e-12)
    merged = upper / (1 - lower + upper)
    torch.testing.assert_close(fitted.predict_proba(new), merged / merged.sum(1, keepdim=True))


def test_top_label_has_the_interval_of_the_predicted_class() -> None:
    logits, target = overconfident(200, 4, 2.0, seed=2)
    lower, upper = VennAbers("top-label").fit(logits, target).predict_interval(logits.numpy())
    confidence = torch.logit(logits.softmax(1).amax(1)).numpy()
    right = (logits.argmax(1) == target).double().numpy()
    assert isinstance(lower, np.ndarray)
    some = confidence[:10]
    np.testing.assert_allclose(np.stack((lower, upper), 1)[:10], brute_force(confidence, right, np.ones(200), some))


def test_dense_logits_have_dense_intervals() -> None:
    logits, target = overconfident(120, 3, 2.0, seed=3)
    dense = logits.reshape(4, 30, 3).movedim(-1, 1)
    fitted = VennAbers().fit(logits, target)
    for flat, whole in zip(fitted.predict_interval(logits), fitted.predict_interval(dense), strict=True):
        assert torch.equal(whole, flat.reshape(4, 30, 3).movedim(-1, 1))
    top = VennAbers("top-label").fit(logits, target)
    for flat, whole in zip(top.predict_interval(logits), top.predict_interval(dense), strict=True):
        assert torch.equal(whole, flat.reshape(4, 30))


@pytest.mark.slow
def test_the_value_of_the_true_label_is_calibrated() -> None:
    # The guarantee is about the mean over held-out data too, so a few samples in each of many draws will do.
    draw = torch.Generator().manual_seed(0)
    gaps = []
    for _ in range(300):
        logits = 2 * torch.randn(21, generator=draw, dtype=torch.float64)
        target = torch.bernoulli((logits / 3).sigmoid(), generator=draw).long()
        lower, upper = VennAbers().fit(logits[:20], target[:20]).predict_interval(logits[20:])
        gaps.append(float((upper if target[20] else lower)[0, 1]) - float(target[20]))
    assert abs(np.mean(gaps)) < 3 * np.std(gaps) / len(gaps) ** 0.5


def test_a_probability_is_never_zero_and_lies_in_its_interval() -> None:
    logits = torch.linspace(-30, 30, 100)
    fitted = VennAbers().fit(logits, (logits > 0).long())
    rows = fitted.predict_proba(torch.tensor([-1e30, -30.0, 0.0, 30.0, 1e30]))
    lower, upper = fitted.predict_interval(torch.tensor([-1e30, -30.0, 0.0, 30.0, 1e30]))
    assert rows.min() > 1 / 101
    assert bool(((lower <= rows) & (rows <= upper)).all())


def test_scores_that_round_to_one_are_told_apart() -> None:
    logits = torch.tensor([20.0, 21.0, 22.0, 40.0, 41.0, 42.0]).repeat(20)
    target = (logits > 30).long()  # sigmoid is 1 in float32 for all of them
    rows = VennAbers().fit(logits, target).predict_proba(torch.tensor([21.0, 41.0]))
    assert rows[0, 1] < 0.05
    assert rows[1, 1] > 0.95
