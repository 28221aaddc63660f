"""Maps of one score: one-vs-rest for every class, or for the top label; and the logistic ones (Platt, beta)."""

from abc import abstractmethod
from collections.abc import Iterator

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.posthoc.cross_validation import HeldOut
from calibrant.posthoc.fit import Calibrator
from calibrant.posthoc.map import (
    Curve,
    Curves,
    LogOdds,
    LogScores,
    Map,
    NumpyOps,
    View,
    class_scores,
    evaluated,
    top_scores,
)
from calibrant.posthoc.solvers import logistic_regression

XP = NumpyOps()
# Number of scores that are fitted at a time: few enough for the cache, enough to keep the overhead small.
BLOCK = 2**18


class ScoreCalibrator(Calibrator):
    """Base class of methods that map one score, a probability, to another.

    With ``view="class-wise"`` every class has its own map, fitted one-vs-rest; the mapped probabilities of a row
    are divided by their sum, and a row in which all are 0 keeps its original probabilities. Two classes need only
    one map, that of class 1.

    With ``view="top-label"`` one map recalibrates the confidence in the predicted class, and the other classes
    share the rest in their original proportions. If one of them would then overtake the predicted class, the shares
    are mixed with equal ones, just enough that none does: the prediction does not change, and its confidence is the
    fitted one. It only changes if the confidence is below 1/C, with which no class can be the predicted one.

    Args:
        view: ``"class-wise"`` or ``"top-label"``.
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
    def fit_scores(self, scores: LogScores, hits: Array, weight: Array | None) -> Curve:
        """Fit one curve per row.

        Args:
            scores: ``(rows, N)``.
            hits: ``(rows, N)``, 1 where the event happened: float64.
            weight: ``(N,)`` in float64, or None.
        """

    def fit_map(self, data: HeldOut) -> Map:
        """Fit the curves, one block of classes at a time."""
        single = data.logits.dtype == np.float32
        fitted = [self.fit_scores(scores, hits, data.weight) for scores, hits in self._blocks(data)]
        curve = joined(fitted).rebuilt(lambda _, part: np.ascontiguousarray(part, data.logits.dtype))
        return self.mixed(Curves(curve, self.view, single), data)

    def _blocks(self, data: HeldOut) -> Iterator[tuple[LogScores, Array]]:
        if self.view == "top-label":
            top = data.logits.argmax(1)
            log_p, log_not = evaluated(_top_columns, data.logits)
            yield LogScores(log_p.T, log_not.T), (data.target == top)[None].astype(np.float64)
            return
        everything = evaluated(class_scores, data.logits)
        count = data.logits.shape[1]
        step = max(1, BLOCK // len(data.target))
        for start in range(int(count == 2), count, step):
            block = np.arange(start, min(start + step, count))
            scores = LogScores(*(np.ascontiguousarray(part[:, block].T) for part in everything))
            yield scores, (data.target == block[:, None]).astype(np.float64)


def _top_columns(xp: NumpyOps, rows: Array) -> tuple[Array, Array]:
    scores, _ = top_scores(xp, rows)
    return scores.log_p.T, scores.log_not.T


def joined(pieces: list[Curve]) -> Curve:
    """One curve of the rows of several; shorter tables are padded with their last entry."""
    if len(pieces) == 1:
        return pieces[0]

    def stack(name: str, _: Array) -> Array:
        tables = [piece.arrays()[name] for piece in pieces]
        width = max(table.shape[1] for table in tables)
        return np.concatenate([
            np.pad(table, ((0, 0), (0, width - table.shape[1])), mode="edge") for table in tables
        ])  # fmt: skip

    return pieces[0].rebuilt(stack)  # type: ignore[no-any-return]


class PlattScaling(ScoreCalibrator):
    r"""Logistic regression on the log-odds of a probability.

    .. math:: \hat z = \sigma\!\left(a \ln\frac{z}{1-z} + b\right)

    Two parameters per map: suitable for a few hundred samples. As in Platt's paper, the labels are replaced by
    :math:`(n_1 + 1)/(n_1 + 2)` for hits and :math:`1/(n_0 + 2)` for misses, with their counts :math:`n_1, n_0`;
    this also keeps the numbers finite on separable data. For multi-class models prefer temperature or vector
    scaling, which treat all classes together.

    Args:
        view: ``"class-wise"``, one-vs-rest; or ``"top-label"``. See :class:`ScoreCalibrator`.
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

    References:
        Platt, "Probabilistic Outputs for Support Vector Machines and Comparisons to Regularized Likelihood
        Methods", Advances in Large Margin Classifiers, 1999.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import PlattScaling
        >>> logits = np.array([3.0, -3.0] * 500)  # binary: the logit of class 1
        >>> target = np.array([1, 0, 1, 0, 1, 0, 0, 1] * 125)  # right in three of four
        >>> PlattScaling(strict=True).fit(logits, target).predict_proba(np.array([3.0])).round(3)
        array([[0.251, 0.749]])
    """

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array | None) -> Curve:
        """Fit the regressions."""
        odds = scores.log_odds(XP).astype(np.float64)
        features = np.stack((odds, np.ones_like(odds)), axis=1)
        each = np.ones_like(hits[:1]) if weight is None else weight[None]
        right = (hits * each).sum(1, keepdims=True)
        wrong = each.sum() - right
        soft = np.where(hits > 0, (right + 1) / (right + 2), 1 / (wrong + 2))
        found = logistic_regression(features, soft, np.array([1.0, 0.0]), weight=weight)
        return LogOdds(found[:, [0, 0, 1]])


class BetaCalibration(ScoreCalibrator):
    r"""Logistic regression on the logarithms of a probability and of its complement.

    .. math:: \hat z = \sigma\left(a \ln z - b \ln(1 - z) + c\right), \qquad a, b \ge 0

    This is the correct map if scores of hits and misses are Beta distributed. It contains the identity, and unlike
    Platt scaling it can bend low and high scores differently. A negative coefficient would make the map decrease: it
    is set to 0 and the rest is fitted again. On separable data a pull of :math:`10^{-8}` towards the identity keeps
    the numbers finite.

    Args:
        view: ``"class-wise"``, one-vs-rest; or ``"top-label"``. See :class:`ScoreCalibrator`.
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

    References:
        Kull, Silva Filho, Flach, "Beta calibration: a well-founded and easily implemented improvement on
        logistic calibration for binary classifiers", AISTATS 2017.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import BetaCalibration
        >>> logits = np.array([3.0, -3.0] * 500)
        >>> target = np.array([1, 0, 1, 0, 1, 0, 0, 1] * 125)  # right in three of four
        >>> BetaCalibration(strict=True).fit(logits, target).predict_proba(np.array([3.0])).round(3)
        array([[0.25, 0.75]])
    """

    def fit_scores(self, scores: LogScores, hits: Array, weight: Array | None) -> Curve:
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
        return LogOdds(found)
