"""Beta calibration: a logistic regression on the logarithms of a probability and its complement."""

import torch
from torch import Tensor

from calibrant.posthoc.logistic import logistic_regression
from calibrant.posthoc.scores import Mapped, ScoreCalibrator, Scores, View, from_log_odds


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
        >>> import torch
        >>> from calibrant.posthoc import BetaCalibration
        >>> logits = torch.tensor([3.0, -3.0]).repeat(500)
        >>> target = torch.tensor([1, 0, 1, 0, 1, 0, 0, 1]).repeat(125)  # right in three of four
        >>> BetaCalibration(strict=True).fit(logits, target).predict_proba(torch.tensor([3.0]))
        tensor([[0.2500, 0.7500]])
    """

    state = ("coefficients",)
    coefficients: Tensor

    def __init__(self, view: View = "class-wise", *, strict: bool = False) -> None:
        super().__init__(view, strict=strict)

    def fit_scores(self, scores: Scores, hits: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
        """Fit the regressions, and again without negative coefficients."""
        features = _features(scores).double()
        centre = features.new_tensor([1.0, 1.0, 0.0])
        found = logistic_regression(features, hits, centre, weight=weight)
        dropped = torch.zeros_like(found, dtype=torch.bool)
        for _ in range(2):
            negative = (found < 0) & ~dropped
            negative[:, 2] = False
            negative[:, 1] &= ~negative[:, 0]  # one at a time: without one, the other may be positive
            again = negative.any(1)
            if not again.any():
                break
            dropped |= negative
            kept = features[again] * ~dropped[again].unsqueeze(2)
            found[again] = logistic_regression(kept, hits[again], centre, weight=weight)
            found = found.masked_fill(dropped, 0.0)
        return (found,)

    def map_scores(self, scores: Scores) -> Mapped:
        """Apply the regressions."""
        features = _features(scores)
        return from_log_odds(torch.einsum("rd,rdn->rn", self.coefficients.to(features.dtype), features))


def _features(scores: Scores) -> Tensor:
    floored = scores.floored()
    return torch.stack((floored.log_p, -floored.log_not, torch.ones_like(floored.log_p)), dim=1)
