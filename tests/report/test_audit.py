from html import escape
from importlib import import_module

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from calibrant import metrics, report
from calibrant.metrics.predictions import views
from calibrant.posthoc import TemperatureScaling
from calibrant.posthoc.fit import HeldOut, canonical_order
from tests.report.data import classifier, confidences, two_classes


def best_temperature(logits: np.ndarray, target: np.ndarray) -> float:
    def nll(log_temperature: float) -> float:
        return float(-log_softmax(logits / np.exp(log_temperature), axis=1)[np.arange(len(target)), target].mean())

    return float(np.exp(minimize_scalar(nll, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9}).x))


def test_the_fit_comes_from_all_samples_and_the_scores_from_halves_that_did_not_see_theirs() -> None:
    given = classifier(samples=301, sharpness=2.0)
    assert given.logits is not None
    assert given.target is not None
    repair = report.audit("model", given, draws=10, seed=5).repair
    assert repair is not None
    assert repair.method == "temperature"
    assert repair.calibrator.temperature_ == pytest.approx(best_temperature(given.logits, given.target), rel=1e-4)

    order = canonical_order(HeldOut(given.logits, given.target, None))[np.random.default_rng(5).permutation(301)]
    scaled = np.empty_like(given.logits)
    for fit, apply in ((order[:150], order[150:]), (order[150:], order[:150])):
        logits = given.logits[apply] / best_temperature(given.logits[fit], given.target[fit])
        # A fit on n samples mixes in the uniform distribution with a share of 1 / (n + 1).
        share = 1 / (len(fit) + 1)
        scaled[apply] = np.log((1 - share) * softmax(logits, axis=1) + share / 4)
    expected = metrics.evaluate(logits=scaled, target=given.target)
    assert repair.scores.log_loss == pytest.approx(expected.log_loss, rel=1e-6)
    assert repair.scores.ece == pytest.approx(expected.ece, abs=1e-6)
    assert repair.tried["temperature"] == pytest.approx(expected.log_loss, rel=1e-6)


@pytest.mark.parametrize("columns", [1, 3])
def test_the_order_of_the_rows_does_not_change_the_repair(columns: int) -> None:
    rng = np.random.default_rng(0)
    stated, target = rng.uniform(0.1, 0.9, (200, columns)), rng.integers(2, size=(200, columns))
    halves = []
    for order in (np.arange(200), rng.permutation(200)):
        p, y = stated[order], target[order]
        given = metrics.predictions(p[:, 0], y[:, 0]) if columns == 1 else metrics.predictions(
            probabilities=p, target=y, multi_label=True
        )  # fmt: skip
        repair = report.audit("model", given, draws=10).repair
        assert repair is not None
        halves.append(repair.predictions.confidence.reshape(200, columns)[order.argsort()])
    np.testing.assert_allclose(halves[0], halves[1], rtol=1e-6)


def test_the_method_with_the_lowest_log_loss_is_the_repair() -> None:
    rng = np.random.default_rng(0)
    risk = rng.uniform(0.02, 0.48, 2000)
    found = report.audit("model", metrics.predictions(probabilities=risk, target=rng.random(2000) < risk / 2), draws=10)
    assert found.repair is not None
    tried = found.repair.tried
    assert found.repair.method == "auto" == min(tried, key=lambda name: tried[name])
    assert found.repair.scores.log_loss == pytest.approx(tried["auto"])


def test_confidences_alone_are_recalibrated_as_risks_of_being_right() -> None:
    given = confidences((0.9, 0.7, 300), (0.6, 0.5, 300))
    repair = report.audit("model", given, draws=10).repair
    assert repair is not None
    assert len(repair.predictions) == 600
    assert abs(repair.scores.gap) < 0.02 < report.audit("model", given, draws=10).scores.gap


def test_probabilities_are_repaired_as_the_logits_they_came_from() -> None:
    given = classifier(samples=500, sharpness=2.0)
    probabilities, target = given.of_classes("this test")
    same = metrics.predictions(probabilities=probabilities, target=target)
    repairs = [report.audit("model", each, draws=10).repair for each in (given, same)]
    temperatures = [repair.calibrator.temperature_ for repair in repairs if repair is not None]
    assert temperatures[0] == pytest.approx(temperatures[1], rel=1e-5)


def test_the_repair_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    given = classifier(samples=301, sharpness=2.0)
    whole = report.audit("model", given, draws=10)
    monkeypatch.delattr(import_module("calibrant.report.audit"), "recalibrated")  # not even tried
    found = report.audit("model", given, draws=10, repair=False)
    assert (found.repair, found.problem) == (None, "")
    assert str(found.scores) == str(whole.scores)
    assert [one.p_value for one in found.findings] == [one.p_value for one in whole.findings]


def test_of_two_classes_the_scores_are_those_of_the_risk() -> None:
    rng = np.random.default_rng(0)
    risk = rng.uniform(0, 1, 500)
    given = metrics.predictions(probabilities=risk, target=rng.random(500) < risk)
    event = views(given)[0].pairs.correct
    found = report.audit("model", given, draws=10)
    assert found.scores.ece == pytest.approx(metrics.ece(risk, event), rel=1e-12)
    assert found.scores.gap == pytest.approx(risk.mean() - event.mean())
    assert found.scores.accuracy == metrics.accuracy(given)
    assert found.scores.log_loss == metrics.log_loss(given)
    assert found.findings[0].gap.value == pytest.approx(found.scores.gap)
    assert {entry.convention for entry in found.scores if entry.key == "gap"} == {"P(y = 1); mean - share"}


