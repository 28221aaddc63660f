"""The effect of recalibration on samples it was not fitted on, with the method that does best."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.frames import Array, IndexArray
from calibrant.inputs import IGNORED
from calibrant.metrics import InputWarning, judge
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.evaluate import Scores
from calibrant.metrics.predictions import Predictions, Task
from calibrant.metrics.proper import log_losses
from calibrant.metrics.tests import Judgement
from calibrant.posthoc import (
    AutoCalibration,
    FitWarning,
    MultiLabelCalibration,
    PriorShift,
    TemperatureScaling,
    logits_from_probabilities,
)
from calibrant.posthoc.fit import HeldOut, canonical_order
from calibrant.posthoc.registry import METHODS
from calibrant.report.statistics import mean_and_error, scores_of

# Fewest samples that are fitted on halves.
MIN_SAMPLES = 10
# Beyond so many numbers, or labels, the mixture of methods takes minutes, and a quicker method is tried in its place.
MOST_NUMBERS, MOST_LABELS = 2**23, 20


@dataclass(frozen=True, eq=False)
class Repair:
    """Effect of recalibration, measured on samples it was not fitted on.

    Attributes:
        description: The method with its parameters, fitted on all samples.
        calibrator: The calibrator fitted on all samples, the one to use.
        predictions: Every sample recalibrated by a fit on the other half of the samples.
        tried: Log loss of each method that was tried, on the halves it was not fitted on.
        scores: Scores of the recalibrated predictions; ``judgements`` are the tests of their views.
    """

    method: str
    description: str
    calibrator: Any
    predictions: Predictions
    tried: dict[str, float]
    scores: Scores
    judgements: tuple[Judgement, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {
            "method": self.method,
            "description": self.description,
            **fitted_numbers(self.calibrator),
            "cross_fitted_log_loss": self.tried,
            **self.scores.to_dict(),
            "views": [test_of_view(found) for found in self.judgements],
        }


def fitted_numbers(calibrator: Any) -> dict[str, Any]:
    """What was fitted, ready for JSON."""
    if isinstance(calibrator, TemperatureScaling):
        return {"temperature": calibrator.temperature_}
    if isinstance(calibrator, AutoCalibration):
        return {"weights": calibrator.weights_, "gain": calibrator.gain_, "why": calibrator.why_}
    if isinstance(calibrator, PriorShift):
        old, new = calibrator.source_.tolist(), list(calibrator.prior or ())
        return {**fitted_numbers(calibrator.calibrator), "prior_of_fit": old, "prior": new}
    return {}


def test_of_view(found: Judgement) -> dict[str, Any]:
    """What was judged and whether it is rejected, ready for JSON."""
    return {
        "kind": found.view.kind,
        "name": found.view.name,
        "rejected_at_5_percent": found.rejected,
        "p_value": found.p_value,
    }


def recalibrated(
    given: Predictions,
    *,
    bins: int | None,
    convention: ConventionName,
    draws: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> Repair:
    """Recalibrate by a temperature, or a mixture that is better by a standard error on halves it was not fitted on."""
    if given.samples < MIN_SAMPLES:
        raise ValueError(f"{given.samples} samples are too few to check it on halves")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        warnings.simplefilter("ignore", InputWarning)  # the notices of the predictions say it
        data = _fitted_on(given)
        halves = _halves(given.task, data, seed)
        cross_fitted = {name: _cross_fitted(name, given, data, halves) for name in _candidates(given)}
        losses = {name: log_losses(one) for name, one in cross_fitted.items()}
        chosen = _best(given, losses)
        calibrator = _fit(chosen, given.task, data)
    after = cross_fitted[chosen]
    return Repair(
        chosen,
        _described(chosen, calibrator),
        calibrator,
        after,
        tried={name: mean_and_error(given, loss)[0] for name, loss in losses.items()},
        scores=scores_of(after, bins, convention),
        judgements=judge(after, draws=draws, seed=seed, progress=progress, early=True),
    )


def _candidates(given: Predictions) -> tuple[str, ...]:
    numbers = given.confidence if given.probabilities is None else given.probabilities
    if given.task == "multi-label" and numbers.shape[1] > MOST_LABELS:
        return ("temperature", "platt")
    return ("temperature", "auto") if numbers.size <= MOST_NUMBERS else ("temperature",)


def _fitted_on(given: Predictions) -> HeldOut:
    """Samples of a fit: of pairs, the log-odds of the confidence and whether it was right."""
    weight = given.sample_weight
    if given.probabilities is None or given.target is None:
        return HeldOut(logits_from_probabilities(given.confidence), given.correct.astype(np.int64), weight)
    if given.logits is not None:
        return HeldOut(given.logits, given.target, weight)
    probabilities = given.probabilities
    if given.task == "multi-label":  # each label by itself, as their probabilities do not sum to 1
        logits = logits_from_probabilities(np.ascontiguousarray(probabilities).reshape(-1)).reshape(probabilities.shape)
    else:
        logits = logits_from_probabilities(probabilities)
    return HeldOut(logits, given.target, weight)


def _halves(task: Task, data: HeldOut, seed: int) -> tuple[IndexArray, IndexArray]:
    """Two random halves of the samples, the same in whatever order the rows came."""
    if task in ("confidence", "multi-label"):  # one logit of each event, against 0 of its absence
        data = data._replace(logits=np.column_stack((np.zeros(len(data.logits)), data.logits)))
    if task == "multi-label":
        data = data._replace(target=(data.target == 1).sum(1))
    order = canonical_order(data)
    shuffled = order[np.random.default_rng(seed).permutation(len(order))]
    middle = len(order) // 2
    return shuffled[:middle], shuffled[middle:]


def _cross_fitted(name: str, given: Predictions, data: HeldOut, halves: tuple[IndexArray, IndexArray]) -> Predictions:
    parts: list[Array] = []
    for fit, apply in (halves, halves[::-1]):
        fitted = _fit(name, given.task, data.take(fit))
        parts.append(np.asarray(fitted.predict_proba(data.logits[apply])))
    found = np.concatenate(parts)
    probabilities = np.empty_like(found)
    probabilities[np.concatenate(halves[::-1])] = found
    return _with(given, probabilities)


def _fit(name: str, task: Task, data: HeldOut) -> Any:
    if task == "multi-label":
        several = MultiLabelCalibration(name)
        return several.fit(data.logits, data.target, sample_weight=data.weight, ignore_index=IGNORED)
    return METHODS[name]().fit(data.logits, data.target, sample_weight=data.weight, ignore_index=None)


def _with(given: Predictions, probabilities: Array) -> Predictions:
    if given.probabilities is None or given.target is None:
        return replace(given, confidence=np.ascontiguousarray(probabilities[:, 1]))
    if given.target.ndim == 2:
        told = given.target != IGNORED
        return replace(given, confidence=probabilities[told], probabilities=probabilities, logits=None)
    correct = probabilities.argmax(1) == given.target
    return replace(given, confidence=probabilities.max(1), correct=correct, probabilities=probabilities, logits=None)


def _best(given: Predictions, losses: dict[str, Array]) -> str:
    best = "temperature"
    for name, loss in losses.items():
        gain, error = mean_and_error(given, losses[best] - loss)
        if gain > error:
            best = name
    return best


def _described(name: str, calibrator: Any) -> str:
    if isinstance(calibrator, MultiLabelCalibration):
        words = {"auto": "a mixture of methods", "temperature": "a temperature", "platt": "Platt scaling"}
        return f"{words[name]} for each label"
    if isinstance(calibrator, TemperatureScaling):
        return f"temperature {calibrator.temperature_:.3g}"
    shares = sorted(calibrator.weights_.items(), key=lambda each: -each[1])
    named = ", ".join(f"{member} {share:.0%}" for member, share in shares[:3])
    return f"a mixture of methods ({named}{', and others' if len(shares) > 3 else ''})"
