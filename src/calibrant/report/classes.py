"""The breakdown of a report by class or label."""

from typing import NamedTuple

import numpy as np

from calibrant.frames import Array, IndexArray, Marks
from calibrant.inputs import IGNORED
from calibrant.metrics import Interval, confidence_interval
from calibrant.metrics.binned import ConventionName, ece
from calibrant.metrics.predictions import Predictions
from calibrant.metrics.views import name_of, sample_weight

# Largest number of rows; the worst classes are the interesting ones.
MOST_ROWS = 20


class ClassRow(NamedTuple):
    """Scores of one class, or of one label.

    Attributes:
        place: Index of the class.
        name: Its name; its index if it has none.
        samples: Number of samples of this class.
        share: Their share of all samples, by weight.
        probability: Mean probability of this class over all samples; near ``share`` if the model is calibrated.
        gap: ``probability`` minus ``share``, with its 95 % interval.
        recall: Share of its samples that are predicted as this class; NaN if there are none.
        precision: Share of the predictions of this class that are right; NaN if there are none.
        error: Class-wise ECE.
    """

    place: int
    name: str
    samples: int
    share: float
    probability: float
    gap: Interval
    recall: float
    precision: float
    error: float


def class_rows(
    predictions: Predictions,
    *,
    bins: int | None = None,
    convention: ConventionName = "paper",
    most: int | None = MOST_ROWS,
) -> list[ClassRow]:
    """All classes or labels, the one with the largest gap first; a label that is ignored everywhere is left out.

    A label counts as predicted if its probability is above one half.

    Args:
        predictions: Predictions of all classes.
        bins: Number of bins of class-wise ECE; by default the convention's.
        convention: Convention of class-wise ECE.
        most: Keep only this many of the worst; None keeps all.

    Example:
        >>> from calibrant import metrics
        >>> given = metrics.predictions(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], target=[0, 1, 1])
        >>> [(row.name, row.samples, round(row.gap.value, 2), row.recall, row.precision) for row in class_rows(given)]
        [('0', 1, 0.27, 1.0, 0.5), ('1', 2, -0.27, 0.5, 1.0)]
    """
    probabilities, target = predictions.of_classes("the breakdown by class")
    labels = predictions.task == "multi-label"
    weight = sample_weight(predictions)
    weight = np.ones(len(target)) if weight is None else weight
    gaps = _gaps(probabilities, target, weight)
    known = (target != IGNORED).any(0) if labels else np.full(len(gaps), fill_value=True)
    top = None if labels else (probabilities if predictions.logits is None else predictions.logits).argmax(1)
    order = [int(k) for k in np.argsort(-np.abs(gaps), kind="stable") if known[k]][:most]
    rows = []
    for k in order:
        pairs = predictions.of_class(k)
        said = pairs.confidence > 0.5 if top is None else top == k
        mass = np.ones(len(pairs)) if pairs.weight is None else pairs.weight
        gap = confidence_interval(pairs, metric="gap")
        rows.append(
            ClassRow(
                place=k,
                name=name_of(predictions, k),
                samples=int(pairs.correct.sum()),
                share=float(mass @ pairs.correct / mass.sum()),
                probability=float(mass @ pairs.confidence.astype(np.float64) / mass.sum()),
                gap=gap,
                recall=_share(said & pairs.correct, pairs.correct, mass),
                precision=_share(said & pairs.correct, said, mass),
                error=ece(pairs, bins=bins, convention=convention),
            )
        )
    return rows


def _gaps(probabilities: Array, target: IndexArray, weight: Array) -> Array:
    """Mean probability minus share of each class, by which they are sorted."""
    if target.ndim == 2:
        known = (target != IGNORED) * weight[:, np.newaxis]
        totals = np.maximum(known.sum(0), np.finfo(np.float64).tiny)
        found: Array = (known * (probabilities - (target == 1))).sum(0) / totals
        return found
    stated = weight @ probabilities
    came = np.bincount(target, weights=weight, minlength=probabilities.shape[1])
    gaps: Array = (stated - came) / weight.sum()
    return gaps


def _share(part: Marks, whole: Marks, weight: Array) -> float:
    total = float(weight @ whole)
    return float(weight @ part) / total if total > 0 else float("nan")
