"""Expected calibration error as a training objective."""

import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.losses.checks import Pairs
from calibrant.losses.pairs import View, ViewedObjective
from calibrant.numerics import safe_divide


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

    With weights :math:`w_i` it is :math:`\sum_m \big| \sum_{i \in m} w_i (c_i - z_i) \big| \big/ \sum_i w_i`: a weight
    of 2 equals a sample that occurs twice.

    Gradients flow through the confidences; the bin of a sample is treated as fixed. Edges are compared in the dtype
    of the confidence (16 bits are upcast first), so that k/M falls on the same side in every dtype.
    :func:`calibrant.metrics.ece` gives the same number.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(..., N)``.
        correct: 1 or True where the prediction is right, same shape.
        bins: Number M of bins: 20 as in the ESD paper; 15 is common too.
        mask: Boolean, same shape: True where a sample counts.
        sample_weight: Non-negative weights, same shape; constants, no gradient flows. Their scale does not matter,
            and a weight of 0 is the same as ``mask=False``.

    Returns:
        Shape ``(...)``. Accumulated in float64, returned in the given dtype, at least float32.

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
    checks.check_count("bins", bins)
    pairs = checks.pairs(confidence, correct, mask, name="ECE", sample_weight=sample_weight)
    return _ece(pairs, bins).to(pairs.confidence.dtype)


def _ece(pairs: Pairs, bins: int) -> Tensor:
    confidence, _, residual, _, samples = checks.residuals(pairs)
    upper = torch.arange(1, bins + 1, dtype=confidence.dtype, device=confidence.device) / bins
    fixed = pairs.confidence.detach().contiguous()
    slot = torch.bucketize(fixed, upper.to(fixed.dtype))
    gaps = torch.zeros_like(residual[..., :1]).repeat_interleave(bins, -1).scatter_add(-1, slot, residual)
    return safe_divide(gaps.abs().sum(-1), samples)


class ECELoss(ViewedObjective):
    """Expected calibration error (ECE) of a batch of logits as a loss, to be added to the NLL.

    Args:
        bins: Number of equal-width, right-closed bins.
        view: ``"top-label"``; ``"class-wise"`` for the mean over classes; ``"multi-label"`` for the mean over labels,
            each with its own sigmoid.
        ignore_index: Label of samples to ignore.
        sync: Compute on the global batch under ``torch.distributed``.

    Shapes:
        As in :class:`calibrant.ESDLoss`. See :func:`calibrant.functional.ece` for the formula.

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
        self.bins = checks.check_count("bins", bins)

    def value_of_rows(self, pairs: Pairs) -> Tensor:
        """ECE of each class or label."""
        return _ece(pairs, self.bins)
