"""The classifier that is fitted in folds: numbers, agreement with scikit-learn's, and every kind of use."""

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import sklearn
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

import calibrant as cal
from calibrant.posthoc import FitWarning, IsotonicCalibration, PlattScaling, TemperatureScaling
from calibrant.sklearn import RecalibratedClassifierCV

Array = npt.NDArray[Any]
STRICT = {
    "temperature": TemperatureScaling(strict=True),
    "sigmoid": PlattScaling(strict=True),
    "isotonic": IsotonicCalibration(strict=True),
}


def data(classes: int = 3, seed: int = 0, samples: int = 1200) -> tuple[Array, Array]:
    made: tuple[Array, Array] = make_classification(
        samples, 12, n_informative=8, n_classes=classes, flip_y=0.1, random_state=seed
    )
    return made


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("ensemble", [True, False])
@pytest.mark.parametrize(
    "estimator", [GaussianNB(), RandomForestClassifier(30, random_state=0), KNeighborsClassifier()], ids=str
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_log_loss_is_lower_than_without_calibration(estimator: Any, ensemble: bool, seed: int) -> None:
    X, y = data(4, seed)
    plain = estimator.fit(X[:600], y[:600]).predict_proba(X[600:])
    found = RecalibratedClassifierCV(estimator, ensemble=ensemble).fit(X[:600], y[:600]).predict_proba(X[600:])
    assert log_loss(y[600:], found) < 0.99 * log_loss(y[600:], plain)


@pytest.mark.slow_after(9)
@pytest.mark.parametrize("ensemble", [True, False])
@pytest.mark.parametrize(
    ("estimator", "method", "classes", "tolerance"),
    [
        (LogisticRegression(), "temperature", 3, 1e-7),
        (LinearDiscriminantAnalysis(), "temperature", 2, 1e-7),
        (LinearSVC(random_state=0), "temperature", 3, 1e-7),
        (GaussianNB(), "temperature", 3, 1e-5),  # theirs adds 1e-12 to every probability
        (LogisticRegression(), "sigmoid", 2, 1e-6),
        (LinearSVC(random_state=0), "sigmoid", 2, 1e-6),
        (GaussianNB(), "isotonic", 2, 1e-9),
        (GaussianNB(), "isotonic", 3, 1e-9),
        (RandomForestClassifier(30, random_state=0), "isotonic", 2, 1e-9),
    ],
)
def test_strict_methods_agree_with_scikit_learn(
    estimator: Any, method: str, classes: int, tolerance: float, ensemble: bool
) -> None:
    X, y = data(classes)
    theirs = CalibratedClassifierCV(estimator, method=method, cv=4, ensemble=ensemble)
    if method == "temperature" and tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 8):
        pytest.skip("scikit-learn has temperature scaling from 1.8 on")
    ours = RecalibratedClassifierCV(estimator, method=STRICT[method], cv=4, ensemble=ensemble)
    expected = theirs.fit(X[:800], y[:800]).predict_proba(X[800:])
    np.testing.assert_allclose(ours.fit(X[:800], y[:800]).predict_proba(X[800:]), expected, atol=tolerance)


def test_saturated_probabilities_come_from_decision_values() -> None:
    X, y = data(2)
    model = LogisticRegression(C=1e4).fit(X, y)
    model.coef_, model.intercept_ = model.coef_ * 200, model.intercept_ * 200
    assert (model.predict_proba(X) == 1).any()
    found = RecalibratedClassifierCV(FrozenEstimator(model), method=STRICT["temperature"]).fit(X, y)
    logits = np.stack((np.zeros(len(X)), model.decision_function(X)), 1)
    assert found.calibrated_classifiers_[0].calibrator.temperature_ == pytest.approx(
        TemperatureScaling(strict=True).fit(logits, y).temperature_, rel=1e-6
    )


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("method", ["auto", "temperature", "sms"])
def test_a_saved_calibrator_of_a_forest_gives_the_same(method: str, classes: int, frozen: bool, tmp_path: Path) -> None:
    X, y = data(classes)
    forest = RandomForestClassifier(20, random_state=0)
    if frozen:
        forest = FrozenEstimator(forest.fit(X[:400], y[:400]))
    model = RecalibratedClassifierCV(forest, method=method, ensemble=False).fit(X[400:800], y[400:800])
    (only,) = model.calibrated_classifiers_
    probabilities = only.estimator.predict_proba(X)
    assert (probabilities == 0).any()
    cal.posthoc.save(only.calibrator, tmp_path / "calibrator.json")
    logits = cal.posthoc.logits_from_probabilities(probabilities)
    found = cal.posthoc.load(tmp_path / "calibrator.json").predict_proba(logits)
    np.testing.assert_allclose(found, model.predict_proba(X), atol=1e-6)


