"""The effect of recalibration on samples it was not fitted on, with the method that does best."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.arrays import Array
from calibrant.inputs import IGNORED
from calibrant.metrics import InputWarning
from calibrant.metrics.predictions import Predictions, Task
from calibrant.metrics.views import sample_weight
from calibrant.posthoc import (
    AutoCalibration,
    FitWarning,
    MultiLabelCalibration,
    TemperatureScaling,
    logits_from_probabilities,
)
from calibrant.report.statistics import log_losses, loss_share

# Fewest samples that are fitted on halves.
FEWEST = 10
# Beyond so many numbers, or labels, the mixture of methods takes minutes, and a quicker method is tried in its place.
MOST_NUMBERS, MOST_LABELS = 2**23, 20
# Confidence above that of guessing that still says something.
LEAST_CONFIDENCE = 0.01


@dataclass(frozen=True, eq=False)
class Recalibrated:
    """Predictions after recalibration.

    Attributes:
        method: Name of the method in ``posthoc.METHODS``.
        description: The method with its parameters, fitted on all samples.
        calibrator: The calibrator fitted on all samples, the one to use.
        predictions: Every sample recalibrated by a fit on the other half of the samples.
        tried: Log loss of each method that was tried, on the halves it was not fitted on.
    """

    method: str
    description: str
    calibrator: Any
    predictions: Predictions
    tried: dict[str, float]


def recalibrated(given: Predictions, seed: int) -> Recalibrated:
    """Recalibrate with the method that has the lowest log loss on halves it was not fitted on.

    A temperature is tried, and a mixture of methods (``auto``). The temperature is preferred unless the mixture is
    better by more than one standard error. Raises ``ValueError`` if nothing can be fitted.
    """
    weight, share = sample_weight(given), loss_share(given)
    order = np.random.default_rng(seed).permutation(given.samples)
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    found: dict[str, Predictions] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        warnings.simplefilter("ignore", InputWarning)  # the notices of the predictions say it
        logits, target = _fitted_on(given)
        for name in _candidates(given):
            crossed: list[Array] = []
            for fit, apply in (halves, halves[::-1]):
                fitted = _fit(name, given.task, logits[fit], target[fit], None if weight is None else weight[fit])
                crossed.append(np.asarray(fitted.predict_proba(logits[apply])))
            both = np.empty((len(target), *crossed[0].shape[1:]), crossed[0].dtype)
            both[halves[1]], both[halves[0]] = crossed
            found[name] = _with(given, both)
        losses = {name: log_losses(one) for name, one in found.items()}
        chosen = _best(losses, share)
        calibrator = _fit(chosen, given.task, logits, target, weight)
    tried = {name: float(share @ loss) for name, loss in losses.items()}
    return Recalibrated(chosen, _described(chosen, calibrator, found[chosen]), calibrator, found[chosen], tried)


def _candidates(given: Predictions) -> tuple[str, ...]:
    numbers = given.confidence if given.probabilities is None else given.probabilities
    if given.task == "multi-label" and numbers.shape[1] > MOST_LABELS:
        return ("temperature", "platt")
    return ("temperature", "auto") if numbers.size <= MOST_NUMBERS else ("temperature",)


def _fitted_on(given: Predictions) -> tuple[Array, Any]:
    """Logits and target of a fit: of pairs, the log-odds of the confidence and whether it was right."""
    if given.probabilities is None or given.target is None:
        return logits_from_probabilities(given.confidence), given.correct.astype(np.int64)
    if given.logits is not None:
        return given.logits, given.target
    if given.target.ndim == 2:
        flat = logits_from_probabilities(np.ascontiguousarray(given.probabilities).reshape(-1))
        return flat.reshape(given.probabilities.shape), given.target
    return logits_from_probabilities(given.probabilities), given.target


def _fit(name: str, task: Task, logits: Array, target: Any, weight: Array | None) -> Any:
    if task == "multi-label":
        return MultiLabelCalibration(name).fit(logits, target, sample_weight=weight, ignore_index=IGNORED)
    calibrator = TemperatureScaling() if name == "temperature" else AutoCalibration()
    return calibrator.fit(logits, target, sample_weight=weight, ignore_index=None)


def _with(given: Predictions, probabilities: Array) -> Predictions:
    """The same predictions with other probabilities."""
    if given.probabilities is None or given.target is None:
        return replace(given, confidence=np.ascontiguousarray(probabilities[:, 1]))
    if given.target.ndim == 2:
        told = given.target != IGNORED
        return replace(given, confidence=probabilities[told], probabilities=probabilities, logits=None)
    correct = probabilities.argmax(1) == given.target
    return replace(given, confidence=probabilities.max(1), correct=correct, probabilities=probabilities, logits=None)


def _best(losses: dict[str, Array], share: Array) -> str:
    best = "temperature"
    for name, loss in losses.items():
        gain = losses[best] - loss
        mean = float(share @ gain)
        if mean > float(np.sqrt(share**2 @ (gain - mean) ** 2)):
            best = name
    return best


def _described(name: str, calibrator: Any, predictions: Predictions) -> str:
    if isinstance(calibrator, MultiLabelCalibration):
        words = {"auto": "a mixture of methods", "temperature": "a temperature", "platt": "Platt scaling"}
        return f"{words[name]} for each label"
    if isinstance(calibrator, TemperatureScaling):
        return f"temperature {calibrator.temperature_:.3g}{_emptied(predictions)}"
    shares = sorted(calibrator.weights_.items(), key=lambda each: -each[1])
    if len(shares) == 1:
        return f"the method {shares[0][0]}, chosen among several,"
    named = ", ".join(f"{member} {share:.0%}" for member, share in shares[:3])
    return f"a mixture of methods ({named}{', and others' if len(shares) > 3 else ''})"


def _emptied(predictions: Predictions) -> str:
    """A remark if recalibrated predictions say nothing."""
    if predictions.classes is None or float(predictions.confidence.max()) > 1 / predictions.classes + LEAST_CONFIDENCE:
        return ""
    return ", which makes all classes nearly equally likely,"
