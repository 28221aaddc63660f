"""Post-hoc calibration as scikit-learn estimators."""

# ruff: noqa: N803, N806 (X is the name in scikit-learn)

import copy
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax, logsumexp
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, TransformerMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, column_or_1d, get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted, has_fit_parameter, validate_data

from calibrant.inputs import check_choice, checked_weight, labels_of_columns, warn
from calibrant.posthoc import Calibrator, FitWarning, logits_from_probabilities
from calibrant.posthoc.registry import METHODS

__all__ = ["PredictionCalibrator", "RecalibratedClassifierCV"]

Array = npt.NDArray[Any]
# Decision values are scaled down to this, as scikit-learn does: e^-30 is a probability that float64 can tell from 0.
LARGEST_DECISION = 30.0


class PredictionCalibrator(ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Calibrate predictions of any model: the columns of X are its logits or probabilities, one for each class.

    It can be cloned, searched over and put into a ``Pipeline`` as the last step or, by ``transform``, as one before it.
    Fit it on predictions for samples that the model was not trained on.

    Args:
        method: A name in ``calibrant.posthoc.registry``, or a calibrator with options such as
            ``TemperatureScaling(strict=True)``; it is copied, not changed.
        inputs: What X holds: ``"logits"`` or ``"probabilities"``.
        classes: Label of each column. By default the names of a data frame's columns if they are the labels, else the
            sorted labels if there are as many as columns, else 0, 1, ... A single column is that of the second of two.

    Attributes:
        classes_: Sorted labels of the classes, in the order of the probabilities.
        calibrator_: The fitted calibrator.

    Example:
        >>> logits = np.array([3.0, -3.0] * 500).reshape(-1, 1)  # binary: the logit of class "yes"
        >>> labels = np.array(["yes", "no", "yes", "no", "yes", "no", "no", "yes"] * 125)  # right in three of four
        >>> calibrator = PredictionCalibrator(method="temperature").fit(logits, labels)
        >>> calibrator.classes_
        array(['no', 'yes'], dtype='<U3')
        >>> calibrator.predict_proba([[3.0]]).round(2)
        array([[0.25, 0.75]])
    """

    def __init__(
        self,
        method: str | Calibrator = "auto",
        *,
        inputs: Literal["logits", "probabilities"] = "logits",
        classes: Any = None,
    ) -> None:
        self.method = method
        self.inputs = inputs
        self.classes = classes

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit on ``(N, C)`` predictions, or ``(N, 1)`` of the second of two classes, and their labels; return self."""
        check_choice("inputs", self.inputs, ("logits", "probabilities"))
        unfitted(self.method)  # a wrong method is reported before anything else
        values, y = validate_data(self, X, y, dtype=np.float64)
        labels = checked_labels(y)
        weights = None if sample_weight is None else checked_weight(sample_weight, labels.shape)
        of_columns = self._column_labels(labels, values.shape[1])
        self._order = np.argsort(of_columns)
        self.classes_ = of_columns[self._order]
        self.calibrator_ = fitted(self.method, self._logits(values), labels, weights, self.classes_)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return calibrated probabilities, ``(N, C)``; X has the columns that it had in ``fit``."""
        check_is_fitted(self)
        logits = self._logits(validate_data(self, X, dtype=np.float64, reset=False))
        return np.asarray(self.calibrator_.predict_proba(logits))

    def predict(self, X: Any) -> Array:
        """Return the label of the most likely class of each sample, ``(N,)``."""
        best = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[best])

    def transform(self, X: Any) -> Array:
        """Return calibrated probabilities, ``(N, C)``, in the container that ``set_output`` asks for."""
        return self.predict_proba(X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:  # noqa: ARG002 (the interface of transformers)
        """Return the labels of the classes as strings: the columns of what ``transform`` returns."""
        check_is_fitted(self)
        return np.array([str(label) for label in self.classes_], dtype=object)

    def _logits(self, values: Array) -> Array:
        """Logits of the classes in sorted order, as scikit-learn's scorers expect them."""
        if values.shape[1] == 1:
            first = 1 - values if self.inputs == "probabilities" else np.zeros_like(values)
            values = np.hstack((first, values))
        values = values[:, self._order]
        return values if self.inputs == "logits" else np.asarray(logits_from_probabilities(values))

    def _column_labels(self, labels: Array, columns: int) -> Array:
        count = max(2, columns)
        present = np.unique(labels)
        if self.classes is not None:
            found = np.asarray(self.classes)
            if len(found) != count or not np.isin(present, found).all():
                raise ValueError(
                    f"classes must be the labels of {count} classes and include those in y, {present.tolist()}, got "
                    f"{found.tolist()}"
                )
            return found
        names = getattr(self, "feature_names_in_", None)
        if names is not None and columns > 1 and (named := labels_of_columns(names.tolist(), set(present.tolist()))):
            return np.asarray(named)
        if len(present) == count:
            return present
        if present.dtype.kind in "iuf" and present.min() >= 0 and present.max() < count:
            return np.arange(count).astype(present.dtype)
        raise ValueError(
            f"y has {len(present)} classes, but X has {columns} columns, for {count} classes: pass one column of "
            "predictions for each class, and classes= with the label of each if y lacks some"
        )


class RecalibratedClassifierCV(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn classifier with calibrated probabilities, by any method of :mod:`calibrant.posthoc`.

    Like scikit-learn's ``CalibratedClassifierCV``: the calibrator is fitted on predictions for samples that the
    classifier was not trained on. A fitted classifier in a ``FrozenEstimator`` is not trained again: all samples are
    used for the calibrator. Predictions come from ``predict_proba``, or from ``decision_function`` where there is no
    other, or where probabilities round to 0 or 1. :doc:`/sklearn` is the guide, and lists the differences.

    Args:
        estimator: The classifier.
        method: A name in ``calibrant.posthoc.registry``, or a calibrator with options such as
            ``TemperatureScaling(strict=True)``; it is copied, not changed.
        cv: Number of stratified folds, a splitter, or an iterable of splits; None means 5.
        ensemble: Whether to average the classifiers and calibrators of all folds; or to train one classifier on all
            samples, and fit one calibrator on the predictions of all folds.
        n_jobs: Number of folds to train at the same time, as in scikit-learn.

    Attributes:
        classes_: Sorted labels of the classes.
        calibrated_classifiers_: One for each fold, or one, each with ``estimator`` and ``calibrator``.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.metrics import log_loss
        >>> from sklearn.naive_bayes import GaussianNB
        >>> X, y = load_digits(return_X_y=True)
        >>> plain = GaussianNB().fit(X[:1000], y[:1000])
        >>> better = RecalibratedClassifierCV(GaussianNB(), method="temperature").fit(X[:1000], y[:1000])
        >>> [round(log_loss(y[1000:], model.predict_proba(X[1000:])), 1) for model in (plain, better)]
        [4.7, 0.7]
    """

    def __init__(
        self,
        estimator: Any,
        *,
        method: str | Calibrator = "auto",
        cv: Any = None,
        ensemble: bool = True,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.ensemble = ensemble
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Fit classifiers and calibrators, and return self.

        Weights, divided by a mean below 1, are for the calibrator, and for the classifier if it takes them.
        ``fit_params`` are for the classifier's ``fit``, or routed if metadata routing is enabled.
        """
        if self.ensemble not in (True, False):
            raise ValueError(f"ensemble must be True or False, got {self.ensemble!r}")
        unfitted(self.method)  # a wrong method is reported before anything is trained
        X, y = indexable(X, y)
        labels = checked_labels(y)
        weights = None if sample_weight is None else checked_weight(sample_weight, labels.shape)
        frozen = isinstance(self.estimator, FrozenEstimator)
        self.classes_ = np.unique(labels)
        if frozen:
            known = np.asarray(self.estimator.classes_)
            if (known.dtype.kind in "OU") != (labels.dtype.kind in "OU"):
                raise ValueError(f"y holds labels such as {labels[0]!r}, but the frozen estimator {known[0]!r}")
            self.classes_ = np.union1d(labels, known)
        cv = self.cv
        if weights is not None and not weights.all():
            kept = np.flatnonzero(weights)
            X, fit_params = _safe_indexing(X, kept), _parts(fit_params, kept, len(labels))
            labels, weights = checked_labels(labels[kept]), weights[kept]
            if isinstance(cv, Iterable):  # of splits, which are places in all samples
                cv = [[np.flatnonzero(np.isin(kept, part)) for part in split] for split in cv]
        if frozen:
            model = CalibratedModel(self.estimator, self.classes_, len(labels))
            counts = np.ones(len(labels)) if weights is None else weights
            self.calibrated_classifiers_ = [self._calibrated(model, [(model, model.scores(X))], labels, counts)]
        else:
            self.calibrated_classifiers_ = self._fit_folds(X, labels, weights, fit_params, cv)
        self._report()
        first = self.calibrated_classifiers_[0].estimator
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(first, name):
                setattr(self, name, getattr(first, name))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return calibrated probabilities, ``(N, C)``."""
        check_is_fitted(self)
        return np.asarray(np.mean([model.predict_proba(X) for model in self.calibrated_classifiers_], axis=0))

    def predict(self, X: Any) -> Array:
        """Return the label of the most likely class of each sample, ``(N,)``."""
        best = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[best])

    def get_metadata_routing(self) -> Any:
        """Return which metadata go to the classifier and to the splitter."""
        from_fit = MethodMapping().add(caller="fit", callee="fit")
        to_split = MethodMapping().add(caller="fit", callee="split")
        router = MetadataRouter(owner=self).add_self_request(self)
        router.add(estimator=self.estimator, method_mapping=from_fit)
        return router.add(splitter=self.cv, method_mapping=to_split)

    def __sklearn_tags__(self) -> Any:
        tags, of_estimator = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags.sparse = of_estimator.input_tags.sparse
        tags.input_tags.allow_nan = of_estimator.input_tags.allow_nan
        return tags

    def _fit_folds(
        self, X: Any, labels: Array, weights: Array | None, fit_params: dict[str, Any], cv: Any
    ) -> "list[CalibratedModel]":
        to_estimator, to_splitter = self._routed(weights, fit_params)
        with warnings.catch_warnings():
            # A rare class is absent from some folds; the calibrators of these folds have a notice of it.
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)
            splits = list(check_cv(cv, labels, classifier=True).split(X, labels, **to_splitter))
        folds = Parallel(n_jobs=self.n_jobs)(
            delayed(_fold)(clone(self.estimator), X, labels, train, test, to_estimator, self.classes_)
            for train, test in splits
        )
        tests = [test for _, test in splits]
        counts = np.ones(len(labels)) if weights is None else weights
        if self.ensemble:
            parts = zip(folds, tests, strict=True)
            return [self._calibrated(fold[0], [fold], labels[test], counts[test]) for fold, test in parts]
        order = np.concatenate(tests)
        if not np.array_equal(np.sort(order), np.arange(len(labels))):
            raise ValueError(
                "ensemble=False needs folds that hold every sample exactly once: use such a cv, as KFold is, or "
                "ensemble=True"
            )
        final = CalibratedModel(clone(self.estimator).fit(X, labels, **to_estimator), self.classes_, len(labels))
        return [self._calibrated(final, folds, labels[order], counts[order])]

    def _calibrated(
        self, model: "CalibratedModel", folds: "list[tuple[CalibratedModel, Array]]", labels: Array, weights: Array
    ) -> "CalibratedModel":
        """Fit a calibrator for a classifier on scores by it, or by others that were trained like it."""
        scale = 1.0
        if not hasattr(model.estimator, "predict_proba"):
            scale = max(1.0, max(float(np.abs(scores).max()) for _, scores in folds) / LARGEST_DECISION)
        logits = np.concatenate([of.logits(scores, scale) for of, scores in folds])
        # With a mean below 1, as if they sum to 1, they cannot be numbers of copies: a prior would outweigh them.
        weights = weights / min(1.0, float(weights.mean()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # those of all folds are reported together
            calibrator = fitted(self.method, logits, labels, weights, self.classes_)
        return replace(model, scale=scale, calibrator=calibrator)

    def _report(self) -> None:
        models = self.calibrated_classifiers_
        if noticed := [model.calibrator.notices_ for model in models if model.calibrator.notices_]:
            where = "" if len(models) == 1 else f" ({len(noticed)} of {len(models)} folds have such notices)"
            warn(f"{type(self).__name__}: {'; '.join(noticed[0])}{where}", FitWarning)

    def _routed(self, weights: Array | None, fit_params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Metadata for the classifier's ``fit`` and for the splitter."""
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", sample_weight=weights, **fit_params)
            return dict(routed.estimator.fit), dict(routed.splitter.split)
        if weights is not None and has_fit_parameter(self.estimator, "sample_weight"):
            return {**fit_params, "sample_weight": weights}, {}
        if weights is not None:
            warn(
                f"{type(self.estimator).__name__}.fit takes no sample_weight: the weights only reach the calibrator: "
                "enable metadata routing, or use a classifier that takes them",
                UserWarning,
            )
        return fit_params, {}


@dataclass(frozen=True)
class CalibratedModel:
    """A fitted classifier and the calibrator of its predictions, of all classes that the data have."""

    estimator: Any
    classes: Array  # sorted, with those that it was not trained on
    samples: int  # that it was trained on
    scale: float = 1.0  # what its scores are divided by
    calibrator: Any = None

    def predict_proba(self, x: Any) -> Array:
        """Return calibrated probabilities, ``(N, C)``."""
        return np.asarray(self.calibrator.predict_proba(self.logits(self.scores(x), self.scale)))

    def scores(self, x: Any) -> Array:
        """Log-probabilities, or decision values of an arbitrary unit; a column for each class of the classifier."""
        if not hasattr(self.estimator, "predict_proba"):
            values = _decision_values(self.estimator, x)
            if values.ndim != 2 or values.shape[1] != len(self.estimator.classes_):
                raise ValueError(
                    f"decision_function of {type(self.estimator).__name__} has shape {values.shape} for "
                    f"{len(self.estimator.classes_)} classes: use a classifier with one column for each class, for "
                    "example decision_function_shape='ovr' of SVC"
                )
            return values
        predicted = np.asarray(self.estimator.predict_proba(x))
        limit = math.sqrt(np.finfo(predicted.dtype).eps) if predicted.dtype.kind == "f" else 0.0
        probabilities = predicted.astype(np.float64)
        if probabilities.shape[1] == 1:  # of one class, as in a fold that lacks the others, it is always certain
            return np.zeros_like(probabilities)
        scores = np.asarray(logits_from_probabilities(probabilities))
        # Near 0, many classifiers have 1 - p with few digits or none; their decision values are exact there.
        saturated = np.flatnonzero((probabilities < limit).any(1))
        if len(saturated) and hasattr(self.estimator, "decision_function"):
            decision = _decision_values(self.estimator, _safe_indexing(x, saturated))
            if decision.shape == (len(saturated), scores.shape[1]):
                exact = log_softmax(decision, axis=1)
                same = (np.abs(np.exp(exact) - probabilities[saturated]) < limit).all(1)
                scores[saturated[same]] = exact[same]
        return scores

    def logits(self, scores: Array, scale: float) -> Array:
        """Finite logits, ``(N, C)``; classes that it was not trained on share a probability of 1 / (n + 1)."""
        logits = scores / scale
        places = np.searchsorted(self.classes, self.estimator.classes_)
        absent = len(self.classes) - len(places)
        result = np.empty((len(logits), len(self.classes)))
        if absent:
            result[:] = logsumexp(logits, axis=1, keepdims=True) - math.log(self.samples * absent)
        result[:, places] = logits
        return result


def _decision_values(estimator: Any, x: Any) -> Array:
    """Decision values with a column for each of two classes too."""
    if not hasattr(estimator, "decision_function"):
        name = type(estimator).__name__
        raise TypeError(f"{name} has neither predict_proba nor decision_function: use a classifier that has one")
    values = np.asarray(estimator.decision_function(x), dtype=np.float64)
    return np.stack((np.zeros_like(values), values), axis=1) if values.ndim == 1 else values


def _fold(
    estimator: Any, X: Any, labels: Array, train: Array, test: Array, metadata: dict[str, Any], classes: Array
) -> tuple[CalibratedModel, Array]:
    """Train a classifier without a fold, and score the fold."""
    estimator.fit(_safe_indexing(X, train), labels[train], **_parts(metadata, train, len(labels)))
    model = CalibratedModel(estimator, classes, len(labels[train]))
    return model, model.scores(_safe_indexing(X, test))


def _parts(metadata: dict[str, Any], indices: Array, samples: int) -> dict[str, Any]:
    """Metadata for some of the samples: of those with an entry for each sample, a part."""

    def part(value: Any) -> Any:
        shape = (len(value),) if isinstance(value, list | tuple) else getattr(value, "shape", ())
        return _safe_indexing(value, indices) if shape and shape[0] == samples else value

    return {name: part(value) for name, value in metadata.items()}


def unfitted(method: str | Calibrator) -> Calibrator:
    """A calibrator to fit: one of the named method, or a copy of the given one."""
    if isinstance(method, Calibrator):
        return copy.deepcopy(method)
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(
            f"method must be a calibrator of calibrant.posthoc or one of {', '.join(METHODS)}, got {method!r}"
        )
    return METHODS[method]()


def fitted(method: str | Calibrator, logits: Array, labels: Array, weights: Array | None, classes: Array) -> Calibrator:
    """A calibrator fitted on ``(N, C)`` logits and labels among ``classes``, one for each column."""
    # Labels that are indices of columns are the calibrator's default.
    indices = classes.dtype.kind in "iu" and np.array_equal(classes, np.arange(len(classes)))
    names = None if indices else classes.tolist()
    return unfitted(method).fit(logits, labels, sample_weight=weights, ignore_index=None, classes=names)


def checked_labels(y: Any) -> Array:
    """Labels as an array ``(N,)`` of at least two classes."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    labels: Array = column_or_1d(y, warn=True)
    check_classification_targets(labels)
    present = np.unique(labels).tolist()
    if len(present) < 2:
        raise ValueError(f"y must have more than 1 class, got {present}: pass samples of each class")
    return labels


def __dir__() -> list[str]:
    return __all__