def test_large_decision_values_are_scaled() -> None:
    X, y = data(2)
    small = RecalibratedClassifierCV(LinearSVC(random_state=0), method="platt").fit(X, y).predict_proba(X)

    class Loud(LinearSVC):  # type: ignore[misc]
        def decision_function(self, X: Any) -> Any:
            return 1e5 * super().decision_function(X)

    large = RecalibratedClassifierCV(Loud(random_state=0), method="platt").fit(X, y).predict_proba(X)
    np.testing.assert_allclose(large, small, atol=1e-5)


@pytest.mark.parametrize("ensemble", [True, False])
def test_names_of_classes_do_not_change_the_probabilities(ensemble: bool) -> None:
    X, y = data()
    names = np.array(["red", "amber", "green"])[y]  # another order than their indices
    plain = RecalibratedClassifierCV(GaussianNB(), method="sms", ensemble=ensemble).fit(X, y)
    named = RecalibratedClassifierCV(GaussianNB(), method="sms", ensemble=ensemble).fit(X, names)
    assert list(named.classes_) == ["amber", "green", "red"]
    assert list(named.calibrated_classifiers_[0].calibrator.classes_) == ["amber", "green", "red"]
    np.testing.assert_allclose(named.predict_proba(X), plain.predict_proba(X)[:, [1, 2, 0]], atol=1e-6)
    assert set(named.predict(X)) == {"amber", "green", "red"}
    assert named.score(X, names) > 0.6


def test_a_label_of_minus_100_is_a_class() -> None:
    X, y = data(2)
    found = RecalibratedClassifierCV(GaussianNB(), method="temperature").fit(X, np.where(y == 0, -100, 7))
    assert list(found.classes_) == [-100, 7]
    np.testing.assert_allclose(
        found.predict_proba(X), RecalibratedClassifierCV(GaussianNB(), method="temperature").fit(X, y).predict_proba(X)
    )


class TestFrozen:
    def test_is_not_trained_again_and_all_samples_calibrate(self) -> None:
        X, y = data()
        model = GaussianNB().fit(X[:500], y[:500])
        found = RecalibratedClassifierCV(FrozenEstimator(model), method="temperature").fit(X[500:], y[500:])
        logits = cal.posthoc.logits_from_probabilities(model.predict_proba(X[500:]))
        expected = TemperatureScaling().fit(logits, y[500:])
        assert len(found.calibrated_classifiers_) == 1
        np.testing.assert_allclose(found.predict_proba(X[500:]), expected.predict_proba(logits))

    def test_a_class_that_the_new_samples_lack_is_kept(self) -> None:
        X, y = data()
        model = FrozenEstimator(GaussianNB().fit(X, y))
        found = RecalibratedClassifierCV(model, method="temperature").fit(X[y < 2], y[y < 2])
        assert list(found.classes_) == [0, 1, 2]
        assert found.predict_proba(X).shape == (len(X), 3)

    def test_a_class_that_the_model_lacks_gets_a_small_probability(self) -> None:
        X, y = data()
        model = FrozenEstimator(GaussianNB().fit(X[y > 0], y[y > 0]))
        found = RecalibratedClassifierCV(model, method="sms").fit(X, y)
        assert log_loss(y, found.predict_proba(X)) < np.log(3)


