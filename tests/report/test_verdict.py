import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from calibrant import metrics, report
from calibrant.metrics.predictions import Predictions, views
from calibrant.report.audit import Audit
from tests.report.data import classifier, confidences, two_classes

INTERVAL = r"\(95 % interval (-?[\d.]+) to (-?[\d.]+)\)"


def risks(
    true: Callable[[np.ndarray], np.ndarray], low: float, high: float, samples: int = 10_000, seed: int = 0
) -> Predictions:
    """Risks of class 1, uniform between two values, and events whose true probability is a function of them."""
    rng = np.random.default_rng(seed)
    stated = rng.uniform(low, high, samples)
    return metrics.predictions(probabilities=stated, target=rng.random(samples) < true(stated))


def said_of(given: Predictions, draws: int = 1000) -> str:
    return report.audit("model", given, draws=draws).verdict


@pytest.mark.parametrize(
    ("true", "highest", "words", "error"),
    [
        (lambda p: p + 0.08, 0.9, r"understated by ([\d.]+) points on average", 8),
        (lambda p: 0.5 * p, 0.48, r"overstated by a factor of ([\d.]+)", 2),
        (lambda p: 2 * p, 0.48, r"understated by a factor of ([\d.]+)", 2),
    ],
)
def test_risks_that_are_wrong_by_points_or_by_a_factor(
    true: Callable[[np.ndarray], np.ndarray], highest: float, words: str, error: float
) -> None:
    said = said_of(risks(true, 0.02, highest))
    found = re.match(rf"Risks of class 1 are {words} {INTERVAL}\.", said)
    assert found is not None, said
    value, low, high = map(float, found.groups())
    assert low < error < high
    assert value == pytest.approx(error, rel=0.1)
    assert "rejected (p < 0.001)" in said
    assert "temperature" not in said  # it would not repair this, and was not the method that won
    assert "repairs it, as far as 10,000" in said


def test_a_small_factor_that_could_as_well_be_points_is_given_in_points() -> None:
    assert "points on average" in said_of(risks(lambda p: p + 0.02, 0.45, 0.55))


def test_honest_risks() -> None:
    # Evenly spread, rather than drawn, so that chance has no part in the verdict.
    number = np.arange(10_000)
    p, spread = 0.02 + 0.46 * (0.6180339887498949 * number % 1), 0.7548776662466927 * number % 1
    said = said_of(metrics.predictions(probabilities=p, target=spread < p))
    average, largest = map(float, re.findall(r"(?:average error of|nor one of) ([\d.]+) points", said))
    assert 0.5 < average < 2 < largest < 8
    assert "not rejected" in said
    assert "± 2 points" in said


def wrong_elsewhere() -> Predictions:
    """A network at the temperature that calibrates its top label; of the other classes, the first gets too much."""
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.full(4, 0.7), 8000)
    true = true[true.max(1) > 0.45]
    target = (rng.random((len(true), 1)) > true.cumsum(1)[:, :-1]).sum(1)
    top, confidence = true.argmax(1)[:, None], true.max(1, keepdims=True)
    others = np.where(np.arange(4) == top, 0, [3.0, 1.0, 1.0, 1.0])
    stated = (1 - confidence) * others / others.sum(1, keepdims=True)
    np.put_along_axis(stated, top, confidence, 1)
    return metrics.predictions(probabilities=stated, target=target)


def test_a_network_of_which_only_the_top_label_is_calibrated() -> None:
    found = report.audit("model", wrong_elsewhere(), draws=300)
    said = found.verdict
    assert not found.findings[0].rejected
    assert "in the top label are calibrated is not rejected" in said
    assert re.search(r"But the probabilities of [34] of 4 classes", said)
    assert "class 0 is overstated by" in said
    # A temperature could not repair that, and is not said to.
    assert "Recalibration by a mixture of methods" in said


REPAIRS = "repairs it, as far as 4,000"
KINDS: dict[str, tuple[Predictions, tuple[str, ...]]] = {
    "over-confident": (
        classifier(sharpness=2.0), ("Over-confident in the top label by GAP points", "4 of 4 classes", "too extreme",
                                    "and 1 more", "temperature (1.9|2.0)", REPAIRS),
    ),
    "under-confident": (
        classifier(sharpness=0.5), ("Under-confident in the top label by GAP", "4 of 4", "too moderate", REPAIRS)
    ),
    "honest": (classifier(seed=1), ("not rejected", "4,000 samples cannot rule out", "None of 4 classes")),
    "reversed": (
        two_classes((0.6, 0.8, 500), (0.9, 0.7, 500)),
        ("within chance", "but .* is rejected", "slope -", "check which class it is for"),
    ),
    "pairs": (confidences((0.9, 0.8, 500)), ("Over-confident by GAP", "temperature", "repairs it, as far as 500")),
    "three": (metrics.predictions([0.9, 0.8, 0.6], [1, 0, 1]), ("3 samples are few", "not rejected")),
    "certain": (confidences((1.0, 1.0, 50)), ("not rejected", "7.13 points")),
    "certain and wrong": (confidences((1.0, 0.9, 50)), ("Over-confident by GAP", "most confidences are exactly 1")),
}  # fmt: skip


@pytest.mark.slow_after(4)
@pytest.mark.parametrize("name", KINDS)
def test_a_verdict_for_each_kind_of_model(name: str) -> None:
    given, parts = KINDS[name]
    gap = 100 * abs(given.confidence.mean() - given.correct.mean())
    expected = ".*".join(parts).replace("GAP", f"{gap:.2f}")
    assert re.match(f".*{expected}", said_of(given)), said_of(given)


