"""Weights: a sample of weight 2 counts as two, and one of weight 0 not at all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant import metrics
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.predictions import Predictions

# Coarse enough for ties.
SHARES = st.integers(1, 12)
EVERY = sorted(metrics.METRICS)


@st.composite
def weighted_rows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities of three classes, targets, and whole-number weights that sum to at least 3."""
    n = draw(st.integers(1, 12))
    shares = np.array(draw(st.lists(st.tuples(SHARES, SHARES, SHARES), min_size=n, max_size=n)), np.float64)
    kind = draw(st.sampled_from([np.float32, np.float64]))
    probabilities = (shares / shares.sum(1, keepdims=True)).astype(kind)
    target = np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    weight = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    weight[draw(st.integers(0, n - 1))] += 3
    return probabilities, target, weight


@pytest.mark.parametrize("key", EVERY)
@given(rows=weighted_rows())
@settings(max_examples=40, deadline=None)
def test_whole_number_weights_equal_repeated_rows(key: str, rows: tuple[np.ndarray, ...]) -> None:
    probabilities, target, weight = rows
    weighted = metrics.predictions(probabilities=probabilities, target=target, sample_weight=weight)
    repeated = metrics.predictions(probabilities=probabilities.repeat(weight, 0), target=target.repeat(weight))
    value = metrics.METRICS[key].value
    # A square of 1e-17 in place of 0 has a root of 3e-9.
    assert value(weighted) == pytest.approx(value(repeated), rel=1e-9, abs=1e-7 if key == "debiased_l2" else 1e-12)


