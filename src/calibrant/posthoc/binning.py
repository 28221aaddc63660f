"""Histograms of rates: one of them, and the Bayesian average of many."""

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

from calibrant import inputs
from calibrant.frames import Array, IndexArray, Marks
from calibrant.posthoc.curves import XP, ScoreCalibrator, Ties, all_ties, steps, sums_before
from calibrant.posthoc.map import Curve, LogScores, Steps, View

Mode = Literal["equal-mass", "equal-width"]
# Weight of the prior of a binning, in samples (N' in the paper), and factor around the cube root of N to search.
PRIOR_SAMPLES = 2.0
SPREAD = 10
# Binnings with less than this share of the best one's posterior hardly change the result.
LEAST_SHARE = 1e-3
# Bins that are tried, if the weights count as more samples than there are.
MOST_BINS = 1000
# Resolution of values, and their smallest distance to 0 and 1: the precision of float32 near 1.
GRAIN = 2.0**-23


def copies_of(weight: Array) -> tuple[float, float]:
    """Number of copies of all samples, and of a weight of 1: samples have at least one copy each on average."""
    total = float(weight.sum())
    count = max(total, len(weight))
    return count, count / total


def edges_at(found: Ties, places: Array) -> Array:
    """Edges after whole numbers of copies, half-way between the ties that they separate."""
    # By the middles of the two copies next to an edge, rounding of the sums does not move it.
    ends, last = found.mass.cumsum(), len(found.mass) - 1
    below = found.score[np.searchsorted(ends, places - 0.5, side="right").clip(0, last)]
    above = found.score[np.searchsorted(ends, places + 0.5, side="right").clip(0, last)]
    return np.asarray(below + (above - below) / 2)


class HistogramBinning(ScoreCalibrator):
    """Replace a probability by the rate of hits among the samples in its bin: :doc:`/methods/histogram`.

    Args:
        bins: Number of bins, which are right-closed.
        mode: ``"equal-mass"``, bins with the same number of samples, apart from ties; or ``"equal-width"``.
        view: ``"top-label"``; or ``"class-wise"``, where samples that share their bins in all classes become identical.
        strict: See :class:`Calibrator`.

    Example:
        >>> logits = np.array([3.0, 3.0, 3.0, 3.0, -3.0, -3.0])
        >>> binning = HistogramBinning(2, "equal-width", strict=True).fit(logits, np.array([1, 1, 1, 0, 0, 1]))
        >>> binning.predict_proba(np.array([3.0, -1.0]))[:, 1].round(4)  # four of six predictions are right
        array([0.6667, 0.3333])
    """

    def __init__(
        self, bins: int = 15, mode: Mode = "equal-mass", view: View = "top-label", *, strict: bool = False
    ) -> None:
        super().__init__(view, strict=strict)
        self.bins = inputs.check_count("bins", bins)
        inputs.check_choice("mode", mode, ("equal-mass", "equal-width"))
        self.mode = mode

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array) -> Iterator[Curve]:
        cut = np.arange(1, self.bins) / self.bins
        count, copies = copies_of(weight)
        for found in all_ties(scores.probability(XP), hits, weight * copies):
            edges = cut.astype(found.score.dtype)
            if self.mode == "equal-mass":
                edges = edges_at(found, (cut * count).round())
            inner = np.searchsorted(found.score, edges, side="right")
            until = np.concatenate(([0], inner, [len(found.score)]))
            mass, right = (np.diff(sums_before(part)[until]) for part in (found.mass, found.hits))
            bounds = np.concatenate(([0.0], edges, [1.0]))
            rates = (right / np.where(mass > 0, mass, 1.0)).clip(0, 1)  # sums of weights are rounded
            yield steps(edges, np.where(mass > 0, rates, (bounds[1:] + bounds[:-1]) / 2))


