"""Parts of the Brier score and of the log loss: what recalibration would gain, and what is left after it."""

from typing import Literal, NamedTuple, Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics.predictions import ROWS, Confidence, Correct, Keywords, Predictions, predictions, views
from calibrant.metrics.proper import SMALLEST_PROBABILITY, brier_top, log_loss
from calibrant.metrics.ties import Block, Ties, sums_of

ProperScore = Literal["log_loss", "brier"]
NEWTON_STEPS = 50


class Decomposition(NamedTuple):
    """A proper score in parts: ``loss == calibration + refinement``; the latter is ``uncertainty - discrimination``.

    Attributes:
        loss: The score.
        calibration: What the best recalibration map would take off it; 0 or more.
        refinement: What is left after it: how well the model separates the outcomes.
        recalibration: The maps among which the best was chosen.
        uncertainty: The score of a model that always states the frequencies of the outcomes.
    """

    loss: float
    calibration: float
    refinement: float
    recalibration: str
    uncertainty: float

    @property
    def discrimination(self) -> float:
        """How much better the recalibrated model is than the frequencies of the outcomes, also called resolution."""
        return self.uncertainty - self.refinement


def decomposition(
    confidence: Confidence = None,
    correct: Correct = None,
    *,
    score: ProperScore = "log_loss",
    **keywords: Unpack[Keywords],
) -> Decomposition:
    """Split log loss or Brier score into calibration and refinement.

    The calibration part is what the best map of the probabilities would gain on these same samples. The maps are

    - all increasing maps of the probability (isotonic regression, as in CORP) for pairs, two classes and labels; and
      for the Brier score of several classes, which is the sum of those of each class against the rest;
    - all temperatures for the log loss of several classes, which is no such sum.

    As the map is chosen on the samples it is judged on, the calibration part of a calibrated model is slightly above 0
    (Dimitriadis, Gneiting, Jordan, PNAS 2021; Berta et al., "Rethinking Early Stopping", 2025).

    Args:
        score: ``"log_loss"``, in nats, or ``"brier"``; the Brier score is summed over classes, as
            :func:`calibrant.metrics.brier` does. Both are averaged over labels.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics
        >>> generator = np.random.default_rng(0)
        >>> risk = generator.uniform(0.1, 0.9, 10_000)
        >>> parts = metrics.decomposition(risk, generator.random(10_000) < risk + 0.08)
        >>> print(f"{parts.loss:.3f} = {parts.calibration:.3f} + {parts.refinement:.3f}, {parts.recalibration}")
        0.574 = 0.018 + 0.556, isotonic
    """
    inputs.check_choice("score", score, ("log_loss", "brier"))
    data = predictions(confidence, correct, **keywords)
    task = data.task
    if task == "multi-class" and score == "log_loss":
        return _by_temperature(data)
    judged = [view.pairs for view in views(data, most=data.classes or 1) if view.kind != "top label"]
    parts = np.array([_by_isotonic(pairs, score) for pairs in judged])
    loss, refinement, uncertainty = parts.mean(0).tolist()
    if task in ("binary", "multi-class") and score == "brier":
        # Of two classes only one is a view; the other has the same parts.
        loss, refinement, uncertainty = (part * (data.classes or 1) for part in (loss, refinement, uncertainty))
    if task == "binary" and score == "log_loss":
        loss = log_loss(data)  # from logits it is exact, where a probability rounds to 1
        refinement = min(loss, refinement)
    maps = "isotonic" if len(judged) == 1 else "isotonic, each class"
    return Decomposition(loss, loss - refinement, refinement, maps, uncertainty)


def top_label_parts(data: Predictions) -> Decomposition:
    """Parts of :func:`calibrant.metrics.brier_top`."""
    loss, refinement, uncertainty = _by_isotonic(data, "brier")
    return Decomposition(loss, loss - refinement, refinement, "isotonic", uncertainty)


