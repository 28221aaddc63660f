"""Weights: a sample of weight 2 counts as two, and one of weight 0 not at all."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant import metrics
from calibrant.metrics.binned import CONVENTIONS, ConventionName
from calibrant.metrics.predictions import Predictions
from calibrant.metrics.registry import METRICS

# Coarse enough for ties.
SHARES = st.integers(1, 12)
EVERY = sorted(METRICS)


@st.composite
def weighted_rows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities of three classes, targets, and whole-number weights that sum to at least 4."""
    n = draw(st.integers(1, 12))
    shares = np.array(draw(st.lists(st.tuples(SHARES, SHARES, SHARES), min_size=n, max_size=n)), np.float64)
    kind = draw(st.sampled_from([np.float32, np.float64]))
    probabilities = (shares / shares.sum(1, keepdims=True)).astype(kind)
    target = np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    weight = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    weight[draw(st.integers(0, n - 1))] += 4
    return probabilities, target, weight


def both(rows: tuple[np.ndarray, ...]) -> tuple[Predictions, Predictions]:
    """Predictions with weights, and the same with repeated rows."""
    probabilities, target, weight = rows
    return (
        metrics.predictions(probabilities=probabilities, target=target, sample_weight=weight),
        metrics.predictions(probabilities=probabilities.repeat(weight, 0), target=target.repeat(weight)),
    )


@pytest.mark.parametrize("key", EVERY)
@given(rows=weighted_rows())
@settings(max_examples=25, deadline=None)
def test_whole_number_weights_equal_repeated_rows(key: str, rows: tuple[np.ndarray, ...]) -> None:
    weighted, repeated = both(rows)
    metric = METRICS[key]
    # A square of 1e-17 in place of 0 has a root of 3e-9.
    same = partial(pytest.approx, rel=1e-9, abs=1e-7 if key == "debiased_l2" else 1e-12)
    assert metric.value(weighted) == same(metric.value(repeated))
    ours, theirs = (metrics.calibration_test(given, metric=key, draws=9) for given in (weighted, repeated))
    assert (ours.statistic, ours.null_mean) == same((theirs.statistic, theirs.null_mean))
    assert ours.p_value == theirs.p_value or key == "debiased_l2"  # many draws are 0
    if metric.jackknife is not None:
        one, other = (metrics.confidence_interval(given, metric=key) for given in (weighted, repeated))
        assert (one.low, one.high) == same((other.low, other.high))


@pytest.mark.parametrize("convention", CONVENTIONS)
@given(rows=weighted_rows())
@settings(max_examples=20, deadline=None)
def test_every_convention_takes_weights(convention: ConventionName, rows: tuple[np.ndarray, ...]) -> None:
    weighted, repeated = (metrics.evaluate(given, convention=convention) for given in both(rows))
    assert dict(weighted) == pytest.approx(dict(repeated), rel=1e-9, abs=1e-7)


def over_confident(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.5, 1, n).round(2)
    return confidence, generator.random(n) < confidence - 0.05, generator.uniform(0.2, 3, n)


# Those that estimate a square without bias count pairs of samples, of which a scale makes more; AURC counts samples.
COUNTING = {"esd", "mmce_unbiased", "skce", "debiased_l2", "aurc", "integrated_calibration_index"}


@pytest.mark.parametrize("key", [key for key in EVERY if not METRICS[key].of_classes])
def test_the_scale_of_weights_matters_only_where_samples_are_counted(key: str) -> None:
    confidence, correct, weight = over_confident(500)
    value = METRICS[key].value
    once, tenfold = (value(metrics.predictions(confidence, correct, sample_weight=weight * by)) for by in (1.0, 10.0))
    assert (once == pytest.approx(tenfold, rel=1e-9)) == (key not in COUNTING)


def test_weights_that_sum_to_less_than_the_samples_needed_are_an_error() -> None:
    confidence, correct, weight = over_confident(50)
    with pytest.raises(ValueError, match=r"at least 3, got 1: .*sample_weight"):
        metrics.esd(confidence, correct, sample_weight=weight / weight.sum())


def test_one_pass_over_many_blocks_gives_the_scores_of_single_metrics() -> None:
    generator = np.random.default_rng(1)
    confidence = (0.1 + 0.9 * generator.random(10**5) ** 0.2).astype(np.float32)
    correct = generator.random(10**5) < confidence - 0.05
    scores = metrics.evaluate(confidence, correct)
    for key in scores.keys():  # noqa: SIM118 (keys, not scores)
        alone = METRICS[key].value(metrics.predictions(confidence, correct))
        assert scores[key] == pytest.approx(alone, rel=1e-12)


