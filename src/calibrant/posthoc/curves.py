"""Curves of one score: logistic ones (Platt, beta), isotonic ones, Venn-Abers prediction, and splines."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from calibrant import inputs
from calibrant.frames import Array, IndexArray
from calibrant.posthoc.fit import Calibrator, HeldOut
from calibrant.posthoc.map import (
    Curve,
    Curves,
    Lines,
    LogOdds,
    LogScores,
    Map,
    NumpyOps,
    OddsCurve,
    Steps,
    TwoSteps,
    View,
    evaluated,
    view_scores,
)
from calibrant.posthoc.scaling import StructuredMatrixScaling
from calibrant.posthoc.solvers import logistic_regression, softplus

XP = NumpyOps()
# Number of scores that are fitted at a time: few enough for the cache, enough to keep the overhead small.
BLOCK = 2**18
# Rates that differ by less are equal but for rounding.
ROUNDING = 1e-12
# Points of the spline's table: they resolve the distribution of the scores to a tenth of a percent.
TABLE = 1024
# Points that the spline is fitted to, if the weights count as more samples than there are.
MOST_POINTS = 2**16

# Inverse variance of the prior of slope and shift: that of structured matrix scaling for two classes.
PRECISION = 4.0
KNOTS = 12
# With fewer different scores there is no curve.
FEWEST_KNOTS = 4
# Knots nearer to each other than this share of their range, or than this many log-odds, are one.
NEAREST, LEAST_GAP = 1e-3, 1e-4
# Half the range of log-odds, at least, that the roughness is measured on: scores in a narrow range say little about
# slopes, and the curve goes on with these slopes beyond.
LEAST_HALF = 0.1
# Factors of the curve that are tried, which has the prior of the line then: the strength is 4 over their square.
SCALES = tuple(4.0**k for k in range(-3, 3))
# Samples beyond which neighbours are joined, in as many cells: a curve with so few knots cannot tell them apart.
JOINED = 2**14


class ScoreCalibrator(Calibrator):
    """Base class of methods that map one score, a probability, to another.

    Args:
        view: ``"class-wise"``, a map for each class, fitted one-vs-rest, and one for two classes; or ``"top-label"``,
            one map of the confidence in the predicted class: :doc:`/posthoc`.
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.
    """

    def __init__(self, view: View = "class-wise", *, strict: bool = False) -> None:
        super().__init__(strict=strict)
        inputs.check_choice("view", view, ("class-wise", "top-label"))
        self.view: View = view

    def rows_needed(self, classes: int) -> int:
        """Twenty rows for the map of each class."""
        return self.least_rows if self.view == "top-label" or classes == 2 else max(self.least_rows, 20 * classes)

    @abstractmethod
    def fit_scores(self, scores: LogScores, hits: Array, weight: Array) -> Iterator[Curve]:
        """Fit a curve to each row of scores and hits, ``(rows, N)``, with arrays of one dimension."""

    def fit_map(self, data: HeldOut) -> Map:
        classes = data.logits.shape[1]
        found = evaluated(lambda xp, rows: view_scores(xp, rows, self.view)[0], data.logits)
        if self.view == "top-label":
            hits = (data.target == data.logits.argmax(1))[:, None]
        else:
            hits = data.target[:, None] == np.arange(int(classes == 2), classes)
        curves: list[Curve] = []
        step = max(1, BLOCK // len(data.target))
        for start in range(0, hits.shape[1], step):
            block = slice(start, start + step)
            scores = LogScores(*(np.ascontiguousarray(part[:, block].T) for part in found))
            happened = np.ascontiguousarray(hits[:, block].T, dtype=np.float64)
            curves += self.fit_scores(scores, happened, data.weights)
        tables = [curve.split()[1] for curve in curves]

        def of_all(name: str, _: Array) -> Array:
            return stacked([arrays[name] for arrays in tables], data.logits.dtype)

        whole = curves[0].rebuilt(of_all)
        return self.mixed(Curves(whole, self.view, data.logits.dtype == np.float32), data)


def stacked(rows: list[Array], dtype: Any) -> Array:
    """Rows of different lengths as one array, in which the last entry of shorter ones is repeated."""
    found: Array = np.empty((len(rows), max(map(len, rows))), dtype)
    for k, row in enumerate(rows):
        found[k, : len(row)] = row
        found[k, len(row) :] = row[-1]
    return found


class PlattScaling(ScoreCalibrator):
    """Logistic regression on the log-odds of a probability: :doc:`/methods/platt`.

    Example:
        >>> logits = np.array([3.0, -3.0] * 500)  # binary: the logit of class 1
        >>> target = np.array([1, 0, 1, 0, 1, 0, 0, 1] * 125)  # right in three of four
        >>> PlattScaling(strict=True).fit(logits, target).predict_proba(np.array([3.0])).round(3)
        array([[0.251, 0.749]])
    """

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array) -> Iterator[Curve]:
        odds = scores.log_odds(XP).astype(np.float64)
        features = np.stack((odds, np.ones_like(odds)), axis=1)
        right = (hits @ weight)[:, None]
        wrong = weight.sum() - right
        soft = np.where(hits > 0, (right + 1) / (right + 2), 1 / (wrong + 2))
        found = logistic_regression(features, soft, np.array([1.0, 0.0]), weight=weight)
        for slope, shift in found:
            yield LogOdds(np.array([slope, slope, shift]))


class BetaCalibration(ScoreCalibrator):
    """Logistic regression on the logarithms of a probability and of its complement: :doc:`/methods/beta`.

    Example:
        >>> logits = np.array([3.0, -3.0] * 500)
        >>> target = np.array([1, 0, 1, 0, 1, 0, 0, 1] * 125)  # right in three of four
        >>> BetaCalibration(strict=True).fit(logits, target).predict_proba(np.array([3.0])).round(3)
        array([[0.25, 0.75]])
    """

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array) -> Iterator[Curve]:
        """Fit the regressions, and again without negative coefficients."""
        log_p, log_not = (part.astype(np.float64) for part in scores.floored(XP))
        features = np.stack((log_p, -log_not, np.ones_like(log_p)), axis=1)
        centre = np.array([1.0, 1.0, 0.0])
        found = logistic_regression(features, hits, centre, weight=weight)
        dropped = np.zeros_like(found, dtype=bool)
        for _ in range(2):
            negative = (found < 0) & ~dropped
            negative[:, 2] = False
            negative[:, 1] &= ~negative[:, 0]  # one at a time: without one, the other may be positive
            again = negative.any(1)
            if not again.any():
                break
            dropped |= negative
            kept = features[again] * ~dropped[again][:, :, None]
            found[again] = logistic_regression(kept, hits[again], centre, weight=weight)
            found[dropped] = 0.0
        for coefficients in found:
            yield LogOdds(coefficients)


class Ties(NamedTuple):
    """Samples with the same score taken together, in ascending order: score, weight, and weight of the hits."""

    score: Array
    mass: Array
    hits: Array


def all_ties(scores: Array, hits: Array, weight: Array) -> Iterator[Ties]:
    """Sort the samples of each row, and take ties together."""
    for score, happened in zip(scores, hits, strict=True):
        order = score.argsort()
        ascending, mass = score[order], weight[order]
        firsts = np.flatnonzero(np.diff(ascending, prepend=-np.inf))
        sums = (np.add.reduceat(part, firsts) for part in (mass, mass * happened[order]))
        yield Ties(ascending[firsts], *sums)


def pooled(found: Ties) -> IndexArray:
    """First tie of each block of the isotonic regression, which is constant in a block and rises to the next."""
    from scipy.optimize import isotonic_regression  # scikit-learn's takes a second to import

    firsts = isotonic_regression(found.hits / found.mass, weights=found.mass).blocks[:-1]
    rate = np.add.reduceat(found.hits, firsts) / np.add.reduceat(found.mass, firsts)
    return np.asarray(firsts[np.diff(rate, prepend=-1.0) > ROUNDING])


def sums_before(values: Array) -> Array:
    """Prefix sums that start at zero: ``(N,)`` becomes ``(N + 1,)``."""
    return np.concatenate(([0.0], values.cumsum()))


class IsotonicCalibration(ScoreCalibrator):
    """Least squares fit among all non-decreasing maps of a probability: :doc:`/methods/isotonic`.

    Example:
        >>> logits = np.array([-2.0, -1.0, 1.0, 2.0])
        >>> calibrator = IsotonicCalibration(strict=True).fit(logits, np.array([0, 1, 0, 1]))
        >>> calibrator.predict_proba(logits)[:, 1]
        array([0. , 0.5, 0.5, 1. ])
    """

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array) -> Iterator[Curve]:
        """Fit the regressions; each block of equal values has a knot at both ends."""
        for found in all_ties(scores.probability(XP), hits, weight):
            firsts = pooled(found)
            lasts = np.append(firsts[1:], len(found.score)) - 1
            rate = np.add.reduceat(found.hits, firsts) / np.add.reduceat(found.mass, firsts)
            yield Lines(found.score[np.column_stack((firsts, lasts)).ravel()], rate.repeat(2))


class CentredIsotonicCalibration(ScoreCalibrator):
    """Isotonic regression whose blocks are points, with straight lines between: :doc:`/methods/centred_isotonic`.

    Example:
        >>> logits = np.array([-2.0, -1.0, 1.0, 2.0])
        >>> calibrator = CentredIsotonicCalibration(strict=True).fit(logits, np.array([0, 1, 0, 1]))
        >>> calibrator.predict_proba(np.array([-2.0, -1.0, 0.0, 1.0, 2.0]))[:, 1].round(4)
        array([0.    , 0.1966, 0.5   , 0.8034, 1.    ])
    """

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array) -> Iterator[Curve]:
        """Find the mean score and the rate of hits of each block."""
        for found in all_ties(scores.probability(XP), hits, weight):
            sums = np.stack((found.mass, found.mass * found.score, found.hits))
            mass, score, right = np.add.reduceat(sums, pooled(found), axis=1)
            # A line has two ends, also if there is one block.
            yield Lines(*(np.append(part, part[-1]) for part in (score / mass, right / mass)))


class VennAbers(ScoreCalibrator):
    """Inductive Venn-Abers prediction: an interval for each probability, merged into one: :doc:`/methods/venn_abers`.

    Example:
        >>> logits = np.array([3.0, -3.0] * 500)
        >>> target = np.array([1, 0, 1, 0, 1, 0, 0, 1] * 125)  # right in three of four
        >>> venn_abers = VennAbers().fit(logits, target)
        >>> venn_abers.predict_proba(np.array([3.0])).round(3)
        array([[0.251, 0.749]])
        >>> lower, upper = venn_abers.predict_interval(np.array([3.0]))
        >>> lower[:, 1].round(4), upper[:, 1].round(4)
        (array([0.7485]), array([0.7505]))
    """

    def __init__(self, view: View = "class-wise") -> None:
        super().__init__(view, strict=True)

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array) -> Iterator[Curve]:
        """Tabulate both values for every place that a new score can have."""
        # Only the order of the scores matters; that of log-odds is exact near 1 too.
        for found in all_ties(scores.log_odds(XP), hits, weight):
            # A miss is a hit in the mirror.
            misses = found.mass - found.hits
            mirrored = Ties(-found.score[::-1], found.mass[::-1], misses[::-1])
            yield TwoSteps(value_of_a_hit(mirrored), value_of_a_hit(found))

    def predict_interval(self, logits: Any) -> Any:
        """Return the lower and the upper value, :math:`p_0` and :math:`p_1`, of every probability.

        Both have the shape of ``predict_proba(logits)``, before rows are divided by their sum. With
        ``view="top-label"`` there is one value for each sample, that of the predicted class.
        """
        rows, of_map = self.rows(logits), self.map_

        def bounds(xp: NumpyOps, rows: Any) -> tuple[Any, ...]:
            below, above = (part.T for part in of_map.curve.bounds(xp, of_map.scores(xp, rows)[0]))
            if self.view == "class-wise" and rows.shape[1] == 2:
                below, above = xp.concat((1 - above, below), 1), xp.concat((1 - below, above), 1)
            return xp.like(below, rows), xp.like(above, rows)

        found = evaluated(bounds, rows)
        found = found if self.view == "class-wise" else tuple(part.ravel() for part in found)
        return tuple(self.in_container(logits, part) for part in found)


def value_of_a_hit(found: Ties) -> Steps:
    """Value of the isotonic regression at a new hit, for every place it can have: :doc:`/methods/venn_abers`."""
    width, height = sums_before(found.mass), sums_before(found.hits)
    corner = np.append(pooled(found), len(found.mass))
    # The points whose tangents count, since those along ties of hits only are not steeper: the beginning, and the end
    # of each tie with misses.
    point = np.append(0, np.flatnonzero(found.hits < found.mass) + 1)
    x, y = width[point], height[point]
    touched = corner[touching(width[corner], height[corner], x - 1, y - 1, corner.searchsorted(point))]
    # The 1 comes last, so that it is not lost in large weights.
    tangent = np.clip((height[touched] - y + 1) / (width[touched] - x + 1), 0.0, 1.0)
    value = np.maximum.accumulate(tangent)
    kept = np.flatnonzero(np.diff(value, prepend=-1.0) > 0)
    # A value holds above the score of its point; the first one everywhere below the next.
    return steps(found.score[point[kept[1:]] - 1], value[kept])


def touching(width: Array, height: Array, x: Array, y: Array, nearest: IndexArray) -> IndexArray:
    """Corner that each tangent touches: the first after which the minorant's edge passes not above its point (x, y)."""
    run = np.diff(width)  # 0 where weights are lost in the sum
    slope = np.append(np.diff(height) / np.where(run > 0, run, 1.0), 0.0)
    axis = height - slope * width
    low, high = nearest, np.full_like(nearest, len(height) - 1)
    for _ in range(len(height).bit_length()):
        middle = (low + high) // 2
        beyond = (axis[middle] > y - slope[middle] * x) & (middle < high)
        low, high = np.where(beyond, middle + 1, low), np.where(beyond, high, middle)
    return low


