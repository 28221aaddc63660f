"""Tests with a closed-form null distribution: Spiegelhalter's, Kolmogorov-Smirnov, Kuiper's; and Cox's line.

All take probabilities of an event, or confidences, and whether it came true; of several classes, the top label.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, NamedTuple, Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics.predictions import Confidence, Correct, Keywords, Predictions, predictions

Statistic = Literal["spiegelhalter", "kolmogorov-smirnov", "kuiper"]
STATISTICS: tuple[Statistic, ...] = ("spiegelhalter", "kolmogorov-smirnov", "kuiper")
# Terms beyond which nothing changes in float64, for distances that may not be exceeded.
TERMS = 100
ALWAYS_EXCEEDED = 0.1
# Probabilities nearer to 0 and 1 count as this: near 1, float32 knows no smaller distance.
NEAREST = 1e-7


def p_value(value: float) -> str:
    """Format a p-value."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


class HypothesisTest:
    """A test of the hypothesis of calibration."""

    p_value: float

    @property
    def rejected(self) -> bool:
        """Whether the hypothesis of calibration is rejected at 5 %."""
        return self.p_value <= 0.05


@dataclass(frozen=True)
class ClosedFormTest(HypothesisTest):
    """Test of the hypothesis that the probabilities are calibrated, by the law of its statistic for many samples.

    Attributes:
        statistic: The statistic, in standard deviations.
        p_value: Probability that calibrated probabilities give a statistic at least as large.
    """

    name: str
    statistic: float
    p_value: float

    def __str__(self) -> str:
        return f"{self.name} {self.statistic:z.2f}, {p_value(self.p_value)}"


def closed_form_test(
    confidence: Confidence = None,
    correct: Correct = None,
    *,
    statistic: Statistic = "kuiper",
    **keywords: Unpack[Keywords],
) -> ClosedFormTest:
    """Test calibration by a statistic whose null distribution has a closed form: :doc:`/inference` has their formulas.

    With few expected events, or few distinct probabilities, a test rejects less often than it should:
    :func:`calibration_test` is exact there.

    Args:
        statistic: ``"spiegelhalter"``, ``"kolmogorov-smirnov"`` or ``"kuiper"``.
    """
    inputs.check_choice("statistic", statistic, STATISTICS)
    data = predictions(confidence, correct, **keywords)
    z, samples, right = data.ties
    residual, variance = right - samples * z, samples * z * (1 - z)
    if statistic == "spiegelhalter":
        slope = 1 - 2 * z
        total, variance = float((residual * slope).sum()), slope**2 * variance
    else:
        path = np.append(0.0, residual.cumsum())
        total = float(np.ptp(path) if statistic == "kuiper" else np.abs(path).max())
    spread = math.sqrt(float(variance.sum()))
    value = 0.0
    if total:  # it is infinite if only probabilities of 0 and 1 are wrong
        value = total / spread if spread > 0 else math.copysign(math.inf, total)
    if statistic == "spiegelhalter":
        return ClosedFormTest("Spiegelhalter's z", value, 2 * upper_tail(abs(value)))
    if statistic == "kuiper":
        return ClosedFormTest("Kuiper", value, exceeds_range(value))
    return ClosedFormTest("Kolmogorov-Smirnov", value, exceeds_distance(value))


def upper_tail(x: float) -> float:
    """Probability that a standard normal variable exceeds ``x``."""
    return math.erfc(x / math.sqrt(2)) / 2


def exceeds_distance(x: float) -> float:
    r""":math:`P(\max |B| \ge x)`, of Brownian motion B on [0, 1]."""
    if x < ALWAYS_EXCEEDED:
        return 1.0
    return min(1.0, 4 * sum((-1.0) ** k * upper_tail((2 * k + 1) * x) for k in range(TERMS)))


def exceeds_range(x: float) -> float:
    r""":math:`P(\max B - \min B \ge x)` (Feller 1951)."""
    if x < ALWAYS_EXCEEDED:
        return 1.0
    return min(1.0, 8 * sum((-1.0) ** (k - 1) * k * upper_tail(k * x) for k in range(1, TERMS)))


