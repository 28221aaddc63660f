"""Parts of the Brier score without bins: miscalibration, discrimination and uncertainty, by isotonic regression."""

from typing import NamedTuple, Unpack

import numpy as np

from calibrant.frames import Array
from calibrant.metrics import notebook
from calibrant.metrics.passes import part_of
from calibrant.metrics.predictions import Given, Predictions, Values, predictions
from calibrant.metrics.proper import brier_top
from calibrant.metrics.sorting import Block


@notebook.shown
class Corp(NamedTuple):
    """The Brier score of pairs without bins: ``brier == miscalibration - discrimination + uncertainty``."""

    brier: float
    miscalibration: float
    discrimination: float
    uncertainty: float


def corp_decomposition(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> Corp:
    """Decompose the Brier score of pairs by isotonic regression: what the best monotone recalibration would gain.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    References:
        Dimitriadis, Gneiting, Jordan, "Stable reliability diagrams for probabilistic classifiers", PNAS 2021.

    Example:
        >>> from calibrant import metrics
        >>> parts = metrics.corp_decomposition([0.9, 0.8, 0.6, 0.95], [1, 0, 0, 1])
        >>> round(parts.discrimination, 4)
        0.25
    """
    data = predictions(confidence, correct, name="the CORP decomposition", **given)
    n = data.total
    samples, right = part_of(data, IsotonicPools).pooled()
    fitted, overall = right / samples, right.sum() / n
    uncertainty = float(overall * (1 - overall))
    recalibrated = float((right * (1 - fitted)).sum() / n)
    score = brier_top(data)
    return Corp(score, score - recalibrated, uncertainty - recalibrated, uncertainty)


def brier_miscalibration(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> float:
    """Miscalibration (MCB) of :func:`corp_decomposition`: how much the best monotone map lowers the Brier score.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.brier_miscalibration([0.9, 0.8, 0.6, 0.95], [1, 0, 0, 1]), 4)
        0.2531
    """
    return corp_decomposition(confidence, correct, **given).miscalibration


def brier_discrimination(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> float:
    """Discrimination (DSC) of :func:`corp_decomposition`: how well confidence separates right from wrong.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.
    """
    return corp_decomposition(confidence, correct, **given).discrimination


def brier_uncertainty(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> float:
    """Uncertainty (UNC) of :func:`corp_decomposition`: the Brier score of a confidence equal to the accuracy.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.
    """
    return corp_decomposition(confidence, correct, **given).uncertainty


class IsotonicPools:
    """Tie groups pooled until accuracy rises with confidence.

    Pools of the whole are made of pools of its parts: blocks are pooled one by one, and then their few pools together.
    """

    def __init__(self, _: Predictions) -> None:
        self.pools: list[tuple[Array, Array]] = []

    def add(self, groups: Block) -> None:
        """Add the next block of groups."""
        self.pools.append(_pool(groups.samples, groups.right))

    def pooled(self) -> tuple[Array, Array]:
        """Number of samples and of right ones in each pool, in ascending order."""
        samples, right = (np.concatenate(field) for field in zip(*self.pools, strict=True))
        return _pool(samples, right)


def _pool(samples: Array, right: Array) -> tuple[Array, Array]:
    from scipy.optimize import isotonic_regression

    starts = isotonic_regression(right / samples, weights=samples).blocks[:-1]
    return np.add.reduceat(samples, starts), np.add.reduceat(right, starts)
