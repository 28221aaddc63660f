"""Calibration slope and intercept of risks: Cox's logistic line."""

import math
from statistics import NormalDist
from typing import NamedTuple, Unpack

import numpy as np

from calibrant.frames import Array
from calibrant.metrics.predictions import Confidence, Correct, Given, Predictions, predictions
from calibrant.metrics.tests import p_value

# Probabilities nearer to 0 and 1 count as this: near 1, float32 knows no smaller distance.
NEAREST = 1e-7
NEWTON_STEPS = 100
# Gains in log-likelihood by sample: below the first, Newton's full steps converge; below the second, they have.
SMALL_GAIN, NO_GAIN = 1e-13, 1e-27


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


def calibration_line(confidence: Confidence = None, correct: Correct = None, **given: Unpack[Given]) -> CalibrationLine:
    r"""Calibration slope and intercept, by logistic regression.

    .. math:: \operatorname{logit} P(c = 1) = a + b \operatorname{logit} z

    Calibrated probabilities have a = 0 and b = 1; the joint test compares twice the gain in log-likelihood with
    :math:`\chi^2_2`. Intervals are Wald's, from the information matrix. Probabilities within 1e-7 of 0 and 1 count as
    1e-7 from them.

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
    logit, samples, right = _columns(data)
    large, _ = _fitted(np.ones((1, len(logit))), logit, samples, right)
    ratio = 2 * (_likelihood(line[0] + line[1] * logit, samples, right) - _likelihood(logit, samples, right))
    reach = NormalDist().inv_cdf(0.975) * np.sqrt(np.diag(covariance))
    p_of_ratio = math.exp(-max(ratio, 0.0) / 2)  # the tail of chi-squared with two degrees of freedom
    (a, b), (a_low, b_low), (a_high, b_high) = line.tolist(), (line - reach).tolist(), (line + reach).tolist()
    return CalibrationLine(a, a_low, a_high, b, b_low, b_high, float(large[0]), p_of_ratio)


def line_and_covariance(data: Predictions) -> tuple[Array, Array]:
    """Intercept and slope, and their covariance, the inverse of the information matrix.

    Raises:
        ValueError: If there is no finite line.
    """
    logit, samples, right = _columns(data)
    if not 0 < right.sum() < samples.sum():
        raise ValueError("the calibration line needs samples with and without the event: use more samples")
    if np.ptp(logit) == 0:
        raise ValueError("the calibration line needs different probabilities: all are equal")
    without, with_event = logit[right < samples], logit[right > 0]
    if without[-1] <= with_event[0] or with_event[-1] <= without[0]:
        raise ValueError(
            "there is no finite calibration line, as the probabilities separate samples with the event from those "
            "without: use more samples"
        )
    return _fitted(np.stack((np.ones_like(logit), logit)), np.zeros_like(logit), samples, right)


def _columns(data: Predictions) -> tuple[Array, Array, Array]:
    """Log-odds of the stated probabilities, ascending; and numbers of samples and of events."""
    z, samples, right = data.ties
    p = np.clip(z, NEAREST, 1 - NEAREST)
    return np.log(p) - np.log1p(-p), samples, right


def _likelihood(logit: Array, samples: Array, right: Array) -> float:
    return float((right * logit - samples * np.logaddexp(0, logit)).sum())


def _fitted(design: Array, offset: Array, samples: Array, right: Array) -> tuple[Array, Array]:
    """Coefficients of a logistic regression and the inverse of its information, by Newton's method."""
    found: Array = np.zeros(len(design))
    if len(design) == 2:
        found[1] = 1.0  # the identity, where a calibrated model has its optimum
    value = _likelihood(found @ design + offset, samples, right)
    for _ in range(NEWTON_STEPS):
        fitted = 1 / (1 + np.exp(-np.clip(found @ design + offset, -700, 700)))
        gradient = design @ (right - samples * fitted)
        information = (design * (samples * fitted * (1 - fitted))) @ design.T
        try:
            step = np.linalg.solve(information, gradient)
        except np.linalg.LinAlgError:
            break
        gain, size = float(gradient @ step) / samples.sum(), 1.0
        if gain < NO_GAIN:
            return found, np.linalg.inv(information)
        if gain < SMALL_GAIN:
            found = found + step
            continue
        while (new := _likelihood((found + size * step) @ design + offset, samples, right)) < value and size > 1e-6:
            size /= 2
        found, value = found + size * step, new
    raise ValueError("the calibration line did not converge: the probabilities nearly separate the outcomes")
