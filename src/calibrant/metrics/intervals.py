"""Confidence intervals, equivalence and the comparison of two models: by the jackknife, or by the bootstrap."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics import jackknife
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.closed_form import p_value
from calibrant.metrics.jackknife import Difference, normal_difference
from calibrant.metrics.predictions import Confidence, Correct, Keywords, Predictions, predictions
from calibrant.metrics.registry import Chosen, Metric, described, label, number
from calibrant.metrics.tests import (
    BOOTSTRAP,
    asked_metric,
    block_sizes,
    finite,
    null_values,
    single,
    test_of_metric,
    value_of,
)
from calibrant.metrics.ties import Block, SortedRows

# Bins of equal size by probability in which errors are bounded, and fewest samples in each.
RISK_BINS = 10
LEAST_IN_BIN = 50


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a metric.

    Attributes:
        value: Value of the metric on the data; ``low`` and ``high`` are the ends of the interval.
        level: Probability with which such intervals contain the population value.
        method: ``"jackknife"`` or ``"bootstrap"``.
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


def _check_level(level: float) -> None:
    inputs.check_range("level", level, low=0, high=1, open_low=True, open_high=True)


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
    **keywords: Unpack[Keywords],
) -> Interval:
    """Confidence interval of the population value of a metric.

    ESD, MMCE, accuracy and the gap have one by the jackknife, which takes as long as one sort; other metrics are
    bootstrapped. The values of metrics such as ECE and KS are biased upward: the lower end is corrected for it, and is
    0 unless :func:`calibration_test` rejects at ``(1 - level) / 2``. The value itself may lie outside.
    See :doc:`/inference`.

    Args:
        metric: As in :func:`calibration_test`, and so are ``seed``, ``bins`` and ``convention``. The gap has a sign.
        level: Probability with which such intervals should contain the population value.
        draws: Number of draws of the bootstrap, and of the test.
    """
    measure = asked_metric(metric, draws, seed, bins, convention)
    _check_level(level)
    name = f"an interval of {label(measure.key)}"
    data = single(predictions(confidence, correct, minimum=measure.minimum + 1, name=name, **keywords))
    if measure.jackknife is not None:
        found = measure.jackknife(data)
        low, high = np.clip(found.interval(level), *measure.span).tolist()
        return Interval(measure.key, found.value, low, high, level, "jackknife")
    value = value_of(data, measure)
    (drawn,) = bootstrap((data,), measure, draws, seed)
    reach = NormalDist().inv_cdf((1 + level) / 2) * float(drawn.std())
    ends = 2 * value - float(drawn.mean()) - reach, float(np.quantile(drawn, (1 + level) / 2))
    low, high = np.clip((min(ends), ends[1]), *measure.span).tolist()
    if measure.kind == "error" and test_of_metric(data, measure, draws, seed).p_value > (1 - level) / 2:
        low = 0.0
    return Interval(measure.key, value, low, high, level, "bootstrap")


@dataclass(frozen=True)
class Equivalence:
    """Whether the data show that probabilities are right to within a margin.

    Attributes:
        margin: The margin, as a share: 0.02 is 2 points.
        gap: Mean probability minus the share that came true; ``low`` and ``high`` are the ends of its interval.
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
    **keywords: Unpack[Keywords],
) -> Equivalence:
    """Ask whether the data show that the probabilities are right to within a margin.

    On average: if the interval of the gap (mean probability minus the share that came true) lies within the margin,
    by two one-sided tests (TOST), each at ``(1 - level) / 2``. Everywhere: if so does the gap of each of 10 bins of
    equal size by probability (fewer below 500 samples), with Wilson's intervals that hold together (Bonferroni).

    Args:
        margin: Largest acceptable gap, as a share: 0.02 is 2 points.
        level: Confidence level of both statements.
    """
    inputs.check_range("margin", margin, low=0, high=1, open_low=True)
    data = predictions(confidence, correct, minimum=2, name="equivalence", **keywords)
    gap = confidence_interval(data, metric="gap", level=level)
    ends = gaps_by_probability(data, level)
    return Equivalence(margin, level, gap.value, gap.low, gap.high, ends.shape[1], float(np.abs(ends).max()))


