import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from calibrant import metrics, report
from calibrant.posthoc import TemperatureScaling
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


SUREST_WHERE_WRONG = "the model is most confident where it is wrong (the best one is infinite)"


def surest_where_wrong(accuracy: float, samples: int = 2000) -> metrics.Predictions:
    """Three classes; the top logit is 1 where the prediction is right and 8 where it is wrong."""
    right = np.arange(samples) < accuracy * samples
    logits = np.zeros((samples, 3))
    logits[:, 0] = np.where(right, 1.0, 8.0)
    return metrics.predictions(logits=logits, target=np.where(right, 0, 1))


def true_class_far_below() -> metrics.Predictions:
    """Never sure where it is wrong, but sure of what is not so."""
    logits = np.tile([5.0, 0.0, 0.0], (100, 1))
    logits[80:] = (1.0, 1.0, -40.0)
    target = np.where(np.arange(100) < 80, 0, 2)
    return metrics.predictions(logits=logits, target=target)


def test_a_half_that_cannot_be_fitted_says_why() -> None:
    given = surest_where_wrong(0.9, samples=10)
    assert given.logits is not None
    halves = np.random.default_rng(0).permutation(10)
    # One right and one wrong in each half; in the second the model is far surer where it is wrong.
    logits, target = given.logits[:10], np.zeros(10, dtype=int)
    logits[:] = (2.0, 0.0, 0.0)
    target[[halves[0], halves[5]]] = 1
    logits[halves[5]] = (20.0, 0.0, 0.0)
    logits[halves[:5]] *= 40
    found = report.audit("model", metrics.predictions(logits=logits, target=target), draws=10)
    assert found.problem == f"no temperature can be checked on halves, as in one of them {SUREST_WHERE_WRONG}"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (confidences((0.9, 0.8, 50)), "a temperature needs logits or probabilities, but only confidences were given"),
        (two_classes((0.9, 1.0, 50)), "no temperature can be fitted, as every prediction is right"),
        (two_classes((0.9, 0.2, 50)), "no temperature can be fitted, as predictions are no better than chance"),
        (two_classes((0.9, 0.9, 10)), "only 1 prediction is wrong, too few to check a temperature on halves"),
        (
            two_classes((0.9, 0.8, 10)),
            "only 2 predictions are wrong, too few to check a temperature on halves",
        ),
        (two_classes((0.9, 0.9995, 2000)), "only 1 prediction is wrong, too few to check a temperature on halves"),
        (surest_where_wrong(0.8), f"no temperature can be fitted, as {SUREST_WHERE_WRONG}"),
        (surest_where_wrong(0.3), "no temperature can be fitted, as predictions are no better than chance"),
        (
            true_class_far_below(),
            "no temperature can be fitted, as the true classes' logits are no higher than the others' on average "
            "(the best one is infinite)",
        ),
    ],
)
def test_where_there_is_no_repair_the_audit_says_why(given: metrics.Predictions, problem: str) -> None:
    found = report.audit("model", given, draws=10)
    assert found.repair is None
    assert found.problem == problem


def test_any_other_reason_is_the_fitters_own_without_its_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("the search went nowhere: use more data")

    monkeypatch.setattr(TemperatureScaling, "fit", fail)
    found = report.audit("model", classifier(samples=100), draws=10)
    assert found.problem == "no temperature can be fitted, as the search went nowhere"


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3 samples, got 2"):
        report.audit("model", metrics.predictions([0.9, 0.8], [1, 0]))
