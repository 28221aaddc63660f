"""Maximum mean calibration error, with the Laplace kernel of its authors."""

from functools import partial

import torch
from torch import Tensor

from calibrant import inputs
from calibrant.losses import checks
from calibrant.losses.base import PairObjective, View, value_of_pairs
from calibrant.losses.checks import Pairs
from calibrant.numerics import (
    Values,
    exclusive_cumsum,
    exponential,
    flipped,
    on_arrays,
    safe_divide,
    shifted,
    take,
    tie_bounds,
    unsorted,
    widened,
)

NARROWEST = 1e-12  # bandwidth


def mmce(
    confidence: Tensor,
    correct: Tensor,
    bandwidth: float = 0.4,
    unbiased: bool = False,
    *,
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    r"""Squared maximum mean calibration error (MMCE), exact in :math:`O(N \log N)` time, :math:`O(N)` memory.

    :doc:`methods/mmce` defines it. As published it is never negative and biased upward. If ``unbiased``, it is a
    U-statistic: it may be negative, needs N at least 2, and the scale of ``sample_weight`` matters. The ``bandwidth``
    is that of the Laplace kernel. The other arguments are those of :func:`calibrant.functional.esd`.

    Example:
        >>> confidence, correct = torch.tensor([0.9, 0.8, 0.6, 0.9]), torch.tensor([1, 0, 1, 0])
        >>> round(mmce(confidence, correct).item(), 4)
        0.1091
    """
    inputs.check_range("bandwidth", bandwidth, low=NARROWEST)
    pairs = checks.pairs(
        confidence, correct, mask, name="MMCE", minimum=2 if unbiased else 1, sample_weight=sample_weight
    )
    return value_of_pairs(partial(_mmce, bandwidth=bandwidth, unbiased=unbiased), pairs, pairs.confidence.dtype)


def mmce_weighted(
    confidence: Tensor,
    correct: Tensor,
    bandwidth: float = 0.4,
    *,
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    r"""Squared weighted MMCE, in which right and wrong predictions have the same total weight.

    :doc:`methods/weighted_mmce` defines it. A batch that is all right or all wrong gives 0 with zero gradient.
    Arguments are those of :func:`calibrant.functional.mmce`.

    Example:
        >>> confidence, correct = torch.tensor([0.9, 0.8, 0.6, 0.9]), torch.tensor([1, 0, 1, 0])
        >>> round(mmce_weighted(confidence, correct).item(), 4)
        0.4366
    """
    inputs.check_range("bandwidth", bandwidth, low=NARROWEST)
    pairs = checks.pairs(confidence, correct, mask, name="weighted MMCE", sample_weight=sample_weight)
    return value_of_pairs(partial(_mmce_weighted, bandwidth=bandwidth), pairs, pairs.confidence.dtype)


def _mmce(pairs: Pairs, bandwidth: float, unbiased: bool) -> tuple[Tensor, Tensor]:
    counts, n = pairs.counts(), pairs.confidence.shape[-1]
    if counts is None:
        scale: Tensor | float = 1 / (n * (n - 1) if unbiased else n * n)
        return on_arrays(_kernel, pairs.confidence, pairs.correct, None, scale, bandwidth, unbiased)
    some = counts.sum(-1, keepdim=True)
    some = torch.where(some >= 2, some * (some - 1), 0.0) if unbiased else some.square()
    scale = safe_divide(torch.ones_like(some), some)
    return on_arrays(_kernel, pairs.confidence, pairs.correct, counts, scale, bandwidth, unbiased)


def _mmce_weighted(pairs: Pairs, bandwidth: float) -> tuple[Tensor, Tensor]:
    right, wrong = pairs.right_and_wrong()
    right_count, wrong_count = right.sum(-1, keepdim=True), wrong.sum(-1, keepdim=True)
    share = safe_divide(right, right_count) + safe_divide(wrong, wrong_count)
    share = torch.where((right_count > 0) & (wrong_count > 0), share, 0.0)
    return on_arrays(_kernel, pairs.confidence, pairs.correct, share, 1.0, bandwidth, False)


def _kernel(
    confidence: Values, correct: Values, weight: Values, scale: Values, bandwidth: float, unbiased: bool
) -> tuple[Values, Values]:
    r"""Exact :math:`e^\top K e` with :math:`e_i = w_i d_i`, scaled, and its gradient, in :math:`O(N \log N)`.

    With the sums over samples below and above, the derivative in :math:`r_i` is :math:`-2 w_i (K e)_i +
    2 e_i (\text{above}_i - \text{below}_i) / \phi`; tied samples are in neither. ``unbiased`` leaves out :math:`i = j`.
    """
    order = confidence.argsort(-1)
    ascending = take(confidence, order)
    first, last = tie_bounds(ascending)
    position = widened(ascending)
    residual = widened(take(correct, order)) - position
    weighted = residual
    if weight is not None:
        weight = take(weight, order)
        weighted, scale = residual * weight, weight * scale
    below, above = _decayed_sums(position - 0.5, weighted, first, last, bandwidth)
    tied = weighted
    if first is not last:  # there may be ties
        prefix = exclusive_cumsum(weighted)
        tied = take(prefix, last + 1) - take(prefix, first)
    total = 2 * below + tied
    slope = residual * (above - below) / bandwidth - (below + tied + above)
    if unbiased:
        total, slope = total - residual, slope + residual
    return (residual * total * scale).sum(-1), unsorted(slope * (2 * scale), order)


def _decayed_sums(
    position: Values, weight: Values, first: Values, last: Values, bandwidth: float
) -> tuple[Values, Values]:
    """Sums of w_j exp(-|x_i - x_j| / bandwidth) over all x_j below x_i, and above; positions ascending, centred."""
    mirrored = position.shape[-1] - 1 - last
    # Positions span at most 1, so only the bandwidth matters, and the choice does not depend on the data.
    if bandwidth * (1000.0 if str(position.dtype).endswith("float64") else 100.0) >= 1.0:
        # The kernel factorises into exp(-x_i / bandwidth) exp(x_j / bandwidth): one prefix sum serves all pairs.
        up = exponential(position / bandwidth)
        below = take(exclusive_cumsum(weight * up), first) / up
        return below, take(exclusive_cumsum(flipped(weight / up)), mirrored) * up
    above = _scanned_below(-flipped(position), flipped(weight), flipped(mirrored), bandwidth)
    return _scanned_below(position, weight, first, bandwidth), flipped(above)


def _scanned_below(position: Values, weight: Values, first: Values, bandwidth: float) -> Values:
    """The sum over all below by a doubling scan: after step k each holds its 2^k predecessors, and nothing grows."""
    total, step = weight, 1
    while step < position.shape[-1]:
        decay = exponential((position[..., :-step] - position[..., step:]) / bandwidth)
        total = total + shifted(decay * total[..., :-step], step)
        step *= 2
    before = first - 1 * (first > 0)
    decay = exponential((take(position, before) - position) / bandwidth)
    return (first > 0) * decay * take(total, before)


class MMCELoss(PairObjective):
    """Maximum mean calibration error of a batch, to be added to the NLL: :func:`calibrant.functional.mmce` of logits.

    Args:
        bandwidth: Width of the Laplace kernel.
        unbiased: Compute the U-statistic instead of the published V-statistic.
        root: Take the root, with zero gradient where the square is not positive; weights for the rooted and the squared
            form are not comparable.
        view: As in :class:`ESDLoss`.

    Example:
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> round(MMCELoss()(logits, torch.tensor([1, 1, 0, 0])).item(), 4)
        0.5223
    """

    name = "MMCE"
    closed_form = True

    def __init__(
        self,
        bandwidth: float = 0.4,
        unbiased: bool = False,
        root: bool = True,
        view: View = "top-label",
        *,
        ignore_index: int | None = -100,
        sync: bool = True,
    ) -> None:
        super().__init__(view, root, ignore_index=ignore_index, sync=sync)
        self.bandwidth = inputs.check_range("bandwidth", bandwidth, low=NARROWEST)
        self.unbiased = unbiased

    def minimum_samples(self) -> int:
        return 2 if self.unbiased else 1

    def value_and_slope(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        return _mmce(pairs, self.bandwidth, self.unbiased)


class WeightedMMCELoss(PairObjective):
    """Weighted MMCE of a batch, to be added to the NLL: :func:`calibrant.functional.mmce_weighted` of logits.

    Args:
        bandwidth: Width of the Laplace kernel.
        root: Take the root, with zero gradient where the square is not positive.

    Example:
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> round(WeightedMMCELoss()(logits, torch.tensor([1, 1, 0, 0])).item(), 4)
        0.6088
    """

    name = "weighted MMCE"
    closed_form = True

    def __init__(
        self,
        bandwidth: float = 0.4,
        root: bool = True,
        *,
        ignore_index: int | None = -100,
        sync: bool = True,
    ) -> None:
        super().__init__(root=root, ignore_index=ignore_index, sync=sync)
        self.bandwidth = inputs.check_range("bandwidth", bandwidth, low=NARROWEST)

    def value_and_slope(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        return _mmce_weighted(pairs, self.bandwidth)
