"""Statistics that an audit needs besides the metrics: average errors, losses of samples, and gaps of classes.

A weight of 2 is the sample twice, as in metrics and intervals.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from calibrant import metrics
from calibrant.frames import Array, IndexArray, Marks
from calibrant.inputs import IGNORED
from calibrant.metrics import confidence_interval
from calibrant.metrics.binned import ConventionName, ece
from calibrant.metrics.evaluate import Score, Scores
from calibrant.metrics.intervals import Interval
from calibrant.metrics.predictions import Predictions, View, name_of, views
from calibrant.metrics.proper import SMALLEST_PROBABILITY, log_losses
from calibrant.metrics.registry import METRICS

# Two-sided 95 % of a normal distribution, in standard errors.
ERRORS = 1.959964
# Smallest gap that is mentioned, as a share: it is shown in points with two decimals.
LEAST_GAP = 0.00005
# Largest number of classes in a table or a figure; the worst classes are the interesting ones.
MOST_ROWS = 20
LOSS_NAMES = {"log_loss": "Log loss", "brier": "Brier score"}
# Scores of the top label, even where the risk of class 1 is judged.
OF_TOP_LABEL = ("accuracy", "mean_confidence", "aurc")
# Conventions of scores that name the accuracy, which is the share of class 1 if its risk is judged.
OF_RISK = {"brier_uncertainty": "share (1 - share)"}


def scores_of(given: Predictions, bins: int | None = None, convention: ConventionName = "paper") -> Scores:
    """All scores; of two classes, those of pairs are scores of the probability of class 1."""
    scores = metrics.evaluate(given, bins=bins, convention=convention)
    if given.task != "binary":
        return scores
    (view,) = views(given)
    risk = replace(given, confidence=view.pairs.confidence, correct=view.pairs.correct)
    of_risk = metrics.evaluate(risk, bins=bins, convention=convention)

    def entry(one: Score, other: Score) -> Score:
        of_top_label = one.key in OF_TOP_LABEL or METRICS[one.key].of_classes
        return one if of_top_label else score_of_risk(other, given.names)

    return Scores(scores.samples, scores.classes, tuple(map(entry, scores, of_risk)))


def score_of_risk(score: Score, names: tuple[str, ...] | None) -> Score:
    """A score of pairs, named as one of the probability of the second of two classes."""
    stated = f"P({names[1]})" if names else "P(y = 1)"
    convention = f"{stated}; {OF_RISK.get(score.key, score.convention)}"
    if score.key == "gap":
        convention = f"mean {stated} - its share"
    return replace(score, convention=convention, label=f"Brier, {stated}" if score.key == "brier_top" else score.label)


class Factor(NamedTuple):
    """Mean stated probability over the share that came true, with its 95 % interval."""

    value: float
    low: float
    high: float


class AverageError(NamedTuple):
    """The average error of a view.

    Attributes:
        gap: Mean probability minus the share that came true, with its 95 % interval.
        factor: Their ratio, if all probabilities times one number fit better than all plus one number; else None.
    """

    gap: Interval
    factor: Factor | None

    @property
    def significant(self) -> bool:
        """Whether the gap is more than chance explains."""
        return abs(self.gap.value) >= LEAST_GAP and not self.gap.low <= 0 <= self.gap.high

    def __str__(self) -> str:
        if self.factor is None:
            return amount_of(self.gap)
        ratios = list(self.factor)
        if self.gap.value < 0:
            ratios = [1 / ratio for ratio in (self.factor.value, self.factor.high, self.factor.low)]
        return "by a factor of {:.2f} (95 % interval {:.2f} to {:.2f})".format(*ratios)


def amount_of(gap: Interval) -> str:
    """The size of a gap in points, with its interval."""
    low, high = (gap.low, gap.high) if gap.value > 0 else (-gap.high, -gap.low)
    points = f"{100 * abs(gap.value):.2f} points on average"
    return f"by {points} (95 % interval {100 * low:z.2f} to {100 * high:z.2f})"


def average_error(view: View) -> AverageError:
    """The average error of a view, as points or as a factor."""
    gap = confidence_interval(view.pairs, metric="gap")
    return AverageError(gap, better_factor(view.pairs) if view.of_event else None)


def better_factor(pairs: Predictions) -> Factor | None:
    """The ratio of stated to observed, if it describes the error better than a difference does.

    Both descriptions match the mean: stated minus the gap, and stated over the ratio. The one with the lower squared
    error is better; the ratio only if it is so by more than one standard error.
    """
    p, event = pairs.confidence.astype(np.float64), pairs.correct.astype(np.float64)
    weight = weights_of(pairs)
    stated, came, total = float(weight @ p), float(weight @ event), float(weight.sum())
    if stated == 0 or came == 0:
        return None
    ratio = stated / came
    shifted, scaled = event - p + (stated - came) / total, event - p / ratio
    better = shifted**2 - scaled**2
    mean = float(weight @ better) / total
    if mean <= math.sqrt(float(weight @ (better - mean) ** 2)) / total:
        return None
    error = math.sqrt(float(weight @ scaled**2)) / came
    return Factor(ratio, ratio * math.exp(-ERRORS * error), ratio * math.exp(ERRORS * error))


def weights_of(pairs: Predictions) -> Array:
    """Weight of each pair; ones if there are none."""
    return np.ones(len(pairs)) if pairs.weight is None else pairs.weight


def largest_gap_by_chance(pairs: Predictions) -> float:
    """The average gap that a calibrated model exceeds in 5 % of data sets."""
    confidence = pairs.confidence.astype(np.float64)
    return ERRORS * math.sqrt(float(weights_of(pairs) @ (confidence * (1 - confidence)))) / pairs.total


def wilson_interval(right: Array, samples: Array) -> tuple[Array, Array]:
    """95 % interval of a share, from counts.

    Example:
        >>> low, high = wilson_interval(np.array([10.0]), np.array([10.0]))
        >>> round(float(low[0]), 3), float(high[0])
        (0.722, 1.0)
    """
    share, square = right / samples, ERRORS**2 / samples
    centre = (share + square / 2) / (1 + square)
    half = np.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return np.clip(centre - half, 0, share), np.clip(centre + half, share, 1)


def floor_note(given: Predictions) -> str:
    """What is counted in place of p = 0, if that happened; else empty."""
    largest = float(log_losses(given).max())
    return f"p = 0 counts as {SMALLEST_PROBABILITY:.1e}" if largest > -0.999 * math.log(SMALLEST_PROBABILITY) else ""


def mean_and_error(given: Predictions, losses: Array) -> tuple[float, float]:
    """Mean of a loss over samples, or over all known labels, and its standard error; samples are independent."""
    weight = np.ones(given.samples) if given.sample_weight is None else given.sample_weight
    count = np.ones(given.samples)
    if given.task == "multi-label" and given.target is not None:
        known = given.target != IGNORED
        count, each = known.sum(1), np.zeros(known.shape)
        each[known] = losses
        losses = each.sum(1) / np.maximum(count, 1)
    share = count / float(weight @ count)
    mean = float((weight * share) @ losses)
    return mean, math.sqrt(float(weight @ (share * (losses - mean)) ** 2))


def mean_interval(metric: str, given: Predictions, losses: Array) -> Interval:
    """95 % interval of a mean loss, with the jackknife's standard error."""
    mean, error = mean_and_error(given, losses)
    count = given.samples if given.sample_weight is None else float(given.sample_weight.sum())
    reach = ERRORS * error * math.sqrt(count / max(count - 1, 1))
    return Interval(metric, mean, max(mean - reach, 0.0), mean + reach, 0.95, "jackknife")


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
    predictions: Predictions, *, bins: int | None = None, convention: ConventionName = "paper"
) -> list[ClassRow]:
    """The 20 classes or labels with the largest gaps, the largest first, without labels that are ignored everywhere.

    A label counts as predicted if its probability is above one half. Bins and convention are those of class-wise ECE.

    Example:
        >>> from calibrant import metrics
        >>> given = metrics.predictions(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], target=[0, 1, 1])
        >>> [(row.name, row.samples, round(row.gap.value, 2), row.recall, row.precision) for row in class_rows(given)]
        [('0', 1, 0.27, 1.0, 0.5), ('1', 2, -0.27, 0.5, 1.0)]
    """
    probabilities, target = predictions.of_classes("the breakdown by class")
    weight = predictions.sample_weight
    gaps, known = _gaps(probabilities, target, np.ones(len(target)) if weight is None else weight)
    top = None
    if predictions.task != "multi-label":
        top = (probabilities if predictions.logits is None else predictions.logits).argmax(1)
    rows = []
    for k in [int(k) for k in np.argsort(-np.abs(gaps), kind="stable") if known[k]][:MOST_ROWS]:
        pairs = predictions.of_class(k)
        predicted = pairs.confidence > 0.5 if top is None else top == k
        weight = weights_of(pairs)
        right = float(weight @ (predicted & pairs.correct))
        share, probability = (
            float(weight @ each / weight.sum()) for each in (pairs.correct, pairs.confidence.astype(np.float64))
        )
        rows.append(ClassRow(
            k, name_of(predictions, k), int(pairs.correct.sum()), share, probability,
            confidence_interval(pairs, metric="gap"), _ratio(right, float(weight @ pairs.correct)),
            _ratio(right, float(weight @ predicted)), ece(pairs, bins=bins, convention=convention),
        ))  # fmt: skip
    return rows


def _gaps(probabilities: Array, target: IndexArray, weight: Array) -> tuple[Array, Marks]:
    """Mean probability minus share of each class, by which they are sorted, and which classes have any target."""
    if target.ndim == 2:
        known = (target != IGNORED) * weight[:, np.newaxis]
        totals = np.maximum(known.sum(0), np.finfo(np.float64).tiny)
        return (known * (probabilities - (target == 1))).sum(0) / totals, (target != IGNORED).any(0)
    came = np.bincount(target, weights=weight, minlength=probabilities.shape[1])
    return (weight @ probabilities - came) / weight.sum(), np.ones(len(came), bool)


def _ratio(part: float, total: float) -> float:
    return part / total if total > 0 else float("nan")
