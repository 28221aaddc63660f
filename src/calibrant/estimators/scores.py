"""Logits of a fitted scikit-learn classifier, for all classes of a problem."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax, logsumexp

from calibrant.estimators.checks import Array
from calibrant.posthoc import Calibrator, logits_from_probabilities

# Decision values are scaled down to this, as scikit-learn does: e^-30 is a probability that float64 can tell from 0.
LARGEST_DECISION = 30.0


def rows_of(data: Any, indices: Array) -> Any:
    """Return some rows of an array, a sparse matrix, a data frame or a list."""
    if hasattr(data, "iloc"):
        return data.iloc[indices]
    return data[indices] if hasattr(data, "shape") else [data[index] for index in indices]


@dataclass
class Scorer:
    """A fitted classifier that knows all classes, including those that it was not trained on.

    Args:
        estimator: The fitted classifier.
        classes: Sorted labels of all classes.
        samples: Number of samples that the classifier was trained on.
    """

    estimator: Any
    classes: Array
    samples: int

    @property
    def has_probabilities(self) -> bool:
        """Whether scores are log-probabilities; if not, decision values of an arbitrary unit."""
        return hasattr(self.estimator, "predict_proba")

    def scores(self, x: Any) -> Array:
        """Return log-probabilities or decision values, ``(N, k)``: a column for each class of the classifier.

        Probabilities are floored as :func:`calibrant.posthoc.logits_from_probabilities` does.
        """
        if not self.has_probabilities:
            if not hasattr(self.estimator, "decision_function"):
                raise TypeError(
                    f"{type(self.estimator).__name__} has neither predict_proba nor decision_function: "
                    "use a classifier that has one of them"
                )
            return self._checked("decision_function", _columns(self.estimator.decision_function(x)))
        predicted = np.asarray(self.estimator.predict_proba(x))
        limit = math.sqrt(np.finfo(predicted.dtype).eps) if predicted.dtype.kind == "f" else 0.0
        probabilities = self._checked("predict_proba", predicted.astype(np.float64))
        # A classifier of one class, as in a fold that lacks the others, is always certain.
        scores = (
            logits_from_probabilities(probabilities) if probabilities.shape[1] > 1 else np.zeros_like(probabilities)
        )
        # Near 0, many classifiers have 1 - p with few digits or none; their decision values are exact there.
        saturated = np.flatnonzero((probabilities < limit).any(1))
        if len(saturated) and hasattr(self.estimator, "decision_function"):
            decision = _columns(self.estimator.decision_function(rows_of(x, saturated)))
            if decision.shape == (len(saturated), scores.shape[1]):
                exact = log_softmax(decision, axis=1)
                same = (np.abs(np.exp(exact) - probabilities[saturated]) < limit).all(1)
                scores[saturated[same]] = exact[same]
        return scores

    def logits(self, scores: Array, scale: float) -> Array:
        """Return finite logits with a column for every class, ``(N, C)``.

        Classes that the classifier was not trained on share a probability of :math:`1 / (n + 1)` for its n training
        samples: none of them was of such a class.
        """
        logits = scores / scale
        places = np.searchsorted(self.classes, self.estimator.classes_)
        absent = len(self.classes) - len(places)
        result = np.empty((len(logits), len(self.classes)))
        if absent:
            result[:] = logsumexp(logits, axis=1, keepdims=True) - math.log(self.samples * absent)
        result[:, places] = logits
        return result

    def _checked(self, method: str, values: Array) -> Array:
        expected = len(self.estimator.classes_)
        if values.ndim != 2 or values.shape[1] != expected:
            raise ValueError(
                f"{method} of {type(self.estimator).__name__} has shape {values.shape} for {expected} classes: "
                "use a classifier with one column for each class, for example decision_function_shape='ovr' of SVC"
            )
        return values


def scale_of(scorers: Sequence[Scorer], scores: Sequence[Array]) -> float:
    """Return what the scores of classifiers of one kind are divided by: 1 for log-probabilities."""
    if scorers[0].has_probabilities:
        return 1.0
    largest = max(float(np.abs(part).max()) for part in scores)
    return max(1.0, largest / LARGEST_DECISION)


@dataclass
class CalibratedModel:
    """A fitted classifier and the calibrator of its predictions.

    Args:
        scorer: The classifier.
        calibrator: Fitted on logits of samples that the classifier was not trained on.
        scale: What its scores are divided by.
    """

    scorer: Scorer
    calibrator: Calibrator
    scale: float

    @property
    def estimator(self) -> Any:
        """The fitted classifier."""
        return self.scorer.estimator

    def predict_proba(self, x: Any) -> Array:
        """Return calibrated probabilities, ``(N, C)``."""
        return self.calibrator.predict_proba(self.scorer.logits(self.scorer.scores(x), self.scale))


def _columns(decision: Any) -> Array:
    """Return decision values with a column for each of two classes too."""
    values = np.asarray(decision, dtype=np.float64)
    return np.stack((np.zeros_like(values), values), axis=1) if values.ndim == 1 else values
