"""Audit of one model: its scores, a test of calibration, and the effect of a temperature."""

from collections.abc import Callable
from dataclasses import dataclass

from calibrant import metrics
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.inference import CalibrationTest, calibration_test
from calibrant.metrics.predictions import Predictions
from calibrant.report.temperature import cross_fitted

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Repair:
    """Effect of temperature scaling on the predictions.

    Attributes:
        temperature: Temperature fitted on all samples, the one to use.
        predictions: Every sample scaled by the temperature of the other half, so that no sample is scored with a
            temperature that was fitted on it.
        scores: Scores of these predictions.
        test: Test of calibration on these predictions.
    """

    temperature: float
    predictions: Predictions
    scores: metrics.Scores
    test: CalibrationTest


@dataclass(frozen=True)
class Audit:
    """All results of a report on one model.

    Attributes:
        name: Name of the model.
        predictions: Audited predictions.
        scores: All scores.
        test: Test of calibration, with ESD.
        repair: Effect of a temperature; None if none can be fitted.
        problem: Reason why there is no repair; empty if there is one.
        bins: Number of bins of ECE; None for the convention's.
        convention: Convention of ECE.
        seed: Seed of the test's draws and of the halves.
    """

    name: str
    predictions: Predictions
    scores: metrics.Scores
    test: CalibrationTest
    repair: Repair | None
    problem: str
    bins: int | None
    convention: ConventionName
    seed: int


def audit(
    name: str,
    predictions: Predictions,
    *,
    bins: int | None = None,
    convention: ConventionName = "paper",
    draws: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Score one model, test whether it is calibrated, and try to repair it with a temperature.

    Args:
        name: Name of the model, as the report shows it.
        predictions: Predictions of at least 3 samples, from ``metrics.predictions``.
        bins: Number of bins of ECE and of the reliability diagram; by default the convention's.
        convention: Convention of ECE, see :func:`calibrant.metrics.ece`.
        draws: Number of data sets drawn under the hypothesis of calibration.
        seed: Seed of these draws, and of the halves that check the temperature.
        progress: Called with the share of the work that is done, from 0 to 1.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics, report
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(2000, 4))
        >>> target = [rng.choice(4, p=row) for row in np.exp(logits) / np.exp(logits).sum(1, keepdims=True)]
        >>> found = report.audit("twice too sure", metrics.predictions(logits=2 * logits, target=target), draws=100)
        >>> round(found.repair.temperature), bool(found.repair.scores.ece < found.scores.ece)
        (2, True)
    """
    scores = metrics.evaluate(predictions, bins=bins, convention=convention)
    test = calibration_test(predictions, draws=draws, seed=seed, progress=_part(progress, 0.0))
    try:
        temperature, repaired = cross_fitted(predictions, seed)
    except ValueError as error:
        repair, problem = None, str(error)
    else:
        problem = ""
        repair = Repair(
            temperature,
            repaired,
            metrics.evaluate(repaired, bins=bins, convention=convention),
            calibration_test(repaired, draws=draws, seed=seed, progress=_part(progress, 0.5)),
        )
    if progress is not None:
        progress(1.0)
    return Audit(name, predictions, scores, test, repair, problem, bins, convention, seed)


def _part(progress: Progress | None, start: float) -> Callable[[int, int], None] | None:
    """Progress of one of the two tests, which take nearly all the time, as progress of the audit."""
    return None if progress is None else lambda done, total: progress(start + done / total / 2)
