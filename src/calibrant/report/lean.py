"""How stated probabilities differ from what happens: by points, or by a factor."""

import math
from typing import NamedTuple

import numpy as np

from calibrant.metrics import Interval, confidence_interval
from calibrant.metrics.predictions import Predictions
from calibrant.metrics.views import View
from calibrant.report.chance import ERRORS

# Smallest gap that is mentioned, as a share: it is shown in points with two decimals.
LEAST_GAP = 0.00005


class Factor(NamedTuple):
    """Mean stated probability over the share that came true, with its 95 % interval."""

    value: float
    low: float
    high: float


class Lean(NamedTuple):
    """The average error of a view.

    Attributes:
        gap: Mean probability minus the share that came true, with its 95 % interval.
        factor: Their ratio, if all probabilities times one number fit better than all plus one number; else None.
    """

    gap: Interval
    factor: Factor | None

    @property
    def shown(self) -> bool:
        """Whether the gap is more than chance explains."""
        return abs(self.gap.value) >= LEAST_GAP and not self.gap.low <= 0 <= self.gap.high

    def amount(self) -> str:
        """The error in points, or as a factor, with its interval."""
        if self.factor is not None:
            ratios = list(self.factor)
            if self.gap.value < 0:
                ratios = [1 / ratio for ratio in (self.factor.value, self.factor.high, self.factor.low)]
            value, low, high = ratios
            return f"by a factor of {value:.2f} (95 % interval {low:.2f} to {high:.2f})"
        ends = (100 * self.gap.low, 100 * self.gap.high)
        low, high = ends if self.gap.value > 0 else (-ends[1], -ends[0])
        points = f"{100 * abs(self.gap.value):.2f} points on average"
        return f"by {points} (95 % interval {low:z.2f} to {high:z.2f})"


def lean_of(view: View) -> Lean:
    """The average error of a view, as points or as a factor."""
    gap = confidence_interval(view.pairs, metric="gap")
    return Lean(gap, better_factor(view.pairs) if view.of_event else None)


def better_factor(pairs: Predictions) -> Factor | None:
    """The ratio of stated to observed, if it describes the error better than a difference does.

    Both descriptions match the mean: stated minus the gap, and stated over the ratio. The one with the lower squared
    error is better; the ratio only if it is so by more than one standard error.
    """
    p, event = pairs.confidence.astype(np.float64), pairs.correct.astype(np.float64)
    weight = np.ones(len(p)) if pairs.weight is None else pairs.weight
    stated, came, total = float(weight @ p), float(weight @ event), float(weight.sum())
    if stated == 0 or came == 0:
        return None
    ratio = stated / came
    shifted, scaled = event - p + (stated - came) / total, event - p / ratio
    better = shifted**2 - scaled**2
    mean = float(weight @ better) / total
    if mean <= math.sqrt(float(weight**2 @ (better - mean) ** 2)) / total:
        return None
    error = math.sqrt(float(weight**2 @ scaled**2)) / came
    return Factor(ratio, ratio * math.exp(-ERRORS * error), ratio * math.exp(ERRORS * error))
