"""Closed-form tests, the calibration line, ICI, decompositions and equivalence, against transcriptions of them."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from calibrant import metrics
from calibrant.metrics.closed_form import exceeds_distance, exceeds_range
from calibrant.metrics.intervals import gaps_by_probability
from calibrant.metrics.proper import ProperScore

ks_test = partial(metrics.closed_form_test, statistic="kolmogorov-smirnov")
kuiper_test = partial(metrics.closed_form_test, statistic="kuiper")
spiegelhalter_test = partial(metrics.closed_form_test, statistic="spiegelhalter")
RNG = np.random.default_rng(0)
RISK = np.round(RNG.uniform(0.02, 0.98, 400), 2)  # with ties
EVENT = RNG.random(400) < RISK**1.3


def ends_of_ties(risk: np.ndarray, event: np.ndarray, weight: np.ndarray) -> list[float]:
    """Sums of residuals up to each distinct probability, by a loop."""
    return [
        math.fsum(w * (y - p) for p, y, w in zip(risk, event, weight, strict=True) if p <= edge)
        for edge in sorted(set(risk))
    ]


@pytest.mark.parametrize("weighted", [False, True])
def test_statistics_are_those_of_the_papers(weighted: bool) -> None:
    weight = RNG.integers(1, 4, 400).astype(float) if weighted else np.ones(400)
    given = metrics.predictions(RISK, EVENT, sample_weight=weight) if weighted else metrics.predictions(RISK, EVENT)
    sums = [0.0, *ends_of_ties(RISK, EVENT, weight)]
    scale = math.sqrt(math.fsum(w * p * (1 - p) for p, w in zip(RISK, weight, strict=True)))
    assert ks_test(given).statistic == pytest.approx(max(map(abs, sums)) / scale)
    assert kuiper_test(given).statistic == pytest.approx((max(sums) - min(sums)) / scale)
    # Spiegelhalter: the Brier score minus its expectation, over its standard deviation.
    brier = math.fsum(w * (y - p) ** 2 for p, y, w in zip(RISK, EVENT, weight, strict=True))
    expected = math.fsum(w * p * (1 - p) for p, w in zip(RISK, weight, strict=True))
    variance = math.fsum(w * (1 - 2 * p) ** 2 * p * (1 - p) for p, w in zip(RISK, weight, strict=True))
    found = spiegelhalter_test(given)
    assert found.statistic == pytest.approx((brier - expected) / math.sqrt(variance))
    assert found.p_value == pytest.approx(2 * stats.norm.sf(abs(found.statistic)))


@pytest.mark.parametrize("x", [0.3, 0.8, 1.3, 1.999, 2.001, 3.0, 5.0])
def test_laws_of_brownian_motion(x: float) -> None:
    # By images of the two barriers: a path from 0 that stays in (-a, b) until time 1 ends anywhere within.
    def stays(a: float, b: float) -> float:
        width, images = a + b, np.arange(-60, 61)
        inside = stats.norm.cdf(b + 2 * images * width) - stats.norm.cdf(-a + 2 * images * width)
        mirrored = stats.norm.cdf(-b + 2 * images * width - 0) - stats.norm.cdf(-2 * b - a + 2 * images * width)
        return float((inside - mirrored).sum())

    assert exceeds_distance(x) == pytest.approx(1 - stays(x, x), abs=1e-12)
    # The range is at most x if the path stays in (m - x, m) for the largest value m it reaches.
    step = 1e-4 * x
    tops = (np.arange(100) + 0.5) * x / 100
    density = [(stays(x - top, top + step) - stays(x - top, top - step)) / (2 * step) for top in tops]
    below = sum(density) * x / 100
    # That density keeps the lower barrier fixed: the top is m and the lowest value is above m - x.
    assert exceeds_range(x) == pytest.approx(1 - below, abs=2e-3)


def test_probabilities_of_0_and_1_are_tested_too() -> None:
    right, wrong = kuiper_test([0.0, 1.0], [0, 1]), kuiper_test([0.0, 1.0], [1, 1])
    assert (right.statistic, right.p_value) == (0.0, 1.0)
    assert (wrong.statistic, wrong.p_value) == (math.inf, 0.0)
    assert spiegelhalter_test([0.5, 0.5], [0, 0]).p_value == 1.0


@pytest.mark.slow
def test_p_values_are_uniform_for_calibrated_probabilities() -> None:
    rng = np.random.default_rng(1)
    risk = rng.beta(1.5, 3, 3000)
    p_values: dict[Any, list[float]] = {ks_test: [], kuiper_test: [], spiegelhalter_test: []}
    for _ in range(2000):
        given = metrics.predictions(risk, rng.random(3000) < risk)
        for test, found in p_values.items():
            found.append(test(given).p_value)
    for found in p_values.values():
        # A random walk is slightly less far from 0 than Brownian motion between its steps: a few per mille.
        assert stats.kstest(found, "uniform").statistic < 0.045
        assert 0.03 < np.mean(np.array(found) < 0.05) < 0.065


def test_the_calibration_line_is_that_of_a_general_optimiser() -> None:
    logit, event = np.log(RISK / (1 - RISK)), EVENT.astype(float)

    def loss(line: np.ndarray) -> float:
        linear = line[0] + line[1] * logit
        return float((np.logaddexp(0, linear) - event * linear).sum())

    best = optimize.minimize(loss, [0.0, 1.0], method="BFGS", options={"gtol": 1e-8})
    found = metrics.calibration_line(RISK, EVENT)
    assert (found.intercept, found.slope) == pytest.approx(best.x, abs=1e-7)
    assert found.p_value == pytest.approx(stats.chi2.sf(2 * (loss(np.array([0.0, 1.0])) - best.fun), 2), rel=1e-4)
    fitted = 1 / (1 + np.exp(-(best.x[0] + best.x[1] * logit)))
    design = np.stack((np.ones(400), logit))
    error = np.sqrt(np.diag(np.linalg.inv((design * fitted * (1 - fitted)) @ design.T)))
    assert found.slope_high - found.slope == pytest.approx(1.959964 * error[1], rel=1e-4)
    assert found.intercept - found.intercept_low == pytest.approx(1.959964 * error[0], rel=1e-4)


@pytest.mark.parametrize(
    ("risk", "event", "message"),
    [
        ([0.1, 0.2, 0.3], [1, 1, 1], "without the event"),
        ([0.2, 0.2, 0.2], [1, 0, 1], "all are equal"),
        ([0.1, 0.2, 0.7, 0.8], [0, 0, 1, 1], "no finite"),
        ([0.5, 0.5, 0.6, 0.7, 0.7], [0, 0, 1, 1, 1], "no finite"),
    ],
)
def test_where_there_is_no_line_the_error_says_why(risk: list[float], event: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metrics.calibration_line(risk, event)


def test_the_ici_is_a_kernel_average_of_the_residuals() -> None:
    z = RISK
    width = 1.06 * z.std() * len(z) ** -0.2
    curve = []
    for at in z:
        kernel = sum(
            np.exp(-0.5 * ((at - mirror - 2 * image) / width) ** 2) for image in (-1, 0, 1) for mirror in (z, -z)
        )
        curve.append(at + (kernel @ (EVENT - z)) / kernel.sum())
    expected = np.abs(np.array(curve) - z).mean()
    assert metrics.integrated_calibration_index(z, EVENT) == pytest.approx(expected, abs=2e-5)


def test_the_ici_of_one_probability_is_the_gap() -> None:
    assert metrics.integrated_calibration_index([0.3] * 10, [1] * 5 + [0] * 5) == pytest.approx(0.2)


@pytest.mark.parametrize("score", ["log_loss", "brier"])
@pytest.mark.parametrize("classes", [2, 4])
def test_parts_add_up_to_the_score(score: ProperScore, classes: int) -> None:
    logits = 3 * np.random.default_rng(2).normal(size=(300, classes))
    target = np.random.default_rng(3).integers(classes, size=300)
    given = metrics.predictions(logits=logits, target=target)
    parts = metrics.decomposition(given, score=score)
    assert parts.loss == pytest.approx(
        metrics.log_loss(given) if score == "log_loss" else metrics.brier(given), rel=1e-12
    )
    assert parts.calibration + parts.refinement == pytest.approx(parts.loss, rel=1e-12)
    assert parts.calibration > 0
    assert parts.recalibration == {
        ("log_loss", 2): "isotonic", ("brier", 2): "isotonic",
        ("log_loss", 4): "temperature", ("brier", 4): "isotonic, each class",
    }[score, classes]  # fmt: skip


def test_the_parts_of_pairs_are_those_of_corp_and_of_scikit_learn() -> None:
    from sklearn.isotonic import IsotonicRegression

    parts = metrics.decomposition(RISK, EVENT, score="brier")
    assert parts.calibration == pytest.approx(metrics.brier_miscalibration(RISK, EVENT))
    assert parts.discrimination == pytest.approx(metrics.brier_discrimination(RISK, EVENT))
    assert parts.uncertainty == metrics.brier_uncertainty(RISK, EVENT) == pytest.approx(EVENT.var())
    fitted = IsotonicRegression().fit_transform(RISK, EVENT)
    assert parts.refinement == pytest.approx(np.mean((EVENT - fitted) ** 2))
    each = np.where(EVENT, -np.log(np.where(EVENT, fitted, 1)), -np.log(np.where(EVENT, 1, 1 - fitted)))
    assert metrics.decomposition(RISK, EVENT).refinement == pytest.approx(each.mean(), rel=1e-9)


def test_the_log_loss_of_classes_is_refined_by_the_best_temperature() -> None:
    logits = 4 * np.random.default_rng(2).normal(size=(500, 3))
    honest = np.exp(logits / 4)
    shares = (honest / honest.sum(1, keepdims=True)).cumsum(1)
    target = (np.random.default_rng(3).random((500, 1)) > shares[:, :2]).sum(1)
    best = optimize.minimize_scalar(
        lambda log_t: metrics.log_loss(logits=logits / np.exp(log_t), target=target), bounds=(-3, 4), method="bounded"
    ).fun
    assert metrics.decomposition(logits=logits, target=target).refinement == pytest.approx(best, abs=1e-8)


def test_equivalence_is_shown_only_with_enough_samples() -> None:
    rng = np.random.default_rng(4)
    risk = rng.uniform(size=200_000)
    event = rng.random(200_000) < risk
    few, many = metrics.equivalence(risk[:1000], event[:1000]), metrics.equivalence(risk, event)
    assert not few.on_average
    assert many.on_average
    assert many.everywhere
    off = metrics.equivalence(np.clip(risk + 0.05, 0, 1), event)
    assert not off.on_average
    # An error that cancels on average is seen in the groups.
    waves = metrics.equivalence(np.clip(risk + np.where(risk < 0.5, 0.05, -0.05), 0, 1), event)
    assert waves.on_average
    assert not waves.everywhere


def test_groups_hold_together() -> None:
    rng, missed = np.random.default_rng(5), 0
    for _ in range(300):
        risk = rng.uniform(size=1000)
        true = np.clip(risk + 0.1 * np.sin(6 * risk), 0, 1)
        low, high = gaps_by_probability(metrics.predictions(risk, rng.random(1000) < true))
        order = np.argsort(risk)
        truth = (risk - true)[order].reshape(10, 100).mean(1)
        missed += bool(((truth < low) | (truth > high)).any())
    assert len(low) == 10
    assert missed <= 300 * 0.05 + 3 * math.sqrt(300 * 0.05 * 0.95)


def test_ties_stay_in_one_group() -> None:
    assert gaps_by_probability(metrics.predictions(np.full(1000, 0.3), np.arange(1000) < 300)).shape == (2, 1)
