"""Isotonic regression: the best non-decreasing map."""

import numpy as np
import torch
from torch import Tensor

from calibrant.posthoc.lookup import linear_lookup
from calibrant.posthoc.scores import Mapped, ScoreCalibrator, Scores, View, with_complement


class IsotonicCalibration(ScoreCalibrator):
    """Least squares fit among all non-decreasing maps of a probability.

    The fit is scikit-learn's ``IsotonicRegression``, kept as a table of knots with straight lines between them.
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
        """Fit one regression per row."""
        from sklearn.isotonic import IsotonicRegression

        position, happened = scores.probability.cpu().numpy(), hits.cpu().numpy()
        each = None if weight is None else weight.cpu().numpy()
        fits = [
            IsotonicRegression(y_min=0.0, y_max=1.0).fit(*row, sample_weight=each)
            for row in zip(position, happened, strict=True)
        ]
        width = max(2, *(len(fit.X_thresholds_) for fit in fits))
        tables = []
        for table in ([fit.X_thresholds_ for fit in fits], [fit.y_thresholds_ for fit in fits]):
            rows = np.stack([np.pad(row, (0, width - len(row)), mode="edge") for row in table])
            tables.append(torch.from_numpy(rows).to(scores.log_p))
        return tuple(tables)

    def map_scores(self, scores: Scores) -> Mapped:
        """Interpolate between the knots."""
        return with_complement(linear_lookup(self.knots, self.values, scores.probability))
