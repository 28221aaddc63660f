"""Calibration slope and intercept of risks: Cox's logistic line."""

import math
from typing import NamedTuple, Unpack

import numpy as np

from calibrant.frames import Array
from calibrant.metrics import notebook
from calibrant.metrics.predictions import Given, Predictions, Values, predictions
from calibrant.metrics.verdicts import p_value

# Probabilities nearer to 0 and 1 count as this: near 1, float32 knows no smaller distance.
NEAREST = 1e-7
STEPS = 100
ERRORS = 1.959964


@notebook.shown
class CalibrationLine(NamedTuple):
    """The line that predicts the log-odds of the event from those of the stated probability.

    Attributes:
        intercept: Intercept, 0 if calibrated.
        intercept_low: Lower end of its 95 % interval.
        intercept_high: Upper end.
        slope: Slope, 1 if calibrated; below 1, the probabilities are too extreme; above 1, too moderate.
        slope_low: Lower end of its 95 % interval.
        slope_high: Upper end.
        in_the_large: Intercept of a line with slope 1: above 0, events are more frequent than stated.
        p_value: Likelihood-ratio test of intercept 0 and slope 1 together.
    """

    intercept: float
    intercept_low: float
    intercept_high: float
    slope: float
    slope_low: float
    slope_high: float
    in_the_large: float
    p_value: float

    def __str__(self) -> str:
        return (
            f"slope {self.slope:z.2f} (95 % interval {self.slope_low:z.2f} to {self.slope_high:z.2f}), "
            f"intercept {self.intercept:z.2f} ({self.intercept_low:z.2f} to {self.intercept_high:z.2f}), "
            f"{p_value(self.p_value)}"
        )


def calibration_line(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> CalibrationLine:
    r"""Calibration slope and intercept, by logistic regression.

    .. math:: \operatorname{logit} P(c = 1) = a + b \operatorname{logit} z

    Calibrated probabilities have a = 0 and b = 1; the joint test compares twice the gain in log-likelihood with
    :math:`\chi^2_2`. Intervals are Wald's, from the information matrix. Probabilities within 1e-7 of 0 and 1 count as
    1e-7 from them. With sample weights, intervals and test use the sandwich variance: a row is one observation.

    Args:
        confidence: Probability of the event, ``(N,)``.
        correct: 1 or True where it came true, ``(N,)``.
        **given: ``logits=`` or ``probabilities=`` with ``target=``: the line of the top label.

    References:
        Cox, "Two further applications of a model for binary regression", Biometrika 1958; Van Calster, McLernon, van
        Smeden, Wynants, Steyerberg, "Calibration: the Achilles heel of predictive analytics", BMC Medicine 2019.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics
        >>> generator = np.random.default_rng(0)
        >>> logit = generator.normal(size=4000)
        >>> event = generator.random(4000) < 1 / (1 + np.exp(-logit))
        >>> print(metrics.calibration_line(1 / (1 + np.exp(-2 * logit)), event))  # twice too extreme
        slope 0.50 (95 % interval 0.46 to 0.54), intercept 0.00 (-0.07 to 0.07), p < 0.001
    """
    data = predictions(confidence, correct, name="the calibration line", **given)
    line, covariance = line_and_covariance(data)
    logit, event, weight = _columns(data)
    large, _ = _fitted(np.ones((1, len(logit))), logit, event, weight)
    if data.weight is None:
        ratio = 2 * (_likelihood(line[0] + line[1] * logit, event) - _likelihood(logit, event))
    else:
        distance = line - (0.0, 1.0)
        ratio = float(distance @ np.linalg.solve(covariance, distance))
    reach = ERRORS * np.sqrt(np.diag(covariance))
    p_of_ratio = math.exp(-max(ratio, 0.0) / 2)  # the tail of chi-squared with two degrees of freedom
    (a, b), (a_low, b_low), (a_high, b_high) = line.tolist(), (line - reach).tolist(), (line + reach).tolist()
    return CalibrationLine(a, a_low, a_high, b, b_low, b_high, float(large[0]), p_of_ratio)


def line_and_covariance(data: Predictions) -> tuple[Array, Array]:
    """Intercept and slope, and their covariance; with weights, the sandwich estimate: a row is one observation.

    Raises:
        ValueError: If there is no finite line.
    """
    logit, event, weight = _columns(data)
    counted = weight > 0
    if np.ptp(event[counted]) == 0:
        raise ValueError("the calibration line needs samples with and without the event: use more samples")
    if np.ptp(logit[counted]) == 0:
        raise ValueError("the calibration line needs different probabilities: all are equal")
    without, with_event = logit[counted & (event == 0)], logit[counted & (event == 1)]
    if without.max() <= with_event.min() or with_event.max() <= without.min():
        raise ValueError(
            "there is no finite calibration line, as the probabilities separate samples with the event from those "
            "without: use more samples"
        )
    design = np.stack((np.ones_like(logit), logit))
    line, inverse = _fitted(design, np.zeros_like(logit), event, weight)
    if data.weight is None:
        return line, inverse
    scores = weight * (event - 1 / (1 + np.exp(-(line @ design)))) * design
    return line, inverse @ (scores @ scores.T) @ inverse


def _columns(data: Predictions) -> tuple[Array, Array, Array]:
    """Log-odds of the stated probabilities, events, and weights."""
    p = np.clip(data.confidence.astype(np.float64), NEAREST, 1 - NEAREST)
    weight = np.ones(len(data)) if data.weight is None else data.weight
    return np.log(p) - np.log1p(-p), data.correct.astype(np.float64), weight


def _likelihood(logit: Array, event: Array) -> float:
    return float((event * logit - np.logaddexp(0, logit)).sum())


def _fitted(design: Array, offset: Array, event: Array, weight: Array) -> tuple[Array, Array]:
    """Coefficients of a logistic regression and the inverse of its information, by Newton's method."""
    found: Array = np.zeros(len(design))
    if len(design) == 2:
        found[1] = 1.0  # the identity, where a calibrated model has its optimum
    value = _weighted(found @ design + offset, event, weight)
    for _ in range(STEPS):
        fitted = 1 / (1 + np.exp(-np.clip(found @ design + offset, -700, 700)))
        gradient = design @ (weight * (event - fitted))
        information = (design * (weight * fitted * (1 - fitted))) @ design.T
        try:
            step = np.linalg.solve(information, gradient)
        except np.linalg.LinAlgError:
            break
        if float(gradient @ step) < 1e-12 * weight.sum():
            return found, np.linalg.inv(information)
        size = 1.0
        while (new := _weighted((found + size * step) @ design + offset, event, weight)) < value and size > 1e-6:
            size /= 2
        found, value = found + size * step, new
    raise ValueError("the calibration line did not converge: the probabilities nearly separate the outcomes")


def _weighted(logit: Array, event: Array, weight: Array) -> float:
    return float((weight * (event * logit - np.logaddexp(0, logit))).sum())