class BayesianBinning(ScoreCalibrator):
    """Average histograms over the number of bins, weighted by their posterior (BBQ): :doc:`/methods/bbq`.

    Example:
        >>> logits = np.array([3.0, -3.0] * 500)
        >>> target = np.array([1, 0, 1, 0, 1, 0, 0, 1] * 125)  # right in three of four
        >>> BayesianBinning(strict=True).fit(logits, target).predict_proba(np.array([3.0])).round(4)
        array([[0.25, 0.75]])
    """

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array) -> Iterator[Curve]:
        """Score every binning, and average those that count."""
        count, copies = copies_of(weight)
        root = float(weight.sum()) ** (1 / 3)
        most = max(1, min(math.ceil(root * SPREAD), round(count), max(len(weight), MOST_BINS)))
        least = max(1, min(math.floor(root / SPREAD), most))
        bins = _Bins(np.arange(least, most + 1), count, copies)
        for found in all_ties(scores.probability(XP), hits, weight * copies):
            yield bins.averaged(found)


class _Bins:
    """The bins of binnings of several sizes, one binning after the other, in arrays of the sum of the sizes."""

    def __init__(self, sizes: IndexArray, count: float, copies: float) -> None:
        self.copies = copies
        self.model = np.arange(len(sizes)).repeat(sizes)
        self.lasts = sizes.cumsum() - 1
        self.firsts = self.lasts - sizes + 1
        size = sizes[self.model]
        self.prior = PRIOR_SAMPLES / size
        share = (np.arange(len(size)) - self.firsts[self.model] + 1) / size
        # Bins of different sizes end at the same places, of which there are fewer.
        self.places, self.place = np.unique((share * count).round(), return_inverse=True)

    def averaged(self, found: Ties) -> Steps:
        """One table of all binnings, each weighted by its posterior."""
        from scipy.special import gammaln

        edges = edges_at(found, self.places)
        until = np.searchsorted(found.score, edges, side="right")
        low, high = self._ends(until, 0, len(found.score))
        masses, all_hits = sums_before(found.mass), sums_before(found.hits)
        mass = (masses[high] - masses[low]) / self.copies
        hits = (all_hits[high] - all_hits[low]) / self.copies
        hits = hits.clip(0, mass)  # sums of weights are rounded
        left, right = self._ends(edges.astype(np.float64), 0.0, 1.0)
        of_hit = ((left + right) / 2).clip(1e-12, 1 - 1e-12) * self.prior
        of_miss = self.prior - of_hit
        score = gammaln(mass - hits + of_miss) - gammaln(of_miss) - gammaln(mass + self.prior) + gammaln(self.prior)
        some = hits > 0  # the rest of the formula is 0 without hits, which are few if there are many classes
        score[some] += gammaln((hits + of_hit)[some]) - gammaln(of_hit[some])
        evidence = np.add.reduceat(score, self.firsts)
        share = np.exp(evidence - evidence.max())
        share = np.where(share < LEAST_SHARE, 0.0, share)
        share /= share.sum()
        # The mean follows from its first value and the jumps of all binnings at their edges.
        rates = (hits + of_hit) / (mass + self.prior)
        inner = share[self.model] > 0
        inner[self.lasts] = False
        at = np.flatnonzero(inner)
        steps_at, which = np.unique(edges[self.place[at]], return_inverse=True)
        rises = (rates[at + 1] - rates[at]) * share[self.model[at]]
        jumps = np.bincount(which, rises, len(steps_at)).astype(np.float64)
        values = share @ rates[self.firsts] + sums_before(jumps)
        values = ((values / GRAIN).round() * GRAIN).clip(GRAIN, 1 - GRAIN)
        changes = np.flatnonzero(np.diff(values))
        return steps(steps_at[changes], values[np.append(changes, len(values) - 1)])

    def _ends(self, inner: Marks, low: float, high: float) -> tuple[Marks, Marks]:
        """Both ends of each bin, from those at the places and the outer ones."""
        to = inner[self.place]
        to[self.lasts] = high
        since = np.roll(to, 1)
        since[self.firsts] = low
        return since, to
