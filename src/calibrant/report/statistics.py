"""Statistics that an audit needs besides the metrics: scores of risks, factors, and intervals of mean losses."""

import math
from dataclasses import replace

import numpy as np

from calibrant import metrics
from calibrant.frames import Array
from calibrant.inputs import IGNORED
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.evaluate import Score, Scores
from calibrant.metrics.intervals import Interval
from calibrant.metrics.predictions import Predictions, View, views
from calibrant.metrics.registry import METRICS

# Two-sided 95 % of a normal distribution, in standard errors.
ERRORS = 1.959964
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
    return replace(score, convention=convention, label=f"Brier, {stated}" if score.key == "brier_top" else score.label)


def excludes_zero(gap: Interval) -> bool:
    """Whether a gap is more than chance explains."""
    return not gap.low <= 0 <= gap.high


def factor_of(view: View) -> Interval | None:
    """The mean probability over the share that came true, or the reverse, if it describes an event's error best."""
    # Two descriptions match the mean: stated minus the gap, and stated divided by the ratio. The one with the lower
    # squared error is better; the ratio only if it is so by more than one standard error.
    pairs = view.pairs
    p, event = pairs.confidence.astype(np.float64), pairs.correct.astype(np.float64)
    weight = pairs.counts
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
