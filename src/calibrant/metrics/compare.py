"""The comparison of two models on the same samples."""

import math
from dataclasses import dataclass

import numpy as np

from calibrant.frames import Array
from calibrant.metrics import jackknife
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.intervals import described_interval
from calibrant.metrics.jackknife import Difference, normal_difference
from calibrant.metrics.predictions import Predictions, predictions
from calibrant.metrics.registry import Chosen, described, label, number
from calibrant.metrics.resampling import (
    asked_metric,
    bootstrap,
    check_level,
    draw_null,
    finite_value,
    single,
)
from calibrant.metrics.tests import p_value


@dataclass(frozen=True)
class Comparison:
    """Two models on the same samples.

    Attributes:
        metric: Name of the metric.
        a: Its value for the first model.
        b: Its value for the second.
        difference: ``a - b``: above 0, the second is better; for accuracy, the first.
        low: Lower end of the confidence interval of the difference.
        high: Its upper end.
        p_value: Two-sided p-value of the hypothesis that the two do not differ.
        level: Confidence level of the interval.
        method: ``"jackknife"`` or ``"bootstrap"``.

    Example:
        >>> print(Comparison("ece", 0.05, 0.02, 0.03, 0.02, 0.04, 0.0001, 0.95, "bootstrap"))
        ECE 5.00 % (a), 2.00 % (b): b is better calibrated, p < 0.001 (95 % interval of a - b 2.00 % to 4.00 %)
    """

    metric: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    level: float
    method: str

    @property
    def better(self) -> str | None:
        """``"a"`` or ``"b"`` if one is better by this metric at this level, None if the data cannot tell."""
        if self.p_value > 1 - self.level:
            return None
        return "b" if (self.difference > 0) != described(self.metric).more_is_better else "a"

    def __str__(self) -> str:
        found = f"{label(self.metric)} {number(self.metric, self.a)} (a), {number(self.metric, self.b)} (b)"
        better = "better calibrated" if described(self.metric).only_calibration else "better"
        verdict = f"{self.better} is {better}" if self.better else "the data cannot tell which is better"
        interval = described_interval(self.metric, self.low, self.high, self.level, "of a - b ")
        return f"{found}: {verdict}, {p_value(self.p_value)} ({interval})"


def compare(
    a: Predictions,
    b: Predictions,
    *,
    metric: Chosen = "esd",
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    bins: int | None = None,
    convention: ConventionName = "paper",
) -> Comparison:
    """Compare two models on the same samples.

    A sample that is hard for one model is often hard for the other, so their errors are correlated, and the difference
    is known better than either value. For ESD, MMCE, accuracy and the gap, paired leave-one-out values give its
    standard error. The absolute values of two gaps differ only if both their difference and their sum are not 0: the
    p-value is the larger of those two.

    For other metrics both models are bootstrapped with the same samples. ECE and similar metrics are biased upward, and
    more so for the less confident model. Their interval covers those of the bootstrap's percentiles, of the difference,
    and of the difference minus the bias of calibrated models with these confidences; the p-value is the largest one.

    Args:
        a: Predictions of one model, as :func:`calibrant.metrics.predictions` makes them.
        b: Predictions of the other, of the same samples in the same order.
        metric: As in :func:`calibrant.metrics.calibration_test`; for the gap, its absolute value.
        level: Confidence level of the interval of the difference, ``a - b``.
        draws: Number of draws of the bootstrap and of each calibrated model. The smallest p-value is
            ``2 / (1 + draws)``.
        seed: Seed of the bootstrap: the same seed gives the same result.
        bins: As in :func:`calibrant.metrics.calibration_test`.
        convention: As in :func:`calibrant.metrics.calibration_test`.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics
        >>> generator = np.random.default_rng(0)
        >>> confidence = generator.uniform(0.5, 0.9, 2000)
        >>> right = generator.random(2000) < confidence
        >>> over, honest = metrics.predictions(confidence + 0.1, right), metrics.predictions(confidence, right)
        >>> metrics.compare(over, honest).better
        'b'
    """
    measure = asked_metric(metric, draws, seed, bins, convention)
    check_level(level)
    _check_pair(a, b)
    name = f"a comparison of {label(measure.key)}"
    a, b = (single(predictions(model, minimum=measure.minimum + 1, name=name)) for model in (a, b))
    if measure.jackknife is not None:
        of_a, of_b = measure.jackknife(a), measure.jackknife(b)
        first, second = (abs(of.value) if measure.signed else of.value for of in (of_a, of_b))
        difference = jackknife.difference_of_sizes if measure.signed else jackknife.difference
        found, method = difference(of_a, of_b, level), "jackknife"
    else:
        first, second = finite_value(a, measure), finite_value(b, measure)
        drawn_a, drawn_b = bootstrap((a, b), measure, draws, seed)
        bias = float(drawn_a.mean() - drawn_b.mean()) - (first - second)
        if measure.vanishes:
            _, null_a = draw_null(a, measure, draws, seed)
            _, null_b = draw_null(b, measure, draws, seed)
            bias = float(null_a.mean() - null_b.mean())
        found, method = _bootstrap_difference(first - second, drawn_a - drawn_b, bias, level), "bootstrap"
    return Comparison(measure.key, first, second, first - second, found.low, found.high, found.p_value, level, method)


def _bootstrap_difference(observed: float, drawn: Array, bias: float, level: float) -> Difference:
    """Interval and p-value that hold by the percentiles, and with this bias of the difference as without."""
    spread = float(drawn.std())
    found = (
        _percentiles(drawn, level),
        normal_difference(observed, spread, level),
        normal_difference(observed - bias, spread, level),
    )
    low, high = min(each.low for each in found), max(each.high for each in found)
    # If they disagree on which is larger, there is no evidence of a difference.
    agree = len({math.copysign(1, centre) for centre in (float(np.median(drawn)), observed, observed - bias)}) == 1
    return Difference(low, high, max(each.p_value for each in found) if agree else 1.0)


def _percentiles(drawn: Array, level: float) -> Difference:
    """Interval and p-value by the share of draws on either side of 0, with the data counted once more on each side.

    They hold for any increasing function of the metric. So it does not matter if the errors of two models differ by a
    constant and move together.
    """
    ascending, draws = np.sort(drawn), len(drawn)
    fewer = min(int((ascending <= 0).sum()), int((ascending >= 0).sum()))
    rank = math.floor((1 - level) / 2 * (1 + draws)) - 1
    low, high = float(ascending[max(rank, 0)]), float(ascending[draws - 1 - max(rank, 0)])
    if rank < 0:  # so few draws cannot exclude 0
        low, high = min(low, 0.0), max(high, 0.0)
    return Difference(low, high, min(2 * (1 + fewer) / (1 + draws), 1.0))


def _check_pair(a: Predictions, b: Predictions) -> None:
    for name, model in (("a", a), ("b", b)):
        if not isinstance(model, Predictions):
            got = type(model).__name__
            raise TypeError(f"{name} must be Predictions, got {got}: call metrics.predictions(...) first")
    if len(a) != len(b):
        raise ValueError(f"a and b must be predictions of the same samples, got {len(a)} and {len(b)} of them")
    first, second = (np.ones(len(each)) if each.weight is None else each.weight for each in (a, b))
    if not np.array_equal(first, second):
        raise ValueError("a and b must have the same sample_weight: give both the same weights, or none")
    if a.target is not None and b.target is not None and not np.array_equal(a.target, b.target):
        differ = int((a.target != b.target).sum())
        raise ValueError(
            f"a and b must have the same target, got {differ} of {len(a)} that differ: bring both into the same order"
        )
