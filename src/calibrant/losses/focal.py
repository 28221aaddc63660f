"""Focal losses: replacements for the NLL with less weight on samples that are already right."""

from typing import Literal

import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.losses.base import Objective, log_likelihood, mean_over_samples, of_target
from calibrant.losses.checks import Classification
from calibrant.numerics import bounded_power, log_softmax

Gamma = float | Literal["flsd-53"]


def focal(
    logits: Tensor, target: Tensor, gamma: Gamma = 3.0, *, mask: Tensor | None = None, ignore_index: int | None = -100
) -> Tensor:
    r"""Focal loss, :math:`-(1 - p_y)^\gamma \ln p_y`, averaged over samples.

    Args:
        logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``.
        target: Integer class indices, ``(N, ...)``.
        gamma: Focusing strength; 0 is the NLL. ``"flsd-53"`` is the sample-dependent schedule
            FLSD-53: 5 where :math:`p_y < 0.2`, else 3, held constant in the gradient.
        mask: Boolean, same shape as ``target``: True where a sample counts.
        ignore_index: Label of samples to ignore.

    References:
        Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017; Mukhoti et al., "Calibrating
        Deep Neural Networks using Focal Loss", NeurIPS 2020 (calibration, FLSD-53).

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.functional.focal(logits, torch.tensor([0, 0])).item(), 4)
        0.2567
    """
    gamma = _checked_gamma(gamma)
    data = checks.classification(logits, target, mask, ignore_index)
    return _focal(data, gamma).to(data.logits.dtype)


def dual_focal(
    logits: Tensor, target: Tensor, gamma: float = 5.0, *, mask: Tensor | None = None, ignore_index: int | None = -100
) -> Tensor:
    r"""Dual focal loss, :math:`-(1 - p_y + p_j)^\gamma \ln p_y`, averaged over samples.

    :math:`p_j` is the largest probability below :math:`p_y`, or 0 if there is none: the loss also
    widens the gap to the runner-up.

    Args:
        logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``.
        target: Integer class indices, ``(N, ...)``.
        gamma: Focusing strength; the authors tune it per network, 5 for ResNet50 on CIFAR.
        mask: Boolean, same shape as ``target``: True where a sample counts.
        ignore_index: Label of samples to ignore.

    References:
        Tao, Dong, Xu, "Dual Focal Loss for Calibration", ICML 2023.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.functional.dual_focal(logits, torch.tensor([0, 0])).item(), 4)
        0.1372
    """
    checks.check_range("gamma", gamma, low=0, high=100)
    data = checks.classification(logits, target, mask, ignore_index)
    return _dual_focal(data, gamma).to(data.logits.dtype)


def _focal(data: Classification, gamma: Gamma) -> Tensor:
    log_p = log_likelihood(data)
    # Computing 1 - p from log p is precise as p nears 1.
    miss = -torch.expm1(log_p)
    if gamma == "flsd-53":
        factor = miss.pow(torch.where(log_p.detach().exp() < 0.2, 5.0, 3.0))
    else:
        factor = bounded_power(miss, gamma)
    return mean_over_samples(-factor * log_p, data, "the focal loss")


def _dual_focal(data: Classification, gamma: float) -> Tensor:
    log_probabilities = log_softmax(data.logits)
    probabilities = log_probabilities.exp()
    p, log_p = of_target(probabilities, data), of_target(log_probabilities, data)
    runner_up = torch.where(probabilities < p.unsqueeze(1), probabilities, 0.0).amax(1)
    miss = -torch.expm1(log_p) + runner_up
    return mean_over_samples(-bounded_power(miss, gamma) * log_p, data, "the dual focal loss")


def _checked_gamma(gamma: Gamma) -> Gamma:
    if not isinstance(gamma, str):
        return checks.check_range("gamma", gamma, low=0, high=100)
    checks.check_choice("gamma", gamma, ("flsd-53",))
    return gamma


class FocalLoss(Objective):
    """Focal loss, or its sample-dependent schedule FLSD-53, a replacement for the NLL.

    Args:
        gamma: Focusing strength, or ``"flsd-53"``.
        ignore_index: Label of samples to ignore.

    See :func:`calibrant.functional.focal` for formula, shapes and papers.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.FocalLoss("flsd-53")(logits, torch.tensor([0, 0])).item(), 4)
        0.2567
    """

    def __init__(self, gamma: Gamma = 3.0, *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.gamma = _checked_gamma(gamma)

    def value(self, data: Classification) -> Tensor:
        """Return the mean focal loss."""
        return _focal(data, self.gamma)


class DualFocalLoss(Objective):
    """Dual focal loss, a replacement for the NLL.

    Args:
        gamma: Focusing strength.
        ignore_index: Label of samples to ignore.

    See :func:`calibrant.functional.dual_focal` for formula, shapes and paper.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.DualFocalLoss()(logits, torch.tensor([0, 0])).item(), 4)
        0.1372
    """

    def __init__(self, gamma: float = 5.0, *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.gamma = checks.check_range("gamma", gamma, low=0, high=100)

    def value(self, data: Classification) -> Tensor:
        """Return the mean dual focal loss."""
        return _dual_focal(data, self.gamma)