def steps(edges: Array, values: Array) -> Steps:
    """A step function, with one more edge beyond all scores, to be repeated."""
    return Steps(np.append(edges, edges.dtype.type(np.inf)), np.append(values, values[-1]))


class SplineCalibration(ScoreCalibrator):
    """Add the slope of the cumulative gap between hits and scores, a spline, to each score: :doc:`/methods/spline`.

    Args:
        knots: Number of knots of the spline, at equal steps of the quantile.
        view: ``"top-label"``, as in the paper; or ``"class-wise"``, which helps little with many classes.
        strict: See :class:`Calibrator`, as in all methods.

    Example:
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

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array) -> Iterator[Curve]:
        from scipy.interpolate import CubicSpline  # a fit needs it, and a saved calibrator does not

        basis = CubicSpline(np.linspace(0, 1, self.knots), np.eye(self.knots), bc_type="natural")
        # One point for each copy of a sample, between which the gap of a heavier sample is a straight line.
        total, samples = float(weight.sum()), len(weight)
        copies = min(round(max(total, samples)), max(samples, MOST_POINTS))
        fraction = np.arange(copies + 1) / copies
        solve = np.linalg.pinv(basis(fraction))
        few = (np.linspace(0, copies - 1, min(copies, TABLE)).round() + 0.5) / copies
        for found in all_ties(scores.probability(XP).astype(np.float64), hits, weight):
            mass = sums_before(found.mass) / total
            gap = sums_before(found.hits - found.score * found.mass) / total
            heights = solve @ np.interp(fraction, mass, gap)
            at = np.searchsorted(mass[1:-1], few, side="right")
            slope = basis((mass[at] + mass[at + 1]) / 2, 1) @ heights
            # Beyond the held-out scores the correction is that of the outermost one.
            position = np.concatenate(([0.0], found.score[at], [1.0]))
            yield Lines(position, (position + np.pad(slope, 1, mode="edge")).clip(0, 1))


class SmoothScaling(StructuredMatrixScaling):
    """Map the temperature-scaled log-odds of a binary model by a curve as smooth as the data ask for.

    :doc:`/methods/smooth` has the formula. For more than two classes this is :class:`StructuredMatrixScaling`.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> logits = 4 * draw.normal(size=20000)
        >>> truth = 1 / (1 + np.exp(-2 * np.tanh(logits)))  # never surer than 88 %
        >>> scaling = SmoothScaling().fit(logits, draw.random(20000) < truth)
        >>> scaling.predict_proba(np.array([-3.0, 0.0, 3.0, 9.0]))[:, 1].round(1)
        array([0.1, 0.5, 0.9, 0.9])
    """

    def fit_map(self, data: HeldOut) -> Map:
        if data.logits.shape[1] > 2:
            return super().fit_map(data)
        scaled, features = self.features(data._replace(logits=data.logits.astype(np.float64)))
        line, knots, values = fit_curve(features[:, 1] - features[:, 0], 1.0 * data.target, data.weights)
        return self.mixed(OddsCurve(line, *spline_pieces(knots, values), scaled), data)


def fit_curve(odds: Array, hits: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Slope and shift of the line, and the curve's knots and values: averages over the strengths of the prior."""
    knots = knots_of(odds)
    z, y, counts = joined(odds, hits, counts)
    line, bends = np.stack((z, np.ones_like(z))), roughness_basis(knots, z).T  # no bends of fewer than 4 knots
    # Strengths as factors of the curve: then all coefficients have the same prior.
    factors = np.ones((len(SCALES), len(line) + len(bends)))
    factors[:, 2:] = np.array(SCALES)[:, None]
    features = np.concatenate((line, bends)) * factors[:, :, None]
    centre = np.eye(features.shape[1])[0]
    targets = np.broadcast_to(y, (len(SCALES), len(y)))
    pull = PRECISION / float(counts.sum())
    found = logistic_regression(features, targets, centre, pull, weight=counts)
    evidence = log_evidence(features, y, counts, found, centre)
    shares = np.exp(evidence - evidence.max())
    mean = shares / shares.sum() @ (found * factors)
    if not len(bends):
        return mean[:2], np.arange(2.0), np.zeros(2)
    return mean[:2], knots, roughness_basis(knots, knots) @ mean[2:]


