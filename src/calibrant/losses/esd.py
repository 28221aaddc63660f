"""Expected squared difference: the tuning-free trainable calibration measure."""

import numpy as np
from torch import Tensor

from calibrant.arrays import tie_bounds_of_array
from calibrant.frames import Array, Marks
from calibrant.losses import checks
from calibrant.losses.checks import Pairs
from calibrant.losses.known_gradient import ClosedForm, value_of_row
from calibrant.losses.pairs import View, ViewedObjective
from calibrant.numerics import exclusive_cumsum, safe_divide, sum_over_distinct, tie_bounds

# ESD is a U-statistic over triples.
FEWEST = 3


def esd(
    confidence: Tensor, correct: Tensor, *, mask: Tensor | None = None, sample_weight: Tensor | None = None
) -> Tensor:
    r"""Expected squared difference (ESD), exact in :math:`O(N \log N)` time and :math:`O(N)` memory.

    ESD estimates :math:`\mathbb{E}_{Z'}\big[\mathbb{E}[1(Z \le Z')(C - Z)]^2\big]`: the squared difference between
    cumulative correctness and cumulative confidence, averaged over where the sums end. It is 0 if and only if the
    classifier is calibrated, and has no hyperparameters. With
    :math:`d_j = c_j - z_j`, :math:`A_i = \sum_{j \ne i} 1(z_j \le z_i) d_j` and :math:`B_i` the same
    sum of :math:`d_j^2`,

    .. math:: \mathrm{ESD} = \frac{1}{N(N-1)(N-2)} \sum_i \left(A_i^2 - B_i\right),

    which equals the estimator of the paper term by term, ties included. It can be negative.

    It is the mean of :math:`1(z_j \le z_i)\,1(z_k \le z_i)\,d_j d_k` over triples of distinct samples. With weights
    :math:`w_i` it is their weighted mean,

    .. math:: \mathrm{ESD}_w = \frac{\sum_{i, j, k} w_i w_j w_k\, 1(z_j \le z_i)\,1(z_k \le z_i)\, d_j d_k}
        {\sum_{i, j, k} w_i w_j w_k} \quad \text{over distinct } i, j, k,

    an estimate for the population in which a sample is drawn in proportion to its weight: numerator and denominator
    are both unbiased, and for a calibrated classifier, with weights that do not depend on correctness, the mean is
    exactly 0. Equal weights change nothing. A weight of 2 is not the same as a sample that occurs twice, because a
    triple never holds a sample twice.

    **The value is unbiased; the gradient is not.** Over random batches the mean of this number is the
    quantity above. Autograd, however, differentiates it with fixed ranks: it does not see that a change of a
    confidence also changes the indicator :math:`1(z_j \le z_i)`. The missing term is
    :math:`-2\int p(z)^2 D(z)\,\mathrm{Cov}(\dot z, C \mid Z = z)\,dz` with
    :math:`D(z) = \mathbb{E}[1(Z \le z)(C - Z)]` and :math:`\dot z` the derivative of the confidence with
    respect to the parameter. It vanishes at perfect calibration and for a pure rescaling of the
    confidence, and elsewhere can even change a component's sign. The published training recipe uses
    this same gradient, and works; the paper's statement that it is unbiased does not hold.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(..., N)`` with N at least 3.
        correct: 1 or True where the prediction is right, same shape; a constant, no gradient flows.
        mask: Boolean, same shape: True where a sample counts.
        sample_weight: Non-negative weights, same shape; constants, no gradient flows. Their scale does not matter,
            and a weight of 0 is the same as ``mask=False``.

    Returns:
        Shape ``(...)``: a scalar for 1-d input. Accumulated in float64, returned in the dtype given, float32 at
        the least.

    References:
        Yoon, Tee, Yoon, Yoon, Kim, Li, Yoo, "ESD: Expected Squared Difference as a Tuning-Free Trainable
        Calibration Measure", ICLR 2023.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> confidence = torch.tensor([0.9, 0.8, 0.6, 0.9], requires_grad=True)
        >>> value = cal.functional.esd(confidence, torch.tensor([1, 0, 1, 0]))
        >>> round(value.item(), 4)
        -0.0267
        >>> value.backward(); confidence.grad[confidence.argmin()].item() != 0
        True
    """
    pairs = checks.pairs(confidence, correct, mask, name="ESD", minimum=FEWEST, sample_weight=sample_weight)
    return _esd(pairs).to(pairs.confidence.dtype)


def _esd(pairs: Pairs) -> Tensor:
    return value_of_row(pairs, _esd_and_gradient, _differentiable_esd)


