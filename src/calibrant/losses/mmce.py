"""Maximum mean calibration error, with the Laplace kernel of its authors."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.arrays import laplace_sums_of_array
from calibrant.frames import Array, Marks
from calibrant.losses import checks
from calibrant.losses.checks import Pairs
from calibrant.losses.known_gradient import ClosedForm, value_of_row
from calibrant.losses.pairs import PairObjective, View, ViewedObjective
from calibrant.numerics import (
    exponential_is_safe,
    laplace_quadratic_form,
    laplace_sum_over_pairs,
    safe_divide,
    sum_over_distinct,
)

Normalisation = Literal["paper", "legacy"]


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

    With :math:`d_i = c_i - r_i` and the kernel :math:`k(r, r') = \exp(-|r - r'| / \phi)`,

    .. math:: \mathrm{MMCE}^2 = \frac{1}{N^2} \sum_{i,j} d_i d_j k(r_i, r_j)

    as published (a V-statistic: never negative, biased upward), or over pairs :math:`i \ne j` divided by
    :math:`N(N-1)` with ``unbiased=True`` (a U-statistic: may be negative, mean 0 when calibrated).

    With weights :math:`w_i` it is the weighted mean over the same pairs,

    .. math:: \mathrm{MMCE}_w^2 = \frac{\sum_{i,j} w_i w_j\, d_i d_j k(r_i, r_j)}{\sum_{i,j} w_i w_j},

    over all pairs, where a weight of 2 equals a sample that occurs twice, or over :math:`i \ne j` with
    ``unbiased=True``, where it does not: a pair never holds a sample twice.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(..., N)``.
        correct: 1 or True where the prediction is right, same shape.
        bandwidth: Kernel width :math:`\phi`. The authors' code writes it as 2 x 0.2.
        unbiased: Compute the U-statistic, which needs N at least 2, instead of the V-statistic.
        mask: Boolean, same shape: True where a sample counts.
        sample_weight: Non-negative weights, same shape; constants, no gradient flows. Their scale does not matter,
            and a weight of 0 is the same as ``mask=False``.

    Returns:
        Shape ``(...)``. Accumulated in float64, returned in the given dtype, at least float32.

    References:
        Kumar, Sarawagi, Jain, "Trainable Calibration Measures for Neural Networks from Kernel Mean
        Embeddings", ICML 2018.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> confidence, correct = torch.tensor([0.9, 0.8, 0.6, 0.9]), torch.tensor([1, 0, 1, 0])
        >>> round(cal.functional.mmce(confidence, correct).item(), 4)
        0.1091
    """
    bandwidth = _checked_bandwidth(bandwidth)
    minimum = _fewest(unbiased)
    pairs = checks.pairs(confidence, correct, mask, name="MMCE", minimum=minimum, sample_weight=sample_weight)
    return _mmce(pairs, bandwidth, unbiased).to(pairs.confidence.dtype)


def _mmce(pairs: Pairs, bandwidth: float, unbiased: bool) -> Tensor:
    closed_form = _closed_form(bandwidth, unbiased)
    return value_of_row(pairs, closed_form, lambda given: _differentiable_mmce(given, bandwidth, unbiased))


def _differentiable_mmce(pairs: Pairs, bandwidth: float, unbiased: bool) -> Tensor:
    confidence, _, residual, weight, samples = checks.residuals(pairs)
    if unbiased and weight is not None and pairs.weight is not None:
        total = laplace_sum_over_pairs(confidence, residual, bandwidth)
        return safe_divide(total, sum_over_distinct(weight, 2))
    total = laplace_quadratic_form(confidence, residual, bandwidth)
    if unbiased:
        total = total - residual.square().sum(-1)
    return safe_divide(total, samples * (samples - 1) if unbiased else samples * samples)


def _closed_form(bandwidth: float, unbiased: bool) -> ClosedForm | None:
    """None for narrow kernels, which need the doubling scan."""
    if not exponential_is_safe(bandwidth, torch.float64):
        return None
    return lambda confidence, correct: _mmce_and_gradient(confidence, correct, bandwidth, unbiased)


def _mmce_and_gradient(confidence: Array, correct: Marks, bandwidth: float, unbiased: bool) -> tuple[float, Array]:
    """MMCE of one row, and its gradient -2 (K d)_i + 2 d_i (above_i - below_i) / phi, over N^2 or N(N-1)."""
    n = len(confidence)
    order = confidence.argsort()
    ascending = confidence[order].astype(np.float64)
    residual = correct[order] - ascending
    below, tied, above = laplace_sums_of_array(ascending, residual, bandwidth)
    if unbiased:
        tied = tied - residual
    everywhere = below + tied + above
    scale = 1 / (n * (n - 1) if unbiased else n * n)
    gradient = np.empty(n)
    gradient[order] = (residual * (above - below) / bandwidth - everywhere) * (2 * scale)
    return float(residual @ everywhere) * scale, gradient