def whole(seed: int = 0, n: int = 150) -> tuple[Predictions, Predictions]:
    """Samples with whole-number weights, some of them 0 and some tied, and the same samples repeated."""
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.3, 0.95, n).round(2)
    correct, weight = generator.random(n) < confidence - 0.05, generator.integers(0, 4, n)
    weighted = metrics.predictions(confidence, correct, sample_weight=weight)
    return weighted, metrics.predictions(confidence.repeat(weight), correct.repeat(weight))


def numbers(result: Any) -> list[float]:
    """All numbers of a result."""
    fields = result._asdict() if hasattr(result, "_asdict") else vars(result)
    nested = [numbers(each) if hasattr(each, "__dict__") else [each] for each in fields.values()]
    return [value for values in nested for value in values if isinstance(value, float | int)]


WITHOUT_DRAWS: dict[str, Callable[[Predictions], Any]] = {
    "ks_test": partial(metrics.closed_form_test, statistic="kolmogorov-smirnov"),
    "kuiper_test": partial(metrics.closed_form_test, statistic="kuiper"),
    "spiegelhalter_test": partial(metrics.closed_form_test, statistic="spiegelhalter"),
    "calibration_line": metrics.calibration_line,
    "equivalence": metrics.equivalence,
    "decomposition": metrics.decomposition,
    "decomposition of Brier": partial(metrics.decomposition, score="brier"),
    "calibration_change": lambda given: metrics.calibration_change(whole(1)[0], given),
    "compare": lambda given: metrics.compare(given, replace(given, confidence=given.confidence**2)),
}


@pytest.mark.parametrize("name", WITHOUT_DRAWS)
def test_tests_and_intervals_of_weights_equal_those_of_repeated_rows(name: str) -> None:
    weighted, repeated = (numbers(WITHOUT_DRAWS[name](given)) for given in whole())
    assert weighted == pytest.approx(repeated, rel=1e-9, abs=1e-12)
    assert len(weighted) > 1


@pytest.mark.parametrize("metric", ["ks_error", "ece", "brier", "mce"])
def test_the_bootstrap_of_weights_has_the_law_of_that_of_repeated_rows(metric: str) -> None:
    one, other = (metrics.confidence_interval(given, metric=metric, draws=300) for given in whole())
    assert one.high == pytest.approx(other.high, rel=0.15)


def test_groups_and_windows_of_weights_equal_those_of_repeated_rows() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.3, 0.95, 200).round(2)
    correct, weight = generator.random(200) < confidence, generator.integers(0, 4, 200)
    group, time = generator.integers(0, 3, 200), generator.integers(0, 50, 200)
    weighted = metrics.predictions(confidence, correct, sample_weight=weight)
    repeated = metrics.predictions(confidence.repeat(weight), correct.repeat(weight))
    one = metrics.calibration_over_time(weighted, time=time, windows=4)
    other = metrics.calibration_over_time(repeated, time=time.repeat(weight), windows=4)
    assert (one.p_value, one.change_at) == pytest.approx((other.p_value, other.change_at))
    for mine, theirs in zip(one.windows, other.windows, strict=True):
        assert numbers(mine) == pytest.approx(numbers(theirs), rel=1e-9)
    by = metrics.calibration_by_group(weighted, groups=group, draws=50)
    same = metrics.calibration_by_group(repeated, groups=group.repeat(weight), draws=50)
    assert by.multicalibration_error == pytest.approx(same.multicalibration_error)
    for part, expected in zip(by.groups, same.groups, strict=True):
        assert (part.name, part.samples) == (expected.name, expected.samples)
        assert (part.gap.low, part.gap.high) == pytest.approx((expected.gap.low, expected.gap.high))


def scaled_weights(seed: int, n: int = 200) -> Predictions:
    """Calibrated samples with weights that are not counts, scaled to the effective number of samples."""
    generator = np.random.default_rng(seed)
    confidence, weight = generator.uniform(0.5, 1, n), generator.uniform(0.5, 2, n)
    weight *= weight.sum() / (weight**2).sum()
    return metrics.predictions(confidence, generator.random(n) < confidence, sample_weight=weight)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["esd", "ks_error", "ece", "gap"])
def test_scaled_weights_keep_the_level_of_tests_and_intervals(metric: str) -> None:
    data = [scaled_weights(seed) for seed in range(300)]
    p_values = [metrics.calibration_test(each, metric=metric, draws=99, seed=k).p_value for k, each in enumerate(data)]
    assert 0.015 <= np.mean(np.array(p_values) <= 0.05) <= 0.1
    if METRICS[metric].jackknife is not None:
        found = [metrics.confidence_interval(each, metric=metric) for each in data]
        assert np.mean([each.low <= 0 <= each.high for each in found]) >= 0.9
