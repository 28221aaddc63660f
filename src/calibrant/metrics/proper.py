"""Proper scores, NLL and Brier with its parts by bins; accuracy, mean confidence and the signed gap."""

from typing import NamedTuple, Unpack

import numpy as np

from calibrant.frames import Array, Marks
from calibrant.inputs import IGNORED
from calibrant.metrics import notebook
from calibrant.metrics.binned import ConventionName, equal_width_bins
from calibrant.metrics.cumulative import CumulativeSums
from calibrant.metrics.passes import part_of
from calibrant.metrics.predictions import ROWS, Given, Predictions, Values, predictions

# What a probability of 0 counts as: the smallest normal number of float32.
SMALLEST_PROBABILITY = np.finfo(np.float32).tiny


def accuracy(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> float:
    """Share of samples that are right; of several labels, share of all labels that are right at a threshold of 0.5.

    Example:
        >>> from calibrant import metrics
        >>> metrics.accuracy([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0])
        0.5
        >>> metrics.accuracy(probabilities=[[0.9, 0.2], [0.4, 0.1]], target=[[1, 0], [1, 0]])
        0.75
    """
    data = predictions(confidence, correct, name="accuracy", **given)
    return _share(data, decided_right(data))


def decided_right(data: Predictions) -> Marks:
    """Where a prediction is right; of several labels, where the label is what the probability says at 0.5."""
    if data.task != "multi-label":
        return data.correct
    right: Marks = (data.confidence > 0.5) == data.correct
    return right


def came_true(data: Predictions) -> float:
    """Share of pairs that came true: of right predictions, or of labels that apply."""
    return _share(data, data.correct)


def _share(data: Predictions, marks: Marks) -> float:
    return float(marks.mean() if data.weight is None else data.weight @ marks / data.total)


def mean_confidence(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> float:
    """Mean confidence in the prediction.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.mean_confidence([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]), 4)
        0.8
    """
    data = predictions(confidence, correct, name="the mean confidence", **given)
    if data.weight is not None:
        return float(data.weight @ data.confidence.astype(np.float64) / data.total)
    return float(data.confidence.mean(dtype=np.float64))


def gap(confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]) -> float:
    """Signed calibration gap, mean confidence minus accuracy: above 0 is over-confident, below 0 under-confident.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.gap([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]), 4)
        0.3
    """
    data = predictions(confidence, correct, name="the gap", **given)
    return mean_confidence(data) - came_true(data)


def nll(data: Predictions | None = None, /, **given: Unpack[Given]) -> float:
    """Mean negative log-likelihood of the target, in nats; with several labels per sample, the mean over all labels.

    From logits it is exact. A probability of 0, which a saved softmax may have by rounding, counts as 1.2e-38, the
    smallest normal number of float32, in every dtype: one sample does not make the mean infinite, and a file has one
    value, whatever its precision.

    Args:
        data: Checked predictions, in place of the keywords.
        **given: ``logits=`` or ``probabilities=``, ``(N, C)`` or binary, and ``target=``.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.nll(probabilities=[[0.5, 0.5], [0.25, 0.75]], target=[0, 1]), 4)
        0.4904
    """
    checked = predictions(data, name="NLL", **given)
    probabilities, target = checked.of_classes("NLL")
    if checked.task == "multi-label":
        return _mean(_label_losses(checked), checked)
    if checked.logits is None:
        of_target = probabilities[np.arange(len(target)), target]
        return _mean(-np.log(np.maximum(of_target, SMALLEST_PROBABILITY), dtype=np.float64), checked)
    losses = np.empty(len(target))
    for start in range(0, len(target), ROWS):
        block = checked.logits[start : start + ROWS].astype(np.float64)
        largest = block.max(1)
        with np.errstate(over="ignore", under="ignore"):  # the exponential of a large negative logit is 0
            loss = np.log(np.exp(block - largest[:, np.newaxis]).sum(1))
        loss += largest - block[np.arange(len(block)), target[start : start + ROWS]]
        losses[start : start + ROWS] = loss
    return _mean(losses, checked)


def _mean(each: Array, data: Predictions) -> float:
    """The mean of one number per sample, by weight."""
    return float(each.mean() if data.weight is None else data.weight @ each / data.total)


def _label_losses(data: Predictions) -> Array:
    """Negative log-likelihood of each pair of a label's probability and whether it applies."""
    if data.logits is None or data.target is None:
        of_truth = np.where(data.correct, data.confidence, 1 - data.confidence)
        chances: Array = np.log(np.maximum(of_truth, SMALLEST_PROBABILITY), dtype=np.float64)
        return -chances
    logits = data.logits[data.target != IGNORED].astype(np.float64)
    signed: Array = np.where(data.correct, logits, -logits)
    with np.errstate(under="ignore"):
        return np.logaddexp(0, -signed)


def brier(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> float:
    r"""Brier score: mean :math:`(c - z)^2` of pairs, or mean :math:`\sum_k (p_k - y_k)^2` if classes are known.

    With several labels per sample, it is the mean of :math:`(p_k - y_k)^2` over all labels.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        **given: ``logits=`` or ``probabilities=`` with ``target=``: then all classes count, and the score lies in
            [0, 2].

    References:
        Brier, "Verification of forecasts expressed in terms of probability", 1950.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.brier([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]), 4)
        0.405
        >>> round(metrics.brier(probabilities=[[0.9, 0.1], [0.2, 0.8]], target=[0, 1]), 4)
        0.05
    """
    data = predictions(confidence, correct, name="Brier", **given)
    if data.probabilities is None or data.task == "multi-label":
        return brier_top(data)
    probabilities, target = data.of_classes("Brier")
    scores = np.empty(len(target))
    for start in range(0, len(target), ROWS):
        block = probabilities[start : start + ROWS].astype(np.float64)
        block[np.arange(len(block)), target[start : start + ROWS]] -= 1
        scores[start : start + ROWS] = np.square(block, out=block).sum(1)
    return _mean(scores, data)


def brier_top(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> float:
    """Brier score of the top label: mean :math:`(c - z)^2`, even if all classes are known.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.brier_top(probabilities=[[0.9, 0.1], [0.2, 0.8]], target=[0, 1]), 4)
        0.025
    """
    data = predictions(confidence, correct, name="Brier", **given)
    return part_of(data, CumulativeSums).squares / data.total


@notebook.shown
class BrierDecomposition(NamedTuple):
    r"""The Brier score of pairs as an exact sum over bins.

    ``brier == reliability - resolution + uncertainty + within_variance - 2 * within_covariance``: the last two are
    the variance of the confidence, and its covariance with correctness, within bins, which the classical identity
    of three terms leaves out.
    """

    brier: float
    reliability: float
    resolution: float
    uncertainty: float
    within_variance: float
    within_covariance: float


def brier_decomposition(
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
    bins: int | None = None,
    convention: ConventionName = "paper",
    **given: Unpack[Given],
) -> BrierDecomposition:
    """Decompose the Brier score of pairs over bins of equal width, exactly.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        bins: Number of bins; by default the convention's.
        convention: As in :func:`calibrant.metrics.ece`.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    References:
        Murphy, "A new vector partition of the probability score", 1973; Stephenson, Coelho, Jolliffe, "Two extra
        components in the Brier score decomposition", 2008.

    Example:
        >>> from calibrant import metrics
        >>> parts = metrics.brier_decomposition([0.91, 0.8, 0.6, 0.93], [1, 0, 1, 0])
        >>> round(parts.uncertainty, 4), round(parts.within_covariance, 4)
        (0.25, -0.0025)
    """
    data = predictions(confidence, correct, name="the Brier decomposition", **given)
    n = data.total
    table = equal_width_bins(data, bins=bins, convention=convention)
    z, samples, right = data.groups
    occupied = table.samples > 0
    count, total, hits = table.samples[occupied], table.confidence[occupied], table.right[occupied]
    overall = hits.sum() / n
    # Sums of products within bins are those of all samples minus those between bins.
    return BrierDecomposition(
        brier=brier_top(data),
        reliability=float(((total - hits) ** 2 / count).sum() / n),
        resolution=float((count * (hits / count - overall) ** 2).sum() / n),
        uncertainty=float(overall * (1 - overall)),
        within_variance=float(((samples * z) @ z - (total**2 / count).sum()) / n),
        within_covariance=float((right @ z - (total * hits / count).sum()) / n),
    )
