"""Accuracy, mean confidence and gap; log loss, Brier score and their parts; the risk-coverage curve."""

from typing import Literal, NamedTuple, Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array, IndexArray, Marks
from calibrant.inputs import IGNORED
from calibrant.metrics.predictions import Confidence, Correct, Keywords, Predictions, predictions, row_blocks, views
from calibrant.metrics.ties import Block, DrawsMetric, Ties, sums_of
from calibrant.metrics.unbinned import CumulativeSums

ProperScore = Literal["log_loss", "brier"]
# This far from any sensible temperature, the log loss is that of its limit.
FAR = 1e12
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


def gap_of_draws(_: Predictions) -> DrawsMetric:
    """Signed gap of many draws."""
    return lambda ties: -ties.residual.sum(-1) / ties.samples.sum(-1)


def log_loss(data: Predictions | None = None, /, **keywords: Unpack[Keywords]) -> float:
    """Log loss (NLL): the mean negative log-likelihood of the target, in nats; of several labels, over all labels.

    From logits it is exact. A probability of 0, which a saved softmax may have by rounding, counts as 1.2e-38 in every
    dtype, the smallest normal number of float32, so that one sample does not make the mean infinite.
    """
    checked = predictions(data, **keywords)
    checked.of_classes("log loss")
    return mean_of(log_losses(checked), checked)


def log_losses(data: Predictions) -> Array:
    """Negative log-likelihood of the target of each sample; of each pair, if only these are known, or of each label."""
    if data.logits is not None and data.target is not None:
        if data.task != "multi-label":
            return _losses_of_logits(data.logits, data.target)
        logits = data.logits[data.target != IGNORED].astype(np.float64)
        with np.errstate(under="ignore"):
            losses: Array = np.logaddexp(0, np.where(data.correct, -logits, logits))
        return losses
    if data.probabilities is None or data.target is None or data.task == "multi-label":
        chance = np.where(data.correct, data.confidence, 1 - data.confidence)
    else:
        chance = data.probabilities[np.arange(len(data.target)), data.target]
    return -np.log(np.maximum(chance, SMALLEST_PROBABILITY), dtype=np.float64)


def _losses_of_logits(logits: Array, target: IndexArray, temperature: float = 1.0) -> Array:
    losses = np.empty(len(target))
    for rows in row_blocks(len(target)):
        block = logits[rows].astype(np.float64) / temperature
        largest = block.max(1)
        with np.errstate(over="ignore", under="ignore"):  # the exponential of a large negative logit is 0
            loss = np.log(np.exp(block - largest[:, np.newaxis]).sum(1))
        loss += largest - block[np.arange(len(block)), target[rows]]
        losses[rows] = loss
    return losses