def test_intervals_hold_the_values_and_those_of_losses_are_normal() -> None:
    given = classifier(samples=500, sharpness=2.0)
    found = report.audit("model", given, draws=50)
    assert set(found.intervals) == {"gap", "ece", "log_loss", "brier"}
    assert given.logits is not None
    assert given.target is not None
    losses = -log_softmax(given.logits, axis=1)[np.arange(500), given.target]
    reach = 1.959964 * losses.std(ddof=1) / np.sqrt(500)
    assert found.intervals["log_loss"].low == pytest.approx(losses.mean() - reach, rel=1e-6)
    assert found.intervals["log_loss"].high == pytest.approx(losses.mean() + reach, rel=1e-6)
    for key, interval in found.intervals.items():
        assert interval.value == pytest.approx(found.scores[key])
        assert interval.low < interval.value < interval.high


def test_options_reach_scores_and_findings() -> None:
    given = classifier(samples=500, sharpness=2.0)
    found = report.audit("model", given, bins=7, convention="netcal", draws=10, margin=0.5)
    assert found.scores.ece == metrics.ece(given, bins=7, convention="netcal")
    assert found.test.draws == 10
    assert {each.equivalence.margin for each in found.findings} == {0.5}
    assert all(each.equivalence.on_average for each in found.findings)


@pytest.mark.parametrize("given", [classifier(samples=500, sharpness=2.0), confidences((0.9, 0.8, 100))])
def test_progress_rises_to_one(given: metrics.Predictions) -> None:
    seen: list[float] = []
    report.audit("model", given, draws=50, progress=seen.append)
    assert seen == sorted(seen)
    assert len(seen) > 1
    assert seen[-1] == 1.0
    assert all(0 <= share <= 1 for share in seen)


@pytest.mark.parametrize(
    "given",
    [
        two_classes((0.9, 1.0, 50)),
        two_classes((0.9, 0.2, 50)),
        two_classes((0.9, 0.9, 10)),
        metrics.predictions(logits=np.tile([8.0, 0.0, 0.0], (60, 1)), target=np.full(60, 1)),
    ],
)
def test_there_is_a_repair_even_where_the_best_temperature_is_infinite_or_0(given: metrics.Predictions) -> None:
    found = report.audit("model", given, draws=10)
    assert found.repair is not None
    assert np.isfinite(found.repair.scores.log_loss)
    assert found.problem == ""


def test_where_there_is_no_repair_the_audit_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    few = report.audit("model", metrics.predictions([0.9, 0.8, 0.6], [1, 0, 1]), draws=10)
    assert few.repair is None
    assert few.problem.startswith("3 samples are too few")

    def fail(*_: object, **__: object) -> None:
        raise ValueError("the search went nowhere: use more data")

    monkeypatch.setattr(TemperatureScaling, "fit", fail)
    found = report.audit("model", classifier(samples=100), draws=10)
    assert found.problem == "the search went nowhere: use more data"


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        report.audit("model", metrics.predictions([0.9, 0.8], [1, 0]))


def test_an_audit_shows_as_a_table_in_a_notebook() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 3))
    given = metrics.predictions(logits=3 * logits, target=logits.argmax(1), classes=["<a>", "b", "c"])
    audit = report.audit("<model>", given, draws=20)
    assert audit.repair is not None
    page = audit._repr_html_()
    assert page.startswith(f"<table><caption>&lt;model&gt;: {escape(audit.verdict)}</caption>")
    assert all(f">{score}</td>" in page for score in (*audit.scores, *audit.repair.scores))
    assert page.count("<tr>") == page.count("</tr>") > 0
    assert "<a>" not in page


def test_the_interval_of_a_loss_of_labels_is_about_the_loss_of_the_table() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 4))
    target = np.where(rng.random((300, 4)) < 0.3, -100, rng.random((300, 4)) < 1 / (1 + np.exp(-logits))).astype(int)
    found = report.audit("tags", metrics.predictions(logits=logits, target=target, multi_label=True), draws=20)
    for key in ("log_loss", "brier"):
        assert found.intervals[key].value == pytest.approx(found.scores[key], rel=1e-9)
    assert found.repair is not None
    assert found.repair.tried[found.repair.method] == pytest.approx(found.repair.scores.log_loss, rel=1e-6)


def test_a_weight_of_two_is_the_sample_twice() -> None:
    rng = np.random.default_rng(0)
    risk, times = rng.uniform(0.02, 0.48, 600), rng.integers(1, 4, 600)
    event = rng.random(600) < risk / 2
    weighted = metrics.predictions(probabilities=risk, target=event, sample_weight=times)
    repeated = metrics.predictions(probabilities=risk.repeat(times), target=event.repeat(times))
    one, other = (report.audit("model", each, draws=10, repair=False) for each in (weighted, repeated))
    factors = [each.findings[0].factor for each in (one, other)]
    ends = [(factor.value, factor.low, factor.high) for factor in factors if factor is not None]
    assert ends[0] == pytest.approx(ends[1])
    for key in ("gap", "log_loss", "brier"):
        assert (one.intervals[key].low, one.intervals[key].high) == pytest.approx(
            (other.intervals[key].low, other.intervals[key].high)
        )
