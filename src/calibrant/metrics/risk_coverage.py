"""The area under the risk-coverage curve (AURC): the error rate among the most confident samples."""

from typing import Unpack

import numpy as np

from calibrant.frames import Array
from calibrant.metrics.passes import part_of
from calibrant.metrics.predictions import Given, Predictions, Values, predictions
from calibrant.metrics.proper import came_true
from calibrant.metrics.sorting import Block


def aurc(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> float:
    r"""Area under the risk-coverage curve: the error rate among the k most confident, averaged over k = 1..N.

    Within a tie group the order is unknown, so its errors are spread evenly: the expectation over random orders.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    References:
        Geifman, Uziel, El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers", ICLR 2019.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.aurc([0.9, 0.8, 0.6, 0.5], [1, 0, 1, 1]), 4)
        0.2708
    """
    data = predictions(confidence, correct, name="AURC", **given)
    return part_of(data, RiskCoverage).area / data.total


class RiskCoverage:
    """The error rates of the k most confident samples, summed over k, from groups in ascending order.

    With K samples and E errors above a group of n samples with error rate r, it adds
    (E + r) / (K + 1) + ... + (E + n r) / (K + n) = n r + (E - K r) (1 / (K + 1) + ... + 1 / (K + n)).
    """

    def __init__(self, data: Predictions) -> None:
        self.above = data.total
        self.errors = data.total * (1 - came_true(data))
        self.area = 0.0

    def add(self, groups: Block) -> None:
        """Add the next block of groups."""
        wrong = groups.samples - groups.right
        errors = self.errors - wrong.cumsum()
        # Sums of weights may miss 0 by rounding.
        above = np.maximum(self.above - groups.samples - groups.below, 0)
        harmonic = 1 / (above + 1)
        several = np.flatnonzero(groups.samples != 1)
        if len(several):
            harmonic[several] = _harmonic(above[several], groups.samples[several])
        wrong *= above
        wrong /= groups.samples
        samples, _, right = groups.sums
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
