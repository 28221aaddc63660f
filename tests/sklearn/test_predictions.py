"""The estimator whose features are predictions: labels of its columns, pipelines, containers."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from calibrant.posthoc import TemperatureScaling, logits_from_probabilities
from calibrant.posthoc.registry import METHODS
from calibrant.sklearn import PredictionCalibrator

Array = npt.NDArray[Any]


def data(classes: int = 3, samples: int = 1000, seed: int = 0) -> tuple[Array, Array]:
    """Logits that are three times too large, and labels."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(samples, classes))
    odds = np.exp(logits)
    labels = np.array([draw.choice(classes, p=row / row.sum()) for row in odds])
    return 3 * logits, labels


@pytest.mark.parametrize("method", METHODS)
def test_equals_the_calibrator(method: str) -> None:
    X, y = data()
    np.testing.assert_allclose(
        PredictionCalibrator(method).fit(X, y).predict_proba(X), METHODS[method]().fit(X, y).predict_proba(X)
    )


@pytest.mark.parametrize("method", ["temperature", "sms", "isotonic"])
def test_probabilities_give_what_their_logits_give(method: str) -> None:
    X, y = data()
    p = softmax(X, 1)
    of_logits = PredictionCalibrator(method).fit(X, y).predict_proba(X)
    of_probabilities = PredictionCalibrator(method, inputs="probabilities").fit(p, y).predict_proba(p)
    np.testing.assert_allclose(of_probabilities, of_logits, atol=1e-6)


@pytest.mark.parametrize("inputs", ["logits", "probabilities"])
def test_one_column_is_that_of_the_second_class(inputs: Any) -> None:
    X, y = data(2)
    both = X if inputs == "logits" else softmax(X, 1)
    one = X[:, 1:] - X[:, :1] if inputs == "logits" else both[:, 1:]
    calibrator = PredictionCalibrator("temperature", inputs=inputs)
    expected = clone(calibrator).fit(both, y).predict_proba(both)
    np.testing.assert_allclose(clone(calibrator).fit(one, y).predict_proba(one), expected, atol=1e-6)


@pytest.mark.parametrize("columns", [1, 2])
def test_zeros_are_floored_as_in_the_calibrator(columns: int) -> None:
    p = np.array([[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]] * 100)
    y = np.array([0, 0, 1, 1, 1, 0, 1, 1] * 50)
    logits = logits_from_probabilities(p)
    found = PredictionCalibrator("temperature", inputs="probabilities").fit(p[:, -columns:], y)
    expected = TemperatureScaling().fit(logits, y).predict_proba(logits)
    np.testing.assert_allclose(found.predict_proba(p[:, -columns:]), expected, atol=1e-9)


class TestLabels:
    @pytest.mark.parametrize(
        ("order", "classes"), [("abc", None), (["red", "amber", "green"], ["red", "amber", "green"])]
    )
    def test_are_sorted_whatever_the_order_of_the_columns(self, order: Any, classes: Any) -> None:
        X, y = data()
        calibrator = PredictionCalibrator("temperature", classes=classes).fit(X, np.array(list(order))[y])
        expected = PredictionCalibrator("temperature").fit(X, y).predict_proba(X)
        assert list(calibrator.classes_) == list(calibrator.calibrator_.classes_) == sorted(order)
        np.testing.assert_allclose(calibrator.predict_proba(X), expected[:, np.argsort(list(order))])
        assert list(calibrator.predict(X[:5])) == [order[k] for k in X[:5].argmax(1)]

    @pytest.mark.parametrize("prefix", ["", "prob_"])
    def test_columns_of_a_frame_name_the_classes(self, prefix: str) -> None:
        pandas = pytest.importorskip("pandas")
        X, y = data()
        order = np.array(["red", "amber", "green"])
        frame = pandas.DataFrame(X, columns=[prefix + name for name in order])
        found = cross_val_score(PredictionCalibrator("temperature"), frame, order[y], scoring="neg_log_loss")
        expected = cross_val_score(PredictionCalibrator("temperature"), X, y, scoring="neg_log_loss")
        np.testing.assert_allclose(found, expected)

    def test_a_single_column_is_that_of_the_second_class(self) -> None:
        y = np.array(["no", "yes", "no"] * 40)
        X = np.where(y == "no", 1.0, -0.5)[:, np.newaxis]
        X[::5] *= -1
        calibrator = PredictionCalibrator("temperature", classes=["yes", "no"]).fit(X, y)
        assert list(calibrator.predict(X[1:3])) == ["yes", "no"]

    def test_an_absent_class_keeps_its_column(self) -> None:
        X, y = data(4)
        calibrator = PredictionCalibrator("temperature").fit(X[y != 1], y[y != 1])
        assert list(calibrator.classes_) == [0, 1, 2, 3]
        assert calibrator.predict_proba(X).shape == (1000, 4)


def test_in_a_pipeline_after_or_before_a_model() -> None:
    X, y = data()
    model = LogisticRegression().fit(X[:300], y[:300])
    pipeline = make_pipeline(FunctionTransformer(model.decision_function), PredictionCalibrator("sms"))
    pipeline.fit(X[300:], y[300:])
    np.testing.assert_allclose(pipeline.predict_proba(X).sum(1), 1, rtol=1e-6)
    assert pipeline.score(X, y) > 0.4
    assert make_pipeline(PredictionCalibrator("sms"), LogisticRegression()).fit(X, y).score(X, y) > 0.4


def test_transform_gives_the_container_that_was_asked_for() -> None:
    pytest.importorskip("pandas")
    X, y = data()
    names = np.array(["a", "b", "c"])[y]
    calibrator = PredictionCalibrator("temperature").set_output(transform="pandas").fit(X, names)
    frame = calibrator.transform(X)
    assert list(frame.columns) == ["a", "b", "c"]
    np.testing.assert_array_equal(frame, calibrator.predict_proba(X))


def test_cross_val_predict_and_grid_search() -> None:
    X, y = data()
    assert cross_val_predict(PredictionCalibrator("sms"), X, y, method="predict_proba").shape == X.shape
    search = GridSearchCV(PredictionCalibrator(), {"method": ["histogram", "temperature"]}, scoring="neg_log_loss")
    assert search.fit(X, y).best_params_ == {"method": "temperature"}


def test_sample_weight_counts_as_copies() -> None:
    X, y = data(samples=200)
    twice = np.where(y == 0, 2.0, 1.0)
    copies = np.repeat(np.arange(200), twice.astype(int))
    weighted = PredictionCalibrator("sms").fit(X, y, sample_weight=twice)
    np.testing.assert_allclose(
        weighted.predict_proba(X), PredictionCalibrator("sms").fit(X[copies], y[copies]).predict_proba(X), atol=1e-4
    )


ERRORS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "inputs": ({"inputs": "scores"}, None, "inputs"),
    "unknown method": ({"method": "none such"}, None, "method"),
    "logits as probabilities": ({"inputs": "probabilities"}, None, "logits"),
    "more classes than columns": ({}, list("abcd"), "pass one column"),
    "too few names": ({"classes": ["a", "b"]}, list("abcd"), "classes"),
    "a label without a column": ({"classes": ["a", "b", "x"]}, list("abcd"), "include those"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_names_the_remedy(name: str) -> None:
    options, names, message = ERRORS[name]
    X, y = data(3 if names is None else 4)
    with pytest.raises(ValueError, match=message):
        PredictionCalibrator(**options).fit(X[:, :3], y if names is None else np.array(names)[y])
