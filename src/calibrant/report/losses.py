"""Losses of single samples, whose mean has an interval."""

import math

import numpy as np

from calibrant.frames import Array, Marks
from calibrant.inputs import IGNORED
from calibrant.metrics import Interval
from calibrant.metrics.predictions import ROWS, Predictions
from calibrant.metrics.proper import SMALLEST_PROBABILITY
from calibrant.metrics.views import sample_weight
from calibrant.report.chance import ERRORS


def log_losses(given: Predictions) -> Array:
    """Log loss of each sample, ``(N,)``: of its class, of the pair, or the mean over its labels."""
    if given.probabilities is None or given.target is None:
        return _of_events(given.confidence, given.correct)
    if given.target.ndim == 2:
        return _over_labels(_of_events(given.probabilities, given.target == 1), given.target)
    rows = np.arange(len(given.target))
    if given.logits is None:
        of_target = given.probabilities[rows, given.target]
        return -np.log(np.maximum(of_target, SMALLEST_PROBABILITY), dtype=np.float64)
    found = np.empty(len(rows))
    for start in range(0, len(rows), ROWS):
        block = given.logits[start : start + ROWS].astype(np.float64)
        block -= block.max(1, keepdims=True)
        with np.errstate(under="ignore"):
            totals = np.log(np.exp(block).sum(1))
        found[start : start + ROWS] = totals - block[np.arange(len(block)), given.target[start : start + ROWS]]
    return found


def floor_note(given: Predictions) -> str:
    """What is counted in place of p = 0, if that happened; else empty."""
    largest = float(log_losses(given).max())
    return f"p = 0 counts as {SMALLEST_PROBABILITY:.1e}" if largest > -0.999 * math.log(SMALLEST_PROBABILITY) else ""


def brier_losses(given: Predictions) -> Array:
    """Brier score of each sample: summed over classes, or the mean over labels."""
    if given.probabilities is None or given.target is None:
        return (given.confidence.astype(np.float64) - given.correct) ** 2
    p = given.probabilities.astype(np.float64)
    if given.target.ndim == 2:
        return _over_labels((p - given.target) ** 2, given.target)
    p[np.arange(len(p)), given.target] -= 1
    total: Array = np.square(p, out=p).sum(1)
    return total


def loss_weight(given: Predictions) -> Array | None:
    """Weight of each sample in a mean loss: of labels, times the number of those that are known."""
    weight = sample_weight(given)
    if given.task != "multi-label" or given.target is None:
        return weight
    known: Array = (given.target != IGNORED).sum(1).astype(np.float64)
    return known if weight is None else weight * known


def mean_interval(metric: str, losses: Array, weight: Array | None) -> Interval:
    """95 % interval of a mean, with the jackknife's standard error."""
    share = np.ones(len(losses)) if weight is None else weight
    share = share / share.sum()
    mean = float(share @ losses)
    count = len(losses)
    error = math.sqrt(float(share**2 @ (losses - mean) ** 2) * count / max(count - 1, 1))
    return Interval(metric, mean, max(mean - ERRORS * error, 0.0), mean + ERRORS * error, 0.95, "jackknife")


def _over_labels(losses: Array, target: Marks) -> Array:
    """Mean over the labels that are known; 0 if none is."""
    known = target != IGNORED
    means: Array = np.where(known, losses, 0).sum(1) / np.maximum(known.sum(1), 1)
    return means


def _of_events(probability: Array, event: Marks) -> Array:
    floor = SMALLEST_PROBABILITY
    # In float64 one minus a float32 is exact.
    p = probability.astype(np.float64)
    return -np.log(np.maximum(np.where(event, p, 1 - p), floor))
