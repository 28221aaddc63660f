"""The Brier score as a loss."""

from torch import Tensor

from calibrant.losses import checks
from calibrant.losses.base import Objective, mean_over_samples
from calibrant.losses.checks import Classification
from calibrant.numerics import accumulation_dtype


def brier(logits: Tensor, target: Tensor, *, mask: Tensor | None = None, ignore_index: int | None = -100) -> Tensor:
    r"""Multi-class Brier score :math:`\sum_k (p_k - 1[y = k])^2`, averaged over samples: from 0 to 2.

    Args:
        logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``.
        target: Integer class indices, ``(N, ...)``.
        mask: Boolean, same shape as ``target``: True where a sample counts.
        ignore_index: Label of samples to ignore.

    References:
        Brier, "Verification of Forecasts Expressed in Terms of Probability", Monthly Weather Review 1950.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.functional.brier(logits, torch.tensor([0, 0])).item(), 4)
        0.5487
    """
    data = checks.classification(logits, target, mask, ignore_index)
    return _brier(data).to(data.logits.dtype)


def _brier(data: Classification) -> Tensor:
    gap = data.logits.softmax(1) - checks.one_hot(data).to(data.logits.dtype)
    return mean_over_samples(gap.square().sum(1, dtype=accumulation_dtype(gap)), data, "the Brier score")


class BrierLoss(Objective):
    """Multi-class Brier score, a replacement for the NLL.

    Args:
        ignore_index: Label of samples to ignore.

    See :func:`calibrant.functional.brier` for formula, shapes and paper.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.BrierLoss()(logits, torch.tensor([0, 0])).item(), 4)
        0.5487
    """

    def value(self, data: Classification) -> Tensor:
        """Return the mean Brier score."""
        return _brier(data)