class TestSampleWeight:
    @pytest.mark.parametrize("ensemble", [True, False])
    def test_reaches_the_classifier_and_the_calibrator(self, ensemble: bool) -> None:
        X, y = data(2)
        weight = np.where(y == 1, 5.0, 1.0)
        model = RecalibratedClassifierCV(LogisticRegression(), method="sms", ensemble=ensemble)
        plain, weighted = (clone(model).fit(X, y, sample_weight=each).predict_proba(X) for each in (None, weight))
        assert weighted[:, 1].mean() > plain[:, 1].mean() + 0.1
        rates = np.average(np.stack((weighted[:, 1], y)), axis=1, weights=weight)
        assert rates[0] == pytest.approx(rates[1], abs=0.02)

    def test_that_a_classifier_does_not_take_is_used_for_the_calibrator_alone(self) -> None:
        X, y = data(2)
        model = RecalibratedClassifierCV(KNeighborsClassifier(), method="sms")
        with pytest.warns(UserWarning, match="sample_weight"):
            weighted = model.fit(X, y, sample_weight=np.where(y == 1, 5.0, 1.0)).predict_proba(X)
        assert weighted[:, 1].mean() > 0.6

    def test_is_routed(self) -> None:
        X, y = data(2)
        weight, groups = np.where(y == 1, 5.0, 1.0), np.arange(len(y)) % 10
        with sklearn.config_context(enable_metadata_routing=True):
            scaler = StandardScaler().set_fit_request(sample_weight=False)
            pipeline = make_pipeline(scaler, LogisticRegression().set_fit_request(sample_weight=True))
            model = RecalibratedClassifierCV(pipeline, method="sms", cv=GroupKFold(3)).set_fit_request(
                sample_weight=True
            )
            model.fit(X, y, sample_weight=weight, groups=groups)
        alone = model.calibrated_classifiers_[0].estimator
        for each in (alone, model):
            rates = np.average(np.stack((each.predict_proba(X)[:, 1], y)), axis=1, weights=weight)
            assert rates[0] == pytest.approx(rates[1], abs=0.02)

    def test_of_a_step_is_split_with_the_samples(self) -> None:
        X, y = data(2)
        pipeline = make_pipeline(StandardScaler(), LogisticRegression())
        model = RecalibratedClassifierCV(pipeline, method="temperature")
        model.fit(X, y, logisticregression__sample_weight=np.where(y == 1, 5.0, 1.0))
        assert model.predict_proba(X)[:, 1].mean() > 0.6

    @pytest.mark.slow_after(2)
    @pytest.mark.parametrize("ensemble", [True, False])
    @pytest.mark.parametrize(
        ("method", "weight"),
        # Rounding can change the folds inside "auto": a power of two has none.
        [("auto", 2.0**-10), ("temperature", 1 / 1200), ("sms", 1 / 1200)],
    )
    def test_that_is_small_gives_what_ones_give(self, method: str, weight: float, ensemble: bool) -> None:
        X, y = data(2)
        model = RecalibratedClassifierCV(GaussianNB(), method=method, ensemble=ensemble)
        plain, weighted = (
            clone(model).fit(X, y, sample_weight=each).predict_proba(X)
            for each in (np.ones(len(y)), np.full(len(y), weight))
        )
        np.testing.assert_allclose(weighted, plain, rtol=0, atol=1e-5)

    def test_of_whole_numbers_counts_as_copies(self) -> None:
        X, y = data(2, samples=200)
        model = GaussianNB().fit(X[:100], y[:100])
        X, y, weight = X[100:], y[100:], np.arange(100) % 4
        copies = np.repeat(np.arange(100), weight)
        found = RecalibratedClassifierCV(FrozenEstimator(model), method="sms")
        weighted = clone(found).fit(X, y, sample_weight=weight).predict_proba(X)
        np.testing.assert_allclose(weighted, clone(found).fit(X[copies], y[copies]).predict_proba(X), atol=1e-5)

    @pytest.mark.slow_after(1)
    @pytest.mark.parametrize("ensemble", [True, False])
    @pytest.mark.parametrize("estimator", [GaussianNB(), LinearSVC(random_state=0)], ids=str)
    def test_of_zero_leaves_a_sample_out(self, estimator: Any, ensemble: bool) -> None:
        X, y = data(2)
        kept = np.arange(len(y)) >= 400  # the first of three folds, if they were made of all samples
        model = RecalibratedClassifierCV(estimator, cv=3, ensemble=ensemble)
        weighted = clone(model).fit(X, y, sample_weight=kept.astype(float)).predict_proba(X)
        expected = clone(model).fit(X[kept], y[kept], sample_weight=np.ones(kept.sum())).predict_proba(X)
        np.testing.assert_allclose(weighted, expected, atol=1e-6)

    def test_of_zero_leaves_samples_of_given_folds_out(self) -> None:
        X, y = data(2)
        weight = (np.arange(len(y)) % 2).astype(float)
        model = RecalibratedClassifierCV(GaussianNB(), method="sms", cv=KFold(3), ensemble=False)
        weighted = clone(model).fit(X, y, sample_weight=weight).predict_proba(X)
        expected = clone(model).fit(X[1::2], y[1::2]).predict_proba(X)
        np.testing.assert_allclose(weighted, expected, atol=1e-6)

    def test_of_zero_keeps_the_column_of_a_class(self) -> None:
        X, y = data(3)
        found = RecalibratedClassifierCV(GaussianNB(), method="temperature").fit(X, y, sample_weight=1.0 * (y < 2))
        assert list(found.classes_) == [0, 1, 2]
        assert found.predict_proba(X).shape == (len(X), 3)


