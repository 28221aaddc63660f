"""Smooth scaling against a general minimiser of the function in its docstring, and what it is for."""

from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from calibrant.posthoc import (
    AutoCalibration,
    BetaCalibration,
    SmoothScaling,
    StructuredMatrixScaling,
    curves,
)
from calibrant.posthoc.map import Logits, OddsCurve, evaluated
from calibrant.posthoc.solvers import logistic_regression
from tests.posthoc.data import nll, overconfident, part_of

Array = npt.NDArray[np.float64]


def capped(samples: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, targets and true probabilities of a model that is never right in more than 88 %."""
    draw = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(samples, generator=draw, dtype=torch.float64)
    truth = (2 * logits.tanh()).sigmoid()
    return logits, torch.bernoulli(truth, generator=draw).long(), truth


def documented(scaling: SmoothScaling, logits: Tensor, count: float) -> Array:
    """The log-odds z."""
    mixing = 1 / (count + 1)
    q = (logits / scaling.temperature_).sigmoid().numpy() * (1 - mixing) + mixing / 2
    return np.asarray(np.log(q) - np.log1p(-q))


def spline(v: Array, knots: Array, d: Array) -> Array:
    return np.asarray((np.abs(v[:, None] - knots) ** 3) @ d)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scale", [0.25, 4.0])
def test_line_and_curve_minimise_what_is_documented(
    scale: float, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimize, integrate = (pytest.importorskip(f"scipy.{part}") for part in ("optimize", "integrate"))
    monkeypatch.setattr(curves, "SCALES", (scale,))
    monkeypatch.setattr(curves, "KNOTS", 6)
    logits, target, _ = capped(400, seed=1)
    weight = np.random.default_rng(0).uniform(0.2, 3, 400) if weighted else np.ones(400)
    scaling = SmoothScaling().fit(logits, target, sample_weight=torch.tensor(weight))
    count = weight.sum()
    z = documented(scaling, logits, count)
    places = np.quantile(np.unique(z), (np.arange(6) + 0.5) / 6)
    middle, half = (places[0] + places[-1]) / 2, (places[-1] - places[0]) / 2
    knots, v = (places - middle) / half, (z - middle) / half
    # Coefficients of a natural spline: any four, and two that make both sums zero.
    free = np.linalg.svd(np.stack((np.ones(6), knots)))[2][2:].T
    grid = np.linspace(-1, 1, 20_001)
    # The second derivative of |v - k|^3 is 6 |v - k|.
    second = 6 * np.abs(grid[:, None] - knots)
    sign, strength = 2 * target.numpy() - 1, 4 / scale**2

    def objective(found: Array) -> float:
        (b, c), d = found[:2], free @ found[2:]
        loss = weight @ np.logaddexp(0, -sign * (b * z + c + spline(v, knots, d)))
        rough = integrate.trapezoid((second @ d) ** 2, grid)
        return float(loss + 2 * ((b - 1) ** 2 + c**2) + strength / 2 * rough)

    best = optimize.minimize(objective, [1.0, *[0.0] * 5], method="BFGS", options={"gtol": 1e-6})
    b, c = best.x[:2]
    odds = b * z + c + spline(v, knots, free @ best.x[2:])
    mixing = 1 / (count + 1)
    expected = (1 - mixing) / (1 + np.exp(-odds)) + mixing / 2
    np.testing.assert_allclose(scaling.predict_proba(logits)[:, 1].numpy(), expected, atol=1e-5)


def test_strengths_are_weighed_by_their_marginal_likelihood() -> None:
    draw = np.random.default_rng(0)
    z = draw.normal(size=60)
    hits = (draw.random(60) < 1 / (1 + np.exp(-2 * np.tanh(2 * z)))).astype(float)
    features = np.stack([np.stack((z, np.ones(60), scale * (np.abs(z) - 0.8))) for scale in (0.1, 3.0)])
    centre = np.array([1.0, 0.0, 0.0])

    def log_joint(row: Array, theta: Array) -> Array:
        odds = theta @ row
        return np.asarray((hits * odds - np.logaddexp(0, odds)).sum(1) - 2 * ((theta - centre) ** 2).sum(1))

    # By the sum over a fine grid of all three coefficients.
    axis = np.linspace(-3, 3, 61)
    grid = np.array(list(product(axis, repeat=3))) + centre
    exact = [np.log(np.exp(values - values.max()).sum()) + values.max() for values in (log_joint(row, grid) for row in features)]  # fmt: skip # noqa: E501
    found = logistic_regression(features, np.tile(hits, (2, 1)), centre, 4 / 60)
    ours = curves.log_evidence(features, hits, np.ones(60), found, centre)
    assert float(ours[1] - ours[0]) == pytest.approx(exact[1] - exact[0], abs=0.1)
    assert abs(exact[1] - exact[0]) > 0.5


def test_it_follows_a_curve_that_others_cannot() -> None:
    logits, target, _ = capped(4000, seed=2)
    new, new_target, truth = capped(4000, seed=3)
    best = nll(torch.stack((1 - truth, truth), dim=1), new_target)
    found = nll(SmoothScaling().fit(logits, target).predict_proba(new), new_target)
    others = [nll(kind().fit(logits, target).predict_proba(new), new_target)
              for kind in (BetaCalibration, StructuredMatrixScaling)]  # fmt: skip
    assert best < found < best + 0.006
    assert found < min(others) - 0.01


def test_without_a_curve_it_costs_next_to_nothing() -> None:
    logits, target = overconfident(500, 2, 2.0, seed=4)
    new, new_target = overconfident(20_000, 2, 2.0, seed=5)
    ours, line = (
        nll(kind().fit(logits, target).predict_proba(new), new_target)
        for kind in (SmoothScaling, StructuredMatrixScaling)
    )
    assert ours < line + 1e-3


@pytest.mark.filterwarnings("ignore::calibrant.posthoc.FitWarning")
@pytest.mark.parametrize("values", [[0.0], [-1.0, 1.0], [-2.0, 0.5, 1.0], [-1e30, -1.0, 0.0, 1e-9, 2.0, 1e30]])
def test_few_different_scores_have_a_finite_map(values: list[float]) -> None:
    logits = torch.tensor(values).repeat(40)
    target = (torch.arange(len(logits)) * 7 % 10 < 4).long()
    scaling = SmoothScaling().fit(logits, target)
    rows = scaling.predict_proba(torch.tensor([-3e38, -5.0, 0.0, 5.0, 3e38]))
    assert rows.min() > 1e-4
    assert torch.isfinite(scaling(torch.tensor([-3e38, 0.0, 3e38]))).all()


def test_beyond_the_outer_knots_the_curve_is_straight() -> None:
    logits, target, _ = capped(2000, seed=6)
    scaling = SmoothScaling().fit(logits, target)
    knots = part_of(scaling, OddsCurve).knots
    ends = [float(knots[0]) - torch.arange(3.0), float(knots[-1]) + torch.arange(3.0)]
    # In the temperature-scaled and mixed log-odds, which the curve is a function of.
    curve = replace(part_of(scaling, OddsCurve), of=Logits())
    for odds in ends:
        rows = torch.stack((torch.zeros(3), odds), dim=1).double()
        found = torch.from_numpy(evaluated(curve.logits, rows.numpy()))[:, 1]
        assert found.diff().diff().abs().item() < 1e-5
    inside = torch.linspace(float(knots[0]), float(knots[-1]), 400, dtype=torch.float64)
    rows = torch.stack((torch.zeros_like(inside), inside), dim=1)
    assert np.abs(np.diff(evaluated(curve.logits, rows.numpy())[:, 1])).max() < 0.3  # it does not jump


def test_joined_neighbours_change_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target, _ = capped(40_000, seed=8)
    joined = SmoothScaling().fit(logits, target).predict_proba(logits)
    monkeypatch.setattr(curves, "JOINED", 10**9)
    torch.testing.assert_close(SmoothScaling().fit(logits, target).predict_proba(logits), joined, rtol=0, atol=1e-5)


def test_gradients_reach_the_logits() -> None:
    logits, target, _ = capped(400, seed=9)
    scaling = SmoothScaling().fit(logits, target)
    inputs = torch.linspace(-6, 6, 11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(scaling, inputs)


def test_more_than_two_classes_have_structured_matrix_scaling() -> None:
    logits, target = overconfident(500, 3, 2.0, seed=10)
    ours, theirs = SmoothScaling().fit(logits, target), StructuredMatrixScaling().fit(logits, target)
    assert torch.equal(ours.predict_proba(logits), theirs.predict_proba(logits))


@pytest.mark.parametrize("seed", range(5))
def test_scores_that_differ_by_roundings_have_no_curve(seed: int) -> None:
    draw = np.random.default_rng(seed)
    start = np.float32(draw.uniform(4, 8))
    logits = (start + np.spacing(start) * draw.integers(0, 9, 200)).astype(np.float32)
    target = (draw.random(200) < 0.7).astype(int)
    assert np.isfinite(SmoothScaling().fit(logits, target).predict_proba(logits)).all()
    assert np.isfinite(AutoCalibration().fit(logits, target).gain_).all()


@pytest.mark.parametrize(("mean", "spread"), [(2.0, 0.001), (0.0, 0.01)])
def test_scores_in_a_narrow_range_say_nothing_about_far_ones(mean: float, spread: float) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = mean + spread * torch.randn(3000, generator=draw, dtype=torch.float64)
    target = torch.bernoulli(logits.sigmoid(), generator=draw).long()
    far = torch.tensor([mean - 6, mean + 6], dtype=torch.float64)
    low, high = SmoothScaling().fit(logits, target).predict_proba(far)[:, 1].tolist()
    assert low < 0.5 < high