@pytest.mark.parametrize(
    ("name", "shown"), [("fraud", "fraud"), ("y" * 300, f"{59 * 'y'}\N{HORIZONTAL ELLIPSIS}")], ids=["short", "long"]
)
def test_a_class_has_its_name_which_is_cut_if_it_is_long(name: str, shown: str) -> None:
    rng = np.random.default_rng(0)
    risk = rng.uniform(0.1, 0.9, 1000)
    given = metrics.predictions(probabilities=risk, target=rng.random(1000) < risk / 2, classes=["no", name])
    assert f"class '{shown}' (P(y = {shown})) are" in said_of(given, draws=30)


@pytest.fixture(scope="module")
def rejected() -> Audit:
    found = report.audit("model", confidences((0.9, 0.75, 250), (0.7, 0.5, 250)), draws=50)
    assert found.test.rejected
    return found


@pytest.mark.parametrize(
    ("after", "p_after", "words"),
    [
        (confidences((0.75, 0.75, 250), (0.5, 0.5, 250)), 0.2, "repairs it, as far as 500 samples show"),
        (confidences((0.85, 0.75, 250), (0.6, 0.5, 250)), 0.2, "does not repair it, and takes .* to 9.90 %"),
        (confidences((0.75, 0.75, 250), (0.5, 0.5, 250)), 0.01, "does not repair it, and takes .* from 17.40 to"),
    ],
)
def test_what_recalibration_does_is_judged_by_tests_and_the_gap(
    rejected: Audit, after: Predictions, p_after: float, words: str
) -> None:
    assert rejected.repair is not None
    (view,) = views(after)
    judged = replace(rejected.repair.judgements[0], view=view, p_value=p_after)
    changed = replace(rejected, repair=replace(rejected.repair, judgements=(judged,)))
    assert re.search(f"Recalibration by {re.escape(rejected.repair.description)} {words}", changed.verdict)


def test_without_a_repair_the_verdict_says_why() -> None:
    assert "not tried: 9 samples are too few" in said_of(
        metrics.predictions(np.full(9, 0.99), np.arange(9) < 4), draws=50
    )


def test_the_verdict_is_silent_about_a_repair_that_was_left_out() -> None:
    found = report.audit("model", classifier(300, sharpness=2.0), draws=50)
    said = replace(found, repair=None, problem="").verdict
    assert found.verdict.startswith(f"{said} Recalibration by ")


def test_an_error_within_the_margin_is_accepted_even_if_it_is_rejected() -> None:
    said = said_of(risks(lambda p: p + 0.01, 0.1, 0.9, samples=20_000), draws=100)
    assert "is rejected" in said
    assert "within ± 2 points" in said


@pytest.mark.slow
def test_recalibrated_one_hot_probabilities_come_with_a_caveat() -> None:
    said = np.arange(400) % 4
    target = np.where(np.arange(400) % 10 < 8, said, (said + 1) % 4)
    found = report.audit("model", metrics.predictions(probabilities=np.eye(4)[said], target=target), draws=50)
    assert "exactly 1" in found.verdict
    # Of logits nothing is lost, even where a confidence rounds to 1.
    sharp = metrics.predictions(logits=60 * np.eye(4)[said], target=target)
    assert (sharp.confidence == 1).all()
    assert "exactly 1" not in report.audit("model", sharp, draws=50).verdict


def test_an_error_that_the_test_does_not_confirm_is_reported() -> None:
    found = report.audit("model", confidences((0.9, 0.8, 500)), draws=50)
    unsure = replace(found, findings=(replace(found.findings[0], p_value=0.08),))
    assert re.match(r"Over-confident by 10.00 points .* \(95 % interval 6.49 to 13.51\)", unsure.verdict)
    assert "not rejected (p = 0.080)" in unsure.verdict


def test_labels_are_judged_one_by_one() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2000, 3))
    target = (rng.random((2000, 3)) < 1 / (1 + np.exp(-logits))).astype(int)
    stated = 1 / (1 + np.exp(-logits * [1, 1, 3]))  # the third label is three times too sure
    given = metrics.predictions(probabilities=stated, target=target, classes=["cat", "dog", "owl"])
    audit = report.audit("tagger", given, draws=200)
    assert audit.task == "multi-label"
    assert [found.view.name for found in audit.findings if found.rejected] == ["owl"]
    assert "1 of 3 labels are not calibrated" in audit.verdict


def test_a_repair_of_all_samples_is_not_called_one_of_groups() -> None:
    rng = np.random.default_rng(0)
    risk = rng.uniform(0.1, 0.9, 3000)
    given = metrics.predictions(probabilities=risk, target=rng.random(3000) < risk**2)
    found = report.audit("model", given, draws=50)
    groups = metrics.calibration_by_group(found.judged, groups=np.arange(3000) % 2)
    assert "(cross-fitted)." in found.verdict
    assert "groups and times were not tested again" in replace(found, groups=groups).verdict


@pytest.mark.parametrize("samples", [3, 29, 30])
def test_few_samples_are_said_to_be_few(samples: int) -> None:
    said = said_of(risks(lambda p: p, 0.1, 0.9, samples=samples), draws=50)
    assert said.startswith(f"{samples} samples are few: ") == (samples < 30)


def test_what_few_samples_cannot_rule_out_is_no_less_than_the_interval_of_the_gap() -> None:
    found = report.audit("model", risks(lambda p: p, 0.1, 0.9, samples=8), draws=50)
    gap = found.intervals["gap"]
    told = re.search(r"cannot rule out an average error of ([\d.]+) points", found.verdict)
    assert told is not None
    assert float(told[1]) >= round(100 * max(abs(gap.low), abs(gap.high)), 2)
