"""Parts of log loss and Brier score that a reader can add up: calibration and refinement."""

from typing import Literal, NamedTuple, Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics import notebook
from calibrant.metrics.predictions import ROWS, Given, Predictions, Values, predictions
from calibrant.metrics.proper import SMALLEST_PROBABILITY, nll
from calibrant.metrics.views import views

ProperScore = Literal["log_loss", "brier"]
STEPS = 50


@notebook.shown
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
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
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
        loss = nll(data)  # from logits it is exact, where a probability rounds to 1
        refinement = min(loss, refinement)
    return Decomposition(
        loss, loss - refinement, refinement, "isotonic" if len(judged) == 1 else "isotonic, each class"
    )


def _by_isotonic(pairs: Predictions, score: ProperScore) -> tuple[float, float]:
    """The score of pairs, and of the increasing map of them that has the lowest."""
    from scipy.optimize import isotonic_regression

    order = np.argsort(pairs.confidence, kind="stable")
    z, event = pairs.confidence[order].astype(np.float64), pairs.correct[order].astype(np.float64)
    weight = np.ones(len(z)) if pairs.weight is None else pairs.weight[order]
    first = np.flatnonzero(np.concatenate(([True], z[1:] != z[:-1])))
    mass, came = np.add.reduceat(weight, first), np.add.reduceat(weight * event, first)
    z, mass, came = z[first][mass > 0], mass[mass > 0], came[mass > 0]
    fitted: Array = np.clip(isotonic_regression(came / mass, weights=mass).x, 0, 1)
    floor = float(SMALLEST_PROBABILITY)

    def mean(p: Array) -> float:
        if score == "brier":
            each = came * (1 - p) ** 2 + (mass - came) * p**2
        else:
            each = -came * np.log(np.maximum(p, floor)) - (mass - came) * np.log(np.maximum(1 - p, floor))
        return float(each.sum() / mass.sum())

    loss = mean(z)
    return loss, min(mean(fitted), loss)


def _by_temperature(data: Predictions) -> tuple[float, float]:
    """The log loss, and its minimum over temperatures: Newton's method in the inverse temperature, a convex problem."""
    probabilities, target = data.of_classes("the log loss")
    floor = float(SMALLEST_PROBABILITY)
    logits = data.logits if data.logits is not None else np.log(np.maximum(probabilities, floor))
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
    for _ in range(STEPS):
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
