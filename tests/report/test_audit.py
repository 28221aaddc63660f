import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from calibrant import metrics, report
from tests.report.data import classifier, confidences, two_classes


def best_temperature(logits: np.ndarray, target: np.ndarray) -> float:
    def nll(log_temperature: float) -> float:
        return float(-log_softmax(logits / np.exp(log_temperature), axis=1)[np.arange(len(target)), target].mean())

    return float(np.exp(minimize_scalar(nll, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9}).x))


def test_the_temperature_comes_from_all_samples_and_the_scores_from_halves_that_did_not_see_theirs() -> None:
    given = classifier(samples=301, sharpness=2.0)
    assert given.logits is not None
    assert given.target is not None
    repair = report.audit("model", given, draws=10, seed=5).repair
    assert repair is not None
    assert repair.temperature == pytest.approx(best_temperature(given.logits, given.target), rel=1e-4)

    order = np.random.default_rng(5).permutation(301)
    scaled = given.logits.copy()
    for fit, apply in ((order[:150], order[150:]), (order[150:], order[:150])):
        scaled[apply] /= best_temperature(given.logits[fit], given.target[fit])
    expected = metrics.evaluate(logits=scaled, target=given.target)
    assert repair.scores.nll == pytest.approx(expected.nll, rel=1e-6)
    assert repair.scores.ece == pytest.approx(expected.ece, abs=1e-6)


def test_probabilities_are_repaired_as_the_logits_they_came_from() -> None:
    given = classifier(samples=500, sharpness=2.0)
    of_logits = report.audit("model", given, draws=10)
    assert given.probabilities is not None
    assert given.target is not None
    same = metrics.predictions(probabilities=given.probabilities, target=given.target)
    of_probabilities = report.audit("model", same, draws=10)
    assert of_logits.repair is not None
    assert of_probabilities.repair is not None
    assert of_probabilities.repair.temperature == pytest.approx(of_logits.repair.temperature, rel=1e-5)


def test_bins_and_convention_reach_the_scores() -> None:
    given = classifier(samples=500, sharpness=2.0)
    found = report.audit("model", given, bins=7, convention="netcal", draws=10)
    assert found.scores.ece == metrics.ece(given, bins=7, convention="netcal")
    assert found.test.draws == 10


@pytest.mark.parametrize("given", [classifier(samples=500, sharpness=2.0), confidences((0.9, 0.8, 100))])
def test_progress_rises_to_one(given: metrics.Predictions) -> None:
    seen: list[float] = []
    report.audit("model", given, draws=50, progress=seen.append)
    assert seen == sorted(seen)
    assert len(seen) > 1
    assert seen[-1] == 1.0
    assert all(0 <= share <= 1 for share in seen)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (confidences((0.9, 0.8, 50)), "a temperature needs logits or probabilities, and only confidences were given"),
        (two_classes((0.9, 1.0, 50)), "no temperature can be fitted, as every prediction is right"),
        (two_classes((0.9, 0.2, 50)), "no temperature can be fitted, as predictions are no better than chance"),
        (two_classes((0.9, 0.9, 10)), "10 samples are too few to check a temperature on halves"),
    ],
)
def test_where_there_is_no_repair_the_audit_says_why(given: metrics.Predictions, problem: str) -> None:
    found = report.audit("model", given, draws=10)
    assert found.repair is None
    assert found.problem == problem


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3 samples, got 2"):
        report.audit("model", metrics.predictions([0.9, 0.8], [1, 0]))
