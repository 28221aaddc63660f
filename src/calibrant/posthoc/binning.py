"""Tables of rates: histogram binning, Bayesian binning, and the spline of the cumulative gap."""

import math
from functools import cached_property
from typing import Literal

import numpy as np

from calibrant import inputs
from calibrant.frames import Array, IndexArray, Marks
from calibrant.posthoc.map import Curve, Lines, LogScores, Steps, View
from calibrant.posthoc.scores import XP, ScoreCalibrator

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
# Points of the spline's table: they resolve the distribution of the scores to a tenth of a percent.
TABLE = 1024
# Points that the spline is fitted to, if the weights count as more samples than there are.
MOST_POINTS = 2**16


class SortedHits:
    """Scores in ascending order with cumulative hits, so that any binning is counted by a few look-ups.

    Args:
        position: Scores, ``(rows, N)``.
        hits: 0 or 1, ``(rows, N)``.
        weight: ``(N,)`` weights of the samples, or None.
    """

    def __init__(self, position: Array, hits: Array, weight: Array | None = None) -> None:
        order = position.argsort(axis=1)
        self.ascending = np.take_along_axis(position, order, 1)
        sorted_hits = np.take_along_axis(hits, order, 1)
        self.weight = None if weight is None else weight[order]
        self.mass = None if self.weight is None else sums_before(self.weight)
        self.cumulated = sums_before(sorted_hits if self.weight is None else sorted_hits * self.weight)

    @cached_property
    def copies(self) -> float:
        """Number of copies that the weight of 1 counts as: samples have at least one copy each on average."""
        return 1.0 if self.mass is None else max(1.0, self.ascending.shape[1] / float(self.mass[0, -1]))

    @cached_property
    def count(self) -> int:
        """Number of copies of all samples, each of which is one if there are no weights."""
        return self.ascending.shape[1] if self.mass is None else round(float(self.mass[0, -1]) * self.copies)

    def places(self, cut: Array) -> tuple[Array, IndexArray]:
        """Whole numbers of copies at given shares of the mass: the different ones, ascending, and which each share has.

        Many shares of a large number of bins have the same place.
        """
        total = self.ascending.shape[1] if self.mass is None else self.mass[0, -1] * self.copies
        return np.unique((cut * total).round(), return_inverse=True)

    def edges_at(self, places: Array) -> tuple[Array, IndexArray]:
        """Edges after so many copies, half-way between the samples they separate; and samples up to them.

        Both are ``(rows, m)``. Ties are never split. For ascending places, edges ascend too.
        """
        rows, samples = self.ascending.shape
        if self.mass is None:
            above = np.tile(places.astype(np.int64).clip(0, samples - 1), (rows, 1))
            below = np.maximum(above - 1, 0)
        else:
            # By the middles of the two copies next to an edge, rounding of the sums does not move it.
            ends = self.mass[:, 1:] * self.copies
            below, above = (
                np.stack([np.searchsorted(row, places + step, side="right") for row in ends]).clip(0, samples - 1)
                for step in (-0.5, 0.5)
            )
        left, right = np.take_along_axis(self.ascending, below, 1), np.take_along_axis(self.ascending, above, 1)
        edges = left + (right - left) / 2
        # Half-way between neighbours, the lower one and its ties are the last below the edge, unless rounding lifts it.
        until = np.take_along_axis(self.after, np.where(edges < right, below, above), 1)
        beyond = np.pad(self.ascending, ((0, 0), (0, 1)), constant_values=np.inf)
        while (more := np.take_along_axis(beyond, until, 1) <= edges).any():
            until = np.where(more, np.take_along_axis(self.after, np.minimum(until, samples - 1), 1), until)
        return edges, until

    @cached_property
    def after(self) -> IndexArray:
        """Number of samples up to each one and its ties, ``(rows, N)``."""
        rows, samples = self.ascending.shape
        ends = np.tile(np.arange(1, samples + 1), (rows, 1))
        ends[:, :-1][self.ascending[:, 1:] == self.ascending[:, :-1]] = samples
        return np.asarray(np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1])

    def counted(self, edges: Array) -> tuple[Array, Array]:
        """Samples and hits in the right-closed bins between inner edges: each ``(rows, bins)``, float64."""
        rows, samples = self.ascending.shape
        until = [np.searchsorted(*row, side="right") for row in zip(self.ascending, edges, strict=True)]
        ends = np.concatenate((np.zeros((rows, 1), int), np.stack(until), np.full((rows, 1), samples)), axis=1)
        mass = ends.astype(np.float64) if self.mass is None else np.take_along_axis(self.mass, ends, 1)
        return np.diff(mass), np.diff(np.take_along_axis(self.cumulated, ends, 1))


