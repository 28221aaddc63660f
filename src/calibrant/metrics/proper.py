"""Accuracy, mean confidence and the signed gap; the proper scores, log loss and Brier; the risk-coverage curve."""

from typing import Unpack

import numpy as np

from calibrant.frames import Array, Marks
from calibrant.inputs import IGNORED
from calibrant.metrics.cumulative import CumulativeSums, RowStatistic
from calibrant.metrics.predictions import ROWS, Confidence, Correct, Keywords, Predictions, predictions
from calibrant.metrics.ties import Block, sums_of

# What a probability of 0 counts as: the smallest normal number of float32.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)


def accuracy(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    """Share of samples that are right; of several labels, share of all labels that are right at a threshold of 0.5."""
    data = predictions(confidence, correct, **keywords)
    return mean_of(decided_right(data), data)


def decided_right(data: Predictions) -> Marks:
    """Where a prediction is right; of several labels, where the label is what the probability says at 0.5."""
    if data.task != "multi-label":
        return data.correct
    right: Marks = (data.confidence > 0.5) == data.correct
    return right


def came_true(data: Predictions) -> float:
    """Share of pairs that came true: of right predictions, or of labels that apply."""
    return mean_of(data.correct, data)


def mean_of(each: Array | Marks, data: Predictions) -> float:
    """The mean of one number per pair or sample, by weight."""
    return float(each.mean(dtype=np.float64) if data.weight is None else data.weight @ each / data.total)


def mean_confidence(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    """Mean confidence in the prediction."""
    data = predictions(confidence, correct, **keywords)
    return mean_of(data.confidence, data)


def gap(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    """Signed calibration gap, mean confidence minus accuracy: above 0 is over-confident, below 0 under-confident."""
    data = predictions(confidence, correct, **keywords)
    return mean_confidence(data) - came_true(data)


def gap_rows(given: Predictions) -> RowStatistic:
    """Signed gap of each row of residuals."""

    def value(residual: Array) -> Array:
        total: Array = residual.sum(1)
        return -total / given.total

    return value


def log_loss(data: Predictions | None = None, /, **keywords: Unpack[Keywords]) -> float:
    """Log loss (NLL): the mean negative log-likelihood of the target, in nats; of several labels, over all labels.

    From logits it is exact. A probability of 0, which a saved softmax may have by rounding, counts as 1.2e-38, the
    smallest normal number of float32, in every dtype: one sample does not make the mean infinite, and a file has one
    value, whatever its precision.
    """
    checked = predictions(data, **keywords)
    checked.of_classes("log loss")
    return mean_of(log_losses(checked), checked)


def log_losses(data: Predictions) -> Array:
    """Negative log-likelihood of the target of each sample; of each pair, if only these are known, or of each label."""
    if data.probabilities is None or data.target is None or data.task == "multi-label":
        return _pair_losses(data)
    if data.logits is None:
        of_target = data.probabilities[np.arange(len(data.target)), data.target]
        return -np.log(np.maximum(of_target, SMALLEST_PROBABILITY), dtype=np.float64)
    losses = np.empty(len(data.target))
    for start in range(0, len(data.target), ROWS):
        block = data.logits[start : start + ROWS].astype(np.float64)
        largest = block.max(1)
        with np.errstate(over="ignore", under="ignore"):  # the exponential of a large negative logit is 0
            loss = np.log(np.exp(block - largest[:, np.newaxis]).sum(1))
        loss += largest - block[np.arange(len(block)), data.target[start : start + ROWS]]
        losses[start : start + ROWS] = loss
    return losses


def _pair_losses(data: Predictions) -> Array:
    if data.logits is None or data.target is None:
        of_truth = np.where(data.correct, data.confidence, 1 - data.confidence)
        chances: Array = np.log(np.maximum(of_truth, SMALLEST_PROBABILITY), dtype=np.float64)
        return -chances
    logits = data.logits[data.target != IGNORED].astype(np.float64)
    signed: Array = np.where(data.correct, logits, -logits)
    with np.errstate(under="ignore"):
        return np.logaddexp(0, -signed)


def brier(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    r"""Brier score (1950): mean :math:`(c - z)^2` of pairs, or mean :math:`\sum_k (p_k - y_k)^2` if classes are known.

    With several labels per sample, it is the mean of :math:`(p_k - y_k)^2` over all labels. It lies in [0, 1], or in
    [0, 2] if classes are known.
    """
    data = predictions(confidence, correct, **keywords)
    if data.probabilities is None or data.task == "multi-label":
        return brier_top(data)
    return mean_of(brier_losses(data), data)


def brier_losses(data: Predictions) -> Array:
    """Brier score of each sample, summed over classes; of each pair, if only these are known, or of each label."""
    if data.probabilities is None or data.target is None or data.task == "multi-label":
        squares: Array = (data.confidence.astype(np.float64) - data.correct) ** 2
        return squares
    scores = np.empty(len(data.target))
    for start in range(0, len(data.target), ROWS):
        block = data.probabilities[start : start + ROWS].astype(np.float64)
        block[np.arange(len(block)), data.target[start : start + ROWS]] -= 1
        scores[start : start + ROWS] = np.square(block, out=block).sum(1)
    return scores


def brier_top(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    """Brier score of the top label: mean :math:`(c - z)^2`, even if all classes are known."""
    data = predictions(confidence, correct, **keywords)
    return sums_of(data, CumulativeSums).squares / data.total


def aurc(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    r"""Area under the risk-coverage curve: the error rate among the k most confident, averaged over k = 1..N.

    Within a tie group the order is unknown, so its errors are spread evenly: the expectation over random orders
    (Geifman, Uziel, El-Yaniv, ICLR 2019).
    """
    data = predictions(confidence, correct, **keywords)
    return sums_of(data, RiskCoverage).area / data.total


class RiskCoverage:
    """The error rates of the k most confident samples, summed over k, from ties in ascending order.

    With K samples and E errors above a group of n samples with error rate r, it adds
    (E + r) / (K + 1) + ... + (E + n r) / (K + n) = n r + (E - K r) (1 / (K + 1) + ... + 1 / (K + n)).
    """

    def __init__(self, data: Predictions) -> None:
        self.above = data.total
        self.errors = data.total * (1 - came_true(data))
        self.area = 0.0

    def add(self, ties: Block) -> None:
        """Add the next block of ties."""
        wrong = ties.samples - ties.right
        errors = self.errors - wrong.cumsum()
        # Sums of weights may miss 0 by rounding.
        above = np.maximum(self.above - ties.samples - ties.below, 0)
        harmonic = 1 / (above + 1)
        several = np.flatnonzero(ties.samples != 1)
        if len(several):
            harmonic[several] = _harmonic(above[several], ties.samples[several])
        wrong *= above
        wrong /= ties.samples
        samples, _, right = ties.sums
        self.area += samples - right + float(np.einsum("i,i->", errors - wrong, harmonic))
        self.above -= samples
        self.errors = float(errors[-1])


def _harmonic(above: Array, samples: Array) -> Array:
    """1 / (K + 1) + ... + 1 / (K + n), also for numbers that are not whole: a difference of digamma functions."""
    from scipy.special import digamma

    # Around the middle of the terms, where odd powers cancel; the digamma functions of large numbers would lose digits.
    middle = above + (samples + 1) / 2
    inverse, squared = middle**-2.0, samples**2
    found = samples / middle * (1 + (squared - 1) * inverse / 12 * (1 + (3 * squared - 7) * inverse / 20))
    far = (middle < 128) | (100 * samples > middle)
    found[far] = digamma(above[far] + samples[far] + 1) - digamma(above[far] + 1)
    return found
