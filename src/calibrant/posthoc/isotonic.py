"""Isotonic regression: as it is, centred, and of a new sample as a miss and as a hit (Venn-Abers prediction)."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrant.frames import Array
from calibrant.posthoc.map import Curve, Lines, LogScores, NumpyOps, Steps, TwoSteps, View, evaluated
from calibrant.posthoc.scores import XP, ScoreCalibrator

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
# Means that differ by less are equal but for rounding.
ROUNDING = 1e-12


class Pools(NamedTuple):
    """Groups of tied scores, one row after the other and each row in ascending order, and their blocks.

    ``row``, ``position``, ``mass``, ``hits`` and ``block`` have one entry per group: the row it belongs to, its score,
    the number or weight of its samples, that of its hits, and the number of its block, counted through all rows. In a
    block the isotonic regression is constant, and from one to the next it rises.
    """

    rows: int
    row: Indices
    position: npt.NDArray[np.floating]
    mass: Floats
    hits: Floats
    block: Indices

    @property
    def firsts(self) -> Indices:
        """First group of each block."""
        return np.flatnonzero(np.diff(self.block, prepend=-1))

    @property
    def lasts(self) -> Indices:
        """Last group of each block."""
        return np.append(self.firsts[1:], len(self.block)) - 1

    @property
    def levels(self) -> Floats:
        """Rate of hits of each block: the values of the isotonic regression."""
        return _sums(self.hits, self.firsts) / _sums(self.mass, self.firsts)

    @property
    def centres(self) -> Floats:
        """Weighted mean score of each block."""
        return _sums(self.mass * self.position, self.firsts) / _sums(self.mass, self.firsts)

    def mirrored(self) -> "Pools":
        """The same for negated scores and exchanged labels; the order of the rows is reversed too."""
        return Pools(
            self.rows,
            self.rows - 1 - self.row[::-1],
            -self.position[::-1],
            self.mass[::-1],
            (self.mass - self.hits)[::-1],
            self.block[-1] - self.block[::-1],
        )


def pools(scores: Array, happened: Array, weight: Array | None) -> Pools:
    """Sort each row, group its ties, and pool the groups.

    Args:
        scores: ``(rows, N)``.
        happened: 0 or 1, ``(rows, N)``, float64.
        weight: ``(N,)`` weights of the samples, or None.
    """
    rows, samples = scores.shape
    order = scores.argsort(axis=1)
    ascending = np.take_along_axis(scores, order, axis=1)
    happened = np.take_along_axis(happened, order, axis=1)
    new = np.ones(ascending.shape, dtype=bool)
    np.not_equal(ascending[:, 1:], ascending[:, :-1], out=new[:, 1:])
    starts = np.flatnonzero(new)
    if weight is None:
        mass = np.diff(starts, append=rows * samples).astype(np.float64)
    else:
        each = weight[order]
        happened = happened * each
        mass = _sums(each.ravel(), starts)
    grouped: Any = happened.ravel() if len(starts) == rows * samples else _sums(happened.ravel(), starts)
    row = starts // samples
    return Pools(rows, row, ascending.ravel()[starts], mass, grouped, _blocks(row, mass, grouped))


def _blocks(row: Indices, mass: Floats, hits: Floats) -> Indices:
    """Number of the block of each group."""
    from scipy.optimize import isotonic_regression  # scikit-learn's takes a second to import

    # One regression for all rows: levels of different rows are apart by 1 or more, and are never pooled.
    firsts = isotonic_regression(hits / mass + 2 * row, weights=mass).blocks[:-1]
    exact = _sums(hits, firsts) / _sums(mass, firsts)
    rises = (np.diff(exact, prepend=-1.0) > ROUNDING) | (np.diff(row[firsts], prepend=-1) > 0)
    begins = np.zeros(len(row), dtype=np.int64)
    begins[firsts[rises]] = 1
    return np.asarray(begins.cumsum() - 1)


def _sums(values: npt.NDArray[np.floating], firsts: Indices) -> Floats:
    """Sums of the runs that begin at ``firsts``."""
    return np.add.reduceat(values, firsts, dtype=np.float64)


def table(rows: int, row: Indices, values: npt.NDArray[np.floating], least: int = 2) -> Floats:
    """Values of all rows, one after the other, as ``(rows, width)``; short rows repeat their last value.

    Args:
        rows: Number of rows, each with at least one value.
        row: Row of each value, ascending.
        values: Values.
        least: Smallest width.
    """
    counts = np.bincount(row, minlength=rows)
    starts = counts.cumsum() - counts
    column = np.arange(max(least, int(counts.max())))
    places = starts[:, None] + np.minimum(column, counts[:, None] - 1)
    return np.asarray(values[places])


class IsotonicCalibration(ScoreCalibrator):
    """Least squares fit among all non-decreasing maps of a probability.

    The fit is that of scikit-learn's ``IsotonicRegression``, kept as a table of knots with straight lines between them.
    It assumes only monotonicity, and so needs more data than the others: a thousand samples or more. Values of 0
    and 1 occur; mixing with the uniform distribution (see :class:`Calibrator`) keeps the log loss finite.

    Args:
        view: ``"class-wise"``, one-vs-rest; or ``"top-label"``. See :class:`ScoreCalibrator`.
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

    References:
        Zadrozny, Elkan, "Transforming Classifier Scores into Accurate Multiclass Probability Estimates",
        KDD 2002.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import IsotonicCalibration
        >>> logits = np.array([-2.0, -1.0, 1.0, 2.0])
        >>> calibrator = IsotonicCalibration(strict=True).fit(logits, np.array([0, 1, 0, 1]))
        >>> calibrator.predict_proba(logits)[:, 1]
        array([0. , 0.5, 0.5, 1. ])
    """

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array | None) -> Curve:
        """Fit one regression per row; each block of equal values has a knot at both ends."""
        found = pools(scores.probability(XP), hits, weight)
        firsts, lasts = found.firsts, found.lasts
        row = found.row[firsts].repeat(2)
        ends = found.position[np.stack((firsts, lasts), axis=1).ravel()]
        return Lines(*(table(found.rows, row, part) for part in (ends, found.levels.repeat(2))))


class CentredIsotonicCalibration(ScoreCalibrator):
    r"""Isotonic regression whose blocks are points: the map rises between them, and has no steps (CIR).

    Isotonic regression pools samples into blocks, each with one value. Here a block b is a single point, at the mean
    score of its samples:

    .. math:: \left(\bar z_b, \bar c_b\right) = \frac{1}{\sum_{i \in b} w_i} \sum_{i \in b} w_i\, (z_i, c_i)

    with hits :math:`c_i` and sample weights :math:`w_i`. Straight lines connect the points; below the first and above
    the last the map is flat. Between the ends it rises strictly: it makes no ties, so the ranking of binary
    predictions is kept, and it has less bias than the steps where the true curve rises. Like isotonic regression it
    assumes only monotonicity. Values of 0 and 1 occur beyond the ends; mixing with the uniform distribution (see
    :class:`Calibrator`) keeps the log loss finite.

    Args:
        view: ``"class-wise"``, one-vs-rest; or ``"top-label"``. See :class:`ScoreCalibrator`.
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

    References:
        Oron, Flournoy, "Centered Isotonic Regression: Point and Interval Estimation for Dose-Response Studies",
        Statistics in Biopharmaceutical Research, 2017.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import CentredIsotonicCalibration
        >>> logits = np.array([-2.0, -1.0, 1.0, 2.0])
        >>> calibrator = CentredIsotonicCalibration(strict=True).fit(logits, np.array([0, 1, 0, 1]))
        >>> calibrator.predict_proba(np.array([-2.0, -1.0, 0.0, 1.0, 2.0]))[:, 1].round(4)
        array([0.    , 0.1966, 0.5   , 0.8034, 1.    ])
    """

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array | None) -> Curve:
        """Find the centre and the rate of hits of each block."""
        found = pools(scores.probability(XP), hits, weight)
        row = found.row[found.firsts]
        return Lines(*(table(found.rows, row, part) for part in (found.centres, found.levels)))


class VennAbers(ScoreCalibrator):
    r"""Inductive Venn-Abers prediction: an interval for each probability, merged into one (IVAP).

    A new score z is added to the held-out data as a miss, and isotonic regression gives it the value :math:`p_0(z)`;
    added as a hit, it has :math:`p_1(z) > p_0(z)`. If held-out and new samples are exchangeable, the one of the two
    that belongs to the true label is calibrated, whatever their distribution and number. The probability

    .. math:: \hat z = \frac{p_1}{1 - p_0 + p_1}

    minimises the worst regret in log loss. It is never 0 or 1, so nothing is mixed in. For more than two classes every
    class is fitted one-vs-rest, and the :math:`\hat z` of a row are divided by their sum, for which there is no
    guarantee.

    Both values are step functions of the score. They are found for all scores at once at the fit, in
    :math:`O(n \log n)`, and kept as tables: a prediction is two binary searches. The table of :math:`p_1` has up to n
    entries for each class, so that of 1,000 classes and 10,000 samples takes 80 MB in float32.

    Args:
        view: ``"class-wise"``, one-vs-rest; or ``"top-label"``. See :class:`ScoreCalibrator`.

    References:
        Vovk, Petej, Fedorova, "Large-scale probabilistic predictors with and without guarantees of validity",
        NeurIPS 2015.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import VennAbers
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

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array | None) -> Curve:
        """Tabulate both values for every place that a new score can have."""
        # Only the order of the scores matters; that of log-odds is exact near 1 too.
        found = pools(scores.log_odds(XP), hits, weight)
        # A miss is a hit in the mirror.
        below = _tables(_upper(found.mirrored()))
        return TwoSteps(Steps(*(part[::-1].copy() for part in below)), Steps(*_tables(_upper(found))))

    def predict_interval(self, logits: Any) -> Any:
        """Return the lower and the upper value, :math:`p_0` and :math:`p_1`, of every probability.

        Args:
            logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``. What comes out is what went in:
                tensors, NumPy arrays or data frames.

        Returns:
            Two of the shape of ``predict_proba(logits)``, before rows are divided by their sum. With
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


class _Edges(NamedTuple):
    """Step functions of all rows, one after the other: ``values[i]`` holds above ``edges[i]``.

    The first edge of a row is below every score.
    """

    rows: int
    row: Indices
    edges: Floats
    values: Floats


def _upper(found: Pools) -> _Edges:
    r"""Value of the isotonic regression at a new hit, for every place it can have.

    Let :math:`W_i, H_i` be the mass and the hits of the lowest i groups. A hit between groups i and i + 1, or tied with
    the latter, moves all later points :math:`(W, H)` by (1, 1). Its value is the slope of the convex minorant at the
    edge that connects the points before it with those after. This edge begins where the tangent

    .. math:: \tau_j = \min_{k \ge j} \frac{H_k + 1 - H_j}{W_k + 1 - W_j}

    is the steepest among :math:`j \le i`, and ends at a corner of the minorant of the held-out data (Vovk et al.,
    section 4): so the value is the running maximum of the tangents to these corners. Along a group of hits only,
    tangents do not become steeper, and they are not computed.
    """
    each = np.arange(found.rows)
    counts = np.bincount(found.row, minlength=found.rows)
    starts = counts.cumsum() - counts
    # Corners: the beginning of each row, and the end of each block.
    width, height = (_within(part, found.row, starts) for part in (found.mass, found.hits))
    ends = found.lasts
    of_row = found.row[ends]
    corner = np.arange(len(ends)) + of_row + 1
    corner_width, corner_height = np.zeros((2, len(ends) + found.rows))
    corner_width[corner], corner_height[corner] = width[ends], height[ends]
    last = np.append(np.flatnonzero(np.diff(of_row)), len(ends) - 1) + each + 1
    # The points whose tangents count: the beginning of each row, and the end of each group with misses.
    kept = np.flatnonzero(found.hits < found.mass)
    place = np.concatenate((each, found.row[kept]))
    order = place.argsort(kind="stable")
    place = place[order]
    begin = np.zeros(found.rows)
    x, y = (np.concatenate((begin, part[kept]))[order] for part in (width, height))
    nearest = np.concatenate((found.block[starts] + each, corner[found.block[kept]]))[order]
    touched = _touched(corner_width, corner_height, x - 1, y - 1, nearest, last[place])
    # The 1 comes last, so that it is not lost in large weights.
    tangent = np.clip((corner_height[touched] - y + 1) / (corner_width[touched] - x + 1), 0.0, 1.0)
    edges = np.concatenate((np.full(found.rows, -np.inf), found.position[kept]))[order]
    return _rising(_Edges(found.rows, place, edges, tangent))


def _touched(width: Floats, height: Floats, x: Floats, y: Floats, nearest: Indices, last: Indices) -> Indices:
    """Corner that the tangent from each point (x, y) touches, from ``nearest`` to ``last``, by bisection.

    The tangent touches the first corner after which the minorant's edge passes below the point, or through it.
    """
    rise, run = np.diff(height), np.diff(width)
    slope = rise / np.where(run > 0, run, 1.0)  # from one row to the next there is no edge
    axis = height[:-1] - slope * width[:-1]
    slope, axis = np.append(slope, 0.0), np.append(axis, 0.0)
    low, high = nearest, last
    for _ in range(int((last - nearest).max()).bit_length()):
        middle = (low + high) // 2
        beyond = (axis[middle] > y - slope[middle] * x) & (middle < high)
        low, high = np.where(beyond, middle + 1, low), np.where(beyond, high, middle)
    return low


def _within(values: Floats, row: Indices, starts: Indices) -> Floats:
    """Cumulative sums that begin anew in each row."""
    total = values.cumsum()
    before = total[starts] - values[starts]
    return np.asarray(total - before[row])


def _rising(steps: _Edges) -> _Edges:
    """The running maximum in each row, without the places where it stays."""
    # Values are at most 1, so that rows are apart.
    lifted = np.maximum.accumulate(steps.values + 2.0 * steps.row)
    rises = np.diff(lifted, prepend=-1.0) > 0
    return _Edges(steps.rows, steps.row[rises], steps.edges[rises], steps.values[rises])


def _tables(steps: _Edges) -> tuple[Floats, Floats]:
    """Edges and values for :func:`step_lookup`; the edge below every score is left out."""
    edges, values = (table(steps.rows, steps.row, part) for part in (steps.edges, steps.values))
    return edges[:, 1:], values