def brier(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    r"""Brier score (1950): mean :math:`(c - z)^2` of pairs, or mean :math:`\sum_k (p_k - y_k)^2` if classes are known.

    With several labels per sample, it is the mean of :math:`(p_k - y_k)^2` over all labels.
    """
    data = predictions(confidence, correct, **keywords)
    return mean_of(brier_losses(data), data)


def brier_losses(data: Predictions) -> Array:
    """Brier score of each sample, summed over classes; of each pair, if only these are known, or of each label."""
    if data.probabilities is None or data.target is None or data.task == "multi-label":
        squares: Array = (data.confidence.astype(np.float64) - data.correct) ** 2
        return squares
    scores = np.empty(len(data.target))
    for rows in row_blocks(len(data.target)):
        block = data.probabilities[rows].astype(np.float64)
        block[np.arange(len(block)), data.target[rows]] -= 1
        scores[rows] = np.square(block, out=block).sum(1)
    return scores


def brier_top(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    """Brier score of the top label: mean :math:`(c - z)^2`, even if all classes are known."""
    data = predictions(confidence, correct, **keywords)
    return sums_of(data, CumulativeSums).squares / data.total


def aurc(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    """Area under the risk-coverage curve: the error rate among the k most confident, averaged over k = 1..N.

    Errors of tied samples are spread evenly among them (Geifman, Uziel, El-Yaniv, ICLR 2019).
    """
    data = predictions(confidence, correct, **keywords)
    return sums_of(data, RiskCoverage).area / data.total


class RiskCoverage:
    """The error rates of the k most confident samples, summed over k, from ties in ascending order."""

    # With K samples and E errors above a group of n samples with error rate r, it adds
    # (E + r) / (K + 1) + ... + (E + n r) / (K + n) = n r + (E - K r) (1 / (K + 1) + ... + 1 / (K + n)).

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
        samples = float(ties.samples.sum())
        self.area += float(wrong.sum())
        wrong *= above
        wrong /= ties.samples
        self.area += float(np.einsum("i,i->", errors - wrong, harmonic))
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


class Decomposition(NamedTuple):
    """A proper score in parts: ``loss == calibration + refinement``; the latter is ``uncertainty - discrimination``.

    Attributes:
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

    The calibration part is what the best map of the probabilities would gain on these same samples, so that of a
    calibrated model is slightly above 0 (Dimitriadis, Gneiting, Jordan, PNAS 2021; Berta et al., "Rethinking Early
    Stopping", 2025). The maps are all increasing ones of a probability (isotonic regression, as in CORP); for the log
    loss of several classes, all temperatures.

    Args:
        score: ``"log_loss"`` or ``"brier"``, as the functions of these names define them.

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
    if score == "log_loss":
        loss = mean_of(log_losses(data), data)
        if data.task == "multi-class":
            refinement = min(_lowest_over_temperatures(data), loss)
            _, target = data.of_classes("the log loss")
            shares = np.bincount(target, data.weight) / data.total
            entropy = -float((shares * np.log(np.maximum(shares, SMALLEST_PROBABILITY))).sum())
            return Decomposition(loss, loss - refinement, refinement, "temperature", entropy)
    else:
        loss = mean_of(brier_losses(data), data)
    judged = [view.pairs for view in views(data, most=data.classes or 1) if view.kind != "top label"]
    known = [pairs for pairs in judged if pairs.total > 0]  # a label may be ignored everywhere
    parts = [_by_isotonic(pairs, score) for pairs in known]
    refinement, uncertainty = np.average(parts, axis=0, weights=[pairs.total for pairs in known]).tolist()
    if score == "brier" and data.classes is not None and data.task != "multi-label":
        # Summed over classes. Of two only one is a view; the other has the same parts.
        refinement, uncertainty = refinement * data.classes, uncertainty * data.classes
    refinement = min(refinement, loss)
    maps = "isotonic" if len(judged) == 1 else "isotonic, each class"
    return Decomposition(loss, loss - refinement, refinement, maps, uncertainty)


def top_label_parts(data: Predictions) -> Decomposition:
    """Parts of :func:`brier_top`."""
    loss = brier_top(data)
    refinement, uncertainty = _by_isotonic(data, "brier")
    refinement = min(refinement, loss)
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


def _by_isotonic(pairs: Predictions, score: ProperScore) -> tuple[float, float]:
    """The score of the increasing map of pairs that has the lowest, and of the rate of outcomes."""

    def mean(p: Array, samples: Array, right: Array) -> float:
        if score == "brier":
            each = right * (1 - p) ** 2 + (samples - right) * p**2
        else:
            floored, rest = np.maximum(p, SMALLEST_PROBABILITY), np.maximum(1 - p, SMALLEST_PROBABILITY)
            each = -right * np.log(floored) - (samples - right) * np.log(rest)
        return float(each.sum() / samples.sum())

    samples, right = sums_of(pairs, IsotonicPools).pooled()
    rate = np.full(len(right), right.sum() / samples.sum())
    return mean(right / samples, samples, right), mean(rate, samples, right)


def _lowest_over_temperatures(data: Predictions) -> float:
    from calibrant.posthoc.scaling import TemperatureError, best_temperature

    probabilities, target = data.of_classes("the log loss")
    logits = np.log(np.maximum(probabilities, SMALLEST_PROBABILITY)) if data.logits is None else data.logits
    try:
        temperatures = [best_temperature(logits, target, data.weight)]
    except TemperatureError as error:  # the best is 0 or infinite
        temperatures = [error.bounded / FAR, error.bounded * FAR]
    return min(mean_of(_losses_of_logits(logits, target, each), data) for each in temperatures)


class IsotonicPools:
    """Ties pooled until accuracy rises with confidence: in each block, and then the few pools of all blocks."""

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
