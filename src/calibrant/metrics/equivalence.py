"""Equivalence: are the errors provably small? A test that does not reject is no proof of that."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple, Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics import notebook
from calibrant.metrics.inference import confidence_interval
from calibrant.metrics.predictions import Given, Predictions, Values, predictions

# Groups of equal size by probability, and fewest samples in each.
GROUPS = 10
LEAST = 50


class Groups(NamedTuple):
    """Samples in groups of equal size by their probability, with simultaneous intervals of each group's gap.

    Attributes:
        probability: Mean stated probability of each group.
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
        """The largest gap, in either direction, that the intervals allow in any group."""
        return float(np.maximum(np.abs(self.low), np.abs(self.high)).max())


@notebook.shown
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
        """Whether the gap of every group lies within the margin."""
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
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
    *,
    margin: float = 0.02,
    level: float = 0.95,
    **given: Unpack[Given],
) -> Equivalence:
    """Ask whether the data show that the probabilities are right to within a margin.

    On average: if the interval of the gap (mean probability minus the share that came true) lies within the margin.
    These are two one-sided tests (TOST), each at ``(1 - level) / 2``. They say nothing about errors that cancel on
    average.

    Everywhere: the samples are sorted by probability into 10 groups of equal size (fewer below 500 samples), and the
    gap of each has a Wilson interval at a level that makes all hold together (Bonferroni). It says nothing about errors
    that cancel within a group.

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
    groups = risk_groups(data, level)
    return Equivalence(margin, level, gap.value, gap.low, gap.high, len(groups.rate), groups.largest)


def risk_groups(data: Predictions, level: float = 0.95) -> Groups:
    """Groups of equal size by probability, ties together, with simultaneous intervals of their gaps."""
    order = np.argsort(data.confidence, kind="stable")
    z, event = data.confidence[order].astype(np.float64), data.correct[order].astype(np.float64)
    weight = np.ones(len(z)) if data.weight is None else data.weight[order]
    first = np.flatnonzero(np.concatenate(([True], z[1:] != z[:-1])))
    sizes = np.add.reduceat(weight, first)
    middle = (sizes.cumsum() - sizes / 2) / sizes.sum()
    count = max(1, min(GROUPS, len(z) // LEAST))
    group = np.repeat(np.minimum((middle * count).astype(np.intp), count - 1), np.diff(first, append=len(z)))
    group = np.unique(group, return_inverse=True)[1]
    mass, squares, stated, came = (
        np.bincount(group, weights=values) for values in (weight, weight**2, weight * z, weight * event)
    )
    held = mass > 0
    mass, squares, stated, came = mass[held], squares[held], stated[held], came[held]
    rate, samples = came / mass, mass**2 / squares
    # A binomial has at least the variance of a sum of events with different probabilities.
    square = NormalDist().inv_cdf(1 - (1 - level) / (2 * len(rate))) ** 2 / samples
    centre = (rate + square / 2) / (1 + square)
    half = np.sqrt(rate * (1 - rate) * square + square**2 / 4) / (1 + square)
    probability = stated / mass
    return Groups(probability, rate, probability - centre - half, probability - centre + half)
