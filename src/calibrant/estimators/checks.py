"""Checks of parameters, labels and weights that both estimators need."""

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from calibrant.posthoc import METHODS, Calibrator

Array = npt.NDArray[Any]
DEFAULT_METHOD = "auto"


def new_calibrator(method: str | Calibrator) -> Calibrator:
    """Return a calibrator to fit: one of the named method, or a copy of the given one."""
    if isinstance(method, Calibrator):
        return copy.deepcopy(method)
    if not isinstance(method, str) or method not in METHODS:
        hint = ': did you mean "platt"?' if isinstance(method, str) and method == "sigmoid" else ""
        raise ValueError(
            f"method must be a calibrator of calibrant.posthoc or one of {', '.join(METHODS)}, got {method!r}{hint}"
        )
    return METHODS[method]()


def checked_labels(y: Any) -> Array:
    """Return labels as an array ``(N,)``; raise ``ValueError`` unless they are of at least two classes."""
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
    """Return weights as an array ``(N,)`` in float64, or None."""
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


def as_copies(weights: Array | None) -> Array | None:
    """Return weights for a calibrator, which takes a sample of weight 2 for two samples.

    Weights with a mean below 1, without zeros, cannot be numbers of copies, as if they sum to 1: they are divided by
    their mean, so that a prior does not outweigh the samples. Others are kept: whole weights equal repeated samples.
    """
    if weights is None:
        return None
    mean = float(weights[weights > 0].mean())
    return weights / mean if mean < 1 else weights


def fit_calibrator(
    calibrator: Calibrator, logits: Array, labels: Array, weights: Array | None, classes: Array
) -> Calibrator:
    """Fit a calibrator on ``(N, C)`` logits and labels among ``classes``, one for each column."""
    # Labels that are indices of columns are the calibrator's default.
    indices = classes.dtype.kind in "iu" and np.array_equal(classes, np.arange(len(classes)))
    return calibrator.fit(
        logits, labels, sample_weight=weights, ignore_index=None, classes=None if indices else classes.tolist()
    )