def spline_pieces(knots: Array, values: Array) -> tuple[Array, Array, Array]:
    """The natural cubic spline through values at knots: knots, polynomials between them, value and slopes at ends."""
    from scipy.interpolate import CubicSpline  # a fit needs it, and a saved calibrator does not

    spline = CubicSpline(knots, values, bc_type="natural")
    width = np.diff(knots)
    powers = np.stack([spline.c[3 - k] * width**k for k in (1, 2, 3)], axis=1)
    return knots, powers, np.array([values[0], *spline(knots[[0, -1]], 1)])


def log_evidence(features: Array, hits: Array, counts: Array, found: Array, centre: Array) -> Array:
    """Laplace's approximation of the log marginal likelihood of the found coefficients, up to a constant."""
    odds = (found[:, None] @ features)[:, 0]
    likelihood = ((hits * odds - softplus(odds)) * counts).sum(1)
    p = 1 / (1 + np.exp(-odds))
    curvature = (features * (p * (1 - p) * counts)[:, None]) @ features.transpose(0, 2, 1)
    curvature = curvature + PRECISION * np.eye(features.shape[1])
    prior = PRECISION / 2 * np.square(found - centre).sum(1)
    return np.asarray(likelihood - prior - np.linalg.slogdet(curvature)[1] / 2)