class TestFewSamples:
    @pytest.mark.parametrize("ensemble", [True, False])
    @pytest.mark.parametrize("y", [[0] * 5 + [1] * 5, [0, 0, 1, 1, 1, 2, 2, 2, 2, 2], [0] * 9 + [1]])
    @pytest.mark.parametrize("method", ["auto", "temperature", "isotonic"])
    def test_ten_rows_give_probabilities(self, y: list[int], method: str, ensemble: bool) -> None:
        X = np.random.default_rng(0).normal(size=(10, 3))
        found = RecalibratedClassifierCV(KNeighborsClassifier(2), method=method, ensemble=ensemble).fit(X, y)
        probabilities = found.predict_proba(X)
        assert probabilities.shape == (10, max(y) + 1)
        assert (probabilities > 0).all()
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-6)

    @pytest.mark.parametrize("estimator", [GaussianNB(), LinearSVC(random_state=0)], ids=str)
    @pytest.mark.parametrize("ensemble", [True, False])
    def test_a_class_may_be_absent_from_the_training_part_of_a_fold(self, estimator: Any, ensemble: bool) -> None:
        X, y = data()
        order = np.argsort(y == 2, kind="stable")  # class 2 is the last third, and so one of three folds
        model = RecalibratedClassifierCV(estimator, method="sms", cv=KFold(3), ensemble=ensemble)
        found = model.fit(X[order], y[order]).predict_proba(X)
        assert np.isfinite(found).all()
        assert log_loss(y, found) < 1.5

    def test_folds_are_summarised_in_one_notice(self) -> None:
        X, y = data(2, samples=60)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            RecalibratedClassifierCV(GaussianNB(), method="isotonic").fit(X, y)
        (one,) = [each for each in caught if each.category is FitWarning]
        assert "5 of 5 folds" in str(one.message)
        assert one.filename == __file__


class TestInScikitLearn:
    def test_pipeline_and_cross_val_predict(self) -> None:
        X, y = data()
        pipeline = make_pipeline(StandardScaler(), RecalibratedClassifierCV(SVC(), method="svs", cv=3))
        found = cross_val_predict(pipeline, X, y, method="predict_proba", cv=3)
        assert log_loss(y, found) < 0.7

    def test_copies_give_the_same_probabilities(self) -> None:
        X, y = data()
        method = TemperatureScaling(strict=True)
        model = RecalibratedClassifierCV(GaussianNB(), method=method).fit(X, y)
        assert model.method is method
        assert method.class_count_ is None
        assert clone(model).method.strict
        expected = model.predict_proba(X)
        for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), clone(model).fit(X, y)):  # noqa: S301
            np.testing.assert_array_equal(same.predict_proba(X), expected)
        assert not hasattr(clone(model), "classes_")

    @pytest.mark.slow
    def test_parallel_folds_give_the_same(self) -> None:
        X, y = data()
        one, two = (RecalibratedClassifierCV(GaussianNB(), method="sms", n_jobs=jobs).fit(X, y) for jobs in (1, 2))
        np.testing.assert_array_equal(one.predict_proba(X), two.predict_proba(X))

    def test_data_frames_keep_their_names(self) -> None:
        pandas = pytest.importorskip("pandas")
        X, y = data()
        frame = pandas.DataFrame(X, columns=[f"f{i}" for i in range(12)], index=np.arange(len(X))[::-1])
        labels = pandas.Series(y, index=frame.index)
        model = RecalibratedClassifierCV(LogisticRegression(), method="sms").fit(frame, labels)
        assert list(model.feature_names_in_) == list(frame.columns)
        assert model.n_features_in_ == 12
        expected = RecalibratedClassifierCV(LogisticRegression(), method="sms").fit(X, y).predict_proba(X)
        np.testing.assert_allclose(model.predict_proba(frame), expected)

    def test_sparse_samples_and_lists(self) -> None:
        X, y = data()
        model = RecalibratedClassifierCV(LogisticRegression(), method="sms")
        expected = clone(model).fit(X, y).predict_proba(X)
        np.testing.assert_allclose(clone(model).fit(csr_matrix(X), y).predict_proba(csr_matrix(X)), expected, atol=1e-4)
        np.testing.assert_allclose(clone(model).fit(X.tolist(), y.tolist()).predict_proba(X.tolist()), expected)

    @pytest.mark.slow
    def test_classifiers_without_probabilities(self) -> None:
        X, y = data()
        for estimator in (SGDClassifier(random_state=0), SVC(), LinearSVC(random_state=0)):
            assert log_loss(y, RecalibratedClassifierCV(estimator).fit(X, y).predict_proba(X)) < 0.9


