"""Platt scaling: a logistic regression on the log-odds."""

import torch
from torch import Tensor

from calibrant.posthoc.logistic import logistic_regression
from calibrant.posthoc.scores import Mapped, ScoreCalibrator, Scores, View, from_log_odds


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
        >>> import torch
        >>> from calibrant.posthoc import PlattScaling
        >>> logits = torch.tensor([3.0, -3.0]).repeat(500)  # binary: the logit of class 1
        >>> target = torch.tensor([1, 0, 1, 0, 1, 0, 0, 1]).repeat(125)  # right in three of four
        >>> PlattScaling(strict=True).fit(logits, target).predict_proba(torch.tensor([3.0]))
        tensor([[0.2510, 0.7490]])
    """

    state = ("slope", "intercept")
    slope: Tensor
    intercept: Tensor

    def __init__(self, view: View = "class-wise", *, strict: bool = False) -> None:
        super().__init__(view, strict=strict)

    def fit_scores(self, scores: Scores, hits: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
        """Fit the regressions."""
        odds = scores.log_odds.double()
        features = torch.stack((odds, torch.ones_like(odds)), dim=1)
        each = torch.ones_like(hits[:1]) if weight is None else weight.unsqueeze(0)
        right = (hits * each).sum(1, keepdim=True)
        wrong = each.sum() - right
        soft = torch.where(hits > 0, (right + 1) / (right + 2), 1 / (wrong + 2))
        found = logistic_regression(features, soft, odds.new_tensor([1.0, 0.0]), weight=weight)
        return found[:, 0], found[:, 1]

    def map_scores(self, scores: Scores) -> Mapped:
        """Apply the regressions."""
        odds = scores.log_odds
        slope, intercept = (part.to(odds.dtype).unsqueeze(1) for part in (self.slope, self.intercept))
        return from_log_odds(odds * slope + intercept)