class CalibrationLine(NamedTuple):
    """The line that predicts the log-odds of the event from those of the stated probability.

    Attributes:
        intercept: 0 if calibrated; ``intercept_low`` and ``intercept_high`` are the ends of its 95 % interval.
        slope: 1 if calibrated; below 1, the probabilities are too extreme; above 1, too moderate. So are
            ``slope_low`` and ``slope_high``.
        p_value: Likelihood-ratio test of intercept 0 and slope 1 together.
    """

    intercept: float
    intercept_low: float
    intercept_high: float
    slope: float
    slope_low: float
    slope_high: float
    p_value: float

    def __str__(self) -> str:
        return (
            f"slope {self.slope:z.2f} (95 % interval {self.slope_low:z.2f} to {self.slope_high:z.2f}), "
            f"intercept {self.intercept:z.2f} ({self.intercept_low:z.2f} to {self.intercept_high:z.2f}), "
            f"{p_value(self.p_value)}"
        )


def calibration_line(
    confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]
) -> CalibrationLine:
    r"""Calibration slope b and intercept a, by logistic regression: logit P(c = 1) = a + b logit z.

    The joint test of a = 0 and b = 1 compares twice the gain in log-likelihood with :math:`\chi^2_2`. Intervals are
    Wald's, from the information matrix. Probabilities within 1e-7 of 0 and 1 count as 1e-7 from them.
    """
    data = predictions(confidence, correct, **keywords)
    line, covariance = line_and_covariance(data)
    logit, samples, right = _columns(data)
    identity = np.array([0.0, 1.0])
    ratio = 2 * (_likelihood(line, logit, samples, right) - _likelihood(identity, logit, samples, right))
    reach = NormalDist().inv_cdf(0.975) * np.sqrt(np.diag(covariance))
    p_of_ratio = math.exp(-max(ratio, 0.0) / 2)  # the tail of chi-squared with two degrees of freedom
    (a, a_low, a_high), (b, b_low, b_high) = np.stack((line, line - reach, line + reach), axis=1).tolist()
    return CalibrationLine(a, a_low, a_high, b, b_low, b_high, p_of_ratio)


def line_and_covariance(data: Predictions) -> tuple[Array, Array]:
    """Intercept and slope, and the inverse of their information matrix; an error if there is no finite line."""
    from calibrant.posthoc.solvers import logistic_regression

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
    design = np.stack((np.ones_like(logit), logit))
    identity = np.array([0.0, 1.0])  # where a calibrated model has its optimum
    (line,) = logistic_regression(design[np.newaxis], (right / samples)[np.newaxis], identity, 0.0, weight=samples)
    try:
        for _ in range(3):  # steps of Newton's, from where the solver leaves off to the last digit
            fitted = 1 / (1 + np.exp(-np.clip(line @ design, -700, 700)))
            covariance = np.linalg.inv((design * (samples * fitted * (1 - fitted))) @ design.T)
            step = covariance @ (design @ (right - samples * fitted))
            line = line + step
    except np.linalg.LinAlgError:
        step = np.full(2, np.inf)
    if not (np.abs(step) <= 1e-6 * (1 + np.abs(line))).all():
        raise ValueError("the calibration line did not converge: the probabilities nearly separate the outcomes")
    return line, covariance


def _columns(data: Predictions) -> tuple[Array, Array, Array]:
    """Log-odds of the stated probabilities, ascending; and numbers of samples and of events."""
    z, samples, right = data.ties
    p = np.clip(z, NEAREST, 1 - NEAREST)
    return np.log(p) - np.log1p(-p), samples, right


def _likelihood(line: Array, logit: Array, samples: Array, right: Array) -> float:
    fitted = line[0] + line[1] * logit
    return float((right * fitted - samples * np.logaddexp(0, fitted)).sum())
