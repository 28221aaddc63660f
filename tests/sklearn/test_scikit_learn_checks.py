"""scikit-learn's own checks of estimators; those that do not apply are named in docs/sklearn.md."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from calibrant.sklearn import PredictionCalibrator, RecalibratedClassifierCV

GUIDE = Path(__file__).parents[2] / "docs/sklearn.md"
THREE_CLASSES = "three classes in two columns: the columns must be the classes"
FOLDS = "the folds of method='auto' depend on whether a sample is repeated or has weight 2"
NOT_APPLICABLE = {
    "PredictionCalibrator": {
        "check_estimators_overwrite_params": THREE_CLASSES,
        "check_estimators_fit_returns_self": THREE_CLASSES,
        "check_readonly_memmap_input": THREE_CLASSES,
        "check_classifiers_classes": THREE_CLASSES,
        "check_classifiers_train": THREE_CLASSES,
    },
    "RecalibratedClassifierCV": {
        "check_sample_weight_equivalence_on_dense_data": FOLDS,
        "check_sample_weight_equivalence_on_sparse_data": FOLDS,
    },
}

CASES: dict[str, Callable[[], Any]] = {
    "logits": lambda: PredictionCalibrator(),
    "decision values": lambda: RecalibratedClassifierCV(LinearSVC(random_state=0), method="temperature", cv=3),
    "auto": lambda: RecalibratedClassifierCV(LogisticRegression(), cv=3),
    "auto, one classifier": lambda: RecalibratedClassifierCV(LogisticRegression(), cv=3, ensemble=False),
    "sms": lambda: RecalibratedClassifierCV(LogisticRegression(), method="sms", cv=3, ensemble=False),
    "logits, temperature": lambda: PredictionCalibrator(method="temperature"),
}


@pytest.mark.filterwarnings("ignore")  # the checks fit on data that estimators rightly warn about
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("case", CASES)
def test_every_check_that_applies_passes(case: str) -> None:
    estimator = CASES[case]()
    expected = NOT_APPLICABLE[type(estimator).__name__]
    if estimator.method != "auto":
        expected = {name: reason for name, reason in expected.items() if reason != FOLDS}
    results = check_estimator(estimator, expected_failed_checks=expected, on_fail=None)
    assert {result["check_name"] for result in results if result["status"] == "failed"} == set()
    assert sum(result["status"] == "passed" for result in results) >= 59


def test_the_guide_names_every_check_that_does_not_apply() -> None:
    named = set(re.findall(r"`(check_\w+)`", GUIDE.read_text())) - {"check_estimator"}
    assert named == {name for checks in NOT_APPLICABLE.values() for name in checks}
