"""The effect of a temperature on samples it was not fitted on, or why there is none."""

import numpy as np

from calibrant import metrics
from calibrant.arrays import Array, IndexArray, Marks
from calibrant.metrics.predictions import Predictions
from calibrant.posthoc import TemperatureScaling, logits_from_probabilities
from calibrant.report.chance import chance_accuracy

ALL_RIGHT = "every prediction is right"


def cross_fitted(predictions: Predictions, seed: int) -> tuple[float, Predictions]:
    """The temperature of all samples, and each half scaled by the temperature of the other half.

    Raises ``ValueError`` with the reason if one of the three cannot be fitted.
    """
    if predictions.probabilities is None or predictions.target is None:
        raise ValueError("a temperature needs logits or probabilities, but only confidences were given")
    given, target, correct = predictions.logits, predictions.target, predictions.correct
    logits = logits_from_probabilities(predictions.probabilities) if given is None else given
    try:
        temperature = _fitted(logits, target, correct)
    except ValueError as error:
        raise ValueError(f"no temperature can be fitted, as {error}") from None
    order = np.random.default_rng(seed).permutation(len(target))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    scaled = np.empty_like(logits)
    try:
        for fit, apply in (halves, halves[::-1]):
            scaled[apply] = logits[apply] / _fitted(logits[fit], target[fit], correct[fit])
        return temperature, metrics.predictions(logits=scaled, target=target)
    except ValueError as error:
        if str(error) == ALL_RIGHT:
            wrong = len(correct) - int(correct.sum())
            few = "1 prediction is" if wrong == 1 else f"{wrong:,} predictions are"
            raise ValueError(f"only {few} wrong, too few to check a temperature on halves") from None
        raise ValueError(f"no temperature can be checked on halves, as in one of them {_clause(error)}") from None


def is_saturated(predictions: Predictions) -> bool:
    """Whether most confidences are exactly 1, without logits to tell them apart."""
    return predictions.logits is None and float((predictions.confidence == 1).mean()) > 0.5


def _fitted(logits: Array, target: IndexArray, correct: Marks) -> float:
    try:
        return TemperatureScaling(strict=True).fit(logits, target).temperature_
    except ValueError as error:
        raise ValueError(_reason(logits, target, correct) or _clause(error)) from None


def _reason(logits: Array, target: IndexArray, correct: Marks) -> str:
    """Why the NLL has no minimum at a finite temperature above 0; empty if that is not the problem."""
    if correct.all():
        return ALL_RIGHT
    with np.errstate(all="ignore"):
        # Their mean is the slope of the NLL in 1/T at T = infinity: if not negative, finite temperatures are worse.
        slopes = logits.mean(1, dtype=np.float64) - logits[np.arange(len(target)), target]
        second, first = np.partition(logits, -2, axis=1)[:, -2:].T
        margins = first - second
    # The fit sums in another order: a slope of 0 may be slightly negative here.
    if not slopes.mean() >= -1e-9 * np.abs(slopes).mean():
        return ""
    if correct.mean() <= chance_accuracy(*logits.shape):
        return "predictions are no better than chance"
    if margins[~correct].mean() > margins[correct].mean():
        return "the model is most confident where it is wrong (the best one is infinite)"
    return "the true classes' logits are no higher than the others' on average (the best one is infinite)"


def _clause(error: ValueError) -> str:
    """A message without the advice after its colon, which is meant for direct callers of the fit."""
    return str(error).split(":")[0]