def gaps_by_probability(data: Predictions, level: float = 0.95) -> Array:
    """Simultaneous intervals of the gap in bins of equal size by probability, ties together: lower and upper ends."""
    z, samples, right = data.ties
    middle = (samples.cumsum() - samples / 2) / data.total
    count = max(1, min(RISK_BINS, int(data.total) // LEAST_IN_BIN))
    starts = np.flatnonzero(np.diff(np.minimum((middle * count).astype(np.intp), count - 1), prepend=-1))
    counts, stated, came = np.add.reduceat([samples, samples * z, right], starts, axis=1)
    # A binomial has at least the variance of a sum of events with different probabilities.
    low, high = wilson_interval(came, counts, 1 - (1 - level) / len(counts))
    ends: Array = stated / counts - np.stack((high, low))
    return ends


def wilson_interval(right: Array, samples: Array, level: float = 0.95) -> tuple[Array, Array]:
    """Interval of a share, from counts."""
    share, square = right / samples, NormalDist().inv_cdf((1 + level) / 2) ** 2 / samples
    centre = (share + square / 2) / (1 + square)
    half = np.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return np.clip(centre - half, 0, share), np.clip(centre + half, share, 1)


@dataclass(frozen=True)
class Comparison:
    """Two models on the same samples.

    Attributes:
        a: Value of the metric for the first model; ``b`` is that of the second.
        difference: ``a - b``: above 0, the second is better; for accuracy, the first.
        low: Lower end of the interval of the difference at the confidence ``level``; ``high`` is the upper.
        p_value: Two-sided p-value of the hypothesis that the two do not differ.
        method: ``"jackknife"`` or ``"bootstrap"``.
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
        better = "better" if described(self.metric).kind == "mixed" else "better calibrated"
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

    For ESD, MMCE, accuracy and the gap, paired leave-one-out values give the standard error of the difference. For
    other metrics both models are bootstrapped with the same samples, and three intervals and p-values must agree.
    See :doc:`/inference`.

    Args:
        a: Predictions of one model; ``b`` are those of the other, of the same samples in the same order.
        metric: As in :func:`calibration_test`, and so are ``seed``, ``bins`` and ``convention``; for the gap, its
            absolute value.
        level: Confidence level of the interval of the difference, ``a - b``.
        draws: Number of draws of the bootstrap and of each calibrated model. The smallest p-value is
            ``2 / (1 + draws)``.
    """
    measure = asked_metric(metric, draws, seed, bins, convention)
    _check_level(level)
    _check_pair(a, b)
    name = f"a comparison of {label(measure.key)}"
    a, b = (single(predictions(model, minimum=measure.minimum + 1, name=name)) for model in (a, b))
    if measure.jackknife is not None:
        of_a, of_b = measure.jackknife(a), measure.jackknife(b)
        method, first, second = "jackknife", of_a.value, of_b.value
        if measure.kind == "signed":
            first, second = abs(first), abs(second)
            found = jackknife.difference_of_sizes(of_a, of_b, level)
        else:
            found = jackknife.difference(of_a, of_b, level)
    else:
        method, first, second = "bootstrap", value_of(a, measure), value_of(b, measure)
        drawn_a, drawn_b = bootstrap((a, b), measure, draws, seed)
        bias = float(drawn_a.mean() - drawn_b.mean()) - (first - second)
        if measure.kind == "error":
            null_a, null_b = (null_values(model, measure, draws, seed) for model in (a, b))
            bias = float(null_a.mean() - null_b.mean())
        found = _bootstrap_difference(first - second, drawn_a - drawn_b, bias, level)
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
    """Interval and p-value by the share of draws on either side of 0, with the data counted once more on each side."""
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
    if not np.array_equal(a.counts, b.counts):
        raise ValueError("a and b must have the same sample_weight: give both the same weights, or none")
    if a.target is not None and b.target is not None and not np.array_equal(a.target, b.target):
        differ = int((a.target != b.target).sum())
        raise ValueError(
            f"a and b must have the same target, got {differ} of {len(a)} that differ: bring both into the same order"
        )


def bootstrap(models: tuple[Predictions, ...], measure: Metric, draws: int, seed: int) -> tuple[Array, ...]:
    """The metric of each model on the same samples, drawn with replacement."""
    on_counts = [_on_counts(model, measure) for model in models]
    blocks = [[values(counts) for values in on_counts] for counts in _bootstrap_counts(models[0], draws, seed)]
    return tuple(finite(np.concatenate(each), measure) for each in zip(*blocks, strict=True))


def _on_counts(given: Predictions, measure: Metric) -> Callable[[Array], Array]:
    """The metric of samples drawn, by how often each was drawn, (draws, samples)."""
    if measure.of_draws is None:
        return lambda counts: np.array([measure.value(given.repeated(row)) for row in counts])
    rows, value = SortedRows(given), measure.of_draws(given)
    confidence = rows.confidence[rows.first]

    def values(counts: Array) -> Array:
        samples = counts.take(rows.order, axis=1)
        right = samples * rows.correct
        if len(rows.first) < len(rows.order):
            samples, right = (np.add.reduceat(each, rows.first, axis=1) for each in (samples, right))
        return value(Block(confidence, samples, right))

    return values


def _bootstrap_counts(given: Predictions, draws: int, seed: int) -> Iterator[Array]:
    """Blocks of how often each sample is drawn: (draws, samples)."""
    generator = np.random.default_rng((seed, BOOTSTRAP))
    weight, samples = given.sample_weight, given.samples
    for rows in block_sizes(draws, samples):
        if weight is None:
            cells = generator.integers(0, samples, (rows, samples))
            cells += np.arange(0, rows * samples, samples)[:, np.newaxis]
            counts = np.bincount(cells.ravel(), minlength=rows * samples).reshape(rows, samples)
        else:
            counts = generator.multinomial(round(given.total), weight / weight.sum(), size=rows)
        yield counts.astype(np.float64)