def mmce_weighted(
    confidence: Tensor,
    correct: Tensor,
    bandwidth: float = 0.4,
    *,
    normalisation: Normalisation = "paper",
    mask: Tensor | None = None,
) -> Tensor:
    r"""Squared weighted MMCE, in which right and wrong predictions have the same total weight.

    :math:`\mathrm{MMCE}_w^2 = e^\top K e` with the Laplace kernel :math:`K`, and
    :math:`e_i = (1 - r_i) / n_1` where the prediction is right, :math:`e_i = -r_i / n_0` where it is
    wrong; :math:`n_1, n_0` count the two. A batch that is all right or all wrong gives 0 with zero gradient.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(..., N)``.
        correct: 1 or True where the prediction is right, same shape.
        bandwidth: Kernel width :math:`\phi`.
        normalisation: ``"paper"`` as above; ``"legacy"`` divides by the counts twice
            (:math:`n_1^2, n_0^2`) as widely copied code does, to reproduce results obtained with it.
        mask: Boolean, same shape: True where a sample counts.

    Returns:
        Shape ``(...)``. Accumulated in float64, returned in the given dtype, at least float32.

    References:
        Kumar, Sarawagi, Jain, ICML 2018, section on the weighted estimator.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> confidence, correct = torch.tensor([0.9, 0.8, 0.6, 0.9]), torch.tensor([1, 0, 1, 0])
        >>> round(cal.functional.mmce_weighted(confidence, correct).item(), 4)
        0.4366
    """
    bandwidth = _checked_bandwidth(bandwidth)
    checks.check_choice("normalisation", normalisation, ("paper", "legacy"))
    pairs = checks.pairs(confidence, correct, mask, name="weighted MMCE")
    return _mmce_weighted(pairs, bandwidth, normalisation).to(pairs.confidence.dtype)


def _mmce_weighted(pairs: Pairs, bandwidth: float, normalisation: Normalisation) -> Tensor:
    confidence, correct, residual, weight, _ = checks.residuals(pairs)
    right = correct if weight is None else correct * weight
    wrong = 1 - correct if weight is None else (1 - correct) * weight
    right_count, wrong_count = right.sum(-1, keepdim=True), wrong.sum(-1, keepdim=True)
    power = 1 if normalisation == "paper" else 2
    share = safe_divide(right, right_count**power) + safe_divide(wrong, wrong_count**power)
    both_present = (right_count > 0) & (wrong_count > 0)
    return laplace_quadratic_form(confidence, torch.where(both_present, residual * share, 0.0), bandwidth)


def _fewest(unbiased: bool) -> int:
    return 2 if unbiased else 1


def _checked_bandwidth(bandwidth: float) -> float:
    return checks.check_range("bandwidth", bandwidth, low=1e-12)


class MMCELoss(ViewedObjective):
    r"""Maximum mean calibration error (MMCE) of a batch of logits, to be added to the NLL.

    Args:
        bandwidth: Width :math:`\phi` of the Laplace kernel.
        unbiased: Compute the U-statistic instead of the published V-statistic.
        root: True gives :math:`\sqrt{\mathrm{MMCE}^2}`, with zero gradient where the square is not
            positive; weights for the rooted and the squared form are not comparable.
        view: ``"top-label"``; ``"class-wise"`` for the mean over classes (rooted after the mean); ``"multi-label"``
            for the mean over labels, each with its own sigmoid (rooted after the mean).
        ignore_index: Label of samples to ignore.
        sync: Compute on the global batch under ``torch.distributed``.

    Shapes:
        As in :class:`calibrant.ESDLoss`. See :func:`calibrant.functional.mmce` for formula and paper.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> round(cal.MMCELoss()(logits, torch.tensor([1, 1, 0, 0])).item(), 4)
        0.5223
    """

    name = "MMCE"

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
        super().__init__(view, ignore_index=ignore_index, sync=sync)
        self.bandwidth = _checked_bandwidth(bandwidth)
        self.unbiased = unbiased
        self.root = root

    def minimum_samples(self) -> int:
        """One for the V-statistic, two for the U-statistic."""
        return _fewest(self.unbiased)

    def value_of_rows(self, pairs: Pairs) -> Tensor:
        """MMCE squared of each class or label."""
        return _mmce(pairs, self.bandwidth, self.unbiased)

    def closed_form(self) -> ClosedForm | None:
        """MMCE squared and its gradient."""
        return _closed_form(self.bandwidth, self.unbiased)


class WeightedMMCELoss(PairObjective):
    """Weighted MMCE of a batch of logits, to be added to the NLL.

    Args:
        bandwidth: Width of the Laplace kernel.
        normalisation: ``"paper"``, or ``"legacy"`` for the widely copied double division.
        root: True gives the root, with zero gradient where the square is not positive.
        ignore_index: Label of samples to ignore.
        sync: Compute on the global batch under ``torch.distributed``.

    Shapes:
        As in :class:`calibrant.ESDLoss`. See :func:`calibrant.functional.mmce_weighted` for the formula.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> round(cal.WeightedMMCELoss()(logits, torch.tensor([1, 1, 0, 0])).item(), 4)
        0.6088
    """

    name = "weighted MMCE"

    def __init__(
        self,
        bandwidth: float = 0.4,
        normalisation: Normalisation = "paper",
        root: bool = True,
        *,
        ignore_index: int | None = -100,
        sync: bool = True,
    ) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)
        self.bandwidth = _checked_bandwidth(bandwidth)
        checks.check_choice("normalisation", normalisation, ("paper", "legacy"))
        self.normalisation = normalisation
        self.root = root

    def value_of_pairs(self, pairs: Pairs) -> Tensor:
        """Weighted MMCE squared."""
        return _mmce_weighted(pairs, self.bandwidth, self.normalisation)
