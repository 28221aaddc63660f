"""Class-wise ECE: ECE of the probability of every class, not only of the predicted class."""

from typing import Unpack

import numpy as np

from calibrant.frames import Array
from calibrant.metrics.binned import Convention, ConventionName, bin_sums, rule_of
from calibrant.metrics.predictions import Given, Predictions, predictions


def classwise_ece(
    data: Predictions | None = None,
    /,
    *,
    bins: int | None = None,
    convention: ConventionName = "paper",
    **given: Unpack[Given],
) -> float:
    r"""Class-wise ECE: the mean over classes of the ECE of :math:`p_k` against :math:`1[y = k]`.

    With several labels per sample, the mean over labels of the ECE of :math:`p_k` against whether label k applies.

    Args:
        data: Checked predictions, in place of the keywords.
        bins: Number of bins; by default the convention's.
        convention: As in :func:`calibrant.metrics.ece`.
        **given: ``logits=`` or ``probabilities=``, ``(N, C)`` or binary, and ``target=``.

    See :func:`classwise_errors` for the value of each class.

    References:
        Kull, Perello-Nieto, Kängsepp, Silva Filho, Song, Flach, "Beyond temperature scaling", NeurIPS 2019.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.classwise_ece(probabilities=[[0.9, 0.1], [0.2, 0.8]], target=[0, 1]), 4)
        0.15
    """
    checked = predictions(data, name="class-wise ECE", **given)
    errors = classwise_errors(checked, bins=bins, convention=convention)
    return float(errors[_totals(checked) > 0].mean())


def classwise_errors(given: Predictions, *, bins: int | None = None, convention: ConventionName = "paper") -> Array:
    """ECE of each class against the rest, or of each label, ``(C,)``; 0 for a label that is ignored everywhere.

    Args:
        given: Checked predictions, of all classes.
        bins: Number of bins; by default the convention's.
        convention: As in :func:`calibrant.metrics.ece`.
    """
    rule, count = rule_of(convention, bins)
    gaps: Array = np.abs(classwise_gaps(given, rule, count)).sum(1)
    totals = _totals(given)
    return np.divide(gaps, totals, out=np.zeros_like(gaps), where=totals > 0)


def _totals(given: Predictions) -> Array:
    """Sum of the weights of the samples of each class, or of each label where it is not ignored, ``(C,)``."""
    probabilities, _ = given.of_classes("class-wise ECE")
    count = probabilities.shape[1]
    if given.task == "multi-label":
        return np.array([given.of_class(k).total for k in range(count)])
    return np.full(count, given.total)


def classwise_gaps(given: Predictions, rule: Convention, bins: int) -> Array:
    """Confidence minus right ones, summed over the samples of each class and bin: ``(classes, bins)``."""
    probabilities, target = given.of_classes("class-wise ECE")
    edges = rule.edges_like(probabilities, bins)
    rows = []
    for k in range(probabilities.shape[1]):
        if given.task == "multi-label":
            label = given.of_class(k)
            column, happened, weight = label.confidence, label.correct, label.weight
        else:
            column, happened, weight = np.ascontiguousarray(probabilities[:, k]), target == k, given.weight
        _, confidence, right = bin_sums(column, happened, edges, rule, weight)
        rows.append(confidence - right)
    return np.stack(rows)
