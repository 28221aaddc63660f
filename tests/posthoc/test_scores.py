"""The maps of one score against slow transcriptions of their definitions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from calibrant.posthoc import (
    BayesianBinning,
    BetaCalibration,
    HistogramBinning,
    IsotonicCalibration,
    PlattScaling,
    SplineCalibration,
)
from calibrant.posthoc.binning import edges_at
from calibrant.posthoc.curves import all_ties
from calibrant.posthoc.map import LogOdds, NumpyOps, Steps, View, view_scores
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.solvers import logistic_regression
from tests.posthoc.data import ece, nll, overconfident, part_of

Array = npt.NDArray[np.float64]


def binary(samples: int, seed: int, *, tied: bool = False) -> tuple[Tensor, Tensor]:
    logits, target = overconfident(samples, 2, 2.0, seed, spread=1.0)
    one = logits[:, 1] - logits[:, 0]
    return (one.round() if tied else one), target


def test_complements_are_exact_on_both_sides() -> None:
    logits = torch.tensor([[40.0, 0.0, -3.0], [0.0, 0.1, 0.2], [-60.0, 0.0, -70.0]], dtype=torch.float64)
    scores = view_scores(NumpyOps(), logits.numpy(), "class-wise")[0]
    for row, values in enumerate(logits.tolist()):
        for k in range(3):
            others = sum(math.exp(value) for j, value in enumerate(values) if j != k)
            exact = math.log(others) - math.log(others + math.exp(values[k]))
            assert scores.log_not[row, k] == pytest.approx(exact, rel=1e-9)


def test_platt_agrees_with_scikit_learn() -> None:
    calibration = pytest.importorskip("sklearn.calibration")
    logits, target = binary(800, seed=0)
    slope, intercept = calibration._sigmoid_calibration(logits.numpy(), target.numpy())
    fitted = PlattScaling(strict=True).fit(logits, target)
    found = part_of(fitted, LogOdds).coefficients[0]
    assert found == pytest.approx([-slope, -slope, -intercept], rel=1e-4, abs=1e-4)


def test_beta_is_the_logistic_regression_of_two_logarithms() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    logits, target = binary(2000, seed=1)
    z = logits.sigmoid().numpy()
    features = np.column_stack((np.log(z), -np.log1p(-z)))
    exact = linear_model.LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(features, target.numpy())
    found = part_of(BetaCalibration(strict=True).fit(logits, target), LogOdds).coefficients[0]
    assert found == pytest.approx(np.append(exact.coef_[0], exact.intercept_), rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("sign", [1, -1])
def test_beta_never_falls(sign: int) -> None:
    # Hits at both ends: the unconstrained fit has one negative coefficient.
    logits = torch.linspace(-4, 4, 2001, dtype=torch.float64)
    target = (sign * logits > 1).long()
    target[(sign * logits < -3)] = 1
    fitted = BetaCalibration(strict=True).fit(logits, target)
    coefficients = part_of(fitted, LogOdds).coefficients[0]
    assert coefficients[:2].min() == 0
    assert fitted.predict_proba(logits)[:, 1].diff().min() >= -1e-12


@pytest.mark.parametrize("kind", [PlattScaling, BetaCalibration])
def test_regressions_of_separable_scores_stay_finite(kind: type[PlattScaling | BetaCalibration]) -> None:
    calibrator = kind(strict=True)
    logits = torch.linspace(-4, 4, 200)
    calibrator.fit(logits, (logits > 0).long())
    assert np.abs(part_of(calibrator, LogOdds).coefficients).max() < 1000
    assert calibrator.predict_proba(torch.tensor([4.0]))[0, 1] > 0.9
    constant = type(calibrator)().fit(torch.ones(8), torch.tensor([0, 1] * 4))
    assert constant.predict_proba(torch.ones(1))[0, 1].item() == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("tied", [False, True])
def test_equal_width_bins_hold_the_rate_of_hits(tied: bool) -> None:
    logits, target = binary(500, seed=2, tied=tied)
    found = HistogramBinning(bins=7, mode="equal-width", view="class-wise", strict=True).fit(logits, target)
    z, after = logits.sigmoid(), found.predict_proba(logits)[:, 1]
    for low in range(7):
        inside = (z > low / 7) & (z <= (low + 1) / 7)
        if inside.any():
            rate = target[inside].double().mean().item()
            assert after[inside].tolist() == pytest.approx([rate] * int(inside.sum()))


def test_equal_mass_bins_are_runs_of_sorted_samples() -> None:
    logits, target = binary(600, seed=3)
    found = HistogramBinning(bins=6, view="class-wise", strict=True).fit(logits, target)
    after = found.predict_proba(logits)[:, 1]
    for part in logits.argsort().chunk(6):
        assert after[part].tolist() == pytest.approx([target[part].double().mean().item()] * 100)


@pytest.mark.parametrize("samples", [1, 2, 3, 10])
def test_more_bins_than_samples_are_no_trouble(samples: int) -> None:
    logits, target = binary(10, seed=4)
    for kind in (HistogramBinning, BayesianBinning, IsotonicCalibration, SplineCalibration):
        rows = kind(strict=True).fit(logits[:samples], target[:samples]).predict_proba(logits)
        assert rows.isfinite().all()
        assert (rows.sum(1) - 1).abs().max() < 1e-6


def test_an_empty_bin_gives_its_middle() -> None:
    binning = HistogramBinning(bins=4, mode="equal-width", view="class-wise", strict=True)
    after = binning.fit(torch.tensor([5.0, -5.0]), torch.tensor([1, 0])).predict_proba(torch.tensor([0.4, -0.4]))
    assert after[:, 1].tolist() == pytest.approx([0.625, 0.375])


def bayesian_binning(z: Array, hits: npt.NDArray[np.int64], new: Array) -> Array:
    """Naeini et al. 2015, loop by loop: all models, none left out."""
    n = len(z)
    order = np.argsort(z)
    z, hits = z[order], hits[order]
    log_scores, predictions = [], []
    for bins in range(max(1, math.floor(n ** (1 / 3) / 10)), min(n, math.ceil(10 * n ** (1 / 3))) + 1):
        cuts = [round(i * n / bins) for i in range(bins + 1)]
        edges = [0.0, *((z[c - 1] + z[c]) / 2 for c in cuts[1:-1]), 1.0]
        score, prediction = 0.0, np.zeros(len(new))
        for b in range(bins):
            size, right = cuts[b + 1] - cuts[b], int(hits[cuts[b] : cuts[b + 1]].sum())
            prior = 2 / bins
            alpha = prior * (edges[b] + edges[b + 1]) / 2
            score += math.lgamma(prior) - math.lgamma(size + prior)
            score += math.lgamma(right + alpha) - math.lgamma(alpha)
            score += math.lgamma(size - right + prior - alpha) - math.lgamma(prior - alpha)
            prediction[(new > edges[b]) & (new <= edges[b + 1])] = (right + alpha) / (size + prior)
        log_scores.append(score)
        predictions.append(prediction)
    weights = np.exp(np.array(log_scores) - max(log_scores))
    return np.asarray(weights @ np.array(predictions) / weights.sum())


@pytest.mark.parametrize("samples", [30, 400])
def test_bayesian_binning_averages_the_histograms(samples: int) -> None:
    logits, target = binary(samples, seed=6)
    new = torch.linspace(-6, 6, 211, dtype=torch.float64)
    expected = bayesian_binning(logits.sigmoid().numpy(), target.numpy(), new.sigmoid().numpy())
    found = BayesianBinning(strict=True).fit(logits, target).predict_proba(new)[:, 1].numpy()
    np.testing.assert_allclose(found, expected, atol=3e-3)  # models below a thousandth are left out


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("largest", [3, 40])
def test_edges_of_weighted_samples_are_those_of_their_copies(largest: int, tied: bool) -> None:
    generator = np.random.default_rng(largest)
    score = generator.random(90)
    score = (score * 20).round() / 20 if tied else score
    hits = 1.0 * (generator.random(90) < 0.3)
    weight = generator.integers(1, largest, 90)
    (weighted,) = all_ties(score[None], hits[None], weight.astype(np.float64))
    (copies,) = all_ties(score.repeat(weight)[None], hits.repeat(weight)[None], np.ones(weight.sum()))
    np.testing.assert_array_equal(weighted.mass, copies.mass)
    places = np.unique((np.arange(1, 200) / 200 * weight.sum()).round())
    ascending = np.sort(score.repeat(weight))
    expected = [(low + high) / 2 for low, high in ascending[np.stack((places, places + 1), 1).astype(int) - 1]]
    np.testing.assert_allclose(edges_at(weighted, places), expected, rtol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_vanishing_probabilities(dtype: torch.dtype) -> None:
    logits = (overconfident(200, 12, 1.0, seed=3)[0] * 100).to(dtype)
    scores = view_scores(NumpyOps(), logits.numpy(), "class-wise")[0]
    expected = logits.double().softmax(1)
    probability, log_not = torch.from_numpy(scores.probability(NumpyOps())), torch.from_numpy(scores.log_not)
    # A logarithm of -100 is rounded by up to 4e-6 in float32.
    torch.testing.assert_close(probability, expected.to(dtype), rtol=1e-5, atol=1e-45)
    small = expected < 0.4
    torch.testing.assert_close(log_not[small], torch.log1p(-expected)[small].to(dtype), rtol=1e-6, atol=1e-45)
    assert (probability[small] == 0).any() == (dtype == torch.float32)


def test_spline_adds_the_slope_of_the_cumulated_gap() -> None:
    interpolate = pytest.importorskip("scipy.interpolate")
    optimize = pytest.importorskip("scipy.optimize")
    logits, target = binary(900, seed=7)
    z = logits.sigmoid().numpy()
    order = z.argsort()
    gap = np.concatenate(([0.0], np.cumsum(target.numpy()[order] - z[order]))) / 900
    t, knots = np.arange(901) / 900, np.linspace(0, 1, 6)
    columns = [interpolate.CubicSpline(knots, row, bc_type="natural") for row in np.eye(6)]
    heights = optimize.lsq_linear(np.column_stack([column(t) for column in columns]), gap).x
    slope = interpolate.CubicSpline(knots, heights, bc_type="natural").derivative()
    expected = np.clip(z[order] + slope((np.arange(900) + 0.5) / 900), 0, 1)
    rows = SplineCalibration(view="class-wise", strict=True).fit(logits, target).predict_proba(logits)
    np.testing.assert_allclose(rows[:, 1].numpy()[order], expected, atol=1e-7)


def test_rows_in_which_all_is_zero_keep_their_probabilities() -> None:
    logits = torch.tensor([[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]]).repeat(4, 1)
    # Low scores never hit, and a flat row has only low scores.
    binning = HistogramBinning(bins=2, mode="equal-width", view="class-wise", strict=True)
    binning.fit(logits, torch.arange(12) % 3)
    assert part_of(binning, Steps).values[:, 0].max() == 0
    flat = torch.tensor([[0.2, 0.1, 0.0]])
    torch.testing.assert_close(binning.predict_proba(flat), flat.softmax(1))


def test_top_label_keeps_the_proportions_of_the_others_where_none_overtakes() -> None:
    logits, target = overconfident(500, 4, 2.0, seed=9)
    before, after = logits.softmax(1), PlattScaling("top-label", strict=True).fit(logits, target).predict_proba(logits)
    others = torch.ones_like(before, dtype=torch.bool).scatter(1, before.argmax(1, keepdim=True), False)
    shares = [(p * others) / (p * others).sum(1, keepdim=True) for p in (before, after)]
    free = shares[0].amax(1) * (1 - after.amax(1)) < 0.999 * after.amax(1)
    assert 0.5 < free.double().mean() < 1
    torch.testing.assert_close(shares[1][free], shares[0][free])
    # Elsewhere the runner-up has just caught up, and the order among the others is the old one.
    top_two = after[~free].topk(2).values
    torch.testing.assert_close(top_two[:, 0], top_two[:, 1], rtol=0.01, atol=0)
    assert (after[~free] * others[~free]).argmax(1).equal(shares[0][~free].argmax(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 3, 50])
@pytest.mark.parametrize("name", ["histogram", "spline", "platt", "beta", "isotonic", "bbq"])
def test_top_label_keeps_the_prediction_and_the_fitted_confidence(name: str, classes: int, dtype: torch.dtype) -> None:
    logits, target = overconfident(1000, classes, 4.0, seed=20, spread=0.7)
    logits = logits.to(dtype)
    kind: Any = METHODS[name]
    calibrator = kind(view="top-label", strict=True).fit(logits, target)
    scores, is_top = calibrator.map_.scores(NumpyOps(), logits.numpy())
    top = is_top.argmax(1)
    mapped = calibrator.map_.curve.of(NumpyOps(), scores)[0][0]
    after = calibrator.predict_proba(logits).numpy()
    kept = mapped >= 1 / classes
    assert kept.mean() > 0.6
    assert np.array_equal(after.argmax(1)[kept], top[kept])
    assert np.array_equal(after.max(1)[kept], mapped[kept])
    assert abs(after.sum(1) - 1).max() < 1e-6
    right = (top == target.numpy()).astype(int)
    of_the_map = np.stack((np.zeros_like(mapped), mapped), axis=1)[kept]
    assert ece(after[kept], target.numpy()[kept]) == ece(of_the_map, right[kept])


@pytest.mark.parametrize("classes", [2, 3, 7, 100])
def test_a_tie_of_all_classes_goes_to_the_predicted_one(classes: int) -> None:
    logits = 5 * torch.eye(classes)  # each class predicted once, and one prediction in C right: 1/C for all
    target = (torch.arange(classes) + 1) % classes
    target[0] = 0
    calibrator = HistogramBinning(bins=1, strict=True).fit(logits, target)
    after = calibrator.predict_proba(logits)
    assert after.argmax(1).equal(torch.arange(classes))
    torch.testing.assert_close(after, torch.full_like(after, 1 / classes), rtol=1e-5, atol=0)


@pytest.mark.parametrize("view", ["class-wise", "top-label"])
@pytest.mark.parametrize("kind", [PlattScaling, BetaCalibration, BayesianBinning])
@pytest.mark.parametrize("sure", [30.0, 80.0])
def test_one_sure_and_wrong_sample_does_not_make_the_likelihood_infinite(
    kind: type[PlattScaling | BetaCalibration | BayesianBinning], view: View, sure: float
) -> None:
    logits = torch.linspace(-sure, sure, 400)
    calibrator = kind(view).fit(logits, (logits > 0).long())
    for logit, label in ((sure, 0), (-sure, 1)):
        row = calibrator.predict_proba(torch.tensor([logit]))
        assert math.isfinite(nll(row, torch.tensor([label])))
        assert row[0, label] < 0.01


@pytest.mark.parametrize("view", ["class-wise", "top-label"])
@pytest.mark.parametrize("kind", [PlattScaling, BetaCalibration, IsotonicCalibration, SplineCalibration])
def test_gradients_stay_finite_where_the_model_is_sure(kind: type[PlattScaling], view: View) -> None:
    logits, target = overconfident(300, 4, 2.0, seed=21)
    calibrator = kind(view=view).fit(logits.float(), target)
    for size in (1.0, 20.0, 200.0, 1e30):
        rows = (torch.eye(4) * size).requires_grad_()
        probabilities = calibrator.predict_proba(rows)
        (gradient,) = torch.autograd.grad((probabilities * torch.arange(4.0)).sum(), rows)
        assert gradient.isfinite().all()


def test_bayesian_binning_keeps_no_edge_without_a_step() -> None:
    logits, target = overconfident(1000, 40, 2.0, seed=22)
    table = BayesianBinning(strict=True).fit(logits, target)
    edges, values = (torch.from_numpy(part) for part in (part_of(table, Steps).edges, part_of(table, Steps).values))
    used = edges.isfinite()
    assert used[:, :-1].logical_or(~used[:, 1:]).all()  # what is not used stands at the end
    steps, gaps = values.diff(dim=1), edges.diff(dim=1)
    assert (steps[used] != 0).all()
    assert (steps[~used] == 0).all()
    assert (gaps[used[:, 1:]] > 0).all()


@pytest.mark.parametrize("scale", [0.2, 1.0, 20.0])
def test_regressions_of_many_scores_reach_the_optimum(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    odds = torch.randn(5, 2000, generator=generator, dtype=torch.float64) * 2
    target = (torch.rand(5, 2000, generator=generator, dtype=torch.float64) < (odds - 1).sigmoid()).double()
    features = torch.stack((odds * scale, odds.square() / 10, torch.ones_like(odds)), dim=1)
    fitted = logistic_regression(features.numpy(), target.numpy(), np.array([1.0, 0.0, 0.0]))
    found = torch.from_numpy(fitted)
    residual = torch.einsum("rd,rdn->rn", found, features).sigmoid() - target
    gradient = torch.einsum("rdn,rn->rd", features, residual) / 2000
    assert (gradient / features.square().mean(2).sqrt()).abs().max() < 1e-6


def test_a_thousand_classes_pass_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target = overconfident(200, 12, 2.0, seed=10)
    for kind in (PlattScaling, IsotonicCalibration, BayesianBinning):
        whole = kind().fit(logits, target).predict_proba(logits)
        with monkeypatch.context() as patch:
            patch.setattr("calibrant.posthoc.curves.BLOCK", 1000)
            torch.testing.assert_close(kind().fit(logits, target).predict_proba(logits), whole)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: PlattScaling("top", strict=True),  # type: ignore[arg-type]
     "view .*'top-label'"),
    (lambda: HistogramBinning(mode="equal", strict=True),  # type: ignore[arg-type]
     "mode"),
    (lambda: HistogramBinning(bins=0, strict=True), "bins .*at least 1"),
    (lambda: SplineCalibration(knots=1, strict=True), "knots .*at least 2"),
])  # fmt: skip
def test_bad_options_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
