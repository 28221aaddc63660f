import re
from dataclasses import replace

import numpy as np
import pytest

from calibrant import metrics, report
from calibrant.metrics import Score, Scores
from calibrant.metrics.predictions import Predictions
from calibrant.report.verdict import chance_gap
from tests.report.data import classifier, confidences, two_classes

ONLY_CONFIDENCES = "a temperature needs logits or probabilities, and only confidences were given"


REJECTED = "calibrated is rejected, p < 0.001"


@pytest.mark.parametrize(
    ("given", "temperature", "expected"),
    [
        (
            classifier(sharpness=2.0),
            2.0,
            f"over-confident by GAP points; {REJECTED}; temperature T repairs it, as far as 4,000 samples can tell",
        ),
        (
            classifier(sharpness=0.5),
            0.5,
            f"under-confident by GAP points; {REJECTED}; temperature T repairs it, as far as 4,000 samples can tell",
        ),
        (
            classifier(seed=1),
            None,
            "not distinguishable from calibrated, p = P; "
            "with 4,000 samples an average gap below CHANCE points would not show",
        ),
        (
            two_classes((0.6, 0.8, 500), (0.9, 0.7, 500)),
            2.04,
            f"neither over- nor under-confident on average, but {REJECTED}; temperature T repairs part of it",
        ),
        (
            two_classes((0.6, 1.0, 500)),
            None,
            f"under-confident by 40.0 points; {REJECTED}; no temperature can be fitted, as every prediction is right",
        ),
        (
            confidences((0.9, 0.8, 500)),
            None,
            f"over-confident by 10.0 points; {REJECTED}; {ONLY_CONFIDENCES}",
        ),
        (
            metrics.predictions([0.9, 0.8, 0.6], [1, 0, 1]),
            None,
            "not distinguishable from calibrated, p = P; "
            "with 3 samples an average gap below CHANCE points would not show",
        ),
        (confidences((1.0, 1.0, 50)), None, "not distinguishable from calibrated, p = 1.00"),
        (
            confidences((1.0, 0.9, 50)),
            None,
            f"over-confident by 10.0 points; {REJECTED}; {ONLY_CONFIDENCES}",
        ),
    ],
)
def test_a_verdict_for_each_kind_of_model(given: Predictions, temperature: float | None, expected: str) -> None:
    said = report.verdict(report.audit("model", given))
    gap = 100 * abs(given.confidence.mean() - given.correct.mean())
    chance = 196 * np.sqrt((given.confidence * (1 - given.confidence)).sum()) / len(given)
    pattern = re.escape(expected).replace("GAP", f"{gap:.1f}").replace("CHANCE", f"{chance:.1f}")
    found = re.fullmatch(pattern.replace("=\\ P", "=\\ [01].[0-9]+").replace("\\ T\\ ", "\\ ([0-9.]+)\\ "), said)
    assert found is not None, said
    if temperature is not None:
        assert float(found[1]) == pytest.approx(temperature, rel=0.1)


def with_ece(scores: Scores, value: float) -> Scores:
    entries = tuple(Score("ece", "ECE", value, "") if entry.key == "ece" else entry for entry in scores)
    return Scores(scores.samples, scores.classes, entries)


@pytest.mark.parametrize(
    ("before", "after", "p_after", "words"),
    [
        (0.10, 0.02, 0.2, "repairs it, as far as 500 samples can tell"),
        (0.10, 0.02, 0.01, "repairs most of it"),
        (0.10, 0.05, 0.01, "repairs most of it"),
        (0.10, 0.06, 0.01, "repairs part of it"),
        (0.10, 0.06, 0.2, "repairs part of it"),
        (0.10, 0.09, 0.01, "hardly helps"),
        (0.10, 0.105, 0.01, "hardly helps"),
        (0.10, 0.12, 0.01, "makes it worse"),
        (0.0, 0.0, 0.01, "hardly helps"),
    ],
)
def test_what_a_temperature_does_is_judged_by_ece_on_unseen_halves(
    before: float, after: float, p_after: float, words: str
) -> None:
    found = report.audit("model", classifier(samples=500, sharpness=3.0), draws=50)
    assert found.repair is not None
    assert found.test.rejected()
    test = replace(found.repair.test, p_value=p_after)
    repair = replace(found.repair, scores=with_ece(found.repair.scores, after), test=test)
    changed = replace(found, scores=with_ece(found.scores, before), repair=repair)
    assert report.verdict(changed).endswith(f"temperature {repair.temperature:.3g} {words}")


def test_a_lean_that_the_test_does_not_confirm_is_still_told() -> None:
    found = report.audit("model", confidences((0.9, 0.8, 500)), draws=50)
    unsure = replace(found, test=replace(found.test, p_value=0.08))
    assert report.verdict(unsure) == "over-confident by 10.0 points, though calibrated is not rejected, p = 0.080"


def test_the_gap_of_chance_is_that_of_drawn_labels() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.3, 1, 400)
    gaps = (confidence - (rng.random((20_000, 400)) < confidence)).mean(1)
    given = metrics.predictions(confidence, np.ones(400))
    assert chance_gap(given) == pytest.approx(np.quantile(np.abs(gaps), 0.95), rel=0.03)
