"""Soft-binned ECE: every sample belongs partly to every bin, so that membership has a gradient."""

from typing import Literal

import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.losses.checks import Pairs
from calibrant.losses.pairs import PairObjective
from calibrant.numerics import bounded_power, safe_divide, safe_root

Form = Literal["label-binned", "binned"]


def soft_binned_ece(
    confidence: Tensor,
    correct: Tensor,
    bins: int = 15,
    temperature: float = 0.01,
    norm: float = 2,
    form: Form = "label-binned",
    *,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Soft-binned expected calibration error (SB-ECE), rooted.

    The membership of sample i in the bin with centre :math:`\xi_m` is
    :math:`u_{im} = \mathrm{softmax}_m\big(-(z_i - \xi_m)^2 / T\big)`. With :math:`S_m = \sum_i u_{im}` and
    :math:`A_m, C_m` the membership-weighted accuracy and confidence of a bin,

    .. math::
        \text{label-binned: } \Big(\tfrac1N \sum_{i,m} u_{im} |A_m - z_i|^p\Big)^{1/p} \qquad
        \text{binned: } \Big(\sum_m \tfrac{S_m}{N} |A_m - C_m|^p\Big)^{1/p}.

    Gradients flow through the memberships too. A bin without mass counts 0. As :math:`T \to 0` the binned
    form tends to the hard ECE of order p; the label-binned one keeps the spread within a bin.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(..., N)``.
        correct: 1 or True where the prediction is right, same shape.
        bins: Number M of equal bins of [0, 1].
        temperature: Softness T of the memberships, at least 1e-8.
        norm: Order p, from 1 to 16.
        form: ``"label-binned"`` (used in the ESD paper) or ``"binned"``.
        mask: Boolean, same shape: True where a sample counts.

    Returns:
        Shape ``(...)``. Accumulated in float64, returned in the given dtype, at least float32.

    References:
        Karandikar et al., "Soft Calibration Objectives for Neural Networks", NeurIPS 2021.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> confidence, correct = torch.tensor([0.9, 0.8, 0.6, 0.9]), torch.tensor([1, 0, 1, 0])
        >>> round(cal.functional.soft_binned_ece(confidence, correct).item(), 4)
        0.4735
    """
    bins, temperature, norm = _checked(bins, temperature, norm, form)
    pairs = checks.pairs(confidence, correct, mask, name="SB-ECE")
    return _soft_binned_ece(pairs, bins, temperature, norm, form).to(pairs.confidence.dtype)


def _soft_binned_ece(pairs: Pairs, bins: int, temperature: float, norm: float, form: Form) -> Tensor:
    confidence, correct, _, weight, samples = checks.residuals(pairs)
    centres = (torch.arange(bins, dtype=confidence.dtype, device=confidence.device) + 0.5) / bins
    distance = confidence.unsqueeze(-1) - centres
    membership = torch.softmax(distance.square() / -temperature, dim=-1)
    if weight is not None:
        membership = membership * weight.unsqueeze(-1)
    mass = membership.sum(-2)
    accuracy = safe_divide((membership * correct.unsqueeze(-1)).sum(-2), mass)
    if form == "binned":
        mean_confidence = safe_divide((membership * confidence.unsqueeze(-1)).sum(-2), mass)
        total = (mass * bounded_power((accuracy - mean_confidence).abs(), norm)).sum(-1)
    else:
        gap = (accuracy.unsqueeze(-2) - confidence.unsqueeze(-1)).abs()
        total = (membership * bounded_power(gap, norm)).sum((-2, -1))
    return safe_root(safe_divide(total, samples), norm)


def _checked(bins: int, temperature: float, norm: float, form: Form) -> tuple[int, float, float]:
    checks.check_choice("form", form, ("label-binned", "binned"))
    temperature = checks.check_range("temperature", temperature, low=1e-8)
    return checks.check_count("bins", bins), temperature, checks.check_range("norm", norm, low=1, high=16)


class SoftBinnedECELoss(PairObjective):
    """Soft-binned expected calibration error (SB-ECE) of a batch of logits, to be added to the NLL.

    Args:
        bins: Number of equal bins of [0, 1].
        temperature: Softness of the memberships; the ESD paper searches 1e-4 to 1e-1.
        norm: Order of the error.
        form: ``"label-binned"`` or ``"binned"``.
        ignore_index: Label of samples to ignore.
        sync: Compute on the global batch under ``torch.distributed``.

    Shapes:
        As in :class:`calibrant.ESDLoss`. See :func:`calibrant.functional.soft_binned_ece` for the formula.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> round(cal.SoftBinnedECELoss()(logits, torch.tensor([1, 1, 0, 0])).item(), 4)
        0.7034
    """

    name = "SB-ECE"

    def __init__(
        self,
        bins: int = 15,
        temperature: float = 0.01,
        norm: float = 2,
        form: Form = "label-binned",
        *,
        ignore_index: int | None = -100,
        sync: bool = True,
    ) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)
        self.bins, self.temperature, self.norm = _checked(bins, temperature, norm, form)
        self.form = form

    def value_of_pairs(self, pairs: Pairs) -> Tensor:
        """SB-ECE, which includes the root."""
        return _soft_binned_ece(pairs, self.bins, self.temperature, self.norm, self.form)
