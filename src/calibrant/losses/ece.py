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

    The bin of a sample is fixed in the gradient. :func:`calibrant.metrics.ece` gives the same number. The other
    arguments are those of :func:`calibrant.functional.esd`.

    Example:
        >>> confidence, correct = torch.tensor([0.9, 0.8, 0.6, 0.9]), torch.tensor([1, 0, 1, 0])
        >>> round(ece(confidence, correct).item(), 4)
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
    r"""Soft-binned expected calibration error (SB-ECE), rooted; :doc:`methods/soft_binned_ece` defines it.

    The ``temperature``, at least 1e-8, is the softness of the ``bins``; ``norm`` is the order of the error, from 1 to
    16. The ``form`` is ``"label-binned"``, as in the ESD paper, which keeps the spread within a bin, or ``"binned"``,
    which tends to the hard ECE. The other arguments are those of :func:`calibrant.functional.esd`.

    Example:
        >>> confidence, correct = torch.tensor([0.9, 0.8, 0.6, 0.9]), torch.tensor([1, 0, 1, 0])
        >>> round(soft_binned_ece(confidence, correct).item(), 4)
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
    r"""Difference between confidence and accuracy (DCA), :math:`\big|\tfrac1N \sum_i (z_i - c_i)\big|`.

    Arguments are those of :func:`calibrant.functional.esd`.

    Example:
        >>> confidence, correct = torch.tensor([0.9, 0.8, 0.6, 0.9]), torch.tensor([1, 0, 1, 0])
        >>> round(dca(confidence, correct).item(), 4)
        0.3
    """
    pairs = checks.pairs(confidence, correct, mask, name="DCA", sample_weight=sample_weight)
    return _dca(pairs).to(pairs.confidence.dtype)


def _dca(pairs: Pairs) -> Tensor:
    return safe_divide(pairs.residual().sum(-1).abs(), pairs.samples())


class ECELoss(PairObjective):
    """Expected calibration error of a batch, to be added to the NLL: :func:`calibrant.functional.ece` of logits.

    Args:
        bins: Number of equal-width, right-closed bins.
        view: As in :class:`ESDLoss`.

    Example:
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> round(ECELoss()(logits, torch.tensor([1, 1, 0, 0])).item(), 4)
        0.7355
    """

    name = "ECE"

    def __init__(
        self, bins: int = 20, view: View = "top-label", *, ignore_index: int | None = -100, sync: bool = True
    ) -> None:
        super().__init__(view, ignore_index=ignore_index, sync=sync)
        self.bins = inputs.check_count("bins", bins)

    def value(self, pairs: Pairs) -> Tensor:
        return _ece(pairs, self.bins)


class SoftBinnedECELoss(PairObjective):
    """Soft-binned ECE of a batch, to be added to the NLL: :func:`calibrant.functional.soft_binned_ece` of logits.

    Example:
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> round(SoftBinnedECELoss()(logits, torch.tensor([1, 1, 0, 0])).item(), 4)
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
        return _soft_binned_ece(pairs, self.bins, self.temperature, self.norm, self.form)


class DCALoss(PairObjective):
    """Mean confidence minus accuracy of a batch, to be added to the NLL: :func:`calibrant.functional.dca` of logits.

    Example:
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> round(DCALoss()(logits, torch.tensor([1, 1, 0, 0])).item(), 4)
        0.5467
    """

    name = "DCA"

    def __init__(self, *, ignore_index: int | None = -100, sync: bool = True) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)

    def value(self, pairs: Pairs) -> Tensor:
        return _dca(pairs)


class MDCALoss(Objective):
    """Multi-class difference between confidence and accuracy (MDCA), the mean of those of the classes.

    It is to be added to the NLL or a focal loss; :doc:`methods/mdca` defines it.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(MDCALoss()(logits, torch.tensor([0, 0])).item(), 4)
        0.4251
    """

    name = "MDCA"

    def __init__(self, *, ignore_index: int | None = -100, sync: bool = True) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        data = self.checked(logits, target, mask)
        wide = accumulation_dtype(data.logits)
        excess = data.logits.softmax(1).to(wide) - checks.one_hot(data).to(wide)
        counted = torch.ones_like(excess[:, :1]) if data.weight is None else data.weight.to(wide).unsqueeze(1)
        sums, count = (excess * counted).sum(0), counted.sum(0)
        if self.gathers():
            # The count is a last column, so that one reduction over ranks sums both.
            everywhere = distributed.sum_across_ranks(torch.cat((sums, count)))
            sums, count = everywhere[:-1], everywhere[-1:].detach()
            checks.require_samples(Classification(count, count, count >= 1), 1, self.name)
        else:
            checks.require_samples(data, 1, self.name)
        return safe_divide(sums.abs(), count).mean().to(data.logits.dtype)