def sums_before(values: Array) -> Array:
    """Prefix sums of each row that start at zero: ``(rows, N)`` becomes ``(rows, N + 1)``."""
    return np.pad(values.cumsum(1), ((0, 0), (1, 0)))


class HistogramBinning(ScoreCalibrator):
    """Replace a probability by the rate of hits among the held-out samples in its bin.

    Bins are right-closed. A bin without held-out samples gives its middle. Ties are never split, so there can be
    fewer bins of equal mass than requested. Rates of 0 and 1 occur; mixing with the uniform distribution (see
    :class:`Calibrator`) keeps the log loss finite.

    Args:
        bins: Number of bins.
        mode: ``"equal-mass"``, bins with the same number of samples; or ``"equal-width"``.
        view: ``"top-label"``; or ``"class-wise"``, one-vs-rest, where samples that share their bins in all classes
            become identical, and accuracy can fall. See :class:`ScoreCalibrator`.
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

    References:
        Zadrozny, Elkan, "Obtaining calibrated probability estimates from decision trees and naive Bayesian
        classifiers", ICML 2001.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import HistogramBinning
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

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array | None) -> Curve:
        """Count hits in bins."""
        sample = SortedHits(scores.probability(XP), hits, weight)
        cut = np.arange(1, self.bins) / self.bins
        if self.mode == "equal-mass":
            places, which = sample.places(cut)
            edges = sample.edges_at(places)[0][:, which]
        else:
            edges = np.tile(cut.astype(scores.log_p.dtype), (len(hits), 1))
        counts, right = sample.counted(edges)
        rates = (right / np.where(counts > 0, counts, 1.0)).clip(0, 1)  # sums of weights are rounded
        bounds = np.pad(edges.astype(np.float64), ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))
        return Steps(edges, np.where(counts > 0, rates, (bounds[:, 1:] + bounds[:, :-1]) / 2))


class BayesianBinning(ScoreCalibrator):
    r"""Average histograms of equal mass over the number of bins, weighted by their posterior (BBQ).

    Every number of bins B from :math:`\sqrt[3]{N}/10` to :math:`10\sqrt[3]{N}` is a model. In each of its bins the
    rate of hits has a Beta prior worth :math:`2/B` samples around the middle of the bin; the marginal likelihood
    of all bins (the BDeu score) is the weight of the model, and its prediction is the posterior mean

    .. math:: \frac{m_b + \alpha_b}{n_b + 2/B}, \qquad \alpha_b = \frac{2}{B}\, p_b

    with :math:`m_b` hits among :math:`n_b` samples and the middle :math:`p_b`. So no value is ever 0 or 1, or
    nearer to them than :math:`2^{-23}`, the precision of the table. Models with less than a thousandth of the best
    one's posterior are left out. The average is stored as one table, in which a prediction is one look-up.

    Args:
        view: ``"class-wise"``, one-vs-rest; or ``"top-label"``. See :class:`ScoreCalibrator`.
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

    References:
        Naeini, Cooper, Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import BayesianBinning
        >>> logits = np.array([3.0, -3.0] * 500)
        >>> target = np.array([1, 0, 1, 0, 1, 0, 0, 1] * 125)  # right in three of four
        >>> BayesianBinning(strict=True).fit(logits, target).predict_proba(np.array([3.0])).round(4)
        array([[0.25, 0.75]])
    """

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array | None) -> Curve:
        """Score every binning, and average those that count."""
        sample = SortedHits(scores.probability(XP), hits, weight)
        root = (sample.count / sample.copies) ** (1 / 3)
        fewest, most = (min(sample.count, each) for each in (math.floor(root / SPREAD), math.ceil(root * SPREAD)))
        most = min(most, max(len(sample.ascending[0]), MOST_BINS))
        bins = _Bins(sample, np.arange(max(1, min(fewest, most)), max(1, most) + 1))
        evidence = bins.log_evidence()
        share = np.exp(evidence - evidence.max(1, keepdims=True))
        share = np.where(share < LEAST_SHARE, 0.0, share)
        return bins.average(share / share.sum(1, keepdims=True))


class _Bins:
    """The bins of binnings of several sizes, one binning after the other: ``(rows, sum of the sizes)``.

    Args:
        sample: The scores and hits.
        sizes: Number of bins of each binning, ``(m,)``.
    """

    def __init__(self, sample: SortedHits, sizes: IndexArray) -> None:
        self.model = np.arange(len(sizes)).repeat(sizes)
        self.ends = sizes.cumsum() - 1
        self.starts = self.ends - sizes + 1
        size = sizes[self.model]
        self.prior = PRIOR_SAMPLES / size
        places, self.place = sample.places((np.arange(len(size)) - self.starts[self.model] + 1) / size)
        self.edges, until = sample.edges_at(places)
        # A bin ends at one of the places or at the right end of all, and begins where the one before it ends or at the
        # left end. With both ends among the columns, a bin is the difference of two of them.
        to = self.place + 1
        to[self.ends] = len(places) + 1
        since = np.roll(to, 1)
        since[self.starts] = 0
        until = np.pad(until, ((0, 0), (1, 1)), constant_values=((0, 0), (0, sample.ascending.shape[1])))
        bounds = np.pad(self.edges.astype(np.float64), ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))
        hits = np.take_along_axis(sample.cumulated, until, 1)
        if sample.mass is None and (until == until[:1]).all():  # without ties and weights
            until = until[:1]
        mass = until.astype(np.float64) if sample.mass is None else np.take_along_axis(sample.mass, until, 1)

        def between(columns: Array) -> Array:
            return columns.take(to, axis=1) - columns.take(since, axis=1)

        self.counts = np.maximum(between(mass), 0)  # sums of weights are rounded
        self.hits = np.minimum(np.maximum(between(hits), 0), self.counts)
        middles = (bounds.take(to, axis=1) + bounds.take(since, axis=1)) / 2
        self.right = middles.clip(1e-12, 1 - 1e-12) * self.prior

    def log_evidence(self) -> Array:
        """BDeu score of each binning, ``(rows, m)``."""
        from scipy.special import gammaln

        wrong = self.prior - self.right
        score = gammaln(self.counts - self.hits + wrong) - gammaln(wrong)
        score -= gammaln(self.counts + self.prior) - gammaln(self.prior)
        # The rest of the formula is 0 without hits, which are few if there are many classes.
        some = np.nonzero(self.hits > 0)
        right = self.right[some]
        score[some] += gammaln(self.hits[some] + right) - gammaln(right)
        return np.asarray(np.add.reduceat(score, self.starts, axis=1))

    def average(self, share: Array) -> Steps:
        """One table of the weighted models: all their edges together, and between them the weighted mean."""
        inner = np.ones(len(self.model), dtype=bool)
        inner[self.ends] = False
        inner &= np.asarray(share.any(0))[self.model]
        at = np.flatnonzero(inner)
        at = at[self.place[at].argsort(kind="stable")]
        rates = (self.hits + self.right) / (self.counts + self.prior)
        first = (share * rates[:, self.starts]).sum(1, keepdims=True)
        # The mean follows from its first value and its jumps at each place, which are 0 in rows that do not use it.
        jumps = (rates.take(at + 1, axis=1) - rates.take(at, axis=1)) * share.take(self.model[at], axis=1)
        places, begins = np.unique(self.place[at], return_index=True)
        rises = np.add.reduceat(jumps, begins, axis=1).cumsum(1) if len(at) else np.zeros((len(jumps), 0))
        edges, values = self.edges[:, places], np.concatenate((first, first + rises), axis=1)
        values = ((values / GRAIN).round() * GRAIN).clip(GRAIN, 1 - GRAIN)
        repeated = np.diff(edges, prepend=-1.0) == 0
        edges, values = _without(repeated, edges, values)
        return Steps(*_without(np.diff(values) == 0, edges, values))


def _without(dropped: Marks, edges: Array, values: Array) -> tuple[Array, Array]:
    """The table without some edges and the bins to their left; rows with fewer edges end in infinite ones."""
    width = int((~dropped).sum(1).max()) if dropped.shape[1] else 0
    order = dropped.argsort(axis=1, kind="stable")[:, :width]
    last = values[:, -1:]
    edges = np.take_along_axis(np.where(dropped, edges.dtype.type(np.inf), edges), order, 1)
    values = np.take_along_axis(np.where(dropped, last, values[:, :-1]), order, 1)
    return edges, np.concatenate((values, last), axis=1)


class SplineCalibration(ScoreCalibrator):
    r"""Add the slope of the cumulative gap between hits and scores to each score.

    With scores sorted, let :math:`h(t)` be the sum of hits minus scores over the lowest fraction t of the samples,
    divided by N: its largest deviation from 0 is the KS error. Its slope :math:`h'(t)` is the rate of hits at that
    quantile minus the predicted one. A natural cubic spline is fitted to h by least squares, and a score z at quantile
    t becomes :math:`z + h'(t)`, clipped to [0, 1].

    The map is kept as a table at up to 1,024 quantiles of the held-out scores, with straight lines between them.
    Tied scores share their mean rate of hits, so the order of the data does not matter.

    Args:
        knots: Number of knots of the spline, at equal steps of t.
        view: ``"top-label"``, as in the paper; or ``"class-wise"``, one-vs-rest, which helps little with many classes:
            a few knots at equal steps of t all lie among the scores near 0, which are the most, and the few high ones
            are hardly corrected. See :class:`ScoreCalibrator`.
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

    References:
        Gupta, Rahimi, Ajanthan, Mensink, Sminchisescu, Hartley, "Calibration of Neural Networks using Splines",
        ICLR 2021.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import SplineCalibration
        >>> logits = np.array([3.0, -3.0] * 500)
        >>> target = np.array([1, 0, 1, 0, 1, 0, 0, 1] * 125)  # right in three of four
        >>> SplineCalibration(strict=True).fit(logits, target).predict_proba(np.array([3.0])).round(3)
        array([[0.25, 0.75]])
    """

    def __init__(self, knots: int = 6, view: View = "top-label", *, strict: bool = False) -> None:
        super().__init__(view, strict=strict)
        self.knots = inputs.check_count("knots", knots)
        if knots < 2:
            raise ValueError(f"knots must be at least 2, got {knots}")

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array | None) -> Curve:
        """Fit the spline and tabulate the map."""
        sample = SortedHits(scores.probability(XP), hits, weight)
        ascending, last = sample.ascending.astype(np.float64), sample.after
        rows, samples = ascending.shape
        new = np.pad(ascending[:, 1:] != ascending[:, :-1], ((0, 0), (1, 0)), constant_values=True)
        first = np.maximum.accumulate(np.where(new, np.arange(samples), 0), axis=1)
        mass = np.tile(np.arange(samples + 1.0), (rows, 1)) if sample.mass is None else sample.mass
        start, end = np.take_along_axis(mass, first, 1), np.take_along_axis(mass, last, 1)
        right = np.take_along_axis(sample.cumulated, last, 1) - np.take_along_axis(sample.cumulated, first, 1)
        # Samples whose weight is lost in the sum of all have no rate of their own: they are not corrected.
        rate = np.where(end > start, (right / np.where(end > start, end - start, 1)).clip(0, 1), ascending)
        total = mass[0, -1]
        gap = sums_before((rate - ascending) * (1.0 if sample.weight is None else sample.weight)) / total
        # One point for each copy of a sample, between which the gap of a heavier sample is a straight line.
        copies = min(sample.count, max(samples, MOST_POINTS))
        fraction = np.arange(copies + 1) / copies
        if sample.weight is not None:
            gap = np.stack([np.interp(fraction * total, *row) for row in zip(mass, gap, strict=True)])
        coefficients = np.linalg.pinv(natural_cubic_basis(fraction, self.knots)[0]) @ gap.T
        few = np.linspace(0, copies - 1, min(copies, TABLE)).round()
        if sample.weight is None:
            at = np.tile(few.astype(np.int64), (rows, 1))
        else:
            middles = (few + 0.5) / copies * total
            at = np.stack([np.searchsorted(row, middles, side="right") - 1 for row in mass]).clip(0, samples - 1)
        quantile = np.take_along_axis(start + end, at, 1) / (2 * total)
        slopes = natural_cubic_basis(quantile.ravel(), self.knots)[1].reshape(rows, len(few), -1)
        slope = (slopes @ coefficients.T[:, :, None])[:, :, 0]
        # Beyond the held-out scores the correction is that of the outermost one.
        position = np.pad(np.take_along_axis(ascending, at, 1), ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))
        return Lines(position, (position + np.pad(slope, ((0, 0), (1, 1)), mode="edge")).clip(0, 1))


def natural_cubic_basis(position: Array, knots: int) -> tuple[Array, Array]:
    """Values and first derivatives of a basis of natural cubic splines on [0, 1], each ``(N, knots)``.

    Natural splines are linear beyond the outermost knots, here 0 and 1. The basis is that of truncated powers without
    the cubic and quadratic growth beyond the last knot.

    Args:
        position: ``(N,)``, in [0, 1].
        knots: Number of knots, at equal steps from 0 to 1; at least 2.
    """
    at = np.linspace(0, 1, knots)
    above = np.maximum(position[:, None] - at, 0)
    beyond = above[:, -1:]
    # Each truncated cube minus that of the last knot grows quadratically; division makes their slopes equal.
    cubes = (above[:, :-1] ** 3 - beyond**3) / (1 - at[:-1])
    slopes = 3 * (above[:, :-1] ** 2 - beyond**2) / (1 - at[:-1])
    one, line = np.ones_like(beyond), position[:, None]
    values = np.concatenate((one, line, cubes[:, :-1] - cubes[:, -1:]), axis=1)
    return values, np.concatenate((0 * one, one, slopes[:, :-1] - slopes[:, -1:]), axis=1)
