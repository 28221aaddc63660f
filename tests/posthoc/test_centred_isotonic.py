"""Centred isotonic regression, and the pooling it shares with isotonic regression."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from calibrant.posthoc import CentredIsotonicCalibration, IsotonicCalibration
from calibrant.posthoc.map import Lines
from tests.posthoc.data import overconfident, part_of

Array = npt.NDArray[np.float64]


def centres(scores: Array, hits: Array, weight: Array) -> tuple[Array, Array]:
    """Oron and Flournoy 2017, loop by loop: pool neighbours that do not rise, and take the mean of their scores."""
    blocks = []
    for place in np.unique(scores):
        tied = scores == place
        mass = weight[tied].sum()
        blocks.append([place, (weight * hits)[tied].sum() / mass, mass])
    at = 0
    while at < len(blocks) - 1:
        (x, y, mass), (next_x, next_y, next_mass) = blocks[at : at + 2]
        if y < next_y - 1e-12:
            at += 1
            continue
        whole = mass + next_mass
        share = next_mass / whole
        blocks[at : at + 2] = [[x + share * (next_x - x), y + share * (next_y - y), whole]]
        at = max(0, at - 1)
    table = np.array(blocks)
    return table[:, 0], table[:, 1]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["random", "tied", "saturated", "falling"])
@pytest.mark.parametrize("samples", [1, 2, 10, 300])
def test_straight_lines_connect_the_centres(samples: int, kind: str, weighted: bool) -> None:
    draw = np.random.default_rng(samples)
    logits = 2 * draw.normal(size=samples)
    if kind == "tied":
        logits = logits.round()
    if kind == "saturated":
        logits = 50 * logits
    hits = (draw.random(samples) < 1 / (1 + np.exp(logits if kind == "falling" else -logits / 2))).astype(np.float64)
    weight = draw.uniform(0.2, 3, samples) if weighted else np.ones(samples)
    fitted = CentredIsotonicCalibration(strict=True)
    fitted.fit(torch.tensor(logits), torch.tensor(hits).long(), sample_weight=torch.tensor(weight))
    new = np.concatenate((logits[:50], np.linspace(-6, 6, 101)))
    place = 1 / (1 + np.exp(-new))
    expected = np.interp(place, *centres(torch.tensor(logits).sigmoid().numpy(), hits, weight))
    np.testing.assert_allclose(fitted.predict_proba(torch.tensor(new))[:, 1].numpy(), expected, atol=1e-9)


def test_the_map_rises_strictly_between_the_first_and_the_last_centre() -> None:
    logits, target = overconfident(1000, 2, 2.0, seed=0)
    fitted = CentredIsotonicCalibration(strict=True).fit(logits, target)
    knots = torch.from_numpy(part_of(fitted, Lines).knots[0])
    odds = torch.linspace(float(torch.logit(knots[0])), float(torch.logit(knots[-1])), 5001, dtype=torch.float64)
    assert fitted.predict_proba(odds)[:, 1].diff().min() > 0
    steps = IsotonicCalibration(strict=True).fit(logits, target).predict_proba(odds)[:, 1].diff()
    assert (steps == 0).double().mean() > 0.5


@pytest.mark.parametrize("kind", [IsotonicCalibration, CentredIsotonicCalibration])
def test_classes_are_pooled_apart(kind: type[IsotonicCalibration | CentredIsotonicCalibration]) -> None:
    logits, target = overconfident(400, 6, 2.0, seed=1)
    whole = part_of(kind(strict=True).fit(logits, target), Lines)
    for k in range(6):
        odds = torch.logit(logits.softmax(1)[:, k])
        alone = part_of(kind(strict=True).fit(odds, (target == k).long()), Lines)
        width = alone.knots.shape[1]
        np.testing.assert_allclose(whole.knots[k : k + 1, :width], alone.knots)
        np.testing.assert_allclose(whole.values[k : k + 1, :width], alone.values)
        assert bool((whole.values[k, width:] == whole.values[k, -1]).all())


def test_isotonic_regression_with_weights_is_that_of_scikit_learn() -> None:
    isotonic = pytest.importorskip("sklearn.isotonic")
    logits, target = overconfident(500, 2, 2.0, seed=2)
    odds = (logits[:, 1] - logits[:, 0]).round(decimals=1)
    weight = torch.rand(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    exact = isotonic.IsotonicRegression(out_of_bounds="clip")
    exact.fit(odds.sigmoid().numpy(), target.numpy(), sample_weight=weight.numpy())
    found = IsotonicCalibration(strict=True).fit(odds, target, sample_weight=weight)
    new = torch.linspace(-9, 9, 301, dtype=torch.float64)
    np.testing.assert_allclose(found.predict_proba(new)[:, 1].numpy(), exact.predict(new.sigmoid().numpy()), atol=1e-12)
