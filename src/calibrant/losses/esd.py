"""Expected squared difference: the tuning-free trainable calibration measure."""

import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.losses.base import PairObjective, View, value_of_pairs
from calibrant.losses.checks import Pairs
from calibrant.numerics import Values, flipped, on_arrays, take, tie_bounds, unsorted, widened

# ESD is a U-statistic over triples.
FEWEST = 3


def esd(
    confidence: Tensor, correct: Tensor, *, mask: Tensor | None = None, sample_weight: Tensor | None = None
) -> Tensor:
    r"""Expected squared difference (ESD), exact in :math:`O(N \log N)` time and :math:`O(N)` memory.

    It is the estimator of the paper, ties included, and can be negative. **The value is unbiased; the gradient is
    not**: see :doc:`methods/esd`, which defines it. :func:`calibrant.metrics.esd` gives the same number.

    With ``sample_weight`` a sample of weight 2 counts as two, and N is the sum of the weights, so their scale matters.
    Multiply weights that are not counts, such as inverse sampling probabilities, by ``w.sum() / (w ** 2).sum()``.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(..., N)`` with N at least 3.
        correct: 1 or True where the prediction is right, same shape; a constant, no gradient flows.
        mask: Boolean, same shape: True where a sample counts.
        sample_weight: Non-negative weights, same shape, 0 as ``mask=False``; constants, no gradient flows.

    Returns:
        Shape ``(...)``, accumulated in float64 and returned in the dtype given, float32 at the least.

    Example:
        >>> confidence = torch.tensor([0.9, 0.8, 0.6, 0.9], requires_grad=True)
        >>> value = esd(confidence, torch.tensor([1, 0, 1, 0]))
        >>> round(value.item(), 4)
        -0.0267
        >>> value.backward(); confidence.grad[confidence.argmin()].item() != 0
        True
    """
    pairs = checks.pairs(confidence, correct, mask, name="ESD", minimum=FEWEST, sample_weight=sample_weight)
    return value_of_pairs(_value_and_slope, pairs, pairs.confidence.dtype)


def _value_and_slope(pairs: Pairs) -> tuple[Tensor, Tensor]:
    counts, n = pairs.counts(), pairs.confidence.shape[-1]
    if counts is None:
        return on_arrays(_kernel, pairs.confidence, pairs.correct, None, 1 / (n * (n - 1) * (n - 2)))
    some = counts.sum(-1, keepdim=True)
    scale = torch.where(some >= FEWEST, 1 / (some * (some - 1) * (some - 2)), 0.0)
    return on_arrays(_kernel, pairs.confidence, pairs.correct, counts, scale)


def _kernel(confidence: Values, correct: Values, counts: Values, scale: Values) -> tuple[Values, Values]:
    r"""The sum of :math:`w_i (A_i^2 - B_i)` with counts :math:`w_i`, times the scale, and its gradient.

    It loses :math:`w_j d_j^2` once for each of the :math:`n_j` other samples at or above j, and its derivative in
    :math:`z_j` is :math:`2 w_j (d_j n_j + A_j - \sum_{i: z_i \ge z_j} w_i A_i)`.
    """
    order = confidence.argsort(-1)
    ascending = take(confidence, order)
    first, last = tie_bounds(ascending)
    residual = widened(take(correct, order)) - ascending
    if counts is None:
        others_above = ascending.shape[-1] - 1 - first
        others_below = take(residual.cumsum(-1), last) - residual
        above = flipped(flipped(others_below).cumsum(-1))
    else:
        counts = take(counts, order)
        others_above = take(flipped(flipped(counts).cumsum(-1)), first) - 1
        others_below = take((counts * residual).cumsum(-1), last) - residual
        above = flipped(flipped(counts * others_below).cumsum(-1))
        scale = scale * counts
    lost = residual * others_above
    total = others_below * others_below - residual * lost
    slope = lost + others_below - take(above, first)
    return (total * scale).sum(-1), unsorted(slope * (2 * scale), order)


class ESDLoss(PairObjective):
    r"""Expected squared difference of a batch, to be added to the NLL: :func:`calibrant.functional.esd` of logits.

    Args:
        root: True is :math:`\sqrt{\max(\mathrm{ESD}, 0)}`, as in the authors' code, with value and gradient exactly 0
            where :math:`\mathrm{ESD} \le 0`. False is ESD itself, unbiased, as in the text of the paper.
        view: ``"top-label"``; or the mean, before the root, over classes, ``"class-wise"``, or over labels with a
            sigmoid each, ``"multi-label"``.

    Example:
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> round(ESDLoss()(logits, torch.tensor([1, 1, 0, 1])).item(), 4)
        0.4186
    """

    name = "ESD"
    closed_form = True

    def __init__(
        self, root: bool = True, view: View = "top-label", *, ignore_index: int | None = -100, sync: bool = True
    ) -> None:
        super().__init__(view, root, ignore_index=ignore_index, sync=sync)

    def minimum_samples(self) -> int:
        return FEWEST

    def value_and_slope(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        return _value_and_slope(pairs)
