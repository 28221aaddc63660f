import re
from dataclasses import replace

import numpy as np
import pytest

from calibrant import metrics, report
from calibrant.metrics import Scores
from calibrant.metrics.predictions import Predictions
from calibrant.metrics.verdicts import p_value
from calibrant.report.chance import chance_gap
from tests.report.data import classifier, confidences, two_classes

ONLY_CONFIDENCES = "a temperature needs logits or probabilities, but only confidences were given"


REJECTED = "the hypothesis that the model is calibrated is rejected (p < 0.001)"


@pytest.mark.parametrize(
    ("given", "temperature", "expected"),
    [
        (
            classifier(sharpness=2.0),
            2.0,
            f"over-confident by GAP points; {REJECTED}; temperature T repairs it, as far as 4,000 samples show",
        ),
        (
            classifier(sharpness=0.5),
            0.5,
            f"under-confident by GAP points; {REJECTED}; temperature T repairs it, as far as 4,000 samples show",
        ),
        (
            classifier(seed=1),
            None,
            "not distinguishable from a calibrated model (p = P); "
            "with 4,000 samples an average gap below CHANCE points would not be detected",
        ),
        (
            two_classes((0.6, 0.8, 500), (0.9, 0.7, 500)),
            2.04,
            f"neither over- nor under-confident on average, but {REJECTED}; temperature T hardly helps",
        ),
        (
            two_classes((0.6, 1.0, 500)),
            None,
            f"under-confident by 40.00 points; {REJECTED}; no temperature can be fitted, as every prediction is right",
        ),
        (
            confidences((0.9, 0.8, 500)),
            None,
            f"over-confident by 10.00 points; {REJECTED}; {ONLY_CONFIDENCES}",
        ),
        (
            metrics.predictions([0.9, 0.8, 0.6], [1, 0, 1]),
            None,
            "not distinguishable from a calibrated model (p = P); "
            "with 3 samples an average gap below CHANCE points would not be detected",
        ),
        (confidences((1.0, 1.0, 50)), None, "not distinguishable from a calibrated model (p = 1.000)"),
        (
            confidences((1.0, 0.9, 50)),
            None,
            f"over-confident by 10.00 points; {REJECTED}; {ONLY_CONFIDENCES}",
        ),
    ],
)
def test_a_verdict_for_each_kind_of_model(given: Predictions, temperature: float | None, expected: str) -> None:
    said = report.verdict(report.audit("model", given))
    gap = 100 * abs(given.confidence.mean() - given.correct.mean())
    chance = 196 * np.sqrt((given.confidence * (1 - given.confidence)).sum()) / len(given)
    pattern = re.escape(expected).replace("GAP", f"{gap:.2f}").replace("CHANCE", f"{chance:.2f}")
    found = re.fullmatch(pattern.replace("=\\ P", "=\\ [01].[0-9]+").replace("\\ T\\ ", "\\ ([0-9.]+)\\ "), said)
    assert found is not None, said
    if temperature is not None:
        assert float(found[1]) == pytest.approx(temperature, rel=0.1)


def with_scores(scores: Scores, **values: float) -> Scores:
    entries = tuple(replace(entry, value=values.get(entry.key, entry.value)) for entry in scores)
    return Scores(scores.samples, scores.classes, entries)


@pytest.fixture(scope="module")
def rejected() -> report.Audit:
    found = report.audit("model", classifier(samples=500, sharpness=3.0), draws=50)
    assert found.test.rejected()
    return found


@pytest.mark.parametrize(
    ("before", "after", "gap", "p_after", "words"),
    [
        (0.10, 0.02, 0.0, 0.2, "repairs it, as far as 500 samples show"),
        (0.10, 0.09, 0.0, 0.2, "repairs it, as far as 500 samples show"),
        (0.10, 0.02, 0.2, 0.2, "repairs most of it"),
        (0.10, 0.02, 0.0, 0.01, "repairs most of it"),
        (0.10, 0.05, 0.0, 0.01, "repairs most of it"),
        (0.10, 0.06, 0.0, 0.01, "repairs part of it"),
        (0.10, 0.09, 0.0, 0.01, "hardly helps"),
        (0.10, 0.105, 0.0, 0.01, "hardly helps"),
        (0.10, 0.12, 0.0, 0.01, "makes it worse"),
        (0.0, 0.0, 0.0, 0.01, "hardly helps"),
    ],
)
def test_what_a_temperature_does_is_judged_by_the_test_then_by_smooth_ece(
    rejected: report.Audit, before: float, after: float, gap: float, p_after: float, words: str
) -> None:
    assert rejected.repair is not None
    test = replace(rejected.repair.test, p_value=p_after)
    scores = with_scores(rejected.repair.scores, smooth_ece=after, gap=gap, ece=1.0)
    repair = replace(rejected.repair, scores=scores, test=test)
    changed = replace(rejected, scores=with_scores(rejected.scores, smooth_ece=before), repair=repair)
    assert report.verdict(changed).endswith(f"temperature {repair.temperature:.3g} {words}")


@pytest.mark.parametrize(("samples", "bins"), [(4000, None), (4000, 100_000), (300, None), (300, 5)])
def test_the_exact_repair_is_one_whatever_the_bins(samples: int, bins: int | None) -> None:
    said = report.verdict(report.audit("model", classifier(samples, sharpness=2.0), bins=bins, draws=200))
    assert said.endswith(f"repairs it, as far as {samples:,} samples show")


def test_a_temperature_of_one_hot_probabilities_comes_with_a_caveat() -> None:
    said = np.arange(400) % 4
    target = np.where(np.arange(400) % 10 < 8, said, (said + 1) % 4)
    found = report.audit("model", metrics.predictions(probabilities=np.eye(4)[said], target=target), draws=50)
    assert report.verdict(found).endswith(
        "but most confidences are exactly 1, so the temperature depends on the number used in place of p = 0"
    )
    # Of logits nothing is lost, even where a confidence rounds to 1.
    sharp = metrics.predictions(logits=60 * np.eye(4)[said], target=target)
    assert (sharp.confidence == 1).all()
    assert "exactly 1" not in report.verdict(report.audit("model", sharp, draws=50))


@pytest.mark.parametrize("value", [0.0004, 0.001, 0.0123, 0.435, 1.0])
def test_p_values_read_as_those_of_the_tests_themselves(value: float) -> None:
    assert f", {p_value(value)} (" in str(metrics.CalibrationTest("esd", 0.0, value, 10, 0.0, 0.0))


def test_a_lean_that_the_test_does_not_confirm_is_still_told() -> None:
    found = report.audit("model", confidences((0.9, 0.8, 500)), draws=50)
    unsure = replace(found, test=replace(found.test, p_value=0.08))
    assert report.verdict(unsure) == (
        "over-confident by 10.00 points, though the hypothesis that the model is calibrated is not rejected (p = 0.080)"
    )


def test_the_gap_of_chance_is_that_of_drawn_labels() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.3, 1, 400)
    gaps = (confidence - (rng.random((20_000, 400)) < confidence)).mean(1)
    given = metrics.predictions(confidence, np.ones(400))
    assert chance_gap(given) == pytest.approx(np.quantile(np.abs(gaps), 0.95), rel=0.03)
