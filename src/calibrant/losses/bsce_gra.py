"""Cross entropy whose gradient is weighted by the Brier score of each sample (BSCE-GRA)."""

import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.losses.base import Objective, log_likelihood, mean_over_samples
from calibrant.losses.checks import Classification
from calibrant.numerics import accumulation_dtype


def bsce_gra(
    logits: Tensor,
    target: Tensor,
    gamma: float = 2.0,
    norm: float = 2.0,
    *,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    r"""Cross entropy weighted by the generalized Brier score, averaged over samples (BSCE-GRA).

    With the one-hot label :math:`y`, the loss of a sample is

    .. math:: -u \ln p_y, \qquad u = \lVert p - y \rVert_\beta^\gamma \text{ held constant in the gradient.}

    With the default :math:`\beta = \gamma = 2`, u is the Brier score :math:`\sum_k (p_k - y_k)^2`. Because u is
    detached, each sample's gradient is u times its gradient of the NLL, and not the derivative of the returned
    value.

    Args:
        logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``.
        target: Integer class indices, ``(N, ...)``.
        gamma: Power :math:`\gamma` of the norm, from 0 to 100; 0 is the NLL.
        norm: Order :math:`\beta` of the norm, from 1 to 16.
        mask: Boolean, same shape as ``target``: True where a sample counts.
        ignore_index: Label of samples to ignore.

    References:
        Lin, Tao, Dong, Xu, "Uncertainty Weighted Gradients for Model Calibration", CVPR 2025.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.functional.bsce_gra(logits, torch.tensor([0, 0])).item(), 4)
        0.7037
    """
    gamma, norm = _checked(gamma, norm)
    data = checks.classification(logits, target, mask, ignore_index)
    return _bsce_gra(data, gamma, norm).to(data.logits.dtype)


def _bsce_gra(data: Classification, gamma: float, norm: float) -> Tensor:
    log_p = log_likelihood(data)
    wide = accumulation_dtype(log_p)
    gap = data.logits.detach().to(wide).softmax(1) - checks.one_hot(data).to(wide)
    weight = torch.linalg.vector_norm(gap, norm, dim=1).pow(gamma)
    return mean_over_samples(-weight * log_p.to(wide), data, "BSCE-GRA")


def _checked(gamma: float, norm: float) -> tuple[float, float]:
    return checks.check_range("gamma", gamma, low=0, high=100), checks.check_range("norm", norm, low=1, high=16)


class BSCEGRALoss(Objective):
    """Cross entropy weighted by the detached Brier score (BSCE-GRA), a replacement for the NLL.

    Args:
        gamma: Power of the norm; 0 is the NLL.
        norm: Order of the norm.
        ignore_index: Label of samples to ignore.

    See :func:`calibrant.functional.bsce_gra` for formula, shapes and paper.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.BSCEGRALoss()(logits, torch.tensor([0, 0])).item(), 4)
        0.7037
    """

    def __init__(self, gamma: float = 2.0, norm: float = 2.0, *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.gamma, self.norm = _checked(gamma, norm)

    def value(self, data: Classification) -> Tensor:
        """Return the mean weighted cross entropy."""
        return _bsce_gra(data, self.gamma, self.norm)
