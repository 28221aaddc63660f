"""Venn-Abers prediction: two isotonic regressions, with the new sample as a miss and as a hit."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.posthoc import containers
from calibrant.posthoc.fitted import full_precision
from calibrant.posthoc.lookup import step_lookup
from calibrant.posthoc.pooling import Floats, Indices, Pools, pools, table
from calibrant.posthoc.scores import Mapped, ScoreCalibrator, Scores, View, class_scores, top_scores


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
        >>> import torch
        >>> from calibrant.posthoc import VennAbers
        >>> logits = torch.tensor([3.0, -3.0]).repeat(500)
        >>> target = torch.tensor([1, 0, 1, 0, 1, 0, 0, 1]).repeat(125)  # right in three of four
        >>> venn_abers = VennAbers().fit(logits, target)
        >>> venn_abers.predict_proba(torch.tensor([3.0]))
        tensor([[0.2510, 0.7490]])
        >>> lower, upper = venn_abers.predict_interval(torch.tensor([3.0]))
        >>> lower[:, 1], upper[:, 1]
        (tensor([0.7485]), tensor([0.7505]))
    """

    state = ("lower_edges", "lower_values", "upper_edges", "upper_values")
    lower_edges: Tensor
    lower_values: Tensor
    upper_edges: Tensor
    upper_values: Tensor

    def __init__(self, view: View = "class-wise") -> None:
        super().__init__(view, strict=True)

    def fit_scores(self, scores: Scores, hits: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
        """Tabulate both values for every place that a new score can have."""
        # Only the order of the scores matters; that of log-odds is exact near 1 too.
        found = pools(scores.log_odds, hits, weight)
        above = _tables(_upper(found), scores.log_p)
        # A miss is a hit in the mirror.
        below = _tables(_upper(found.mirrored()), scores.log_p)
        return tuple(part.flip(0) for part in below) + above

    def map_scores(self, scores: Scores) -> Mapped:
        """Merge the two values."""
        below, above = self._bounds(scores)
        whole = 1 - below + above
        return Mapped(above / whole, (1 - below) / whole)

    def _bounds(self, scores: Scores) -> tuple[Tensor, Tensor]:
        odds = scores.log_odds
        below = 1 - step_lookup(self.lower_edges, self.lower_values, -odds)
        return below, step_lookup(self.upper_edges, self.upper_values, odds)

    def predict_interval(self, logits: Any) -> Any:
        """Return the lower and the upper value, :math:`p_0` and :math:`p_1`, of every probability.

        Args:
            logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``. What comes out is what went in:
                tensors, NumPy arrays or data frames.

        Returns:
            Two of the shape of ``predict_proba(logits)``, before rows are divided by their sum. With
            ``view="top-label"`` there is one value for each sample, that of the predicted class.
        """
        with torch.no_grad():
            rows = self.rows(logits)
            with full_precision(rows):
                bounds = [bound.to(rows.dtype) for bound in self._intervals(self.as_fitted(rows))]
            shape = tuple(np.shape(logits))
            if self.view == "top-label":
                bounds = [bound.reshape(shape[0], *shape[2:]) for bound in bounds]
            elif len(shape) > 2:
                bounds = [bound.reshape(shape[0], *shape[2:], -1).movedim(-1, 1) for bound in bounds]
            if isinstance(logits, Tensor):
                return tuple(bounds)
            if self.view == "top-label":
                return tuple(bound.cpu().numpy() for bound in bounds)
            return tuple(containers.like(logits, bound, self.classes_) for bound in bounds)

    def _intervals(self, rows: Tensor) -> list[Tensor]:
        if self.view == "top-label":
            return [bound.squeeze(0) for bound in self._bounds(top_scores(rows)[0])]
        scores = class_scores(rows)
        if rows.shape[1] > 2:
            return [bound.T for bound in self._bounds(Scores(scores.log_p.T, scores.log_not.T))]
        below, above = self._bounds(Scores(scores.log_p[:, 1:].T, scores.log_not[:, 1:].T))
        return [torch.cat(pair).T for pair in ((1 - above, below), (1 - below, above))]


class _Steps(NamedTuple):
    """Step functions of all rows, one after the other: ``values[i]`` holds above ``edges[i]``.

    The first edge of a row is below every score.
    """

    rows: int
    row: Indices
    edges: Floats
    values: Floats


def _upper(found: Pools) -> _Steps:
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
    return _rising(_Steps(found.rows, place, edges, tangent))


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


def _rising(steps: _Steps) -> _Steps:
    """The running maximum in each row, without the places where it stays."""
    # Values are at most 1, so that rows are apart.
    lifted = np.maximum.accumulate(steps.values + 2.0 * steps.row)
    rises = np.diff(lifted, prepend=-1.0) > 0
    return _Steps(steps.rows, steps.row[rises], steps.edges[rises], steps.values[rises])


def _tables(steps: _Steps, like: Tensor) -> tuple[Tensor, Tensor]:
    """Edges and values for :func:`step_lookup`; the edge below every score is left out."""
    edges, values = (table(steps.rows, steps.row, part, like, least=2) for part in (steps.edges, steps.values))
    return edges[:, 1:], values