def joined(odds: Array, hits: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Log-odds, shares of hits and weights: of many samples, means over narrow cells of equal width."""
    if len(odds) <= JOINED:
        return odds, hits, counts
    width = max(float(np.ptp(odds)) / JOINED, 1e-300)
    cell = ((odds - odds.min()) / width).astype(np.int64)
    sums = np.stack([np.bincount(cell, part) for part in (counts, counts * odds, counts * hits)])
    total, z, y = sums[:, sums[0] > 0].astype(np.float64)
    return z / total, y / total, total


def knots_of(odds: Array) -> Array:
    """Quantiles of the different log-odds; near ones are joined."""
    # In float32: odds that differ by the rounding of a processor are not different.
    values = np.unique(odds.astype(np.float32)).astype(np.float64)
    count = min(KNOTS, len(values))
    places = np.quantile(values, (np.arange(count) + 0.5) / count)
    kept = [places[0]]
    for place in places[1:]:
        if place - kept[-1] > max(NEAREST * (places[-1] - places[0]), LEAST_GAP):
            kept.append(place)
    return np.array(kept)


def roughness_basis(knots: Array, odds: Array) -> Array:
    r"""Curves :math:`\sum_k d_k |v - k|^3`, ``(N, knots - 2)``, with :math:`\int g''^2 = u^T u` for coefficients u."""
    if len(knots) < FEWEST_KNOTS:
        return np.zeros((len(odds), 0))
    centre = (knots[0] + knots[-1]) / 2
    half = max((knots[-1] - knots[0]) / 2, LEAST_HALF)
    k = (knots - centre) / half
    v = (odds - centre) / half
    line = np.stack((np.ones_like(k), k), axis=1)
    free = np.linalg.qr(line, mode="complete")[0][:, 2:]
    roughness = 12 * np.abs(k[:, None] - k) ** 3
    values, vectors = np.linalg.eigh(free.T @ roughness @ free)
    return np.asarray(np.abs(v[:, None] - k) ** 3 @ (free @ vectors / np.sqrt(values)))
