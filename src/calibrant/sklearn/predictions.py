"""An estimator whose features are a model's logits or probabilities."""

import copy
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from calibrant.posthoc import METHODS, Calibrator, logits_from_probabilities

Array = npt.NDArray[Any]


class PredictionCalibrator(ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Calibrate predictions of any model: the columns of X are its logits or probabilities, one for each class.

    A calibrator of :mod:`calibrant.posthoc` with the interface of scikit-learn: it can be cloned, searched over and put
    into a ``Pipeline`` as the last step or, by ``transform``, as one before it. Fit it on predictions for samples that
    the model was not trained on.

    Args:
        method: A name in ``calibrant.posthoc.METHODS``, or a calibrator with options such as
            ``TemperatureScaling(strict=True)``; it is copied, not changed.
        inputs: What X holds: ``"logits"`` or ``"probabilities"``. Probabilities are floored as in
            :func:`calibrant.posthoc.logits_from_probabilities`.
        classes: Label of each column. By default the names of a data frame's columns if they are the labels, else the
            sorted labels if there are as many as columns, else 0, 1, ... A single column belongs to the second of two
            classes.

    Attributes:
        classes_: Label of each class, in the order of the probabilities.
        calibrator_: The fitted calibrator.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if X was a data frame with names.

    Example:
        >>> import numpy as np
        >>> from calibrant.sklearn import PredictionCalibrator
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
        """Fit on predictions for samples that the model was not trained on, and return self.

        Args:
            X: Logits or probabilities, ``(N, C)``; or ``(N, 1)``, those of the second of two classes.
            y: Labels, ``(N,)``.
            sample_weight: Non-negative weights, ``(N,)``. A sample of weight 2 counts as two: multiply
                weights that sum to 1 by their number.
        """
        if self.inputs not in ("logits", "probabilities"):
            raise ValueError(f"inputs must be 'logits' or 'probabilities', got {self.inputs!r}")
        calibrator = unfitted(self.method)
        values = validate_data(self, X, dtype=np.float64)
        labels = checked_labels(y)
        if len(labels) != len(values):
            raise ValueError(f"X and y must have the same number of samples, got {len(values)} and {len(labels)}")
        weights = checked_weights(sample_weight, len(labels))
        self.classes_ = self._column_labels(labels, values.shape[1])
        self.calibrator_ = fitted_calibrator(calibrator, self._logits(values), labels, weights, self.classes_)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return calibrated probabilities, ``(N, C)``.

        Args:
            X: Logits or probabilities, with the columns of those in ``fit``.
        """
        check_is_fitted(self)
        logits = self._logits(validate_data(self, X, dtype=np.float64, reset=False))
        return np.asarray(self.calibrator_.predict_proba(logits))

    def predict(self, X: Any) -> Array:
        """Return the label of the most likely class of each sample, ``(N,)``.

        Args:
            X: Logits or probabilities, with the columns of those in ``fit``.
        """
        best = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[best])

    def transform(self, X: Any) -> Array:
        """Return calibrated probabilities, ``(N, C)``, in the container that ``set_output`` asks for.

        Args:
            X: Logits or probabilities, with the columns of those in ``fit``.
        """
        return self.predict_proba(X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:  # noqa: ARG002 (the interface of transformers)
        """Return the labels of the classes as strings: the columns of what ``transform`` returns."""
        check_is_fitted(self)
        return np.array([str(label) for label in self.classes_], dtype=object)

    def _logits(self, values: Array) -> Array:
        if self.inputs == "logits":
            return values
        both = np.hstack((1 - values, values)) if values.shape[1] == 1 else values
        return np.asarray(logits_from_probabilities(both))

    def _column_labels(self, labels: Array, columns: int) -> Array:
        count = max(2, columns)
        present = np.unique(labels)
        if self.classes is not None:
            found = np.asarray(self.classes)
            unknown = set(present.tolist()) - set(found.tolist())
            if len(found) != count or unknown:
                raise ValueError(
                    f"classes must be the labels of {count} classes and include those in y, got {list(found)}"
                    + (f" without {sorted(unknown)}" if unknown else "")
                )
            return found
        names = getattr(self, "feature_names_in_", None)
        if names is not None and columns > 1 and set(present.tolist()) <= set(names.tolist()):
            return np.asarray(names.tolist())
        if len(present) == count:
            return present
        if present.dtype.kind in "iuf" and present.min() >= 0 and present.max() < count:
            return np.arange(count).astype(present.dtype)
        raise ValueError(
            f"y has {len(present)} classes, but X has {columns} columns, for {count} classes: pass one column of "
            "predictions for each class, and classes= with the label of each if y lacks some"
        )


def unfitted(method: str | Calibrator) -> Calibrator:
    """A calibrator to fit: one of the named method, or a copy of the given one."""
    if isinstance(method, Calibrator):
        return copy.deepcopy(method)
    if not isinstance(method, str) or method not in METHODS:
        hint = ': did you mean "platt"?' if isinstance(method, str) and method == "sigmoid" else ""
        raise ValueError(
            f"method must be a calibrator of calibrant.posthoc or one of {', '.join(METHODS)}, got {method!r}{hint}"
        )
    return METHODS[method]()


def fitted_calibrator(
    calibrator: Calibrator, logits: Array, labels: Array, weights: Array | None, classes: Array
) -> Calibrator:
    """Fit a calibrator on ``(N, C)`` logits and labels among ``classes``, one for each column."""
    # Labels that are indices of columns are the calibrator's default.
    indices = classes.dtype.kind in "iu" and np.array_equal(classes, np.arange(len(classes)))
    return calibrator.fit(
        logits, labels, sample_weight=weights, ignore_index=None, classes=None if indices else classes.tolist()
    )


def checked_labels(y: Any) -> Array:
    """Labels as an array ``(N,)`` of at least two classes."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    labels: Array = column_or_1d(y, warn=True)
    if len(labels) == 0:
        raise ValueError("y has 0 samples: pass at least one for each class")
    check_classification_targets(labels)
    kind = type_of_target(labels)
    if kind not in ("binary", "multiclass"):
        raise ValueError(f"y must hold one class for each sample, got {kind} labels: calibrate every output by itself")
    if (labels == labels[0]).all():
        raise ValueError(f"y must have at least 2 classes, got 1 class: {labels[0]!r}")
    return labels


def checked_weights(sample_weight: Any, samples: int) -> Array | None:
    """Weights as an array ``(N,)`` in float64, or None."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.ndim != 1:
        raise ValueError(f"sample_weight must be 1D, got shape {weights.shape}: pass one number for each sample")
    check_consistent_length(weights, np.empty(samples))
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError("sample_weight must be finite and not negative: pass 0 to leave a sample out")
    if not (weights > 0).any():
        raise ValueError("Sample weights must contain at least one non-zero number, got none: pass positive weights")
    return weights