class Silent(GaussianNB):  # type: ignore[misc]
    """A model without scores."""

    predict_proba = property()


BINARY = data(2)
FROZEN = FrozenEstimator(GaussianNB().fit(*BINARY))
PAIRS = SVC(decision_function_shape="ovo")
ERRORS: dict[str, tuple[Any, dict[str, Any], dict[str, Any], str]] = {
    # name: classifier, options, arguments of fit in place of the data, and a key token
    "unknown method": (GaussianNB(), {"method": "none such"}, {}, "method"),
    "class in place of a method": (GaussianNB(), {"method": TemperatureScaling}, {}, "method"),
    "no splitter": (GaussianNB(), {"cv": "prefit"}, {}, "cv"),
    "ensemble": (GaussianNB(), {"ensemble": "yes"}, {}, "ensemble"),
    "folds that overlap": (GaussianNB(), {"cv": ShuffleSplit(3), "ensemble": False}, {}, "exactly once"),
    "several labels": (GaussianNB(), {}, {"y": np.stack((BINARY[1], 1 - BINARY[1]), 1)}, "1d array"),
    "no class twice": (GaussianNB(), {}, {"X": np.eye(3), "y": [0, 1, 2]}, "n_splits"),
    "labels of another kind": (FROZEN, {}, {"y": BINARY[1].astype(str)}, "frozen"),
    "a column for each pair": (PAIRS, {}, dict(zip("Xy", data(4), strict=True)), "one column"),
    "no scores": (Silent(), {}, {}, "neither predict_proba"),
    "weight of one class": (GaussianNB(), {}, {"sample_weight": 1.0 * (BINARY[1] < 1)}, "1 class"),
    "negative weights": (GaussianNB(), {}, {"sample_weight": -np.ones(1200)}, "sample_weight"),
    "NaN weights": (GaussianNB(), {}, {"sample_weight": np.full(1200, np.nan)}, "sample_weight"),
    "columns of weights": (GaussianNB(), {}, {"sample_weight": np.ones((1200, 2))}, "sample_weight"),
    "too few weights": (GaussianNB(), {}, {"sample_weight": np.ones(3)}, "sample_weight"),
    "no weight": (GaussianNB(), {}, {"sample_weight": np.zeros(1200)}, "sample_weight"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_names_the_remedy(name: str) -> None:
    estimator, options, arguments, message = ERRORS[name]
    with pytest.raises(TypeError if name == "no scores" else ValueError, match=message):
        RecalibratedClassifierCV(estimator, **options).fit(**{"X": BINARY[0], "y": BINARY[1], **arguments})


def test_any_splitter_with_an_ensemble() -> None:
    X, y = data()
    model = RecalibratedClassifierCV(GaussianNB(), method="sms", cv=ShuffleSplit(3, random_state=0)).fit(X, y)
    assert len(model.calibrated_classifiers_) == 3