def brier_miscalibration(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    """Miscalibration (MCB) of the top label: how much the best increasing map lowers :func:`brier_top`."""
    return predictions(confidence, correct, **keywords).once(top_label_parts).calibration


def brier_discrimination(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    """Discrimination (DSC) of the top label: how well confidence separates right from wrong."""
    return predictions(confidence, correct, **keywords).once(top_label_parts).discrimination


def brier_uncertainty(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    """Uncertainty (UNC) of the top label: the Brier score of a confidence that always equals the accuracy."""
    return predictions(confidence, correct, **keywords).once(top_label_parts).uncertainty


def _by_isotonic(pairs: Predictions, score: ProperScore) -> tuple[float, float, float]:
    """The score of pairs; of the increasing map of them that has the lowest; and of the rate of outcomes."""

    def mean(p: Array, samples: Array, right: Array) -> float:
        if score == "brier":
            each = right * (1 - p) ** 2 + (samples - right) * p**2
        else:
            floored, rest = np.maximum(p, SMALLEST_PROBABILITY), np.maximum(1 - p, SMALLEST_PROBABILITY)
            each = -right * np.log(floored) - (samples - right) * np.log(rest)
        return float(each.sum() / samples.sum())

    loss = brier_top(pairs) if score == "brier" else mean(*pairs.ties)
    samples, right = sums_of(pairs, IsotonicPools).pooled()
    refinement = min(mean(right / samples, samples, right), loss)
    return loss, refinement, mean(np.full(len(right), right.sum() / samples.sum()), samples, right)


def _by_temperature(data: Predictions) -> Decomposition:
    """Parts of the log loss, by its minimum over temperatures: Newton's method in the inverse, a convex problem."""
    probabilities, target = data.of_classes("the log loss")
    logits = data.logits if data.logits is not None else np.log(np.maximum(probabilities, SMALLEST_PROBABILITY))
    weight = data.counts

    def at(inverse: float) -> tuple[float, float, float]:
        value = slope = curve = 0.0
        for start in range(0, len(target), ROWS):
            rows = slice(start, start + ROWS)
            block = logits[rows].astype(np.float64)
            block -= block.max(1, keepdims=True)
            share, of_target = weight[rows], block[np.arange(len(block)), target[rows]]
            with np.errstate(under="ignore"):
                powers = np.exp(inverse * block)
            totals = powers.sum(1)
            mean = (powers * block).sum(1) / totals
            value += float(share @ (np.log(totals) - inverse * of_target))
            slope += float(share @ (mean - of_target))
            curve += float(share @ ((powers * block**2).sum(1) / totals - mean**2))
        return value / weight.sum(), slope / weight.sum(), curve / weight.sum()

    low, high, inverse = 0.0, np.inf, 1.0
    loss, slope, curve = at(inverse)
    best = loss
    for _ in range(NEWTON_STEPS):
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        new = inverse - slope / curve if curve > 0 else np.nan
        if not low < new < high:
            new = (low + high) / 2 if high < np.inf else 2 * inverse
        if abs(new - inverse) <= 1e-9 * inverse:
            break
        inverse = float(new)
        value, slope, curve = at(inverse)
        best = min(best, value)
    shares = np.bincount(target, weight) / weight.sum()
    entropy = -float((shares * np.log(np.maximum(shares, SMALLEST_PROBABILITY))).sum())
    return Decomposition(loss, loss - best, best, "temperature", entropy)


class IsotonicPools:
    """Ties pooled until accuracy rises with confidence.

    Pools of the whole are made of pools of its parts: blocks are pooled one by one, and then their few pools together.
    """

    def __init__(self, _: Predictions) -> None:
        self.pools: list[tuple[Array, Array]] = []

    def add(self, ties: Block) -> None:
        """Add the next block."""
        self.pools.append(_pool(ties))

    def pooled(self) -> tuple[Array, Array]:
        """Number of samples and of right ones in each pool, in ascending order."""
        samples, right = (np.concatenate(field) for field in zip(*self.pools, strict=True))
        return _pool(Ties(right, samples, right))


def _pool(ties: Ties) -> tuple[Array, Array]:
    from scipy.optimize import isotonic_regression

    starts = isotonic_regression(ties.right / ties.samples, weights=ties.samples).blocks[:-1]
    return np.add.reduceat(ties.samples, starts), np.add.reduceat(ties.right, starts)