def _differentiable_esd(pairs: Pairs) -> Tensor:
    confidence, _, residual, weight, samples = checks.residuals(pairs)
    order = pairs.confidence.detach().argsort(dim=-1)
    confidence, residual = confidence.gather(-1, order), residual.gather(-1, order)
    first, last = tie_bounds(confidence)
    if weight is not None and pairs.weight is not None:
        return _weighted_esd(residual, weight.gather(-1, order), first)
    others_below = residual.cumsum(-1).gather(-1, last) - residual
    squares = others_below.square()
    if weight is None:
        others_above = (confidence.shape[-1] - 1 - first).to(residual.dtype)
    else:
        weight = weight.gather(-1, order)
        others_above = weight.flip(-1).cumsum(-1).flip(-1).gather(-1, first) - 1
        squares = squares * weight
    # sum_i B_i counts d_j^2 once for every other sample at or above j.
    total = squares.sum(-1) - (residual.square() * others_above).sum(-1)
    return safe_divide(total, samples * (samples - 1) * (samples - 2))


def _weighted_esd(residual: Tensor, weight: Tensor, first: Tensor) -> Tensor:
    """ESD of weighted samples in ascending order as sums over a < b < c; the residuals are already weighted.

    The sample i at or above the two others is c, or also b if c is tied with it, or also a if all three are tied. No
    product of a weight with itself is ever added and then subtracted, so rounding errors stay small relative to
    the denominator, however uneven the weights are.
    """

    def before(terms: Tensor) -> Tensor:
        return exclusive_cumsum(terms)[..., :-1]

    def tied_before(terms: Tensor) -> Tensor:
        sums = exclusive_cumsum(terms)
        return sums[..., :-1] - sums.gather(-1, first)

    residual_before = before(residual)
    last = weight * before(residual * residual_before)
    middle = residual * tied_before(weight * residual_before)
    lowest = residual * tied_before(residual * tied_before(weight))
    return safe_divide(2 * (last + middle + lowest).sum(-1), sum_over_distinct(weight, 3))


def _esd_and_gradient(confidence: Array, correct: Marks) -> tuple[float, Array]:
    """ESD of one row, and its gradient 2 (d_j n_j - sum of A_i over the others at or above j) / N(N-1)(N-2)."""
    n = len(confidence)
    order = confidence.argsort()
    ascending = confidence[order].astype(np.float64)
    residual = correct[order] - ascending
    first, last = tie_bounds_of_array(ascending)
    others_below = residual.cumsum()[last] - residual
    weighted = residual * (n - 1 - first)
    scale = 1 / (n * (n - 1) * (n - 2))
    at_or_above = others_below[::-1].cumsum()[::-1][first]
    gradient = np.empty(n)
    gradient[order] = (weighted - at_or_above + others_below) * (2 * scale)
    return float(others_below @ others_below - residual @ weighted) * scale, gradient


class ESDLoss(ViewedObjective):
    r"""Expected squared difference (ESD) of a batch of logits, to be added to the NLL.

    Args:
        root: True is :math:`\sqrt{\max(\mathrm{ESD}, 0)}`, as in the authors' code, with value and gradient
            exactly 0 where :math:`\mathrm{ESD} \le 0` (or below 1e-16, which is rounding). That happens on about
            two thirds of the batches of a calibrated network. False is ESD itself, unbiased, as in the text and
            pseudocode of the paper.
        view: ``"top-label"``; ``"class-wise"`` for the mean over classes (rooted after the mean); ``"multi-label"``
            for the mean over labels, each with its own sigmoid (rooted after the mean).
        ignore_index: Label of samples to ignore.
        sync: Compute on the global batch under ``torch.distributed``.

    Shapes:
        ``logits`` ``(N, C)``, ``(N, C, d1, ...)``, ``(N,)`` or ``(N, 1)``; ``target`` and ``sample_weight``
        ``(N, ...)``, in the multi-label view the target has the shape of the logits; the loss is a scalar. At least
        3 samples must count.

    See :func:`calibrant.functional.esd` for the formula, the paper, and why the gradient is not unbiased.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> round(cal.ESDLoss()(logits, torch.tensor([1, 1, 0, 1])).item(), 4)
        0.4186
    """

    name = "ESD"

    def __init__(
        self, root: bool = True, view: View = "top-label", *, ignore_index: int | None = -100, sync: bool = True
    ) -> None:
        super().__init__(view, ignore_index=ignore_index, sync=sync)
        self.root = root

    def minimum_samples(self) -> int:
        """Three: ESD is a U-statistic over triples."""
        return FEWEST

    def value_of_rows(self, pairs: Pairs) -> Tensor:
        """ESD of each class or label."""
        return _esd(pairs)

    def closed_form(self) -> ClosedForm:
        """ESD and its gradient."""
        return _esd_and_gradient
