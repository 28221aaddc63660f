"""Quadratic scaling: a parabola of the log-odds around temperature scaling, for binary models."""

import torch
from torch import Tensor

from calibrant.posthoc.binary_curve import PRECISION, BinaryCurve
from calibrant.posthoc.logistic import logistic_regression


class QuadraticScaling(BinaryCurve):
    r"""Map the temperature-scaled log-odds of a binary model by a parabola, with a prior around the identity.

    With T the best temperature, :math:`q = \sigma(l / T)` the scaled probability of class 1, :math:`\epsilon = 1/(n+1)`
    and the log-odds :math:`z` of :math:`(1 - \epsilon) q + \epsilon / 2`,

    .. math:: \hat p = \sigma(a z^2 + b z + c), \qquad
        \min_{a, b, c}\ \mathrm{NLL} + \frac{2}{n} \left(a^2 + (b - 1)^2 + c^2\right)

    with the mean NLL over n samples, or over their weights, whose sum is then n. This is the right form if the log-odds
    of hits and of misses are normally distributed with different variances. The paper fits it without a penalty; the
    penalty here is that of :class:`StructuredMatrixScaling` for two classes, a Gaussian prior of variance 1/4 around
    temperature scaling, so that few samples do no harm. The problem is convex with three variables, and solved by
    Newton's method. As squares grow fast beyond the data, the result is mixed with the uniform distribution, as in
    :class:`Calibrator`.

    A parabola also falls: beyond its vertex, at :math:`z = -b / 2a`, a higher score has a lower probability. Beta
    calibration never falls.

    For more than two classes this is :class:`StructuredMatrixScaling`.

    References:
        Berta, Holzmüller, Jordan, Bach, "Structured Matrix Scaling for Multi-Class Calibration", 2025.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import QuadraticScaling
        >>> draw = torch.Generator().manual_seed(0)
        >>> target = torch.randint(2, (20000,), generator=draw)
        >>> logits = torch.randn(20000, generator=draw) * (1 + target) + target  # hits spread twice as far
        >>> scaling = QuadraticScaling().fit(logits, target)
        >>> odds = scaling(torch.tensor([-1.0, 0.0, 1.0]))
        >>> odds.diff().diff().item() > 0.5  # their exact log-odds are 3/8 l^2 + l/4 - 0.82
        True
    """

    curvature: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("curvature", None)

    @property
    def coefficients_(self) -> tuple[float, float, float]:
        """The fitted a, b and c of a binary model."""
        self.require_fitted()
        if self.class_count_ != 2:
            raise TypeError(
                f"coefficients_ are those of two classes, this was fitted on {self.class_count_}: use matrix"
            )
        return float(self.curvature), *self._line()

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Solve for the temperature, then for the three coefficients."""
        self.curvature = logits.new_zeros(())
        super().fit_rows(logits, target, weight)

    def fit_curve(self, odds: Tensor, hits: Tensor, weight: Tensor | None, dtype: torch.dtype) -> tuple[float, float]:
        """Fit the parabola."""
        powers = torch.stack((odds.square(), odds, torch.ones_like(odds)))
        count = len(odds) if weight is None else float(weight.sum())
        centre = odds.new_tensor([0.0, 1.0, 0.0])
        found = logistic_regression(powers[None], hits[None], centre, PRECISION / count, weight=weight)[0]
        self.curvature = found[0].to(dtype)
        return float(found[1]), float(found[2])

    def curve(self, odds: Tensor) -> Tensor:
        """Return the square's part of the parabola."""
        return odds.square() * self.curvature.to(odds.dtype)
