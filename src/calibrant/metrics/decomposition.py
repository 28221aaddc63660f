"""Parts of the Brier score and of the log loss: what recalibration would gain, and what is left after it."""

from typing import Literal, NamedTuple, Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics.binned import ConventionName, equal_width_bins
from calibrant.metrics.predictions import ROWS, Confidence, Correct, Given, Predictions, predictions, views
from calibrant.metrics.proper import SMALLEST_PROBABILITY, brier_top, log_loss
from calibrant.metrics.ties import Block, Ties, sums_of

ProperScore = Literal["log_loss", "brier"]
NEWTON_STEPS = 50


class BrierDecomposition(NamedTuple):
    r"""The Brier score of pairs: ``brier == miscalibration - discrimination + uncertainty + within_bins``.

    Attributes:
        brier: The score.
        miscalibration: What recalibration would take off it, also called reliability.
        discrimination: How well confidence separates right from wrong, also called resolution.
        uncertainty: The score of a confidence that always equals the accuracy.
        within_bins: Variance of the confidence within bins, minus twice its covariance with correctness, which the
            classical identity of three terms leaves out; 0 without bins.
    """

    brier: float
    miscalibration: float
    discrimination: float
    uncertainty: float
    within_bins: float


def brier_decomposition(
    confidence: Confidence = None,
    correct: Correct = None,
    *,
    bins: int | None = None,
    convention: ConventionName | None = None,
    **given: Unpack[Given],
) -> BrierDecomposition:
    """Decompose the Brier score of pairs, exactly.

    By default without bins (CORP): the confidences are recalibrated by isotonic regression, the best increasing map.
    With ``bins`` or ``convention``, by the accuracy of each bin of equal width.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        bins: Number of bins; by default the convention's.
        convention: As in :func:`calibrant.metrics.ece`.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    References:
        Dimitriadis, Gneiting, Jordan, "Stable reliability diagrams for probabilistic classifiers", PNAS 2021; with
        bins: Murphy, "A new vector partition of the probability score", 1973; Stephenson, Coelho, Jolliffe, "Two extra
        components in the Brier score decomposition", 2008.

    Example:
        >>> from calibrant import metrics
        >>> parts = metrics.brier_decomposition([0.9, 0.8, 0.6, 0.95], [1, 0, 0, 1])
        >>> round(parts.miscalibration, 4), round(parts.discrimination, 4), parts.uncertainty
        (0.2531, 0.25, 0.25)
    """
    data = predictions(confidence, correct, name="the Brier decomposition", **given)
    score = brier_top(data)
    if bins is None and convention is None:
        samples, right = sums_of(data, IsotonicPools).pooled()
        fitted, uncertainty = right / samples, _uncertainty(right.sum() / data.total)
        recalibrated = float((right * (1 - fitted)).sum() / data.total)
        return BrierDecomposition(score, score - recalibrated, uncertainty - recalibrated, uncertainty, 0.0)
    table = equal_width_bins(data, bins=bins, convention=convention or "paper")
    samples, confidences, right = (column[table.samples > 0] for column in table[2:])
    overall = right.sum() / data.total
    miscalibration = float(((confidences - right) ** 2 / samples).sum() / data.total)
    discrimination = float((samples * (right / samples - overall) ** 2).sum() / data.total)
    uncertainty = _uncertainty(overall)
    rest = score - miscalibration + discrimination - uncertainty
    return BrierDecomposition(score, miscalibration, discrimination, uncertainty, rest)


def _uncertainty(rate: float) -> float:
    return float(rate * (1 - rate))


def brier_miscalibration(confidence: Confidence = None, correct: Correct = None, **given: Unpack[Given]) -> float:
    """Miscalibration (MCB) of :func:`brier_decomposition`: how much the best monotone map lowers the Brier score.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.brier_miscalibration([0.9, 0.8, 0.6, 0.95], [1, 0, 0, 1]), 4)
        0.2531
    """
    return brier_decomposition(confidence, correct, **given).miscalibration


def brier_discrimination(confidence: Confidence = None, correct: Correct = None, **given: Unpack[Given]) -> float:
    """Discrimination (DSC) of :func:`brier_decomposition`: how well confidence separates right from wrong.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.
    """
    return brier_decomposition(confidence, correct, **given).discrimination


