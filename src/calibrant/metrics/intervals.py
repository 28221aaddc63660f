"""Confidence intervals of metrics, and equivalence: are the errors provably small?"""

from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple, Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.predictions import Confidence, Correct, Given, Predictions, predictions
from calibrant.metrics.registry import Chosen, label, number
from calibrant.metrics.resampling import (
    asked_metric,
    bootstrap,
    check_level,
    draw_null,
    finite_value,
    single,
)
from calibrant.metrics.tests import test_against_draws

# Bins of equal size by probability in which errors are bounded, and fewest samples in each.
RISK_BINS = 10
LEAST_IN_BIN = 50


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a metric.

    Attributes:
        metric: Name of the metric.
        value: Its value on the data.
        low: Lower end.
        high: Upper end.
        level: Probability with which such intervals contain the population value.
        method: ``"jackknife"`` or ``"bootstrap"``.

    Example:
        >>> print(Interval("gap", 0.031, 0.022, 0.04, 0.95, "jackknife"))
        gap 3.10 % (95 % interval 2.20 % to 4.00 %, jackknife)
    """

    metric: str
    value: float
    low: float
    high: float
    level: float
    method: str

    def __str__(self) -> str:
        ends = described_interval(self.metric, self.low, self.high, self.level)
        return f"{label(self.metric)} {number(self.metric, self.value)} ({ends}, {self.method})"


def described_interval(metric: str, low: float, high: float, level: float, of: str = "") -> str:
    """An interval in words."""
    return f"{100 * level:g} % interval {of}{number(metric, low)} to {number(metric, high)}"


def confidence_interval(
    confidence: Confidence = None,
    correct: Correct = None,
    *,
    metric: Chosen = "esd",
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    bins: int | None = None,
    convention: ConventionName = "paper",
    **given: Unpack[Given],
) -> Interval:
    r"""Confidence interval of the population value of a metric.

    ESD, MMCE and the gap have all their leave-one-out values in closed form: the jackknife takes as long as one
    sort. For ESD and MMCE the interval allows for a variance that grows with the value (as Wilson's does for a
    proportion), which keeps its coverage near 0, where the plain one covers 80 % instead of 95 %. It is cut off at 0.
    No interval is narrower than chance alone would make that of a calibrated model, even if all samples are equal.

    Other metrics are bootstrapped. Metrics such as ECE and KS are biased upward, by at most the bias that the bootstrap
    adds. So the lower end is corrected for that bias; the upper end, a quantile of the bootstrap, is not. The lower end
    is 0 unless :func:`calibration_test` rejects at ``(1 - level) / 2``. The value itself is biased and may lie outside.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``; or checked predictions.
        correct: 1 or True where the prediction is right, same shape.
        metric: As in :func:`calibration_test`; here the gap keeps its sign.
        level: Probability with which such intervals should contain the population value.
        draws: Number of draws of the bootstrap, and of the test.
        seed: Seed of the draws: the same seed gives the same result.
        bins: As in :func:`calibration_test`.
        convention: As in :func:`calibration_test`.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    References:
        Arvesen, "Jackknifing U-statistics", Annals of Mathematical Statistics 1969; Wilson, "Probable inference, the
        law of succession, and statistical inference", JASA 1927; Efron, Tibshirani, "An Introduction to the
        Bootstrap", 1993.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics
        >>> generator = np.random.default_rng(0)
        >>> confidence = generator.uniform(0.5, 1, 2000)
        >>> right = generator.random(2000) < confidence - 0.05
        >>> print(metrics.confidence_interval(confidence, right, metric="gap"))
        gap 3.55 % (95 % interval 1.66 % to 5.43 %, jackknife)
    """
    measure = asked_metric(metric, draws, seed, bins, convention)
    check_level(level)
    name = f"an interval of {label(measure.key)}"
    data = single(predictions(confidence, correct, minimum=measure.minimum + 1, name=name, **given))
    if measure.jackknife is not None:
        found = measure.jackknife(data)
        low, high = np.clip(found.interval(level), *measure.span).tolist()
        return Interval(measure.key, found.value, low, high, level, "jackknife")
    value = finite_value(data, measure)
    (drawn,) = bootstrap((data,), measure, draws, seed)
    reach = NormalDist().inv_cdf((1 + level) / 2) * float(drawn.std())
    ends = 2 * value - float(drawn.mean()) - reach, float(np.quantile(drawn, (1 + level) / 2))
    low, high = np.clip((min(ends), ends[1]), *measure.span).tolist()
    if measure.vanishes:
        null = draw_null(data, measure, draws, seed)
        low = 0.0 if test_against_draws(measure, *null).p_value > (1 - level) / 2 else low
    return Interval(measure.key, value, low, high, level, "bootstrap")


class RiskBins(NamedTuple):
    """Samples in bins of equal size by their probability, with simultaneous intervals of each bin's gap.

    Attributes:
        probability: Mean stated probability of each bin.
        rate: How often it came true.
        low: Lower end of the interval of their difference, probability minus rate.
        high: Upper end. All intervals hold together at the level.
    """

    probability: Array
    rate: Array
    low: Array
    high: Array

    @property
    def largest(self) -> float:
        """The largest gap, in either direction, that the intervals allow in any bin."""
        return float(np.maximum(np.abs(self.low), np.abs(self.high)).max())


@dataclass(frozen=True)
class Equivalence:
    """Whether the data show that probabilities are right to within a margin.

    Attributes:
        margin: The margin, as a share: 0.02 is 2 points.
        level: Confidence level.
        gap: Mean probability minus the share that came true.
        low: Lower end of the gap's interval.
        high: Upper end.
        groups: Number of groups of equal size by probability.
        largest: Upper bound of the gap in every one of these groups, simultaneously.
    """

    margin: float
    level: float
    gap: float
    low: float
    high: float
    groups: int
    largest: float

    @property
    def on_average(self) -> bool:
        """Whether the interval of the average gap lies within the margin."""
        return -self.margin <= self.low and self.high <= self.margin

    @property
    def everywhere(self) -> bool:
        """Whether the gap of every bin lies within the margin."""
        return self.largest <= self.margin

    def __str__(self) -> str:
        outside = self.low > self.margin or self.high < -self.margin
        shown = "shown" if self.on_average else "no" if outside else "not shown"
        return (
            f"within ± {100 * self.margin:g} points on average: {shown} ({100 * self.level:.4g} % interval of the gap "
            f"{100 * self.low:z.2f} to {100 * self.high:z.2f}); in every one of {self.groups} groups by probability "
            f"the gap is at most {100 * self.largest:.2f} points"
        )


def equivalence(
    confidence: Confidence = None,
    correct: Correct = None,
    *,
    margin: float = 0.02,
    level: float = 0.95,
    **given: Unpack[Given],
) -> Equivalence:
    """Ask whether the data show that the probabilities are right to within a margin.

    On average: if the interval of the gap (mean probability minus the share that came true) lies within the margin.
    These are two one-sided tests (TOST), each at ``(1 - level) / 2``. They say nothing about errors that cancel on
    average.

    Everywhere: the samples are sorted by probability into 10 bins of equal size (fewer below 500 samples), and the
    gap of each has a Wilson interval at a level that makes all hold together (Bonferroni). It says nothing about errors
    that cancel within a bin.

    Args:
        confidence: Probability of the event, or confidence in the prediction, ``(N,)``.
        correct: 1 or True where it came true, ``(N,)``.
        margin: Largest acceptable gap, as a share: 0.02 is 2 points.
        level: Confidence level of both statements.
        **given: ``logits=`` or ``probabilities=`` with ``target=``: the top label is judged.

    References:
        Schuirmann, "A comparison of the two one-sided tests procedure and the power approach for assessing the
        equivalence of average bioavailability", Journal of Pharmacokinetics and Biopharmaceutics 1987; Wilson,
        "Probable inference, the law of succession, and statistical inference", JASA 1927.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics
        >>> generator = np.random.default_rng(0)
        >>> risk = generator.uniform(size=20_000)
        >>> found = metrics.equivalence(risk, generator.random(20_000) < risk, margin=0.02)
        >>> found.on_average, found.everywhere
        (True, False)
    """
    inputs.check_range("margin", margin, low=0, high=1, open_low=True)
    data = predictions(confidence, correct, minimum=2, name="equivalence", **given)
    gap = confidence_interval(data, metric="gap", level=level)
    bins = risk_bins(data, level)
    return Equivalence(margin, level, gap.value, gap.low, gap.high, len(bins.rate), bins.largest)


def risk_bins(data: Predictions, level: float = 0.95) -> RiskBins:
    """Bins of equal size by probability, ties together, with simultaneous intervals of their gaps."""
    z, samples, right = data.ties
    middle = (samples.cumsum() - samples / 2) / data.total
    count = max(1, min(RISK_BINS, int(data.total) // LEAST_IN_BIN))
    starts = np.flatnonzero(np.diff(np.minimum((middle * count).astype(np.intp), count - 1), prepend=-1))
    mass, stated, came = np.add.reduceat([samples, samples * z, right], starts, axis=1)
    rate, probability = came / mass, stated / mass
    # A binomial has at least the variance of a sum of events with different probabilities.
    square = NormalDist().inv_cdf(1 - (1 - level) / (2 * len(rate))) ** 2 / mass
    centre = (rate + square / 2) / (1 + square)
    half = np.sqrt(rate * (1 - rate) * square + square**2 / 4) / (1 + square)
    return RiskBins(probability, rate, probability - centre - half, probability - centre + half)
