"""MDCA, the difference between mean probability and frequency of every class; DCA is that of the prediction."""

import torch
from torch import Tensor

from calibrant import distributed
from calibrant.losses import checks
from calibrant.losses.base import SyncedObjective
from calibrant.losses.checks import Classification, Pairs
from calibrant.numerics import accumulation_dtype, safe_divide


def mdca(logits: Tensor, target: Tensor, *, mask: Tensor | None = None, ignore_index: int | None = -100) -> Tensor:
    r"""Multi-class DCA: :math:`\tfrac1C \sum_k \big|\tfrac1N \sum_i (p_{ik} - 1[y_i = k])\big|`.

    Args:
        logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``.
        target: Integer class indices, ``(N, ...)``.
        mask: Boolean, same shape as ``target``: True where a sample counts.
        ignore_index: Label of samples to ignore.

    References:
        Hebbalaguppe et al., "A Stitch in Time Saves Nine: A Train-Time Regularizing Loss for Improved
        Neural Network Calibration", CVPR 2022.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.functional.mdca(logits, torch.tensor([0, 0])).item(), 4)
        0.4251
    """
    data = checks.classification(logits, target, mask, ignore_index)
    checks.require_or_warn(Pairs(data.target, data.target, data.mask), 1, "MDCA")
    return _mdca(*_mdca_sums(data)).to(data.logits.dtype)


def _mdca_sums(data: Classification) -> tuple[Tensor, Tensor]:
    """Sum of the excess of each class's probability over its indicator, and the number of samples, ``(1,)``."""
    wide = accumulation_dtype(data.logits)
    excess = data.logits.softmax(1).to(wide) - checks.one_hot(data).to(wide)
    counted = torch.ones_like(excess[:, :1]) if data.mask is None else data.mask.to(wide).unsqueeze(1)
    return (excess * counted).sum(0), counted.sum(0)


def _mdca(sums: Tensor, count: Tensor) -> Tensor:
    return safe_divide(sums.abs(), count).mean()


class MDCALoss(SyncedObjective):
    """Multi-class difference between confidence and accuracy (MDCA), to be added to the NLL or a focal loss.

    Args:
        ignore_index: Label of samples to ignore.
        sync: Compute on the global batch under ``torch.distributed``.

    See :func:`calibrant.functional.mdca` for formula, shapes and paper.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.MDCALoss()(logits, torch.tensor([0, 0])).item(), 4)
        0.4251
    """

    name = "MDCA"

    def value(self, data: Classification) -> Tensor:
        """Return the mean over classes of the difference of the means."""
        sums, count = _mdca_sums(data)
        if self.gathers():
            # The count is a last column, so that one reduction over ranks sums both.
            everywhere = distributed.sum_across_ranks(torch.cat((sums, count)))
            sums, count = everywhere[:-1], everywhere[-1:].detach()
            self.lacks_samples(Pairs(count, count, count >= 1))
        else:
            self.lacks_samples(Pairs(data.target, data.target, data.mask))
        return _mdca(sums, count)
