"""Statistics that an audit needs besides the metrics: scores of risks, factors, mean losses, and gaps of classes."""

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
from calibrant.metrics.registry import METRICS

# Two-sided 95 % of a normal distribution, in standard errors.
ERRORS = 1.959964
# Largest number of classes in a table or a figure; the worst classes are the interesting ones.
MOST_ROWS = 20
# Scores of the top label, even where the risk of class 1 is judged.
OF_TOP_LABEL = ("accuracy", "mean_confidence", "aurc")
# Conventions of scores that name the accuracy, which is the share of class 1 if its risk is judged.
OF_RISK = {"gap": "mean - share", "brier_uncertainty": "share (1 - share)"}


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
    return replace(score, convention=convention, name=f"Brier, {stated}" if score.key == "brier_top" else "")


def excludes_zero(gap: Interval) -> bool:
    """Whether a gap is more than chance explains."""
    return not gap.low <= 0 <= gap.high


def factor_of(view: View) -> Interval | None:
    """The mean probability over the share that came true, or the reverse, if it describes the error of an event best.

    Two descriptions match the mean: stated minus the gap, and stated divided by the ratio. The one with the lower
    squared error is better; the ratio only if it is so by more than one standard error.
    """
    pairs = view.pairs
    p, event = pairs.confidence.astype(np.float64), pairs.correct.astype(np.float64)
    weight = weights_of(pairs)
    stated, came, total = float(weight @ p), float(weight @ event), float(weight.sum())
    if not view.of_event or stated == 0 or came == 0:
        return None
    shifted, scaled = event - p + (stated - came) / total, event - p * came / stated
    better = shifted**2 - scaled**2
    mean = float(weight @ better) / total
    if mean <= math.sqrt(float(weight @ (better - mean) ** 2)) / total:
        return None
    size = abs(math.log(stated / came))
    reach = ERRORS * math.sqrt(float(weight @ scaled**2)) / came
    return Interval("factor", math.exp(size), math.exp(size - reach), math.exp(size + reach), 0.95, "normal")


def weights_of(pairs: Predictions) -> Array:
    """Weight of each pair; ones if there are none."""
    return np.ones(len(pairs)) if pairs.weight is None else pairs.weight


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
        name: Its name; its index if it has none.
        samples: Number of samples of this class.
        share: Their share of all samples, by weight.
        probability: Mean probability of this class over all samples; near ``share`` if the model is calibrated.
        gap: ``probability`` minus ``share``, with its 95 % interval.
        recall: Share of its samples that are predicted as this class; NaN if there are none.
        precision: Share of the predictions of this class that are right; NaN if there are none.
        error: Class-wise ECE.
    """

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

    A label counts as predicted if its probability is above one half.

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
    worst_first = [int(k) for k in np.argsort(-np.abs(gaps), kind="stable") if known[k]]
    rows = []
    for k in worst_first[:MOST_ROWS]:
        pairs = predictions.of_class(k)
        predicted = pairs.confidence > 0.5 if top is None else top == k
        weight = weights_of(pairs)
        right, came = float(weight @ (predicted & pairs.correct)), float(weight @ pairs.correct)
        rows.append(ClassRow(
            name_of(predictions, k),
            int(pairs.correct.sum()),
            _ratio(came, pairs.total),
            _ratio(float(weight @ pairs.confidence.astype(np.float64)), pairs.total),
            confidence_interval(pairs, metric="gap"),
            recall=_ratio(right, came),
            precision=_ratio(right, float(weight @ predicted)),
            error=ece(pairs, bins=bins, convention=convention),
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
