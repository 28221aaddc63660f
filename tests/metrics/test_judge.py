"""The views of predictions, and the tests of all of them together."""

import numpy as np
import pytest
from scipy import stats

from calibrant import metrics
from calibrant.metrics.predictions import Predictions, views
from calibrant.metrics.tests import ENOUGH, holm, sequential_test


def drawn(p: np.ndarray, seed: int = 0) -> np.ndarray:
    """Classes drawn from their probabilities."""
    classes: np.ndarray = (np.random.default_rng(seed).random((len(p), 1)) > p.cumsum(1)[:, :-1]).sum(1)
    return classes


def labels(p: np.ndarray, target: np.ndarray, weight: np.ndarray | None = None) -> Predictions:
    """Predictions of several labels; weights are those of the pairs."""
    known = target != -1
    return Predictions(p[known], target[known] == 1, p, None, target, weight)


def test_of_two_classes_the_risk_is_judged() -> None:
    given = metrics.predictions(probabilities=[0.1, 0.9, 0.4], target=[0, 1, 1], classes=["stays", "leaves"])
    (view,) = views(given)
    assert (view.kind, view.name, str(view)) == ("risk", "leaves", "risk of class leaves")
    assert view.pairs.confidence.tolist() == [0.1, 0.9, 0.4]
    assert view.pairs.correct.tolist() == [False, True, True]


def test_of_several_classes_the_top_label_and_each_class_are_judged() -> None:
    p = np.random.default_rng(0).dirichlet([1, 1, 1], 20)
    given = metrics.predictions(probabilities=p, target=drawn(p), sample_weight=np.arange(20))
    top, *classes = views(given)
    assert np.array_equal(top.pairs.confidence, p.max(1))
    for k, view in enumerate(classes):
        assert np.array_equal(view.pairs.confidence, p[:, k])
        assert np.array_equal(view.pairs.correct, drawn(p) == k)
        assert np.array_equal(view.pairs.weight, np.arange(20))  # type: ignore[arg-type]


def test_of_labels_each_is_judged_where_it_is_known() -> None:
    p = np.array([[0.9, 0.2], [0.4, 0.3], [0.5, 0.6]])
    target = np.array([[1, 0], [-1, 1], [0, 1]])
    given = labels(p, target, np.array([2.0, 2.0, 3.0, 5.0, 5.0]))
    one, other = views(given)
    assert one.pairs.confidence.tolist() == [0.9, 0.5]
    assert one.pairs.correct.tolist() == [True, False]
    assert np.array_equal(one.pairs.weight, [2.0, 5.0])  # type: ignore[arg-type]
    assert len(other.pairs) == 3
    assert np.array_equal(given.sample_weight, [2.0, 3.0, 5.0])  # type: ignore[arg-type]


def test_pairs_are_judged_as_they_are() -> None:
    (view,) = views(metrics.predictions([0.9, 0.8], [1, 0]))
    assert str(view) == "confidence"


def test_of_many_classes_those_are_judged_that_are_expected_most_often() -> None:
    p = np.random.default_rng(0).dirichlet(np.linspace(0.01, 0.2, 200), 300)
    chosen = [int(view.name) for view in views(metrics.predictions(probabilities=p, target=drawn(p)))[1:]]
    assert len(chosen) == 50
    assert chosen == sorted(chosen)
    assert set(chosen) == set(np.argsort(-p.sum(0))[:50].tolist())


@pytest.mark.parametrize("p_values", [[0.01], [0.04, 0.01, 0.03, 0.005], [0.5, 0.9], [0.02, 0.02, 0.02]])
def test_the_correction_is_holms(p_values: list[float]) -> None:
    # The largest, over all p-values up to this one, of each times the number of those not below it.
    expected = [min(1.0, max(q * sum(other >= q for other in p_values) for q in p_values if q <= p)) for p in p_values]
    assert holm(p_values) == pytest.approx(expected)


def test_a_sequential_test_stops_early_and_agrees_with_the_full_one() -> None:
    rng = np.random.default_rng(0)
    risk = rng.uniform(size=500)
    honest = metrics.predictions(risk, rng.random(500) < risk)
    full, early = metrics.calibration_test(honest, draws=2000), sequential_test(honest, 2000, 0)
    assert early.draws < 2000
    assert early.p_value == ENOUGH / early.draws
    assert early.p_value == pytest.approx(full.p_value, abs=0.15)
    assert early.statistic == pytest.approx(full.statistic)
    wrong = metrics.predictions(risk, rng.random(500) < np.clip(risk + 0.05, 0, 1))
    assert sequential_test(wrong, 400, 0).p_value == metrics.calibration_test(wrong, draws=400).p_value
    hopeless = sequential_test(metrics.predictions(risk, rng.random(500) < risk**3), 2000, 0)
    assert hopeless.p_value < 1e-9
    assert hopeless.draws == 100


@pytest.mark.slow
def test_p_values_of_a_sequential_test_are_valid() -> None:
    rng = np.random.default_rng(0)
    risk = rng.beta(1, 20, 300)  # a rare class
    found = [
        sequential_test(metrics.predictions(risk, rng.random(300) < risk), 400, seed).p_value for seed in range(2000)
    ]
    for level in (0.01, 0.05, 0.2, 0.5):
        share = np.mean(np.array(found) <= level)
        assert share <= level + 3 * np.sqrt(level * (1 - level) / 2000), level
    assert stats.kstest(found, "uniform").statistic < 0.06


@pytest.mark.slow
def test_few_calibrated_models_have_any_class_rejected() -> None:
    rejected = top = 0
    for seed in range(300):
        p = np.random.default_rng(seed).dirichlet(np.full(8, 0.5), 400)
        judged = metrics.judge(metrics.predictions(probabilities=p, target=drawn(p, seed + 1000)), draws=320)
        rejected += any(found.rejected for found in judged[1:])
        top += judged[0].rejected
    for count in (rejected, top):
        assert count / 300 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_the_wrong_label_is_found() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.8, (1500, 4))
    target = (rng.random(p.shape) < p + np.array([0, 0, 0.1, 0])).astype(np.intp)
    judged = metrics.judge(labels(p, target), draws=300)
    assert [found.view.name for found in judged if found.rejected] == ["2"]


def test_draws_that_end_early_decide_as_all_draws_do() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(2000)
    for true in (p, 0.8 * p):
        given = metrics.predictions(probabilities=p, target=rng.random(2000) < true)
        (full,), (early,) = metrics.judge(given, draws=400), metrics.judge(given, draws=400, early=True)
        assert early.rejected == full.rejected
        assert early.test.draws <= full.test.draws