@given(rows=weighted_rows(), bins=st.integers(1, 6), split=st.booleans())
@settings(max_examples=60, deadline=None)
def test_bins_of_equal_mass_are_those_of_repeated_rows(rows: tuple[np.ndarray, ...], bins: int, split: bool) -> None:
    probabilities, target, weight = rows
    weighted = metrics.predictions(probabilities=probabilities, target=target, sample_weight=weight)
    repeated = metrics.predictions(probabilities=probabilities.repeat(weight, 0), target=target.repeat(weight))
    for ours, theirs in zip(
        metrics.equal_mass_bins(weighted, bins=bins, split_ties=split),
        metrics.equal_mass_bins(repeated, bins=bins, split_ties=split),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("convention", metrics.CONVENTIONS)
@given(rows=weighted_rows())
@settings(max_examples=20, deadline=None)
def test_every_convention_takes_weights(convention: ConventionName, rows: tuple[np.ndarray, ...]) -> None:
    probabilities, target, weight = rows
    weighted = metrics.evaluate(probabilities=probabilities, target=target, sample_weight=weight, convention=convention)
    repeated = metrics.evaluate(
        probabilities=probabilities.repeat(weight, 0), target=target.repeat(weight), convention=convention
    )
    assert dict(weighted) == pytest.approx(dict(repeated), rel=1e-9, abs=1e-7)


def over_confident(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.5, 1, n).round(2)
    return confidence, generator.random(n) < confidence - 0.05, generator.uniform(0.2, 3, n)


# Those that estimate a square without bias count pairs of samples, of which a scale makes more; AURC counts samples.
COUNTING = {"esd", "mmce_unbiased", "skce", "debiased_l2", "aurc", "integrated_calibration_index"}


@pytest.mark.parametrize("key", [key for key in EVERY if not metrics.METRICS[key].of_classes])
def test_the_scale_of_weights_matters_only_where_samples_are_counted(key: str) -> None:
    confidence, correct, weight = over_confident(500)
    value = metrics.METRICS[key].value
    once, tenfold = (value(metrics.predictions(confidence, correct, sample_weight=weight * by)) for by in (1.0, 10.0))
    assert (once == pytest.approx(tenfold, rel=1e-9)) == (key not in COUNTING)


def test_weights_that_sum_to_less_than_the_samples_needed_are_an_error() -> None:
    confidence, correct, weight = over_confident(50)
    with pytest.raises(ValueError, match=r"ESD needs weights that sum to at least 3, got 1: .* scale the weights"):
        metrics.esd(confidence, correct, sample_weight=weight / weight.sum())


def test_one_pass_over_many_blocks_gives_the_scores_of_single_metrics() -> None:
    generator = np.random.default_rng(1)
    confidence = (0.1 + 0.9 * generator.random(10**5) ** 0.2).astype(np.float32)
    correct = generator.random(10**5) < confidence - 0.05
    scores = metrics.evaluate(confidence, correct)
    for key in scores.keys():  # noqa: SIM118 (keys, not scores)
        alone = metrics.METRICS[key].value(metrics.predictions(confidence, correct))
        assert scores[key] == pytest.approx(alone, rel=1e-12)


def test_checked_predictions_keep_their_weights() -> None:
    data = metrics.predictions([0.9, 0.8, 0.6], [1, 0, 1], sample_weight=[1, 2, 0])
    assert isinstance(data, Predictions)
    assert data.total == 3
    assert metrics.accuracy(data) == pytest.approx(1 / 3)


def test_the_floor_of_a_probability_of_0_is_the_same_in_every_dtype() -> None:
    rows, target = np.array([[1.0, 0.0], [0.25, 0.75]]), [1, 1]
    half = metrics.nll(probabilities=rows.astype(np.float32), target=target)
    assert half == metrics.nll(probabilities=rows, target=target)
    assert half == pytest.approx((-np.log(np.finfo(np.float32).tiny) - np.log(0.75)) / 2)


TESTED = ["esd", "ks_error", "ece", "mmce_unbiased", "gap", "brier", "smooth_ece"]


@pytest.mark.parametrize("metric", ["esd", "mmce_unbiased", "gap", "accuracy"])
def test_weights_of_one_change_no_interval(metric: str) -> None:
    confidence, correct, _ = over_confident(200)
    plain = metrics.confidence_interval(confidence, correct, metric=metric)
    ones = metrics.confidence_interval(confidence, correct, metric=metric, sample_weight=np.ones(200))
    assert (ones.value, ones.low, ones.high) == pytest.approx((plain.value, plain.low, plain.high), rel=1e-9)


@pytest.mark.parametrize("metric", TESTED)
def test_a_sample_of_weight_0_changes_no_draw(metric: str) -> None:
    confidence, correct, weight = over_confident(120)
    weight[::4] = 0
    some = weight > 0
    for function in (metrics.calibration_test, metrics.confidence_interval):
        left_out = function(confidence[some], correct[some], metric=metric, draws=40, sample_weight=weight[some])
        assert function(confidence, correct, metric=metric, draws=40, sample_weight=weight) == left_out


@pytest.mark.parametrize("metric", ["esd", "mmce_unbiased", "gap", "accuracy"])
def test_the_weighted_jackknife_leaves_out_each_sample(metric: str) -> None:
    confidence, correct, weight = over_confident(25)
    jackknife = metrics.METRICS[metric].jackknife
    assert jackknife is not None
    found = jackknife(metrics.predictions(confidence, correct, sample_weight=weight))
    for m, value in enumerate(found.without_each):
        kept = np.arange(25) != m
        rest = metrics.predictions(confidence[kept], correct[kept], sample_weight=weight[kept])
        assert value == pytest.approx(jackknife(rest).value, rel=1e-9)
    tenfold = jackknife(metrics.predictions(confidence, correct, sample_weight=10 * weight))
    assert tenfold.value == pytest.approx(found.value, rel=1e-9)
    assert tenfold.least_spread == pytest.approx(found.least_spread, rel=1e-9)


def test_esd_of_an_interval_averages_over_triples_of_different_samples() -> None:
    z, c, w = over_confident(7)
    triples = [(i, j, k) for i in range(7) for j in range(7) for k in range(7) if len({i, j, k}) == 3]
    shares = np.array([w[i] * w[j] * w[k] for i, j, k in triples])
    terms = [(c[j] - z[j]) * (c[k] - z[k]) * (z[j] <= z[i]) * (z[k] <= z[i]) for i, j, k in triples]
    found = metrics.confidence_interval(z, c, sample_weight=w)
    assert found.value == pytest.approx(float(shares @ terms / shares.sum()), rel=1e-9)


def test_models_with_different_weights_are_not_compared() -> None:
    confidence, correct, weight = over_confident(30)
    a, b = metrics.predictions(confidence, correct), metrics.predictions(confidence, correct, sample_weight=weight)
    with pytest.raises(ValueError, match="must have the same sample_weight"):
        metrics.compare(a, b)


def calibrated_weighted(seed: int, n: int = 120) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.5, 1, n).round(2)
    return confidence, generator.random(n) < confidence, generator.exponential(1, n)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["esd", "ks_error", "ece", "mmce_unbiased", "gap", "brier"])
def test_p_values_of_weighted_calibrated_data_are_uniform(metric: str) -> None:
    p_values = []
    for seed in range(400):
        confidence, correct, weight = calibrated_weighted(seed)
        found = metrics.calibration_test(confidence, correct, metric=metric, draws=99, seed=seed, sample_weight=weight)
        p_values.append(found.p_value)
    counts = np.histogram(p_values, bins=5, range=(0, 1))[0]
    assert ((counts - 80) ** 2 / 80).sum() < 18.5  # chi-squared with 4 degrees of freedom: 0.1 %


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["esd", "mmce_unbiased", "gap"])
def test_weighted_intervals_of_calibrated_data_contain_0(metric: str) -> None:
    covered = 0
    for seed in range(400):
        confidence, correct, weight = calibrated_weighted(seed, 300)
        found = metrics.confidence_interval(confidence, correct, metric=metric, sample_weight=weight)
        covered += found.low <= 0 <= found.high
    assert covered >= 366  # 91.5 %: three standard deviations below 95 %
