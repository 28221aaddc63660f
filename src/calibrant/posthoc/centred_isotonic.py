"""Centred isotonic regression: straight lines between the centres of the isotonic blocks."""

from torch import Tensor

from calibrant.posthoc.lookup import linear_lookup
from calibrant.posthoc.pooling import pools, table
from calibrant.posthoc.scores import Mapped, ScoreCalibrator, Scores, View, with_complement


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
        >>> import torch
        >>> from calibrant.posthoc import CentredIsotonicCalibration
        >>> logits = torch.tensor([-2.0, -1.0, 1.0, 2.0])
        >>> calibrator = CentredIsotonicCalibration(strict=True).fit(logits, torch.tensor([0, 1, 0, 1]))
        >>> calibrator.predict_proba(torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]))[:, 1]
        tensor([0.0000, 0.1966, 0.5000, 0.8034, 1.0000])
    """

    state = ("knots", "values")
    knots: Tensor
    values: Tensor

    def __init__(self, view: View = "class-wise", *, strict: bool = False) -> None:
        super().__init__(view, strict=strict)

    def fit_scores(self, scores: Scores, hits: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
        """Find the centre and the rate of hits of each block."""
        found = pools(scores.probability, hits, weight)
        row = found.row[found.firsts]
        return tuple(table(found.rows, row, part, scores.log_p, least=2) for part in (found.centres, found.levels))

    def map_scores(self, scores: Scores) -> Mapped:
        """Interpolate between the centres."""
        return with_complement(linear_lookup(self.knots, self.values, scores.probability))