def brier_uncertainty(confidence: Confidence = None, correct: Correct = None, **given: Unpack[Given]) -> float:
    """Uncertainty (UNC) of :func:`brier_decomposition`: the Brier score of a confidence equal to the accuracy.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.
    """
    return brier_decomposition(confidence, correct, **given).uncertainty


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


class Decomposition(NamedTuple):
    """A proper score as the sum of two parts: ``loss == calibration + refinement``.

    Attributes:
        loss: The score.
        calibration: What the best recalibration map would take off it; 0 or more.
        refinement: What is left after it: how well the model separates the outcomes.
        recalibration: The maps among which the best was chosen.
    """

    loss: float
    calibration: float
    refinement: float
    recalibration: str


def decomposition(
    confidence: Confidence = None,
    correct: Correct = None,
    *,
    score: ProperScore = "log_loss",
    **given: Unpack[Given],
) -> Decomposition:
    """Split log loss or Brier score into calibration and refinement.

    The calibration part is what the best map of the probabilities would gain on these same samples. The maps are

    - all increasing maps of the probability (isotonic regression, as in CORP) for pairs, two classes and labels; and
      for the Brier score of several classes, which is the sum of those of each class against the rest;
    - all temperatures for the log loss of several classes, which is no such sum.

    As the map is chosen on the samples it is judged on, the calibration part of a calibrated model is slightly above 0.

    Args:
        confidence: Probability of the event, or confidence in the prediction, ``(N,)``.
        correct: 1 or True where it came true, ``(N,)``.
        score: ``"log_loss"``, in nats, or ``"brier"``; the Brier score is summed over classes, as
            :func:`calibrant.metrics.brier` does. Both are averaged over labels.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of the pairs.

    References:
        Dimitriadis, Gneiting, Jordan, "Stable reliability diagrams for probabilistic classifiers", PNAS 2021; Berta,
        Holzmüller, Jordan, Bach, "Rethinking Early Stopping: Refine, Then Calibrate", 2025.

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
    data = predictions(confidence, correct, name="the decomposition", **given)
    task = data.task
    if task == "multi-class" and score == "log_loss":
        loss, refinement = _by_temperature(data)
        return Decomposition(loss, loss - refinement, refinement, "temperature")
    judged = [view.pairs for view in views(data, most=data.classes or 1) if view.kind != "top label"]
    parts = np.array([_by_isotonic(pairs, score) for pairs in judged])
    loss, refinement = parts.mean(0).tolist()
    if task in ("binary", "multi-class") and score == "brier":
        # Of two classes only one is a view; the other has the same parts.
        loss, refinement = (part * (data.classes or 1) for part in (loss, refinement))
    if task == "binary" and score == "log_loss":
        loss = log_loss(data)  # from logits it is exact, where a probability rounds to 1
        refinement = min(loss, refinement)
    return Decomposition(
        loss, loss - refinement, refinement, "isotonic" if len(judged) == 1 else "isotonic, each class"
    )


def _by_isotonic(pairs: Predictions, score: ProperScore) -> tuple[float, float]:
    """The score of pairs, and of the increasing map of them that has the lowest."""
    z, samples, right = pairs.ties

    def mean(p: Array, samples: Array, right: Array) -> float:
        if score == "brier":
            each = right * (1 - p) ** 2 + (samples - right) * p**2
        else:
            floored, rest = np.maximum(p, SMALLEST_PROBABILITY), np.maximum(1 - p, SMALLEST_PROBABILITY)
            each = -right * np.log(floored) - (samples - right) * np.log(rest)
        return float(each.sum() / samples.sum())

    loss, (samples, right) = mean(z, samples, right), sums_of(pairs, IsotonicPools).pooled()
    return loss, min(mean(right / samples, samples, right), loss)


def _by_temperature(data: Predictions) -> tuple[float, float]:
    """The log loss, and its minimum over temperatures: Newton's method in the inverse temperature, a convex problem."""
    probabilities, target = data.of_classes("the log loss")
    logits = data.logits if data.logits is not None else np.log(np.maximum(probabilities, SMALLEST_PROBABILITY))
    weight = np.ones(len(target)) if data.weight is None else data.weight

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
    return loss, best
