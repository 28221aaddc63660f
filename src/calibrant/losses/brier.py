"""The Brier score as a loss, and the cross entropy that it weights (BSCE-GRA)."""

import torch
from torch import Tensor

from calibrant import inputs
from calibrant.losses import checks
from calibrant.losses.base import MeanLoss, log_likelihood
from calibrant.losses.checks import Classification
from calibrant.numerics import accumulation_dtype


class BrierLoss(MeanLoss):
    r"""Multi-class Brier score :math:`\sum_k (p_k - 1[y = k])^2`, from 0 to 2, a replacement for the NLL.

    Args:
        ignore_index: Label of samples to ignore.

    References:
        Brier, "Verification of Forecasts Expressed in Terms of Probability", Monthly Weather Review 1950.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.BrierLoss()(logits, torch.tensor([0, 0])).item(), 4)
        0.5487
    """

    name = "the Brier score"

    def losses(self, data: Classification) -> Tensor:
        """Brier score of each sample."""
        gap = data.logits.softmax(1) - checks.one_hot(data).to(data.logits.dtype)
        return gap.square().sum(1, dtype=accumulation_dtype(gap))


class BSCEGRALoss(MeanLoss):
    r"""Cross entropy weighted by the generalized Brier score (BSCE-GRA), a replacement for the NLL.

    With the one-hot label :math:`y`, the loss of a sample is

    .. math:: -u \ln p_y, \qquad u = \lVert p - y \rVert_\beta^\gamma \text{ held constant in the gradient.}

    With the default :math:`\beta = \gamma = 2`, u is the Brier score :math:`\sum_k (p_k - y_k)^2`. Because u is
    detached, each sample's gradient is u times its gradient of the NLL, and not the derivative of the returned
    value.

    Args:
        gamma: Power :math:`\gamma` of the norm, from 0 to 100; 0 is the NLL.
        norm: Order :math:`\beta` of the norm, from 1 to 16.
        ignore_index: Label of samples to ignore.

    References:
        Lin, Tao, Dong, Xu, "Uncertainty Weighted Gradients for Model Calibration", CVPR 2025.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.BSCEGRALoss()(logits, torch.tensor([0, 0])).item(), 4)
        0.7037
    """

    name = "BSCE-GRA"

    def __init__(self, gamma: float = 2.0, norm: float = 2.0, *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.gamma = inputs.check_range("gamma", gamma, low=0, high=100)
        self.norm = inputs.check_range("norm", norm, low=1, high=16)

    def losses(self, data: Classification) -> Tensor:
        """Weighted cross entropy of each sample."""
        log_p = log_likelihood(data)
        wide = accumulation_dtype(log_p)
        gap = data.logits.detach().to(wide).softmax(1) - checks.one_hot(data).to(wide)
        weight: Tensor = torch.linalg.vector_norm(gap, self.norm, dim=1).pow(self.gamma)
        return -weight * log_p.to(wide)
