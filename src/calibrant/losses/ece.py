"""Differences of confidence and accuracy: in bins (ECE), soft bins (SB-ECE), of a batch (DCA) and by class (MDCA)."""

from typing import Literal

import torch
from torch import Tensor

from calibrant import distributed, inputs
from calibrant.losses import checks
from calibrant.losses.base import Objective, PairObjective, View
from calibrant.losses.checks import Classification, Pairs
from calibrant.numerics import accumulation_dtype, bounded_power, safe_divide, safe_root

Form = Literal["label-binned", "binned"]


def ece(
    confidence: Tensor,
    correct: Tensor,
    bins: int = 20,
    *,
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    r"""Expected calibration error (ECE) with equal-width, right-closed bins, differentiable.

    With the bins :math:`[0, 1/M], (1/M, 2/M], \dots` of [0, 1],

    .. math:: \mathrm{ECE} = \frac1N \sum_m \Big| \sum_{i \in m} (c_i - z_i) \Big|.

    Gradients flow through the confidences; the bin of a sample is treated as fixed. Edges are compared in the dtype
    of the confidence (16 bits are upcast first), so that k/M falls on the same side in every dtype.
    :func:`calibrant.metrics.ece` gives the same number.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(..., N)``.
        correct: 1 or True where the prediction is right, same shape.
        bins: Number M of bins: 20 as in the ESD paper; 15 is common too.
        mask: Boolean, same shape: True where a sample counts.
        sample_weight: Non-negative weights, same shape: a sample of weight 2 counts as two.

    References:
        Naeini, Cooper, Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning",
        AAAI 2015; Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> confidence, correct = torch.tensor([0.9, 0.8, 0.6, 0.9]), torch.tensor([1, 0, 1, 0])
        >>> round(cal.functional.ece(confidence, correct).item(), 4)
        0.5
    """
    inputs.check_count("bins", bins)
    pairs = checks.pairs(confidence, correct, mask, name="ECE", sample_weight=sample_weight)
    return _ece(pairs, bins).to(pairs.confidence.dtype)


def _ece(pairs: Pairs, bins: int) -> Tensor:
    residual, fixed = pairs.residual(), pairs.confidence.detach().contiguous()
    upper = torch.arange(1, bins + 1, dtype=residual.dtype, device=residual.device) / bins
    slot = torch.bucketize(fixed, upper.to(fixed.dtype))
    gaps = torch.zeros_like(residual[..., :1]).repeat_interleave(bins, -1).scatter_add(-1, slot, residual)
    return safe_divide(gaps.abs().sum(-1), pairs.samples())


def soft_binned_ece(
    confidence: Tensor,
    correct: Tensor,
    bins: int = 15,
    temperature: float = 0.01,
    norm: float = 2,
    form: Form = "label-binned",
    *,
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
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
        sample_weight: Non-negative weights, same shape: a sample of weight 2 counts as two.

    References:
        Karandikar et al., "Soft Calibration Objectives for Neural Networks", NeurIPS 2021.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> confidence, correct = torch.tensor([0.9, 0.8, 0.6, 0.9]), torch.tensor([1, 0, 1, 0])
        >>> round(cal.functional.soft_binned_ece(confidence, correct).item(), 4)
        0.4735
    """
    bins, temperature, norm = _checked_soft(bins, temperature, norm, form)
    pairs = checks.pairs(confidence, correct, mask, name="SB-ECE", sample_weight=sample_weight)
    return _soft_binned_ece(pairs, bins, temperature, norm, form).to(pairs.confidence.dtype)


def _soft_binned_ece(pairs: Pairs, bins: int, temperature: float, norm: float, form: Form) -> Tensor:
    wide, counts = accumulation_dtype(pairs.confidence), pairs.counts()
    confidence, correct = pairs.confidence.to(wide), pairs.correct.to(wide)
    centres = (torch.arange(bins, dtype=confidence.dtype, device=confidence.device) + 0.5) / bins
    distance = confidence.unsqueeze(-1) - centres
    membership = torch.softmax(distance.square() / -temperature, dim=-1)
    if counts is not None:
        membership = membership * counts.unsqueeze(-1)
    mass = membership.sum(-2)
    accuracy = safe_divide((membership * correct.unsqueeze(-1)).sum(-2), mass)
    if form == "binned":
        mean_confidence = safe_divide((membership * confidence.unsqueeze(-1)).sum(-2), mass)
        total = (mass * bounded_power((accuracy - mean_confidence).abs(), norm)).sum(-1)
    else:
        gap = (accuracy.unsqueeze(-2) - confidence.unsqueeze(-1)).abs()
        total = (membership * bounded_power(gap, norm)).sum((-2, -1))
    return safe_root(safe_divide(total, pairs.samples()), norm)


def _checked_soft(bins: int, temperature: float, norm: float, form: Form) -> tuple[int, float, float]:
    inputs.check_choice("form", form, ("label-binned", "binned"))
    temperature = inputs.check_range("temperature", temperature, low=1e-8)
    return inputs.check_count("bins", bins), temperature, inputs.check_range("norm", norm, low=1, high=16)


def dca(
    confidence: Tensor, correct: Tensor, *, mask: Tensor | None = None, sample_weight: Tensor | None = None
) -> Tensor:
    r"""Difference between confidence and accuracy (DCA): :math:`\big|\tfrac1N \sum_i (z_i - c_i)\big|`.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(..., N)``.
        correct: 1 or True where the prediction is right, same shape.
        mask: Boolean, same shape: True where a sample counts.
        sample_weight: Non-negative weights, same shape: a sample of weight 2 counts as two.

    References:
        Liang, Zhang, Wang, Jacobs, "Improved Trainable Calibration Method for Neural Networks on Medical
        Imaging Classification", BMVC 2020.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> confidence, correct = torch.tensor([0.9, 0.8, 0.6, 0.9]), torch.tensor([1, 0, 1, 0])
        >>> round(cal.functional.dca(confidence, correct).item(), 4)
        0.3
    """
    pairs = checks.pairs(confidence, correct, mask, name="DCA", sample_weight=sample_weight)
    return _dca(pairs).to(pairs.confidence.dtype)


def _dca(pairs: Pairs) -> Tensor:
    return safe_divide(pairs.residual().sum(-1).abs(), pairs.samples())


class ECELoss(PairObjective):
    """Expected calibration error (ECE) of a batch of logits as a loss, to be added to the NLL.

    Args:
        bins: Number of equal-width, right-closed bins.
        view: ``"top-label"``; ``"class-wise"`` for the mean over classes; ``"multi-label"`` for the mean over labels,
            each with its own sigmoid.
        ignore_index: Label of samples to ignore.
        sync: Compute on the global batch under ``torch.distributed``.

    See :func:`calibrant.functional.ece` for the formula.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> round(cal.ECELoss()(logits, torch.tensor([1, 1, 0, 0])).item(), 4)
        0.7355
    """

    name = "ECE"

    def __init__(
        self, bins: int = 20, view: View = "top-label", *, ignore_index: int | None = -100, sync: bool = True
    ) -> None:
        super().__init__(view, ignore_index=ignore_index, sync=sync)
        self.bins = inputs.check_count("bins", bins)

    def value(self, pairs: Pairs) -> Tensor:
        """ECE of each row."""
        return _ece(pairs, self.bins)


class SoftBinnedECELoss(PairObjective):
    """Soft-binned expected calibration error (SB-ECE) of a batch of logits, to be added to the NLL.

    Args:
        bins: Number of equal bins of [0, 1].
        temperature: Softness of the memberships; the ESD paper searches 1e-4 to 1e-1.
        norm: Order of the error.
        form: ``"label-binned"`` or ``"binned"``.
        ignore_index: Label of samples to ignore.
        sync: Compute on the global batch under ``torch.distributed``.

    See :func:`calibrant.functional.soft_binned_ece` for the formula.

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
        self.bins, self.temperature, self.norm = _checked_soft(bins, temperature, norm, form)
        self.form = form

    def value(self, pairs: Pairs) -> Tensor:
        """SB-ECE of each row, which includes the root."""
        return _soft_binned_ece(pairs, self.bins, self.temperature, self.norm, self.form)


class DCALoss(PairObjective):
    """Difference between confidence and accuracy (DCA) of a batch, to be added to the NLL.

    Args:
        ignore_index: Label of samples to ignore.
        sync: Compute on the global batch under ``torch.distributed``.

    See :func:`calibrant.functional.dca` for formula and paper; its authors use a weight of 10.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> round(cal.DCALoss()(logits, torch.tensor([1, 1, 0, 0])).item(), 4)
        0.5467
    """

    name = "DCA"

    def __init__(self, *, ignore_index: int | None = -100, sync: bool = True) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)

    def value(self, pairs: Pairs) -> Tensor:
        """Difference of the means of each row."""
        return _dca(pairs)


class MDCALoss(Objective):
    r"""Multi-class difference between confidence and accuracy (MDCA), to be added to the NLL or a focal loss.

    .. math:: \mathrm{MDCA} = \tfrac1C \sum_k \big|\tfrac1N \sum_i (p_{ik} - 1[y_i = k])\big|

    Args:
        ignore_index: Label of samples to ignore.
        sync: Compute on the global batch under ``torch.distributed``.

    References:
        Hebbalaguppe et al., "A Stitch in Time Saves Nine: A Train-Time Regularizing Loss for Improved
        Neural Network Calibration", CVPR 2022.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.MDCALoss()(logits, torch.tensor([0, 0])).item(), 4)
        0.4251
    """

    name = "MDCA"

    def __init__(self, *, ignore_index: int | None = -100, sync: bool = True) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the loss of a batch as a scalar; see :meth:`calibrant.FocalLoss.forward` for the arguments."""
        with self.failing_together():
            data = self.checked(logits, target, mask)
        wide = accumulation_dtype(data.logits)
        excess = data.logits.softmax(1).to(wide) - checks.one_hot(data).to(wide)
        counted = torch.ones_like(excess[:, :1]) if data.mask is None else data.mask.to(wide).unsqueeze(1)
        sums, count = (excess * counted).sum(0), counted.sum(0)
        if self.gathers():
            # The count is a last column, so that one reduction over ranks sums both.
            everywhere = distributed.sum_across_ranks(torch.cat((sums, count)))
            sums, count = everywhere[:-1], everywhere[-1:].detach()
            checks.require_samples(Classification(count, count, count >= 1), 1, self.name)
        else:
            checks.require_samples(data, 1, self.name)
        return safe_divide(sums.abs(), count).mean().to(data.logits.dtype)
