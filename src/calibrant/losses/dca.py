"""DCA, the difference between mean confidence and accuracy, and MDCA, the same for every class."""

import torch
from torch import Tensor

from calibrant import distributed
from calibrant.losses import checks
from calibrant.losses.base import Objective, PairObjective, residuals
from calibrant.losses.checks import Classification, Pairs
from calibrant.numerics import accumulation_dtype, safe_divide


def dca(
    confidence: Tensor, correct: Tensor, *, mask: Tensor | None = None, sample_weight: Tensor | None = None
) -> Tensor:
    r"""Difference between confidence and accuracy (DCA): :math:`\big|\tfrac1N \sum_i (z_i - c_i)\big|`.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(..., N)``.
        correct: 1 or True where the prediction is right, same shape.
        mask: Boolean, same shape: True where a sample counts.
        sample_weight: Non-negative weights, same shape: a sample of weight 2 counts as two.

    Returns:
        Shape ``(...)``. Accumulated in float64, returned in the given dtype, at least float32.

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
    _, _, residual, _, samples = residuals(pairs)
    return safe_divide(residual.sum(-1).abs(), samples)


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

    Shapes:
        As in :class:`calibrant.ESDLoss`.

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
        super().__init__(ignore_index=ignore_index)
        self.sync = sync

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the loss of a batch as a scalar; see :meth:`calibrant.FocalLoss.forward` for the arguments."""
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
