"""DCA, the difference between mean confidence and accuracy; MDCA is the same for every class."""

from torch import Tensor

from calibrant.losses import checks
from calibrant.losses.checks import Pairs
from calibrant.losses.pairs import PairObjective
from calibrant.numerics import safe_divide


def dca(confidence: Tensor, correct: Tensor, *, mask: Tensor | None = None) -> Tensor:
    r"""Difference between confidence and accuracy (DCA): :math:`\big|\tfrac1N \sum_i (z_i - c_i)\big|`.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(..., N)``.
        correct: 1 or True where the prediction is right, same shape.
        mask: Boolean, same shape: True where a sample counts.

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
    pairs = checks.pairs(confidence, correct, mask, name="DCA")
    return _dca(pairs).to(pairs.confidence.dtype)


def _dca(pairs: Pairs) -> Tensor:
    _, _, residual, _, samples = checks.residuals(pairs)
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

    def value_of_pairs(self, pairs: Pairs) -> Tensor:
        """Return the difference of the means."""
        return _dca(pairs)
