"""Isotonic regression: the best non-decreasing map."""

import numpy as np
from torch import Tensor

from calibrant.posthoc.lookup import linear_lookup
from calibrant.posthoc.pooling import pools, table
from calibrant.posthoc.scores import Mapped, ScoreCalibrator, Scores, View, with_complement


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
        >>> import torch
        >>> from calibrant.posthoc import IsotonicCalibration
        >>> logits = torch.tensor([-2.0, -1.0, 1.0, 2.0])
        >>> calibrator = IsotonicCalibration(strict=True).fit(logits, torch.tensor([0, 1, 0, 1]))
        >>> calibrator.predict_proba(logits)[:, 1]
        tensor([0.0000, 0.5000, 0.5000, 1.0000])
    """

    state = ("knots", "values")
    knots: Tensor
    values: Tensor

    def __init__(self, view: View = "class-wise", *, strict: bool = False) -> None:
        super().__init__(view, strict=strict)

    def fit_scores(self, scores: Scores, hits: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
        """Fit one regression per row; each block of equal values has a knot at both ends."""
        found = pools(scores.probability, hits, weight)
        firsts, lasts = found.firsts, found.lasts
        row = found.row[firsts].repeat(2)
        ends = found.position[np.stack((firsts, lasts), axis=1).ravel()]
        return tuple(table(found.rows, row, part, scores.log_p) for part in (ends, found.levels.repeat(2)))

    def map_scores(self, scores: Scores) -> Mapped:
        """Interpolate between the knots."""
        return with_complement(linear_lookup(self.knots, self.values, scores.probability))
