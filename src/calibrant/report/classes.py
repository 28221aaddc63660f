"""The breakdown of a report by class."""

from typing import NamedTuple

import numpy as np

from calibrant.metrics.binned import ConventionName
from calibrant.metrics.classwise import classwise_errors
from calibrant.metrics.predictions import Predictions

# Largest number of rows; the worst classes are the interesting ones.
MOST_ROWS = 20


class ClassRow(NamedTuple):
    """Scores of one class.

    Attributes:
        label: Index of the class.
        samples: Number of samples of this class.
        share: Their share of all samples.
        probability: Mean probability of this class over all samples; near ``share`` if the model is calibrated.
        recall: Share of its samples that are predicted as this class; NaN if there are none.
        predicted: Number of predictions of this class.
        precision: Share of these predictions that are right; NaN if there are none.
        confidence: Their mean confidence; NaN if there are none.
        error: Class-wise ECE.
    """

    label: int
    samples: int
    share: float
    probability: float
    recall: float
    predicted: int
    precision: float
    confidence: float
    error: float


def class_rows(
    predictions: Predictions,
    *,
    bins: int | None = None,
    convention: ConventionName = "paper",
    most: int | None = MOST_ROWS,
) -> list[ClassRow]:
    """All classes, the one with the largest class-wise ECE first.

    Args:
        predictions: Predictions of all classes.
        bins: Number of bins of class-wise ECE; by default the convention's.
        convention: Convention of class-wise ECE.
        most: Keep only this many of the worst; None keeps all.

    Example:
        >>> from calibrant import metrics
        >>> given = metrics.predictions(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], target=[0, 1, 1])
        >>> [(row.label, row.samples, row.recall, row.precision) for row in class_rows(given)]
        [(0, 1, 1.0, 0.5), (1, 2, 0.5, 1.0)]
    """
    probabilities, target = predictions.of_classes("the breakdown by class")
    count = probabilities.shape[1]
    errors = classwise_errors(predictions, bins=bins, convention=convention)
    means = probabilities.mean(0, dtype=np.float64)
    predicted = (probabilities if predictions.logits is None else predictions.logits).argmax(1)
    samples = np.bincount(target, minlength=count)
    times = np.bincount(predicted, minlength=count)
    right = np.bincount(target, weights=predictions.correct, minlength=count)
    sure = np.bincount(predicted, weights=predictions.confidence, minlength=count)
    with np.errstate(invalid="ignore"):
        recall, precision, confidence = right / samples, right / times, sure / times
    order = np.argsort(-errors, kind="stable")[:most]
    return [
        ClassRow(
            label=int(k),
            samples=int(samples[k]),
            share=float(samples[k] / len(target)),
            probability=float(means[k]),
            recall=float(recall[k]),
            predicted=int(times[k]),
            precision=float(precision[k]),
            confidence=float(confidence[k]),
            error=float(errors[k]),
        )
        for k in order
    ]
