"""Kernel estimate of the canonical calibration error (ECE-KDE)."""

import math
from typing import Literal, Self

import torch
from torch import Tensor

from calibrant import distributed
from calibrant.losses import checks
from calibrant.losses.base import SyncedObjective, unlabelled
from calibrant.losses.checks import Classification, Pairs
from calibrant.numerics import accumulation_dtype, bounded_power, log_softmax

KernelView = Literal["canonical", "top-label"]
VIEWS = ("canonical", "top-label")
# The candidates of the authors' search.
BANDWIDTHS = (*(10 ** (-5 + 4 * step / 14) for step in range(15)), 0.2, 0.4, 0.6, 0.8, 1.0)
# A sample is compared with the others.
FEWEST = 2
# Lower bound of log-probabilities, so that no sum of exponents overflows.
LOWEST_LOG = -700.0


def ece_kde(
    logits: Tensor,
    target: Tensor,
    bandwidth: float = 0.001,
    norm: float = 1.0,
    view: KernelView = "canonical",
    *,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    r"""Kernel estimate of the :math:`L_p` calibration error of the whole probability vector (ECE-KDE).

    With the probabilities :math:`f_i`, one-hot labels :math:`y_i` and a Dirichlet kernel,

    .. math::
        \frac1N \sum_j \Big\lVert
        \frac{\sum_{i \ne j} k(f_j; f_i)\, y_i}{\sum_{i \ne j} k(f_j; f_i)} - f_j \Big\rVert_p^p, \qquad
        k(f_j; f_i) = \mathrm{Dirichlet}\big(f_j;\, \tfrac{f_i}{h} + 1\big):

    the mean label of samples with similar predictions, minus the prediction. The top-label view does the same with
    the confidence in the predicted class, its correctness, and a Beta kernel. The value is the p-th power of the
    error, without a root.

    Args:
        logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``; at least 2 samples.
        target: Integer class indices, ``(N, ...)``.
        bandwidth: h, from 1e-6 to 100. :func:`kde_bandwidth` chooses one from data.
        norm: Order p, from 1 to 16.
        view: ``"canonical"``, or ``"top-label"``.
        mask: Boolean, same shape as ``target``: True where a sample counts.
        ignore_index: Label of samples to ignore.

    Returns:
        A scalar. Accumulated in float64, in :math:`O(N^2 C)` time and :math:`O(N^2)` memory.

    References:
        Popordanoska, Sayer, Blaschko, "A Consistent and Differentiable Lp Canonical Calibration Error
        Estimator", NeurIPS 2022.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> round(cal.functional.ece_kde(logits, torch.tensor([1, 1, 0, 0]), 0.1).item(), 4)
        1.4583
    """
    bandwidth, norm = _checked(bandwidth, norm, view)
    data = checks.classification(logits, target, mask, ignore_index)
    _require_two(data.logits, data.mask, "ECE-KDE")
    hot = checks.one_hot(data)
    return _ece_kde(data.logits, hot, data.mask, bandwidth, norm, view).to(data.logits.dtype)


def kde_bandwidth(logits: Tensor, view: KernelView = "canonical", *, mask: Tensor | None = None) -> float:
    r"""Return the bandwidth under which each prediction is most likely, given the others.

    This is the one of the authors' twenty candidates, from 1e-5 to 1, with the largest
    :math:`\sum_j \ln \frac{1}{N - 1} \sum_{i \ne j} k(f_j; f_i)`. Labels are not used.

    Args:
        logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``; at least 2 samples.
        view: ``"canonical"``, or ``"top-label"``.
        mask: Boolean, ``(N, ...)``: True where a sample counts.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> round(cal.functional.kde_bandwidth(logits), 4)
        0.0518
    """
    checks.check_choice("view", view, VIEWS)
    data = unlabelled(logits, mask)
    _require_two(data.logits, data.mask, "the bandwidth of ECE-KDE")
    with torch.no_grad():
        return _best_bandwidth(data.logits, data.mask, view)


def _ece_kde(
    logits: Tensor, hot: Tensor, mask: Tensor | None, bandwidth: float, norm: float, view: KernelView
) -> Tensor:
    log_p, hot = _predictions(logits, hot, view)
    share = torch.softmax(_log_kernel_of_others(log_p, mask, bandwidth), dim=1)
    error = bounded_power((share @ hot - log_p.exp()).abs(), norm)
    error = error.sum(1) if view == "canonical" else error[:, 0]
    if mask is None:
        return error.mean()
    weight = mask.to(error.dtype)
    # A single sample cannot be compared with others, and there is no mean of no samples.
    return torch.where(weight.sum() < FEWEST, 0.0, (error * weight).sum() / weight.sum().clamp_min(1))


def _predictions(logits: Tensor, hot: Tensor, view: KernelView) -> tuple[Tensor, Tensor]:
    """Log-probabilities and labels of all classes, or of the predicted class and of all others together."""
    log_p = log_softmax(logits.to(accumulation_dtype(logits))).clamp_min(LOWEST_LOG)
    hot = hot.to(log_p.dtype)
    if view == "canonical":
        return log_p, hot
    predicted = logits.argmax(1, keepdim=True)
    others = log_p.masked_fill(torch.arange(logits.shape[1], device=logits.device) == predicted, -math.inf)
    log_p = torch.cat((log_p.gather(1, predicted), others.logsumexp(1, keepdim=True)), dim=1)
    right = hot.gather(1, predicted)
    return log_p, torch.cat((right, 1 - right), dim=1)


def _log_kernel_of_others(log_p: Tensor, mask: Tensor | None, bandwidth: float) -> Tensor:
    """Logarithm of the Dirichlet kernel around sample i at sample j in row j; minus infinity where i = j."""
    excess = log_p.exp() / bandwidth
    log_beta = torch.lgamma(excess + 1).sum(1) - torch.lgamma(excess.sum(1) + log_p.shape[1])
    absent = torch.eye(len(log_p), dtype=torch.bool, device=log_p.device)
    if mask is not None:
        absent = absent | ~mask
        absent = absent & ~absent.all(1, keepdim=True)  # a row of only minus infinity has no softmax
    return (log_p @ excess.T - log_beta).masked_fill(absent, -math.inf)


def _best_bandwidth(logits: Tensor, mask: Tensor | None, view: KernelView) -> float:
    log_p, _ = _predictions(logits, torch.zeros_like(logits), view)
    counted = slice(None) if mask is None else mask
    likelihoods = [_log_kernel_of_others(log_p, mask, h).logsumexp(1)[counted].sum() for h in BANDWIDTHS]
    return BANDWIDTHS[int(torch.stack(likelihoods).argmax())]


def _require_two(logits: Tensor, mask: Tensor | None, name: str) -> None:
    checks.require_samples(Pairs(logits[:, 0], logits[:, 0], mask), FEWEST, name)


def _checked(bandwidth: float, norm: float, view: KernelView) -> tuple[float, float]:
    checks.check_choice("view", view, VIEWS)
    bandwidth = checks.check_range("bandwidth", bandwidth, low=1e-6, high=100)
    return bandwidth, checks.check_range("norm", norm, low=1, high=16)


class ECEKDELoss(SyncedObjective):
    """Kernel estimate of the canonical calibration error (ECE-KDE) of a batch of logits, to be added to the NLL.

    Args:
        bandwidth: Width of the kernel; :meth:`fit_bandwidth` chooses it from data. It is part of the
            ``state_dict``.
        norm: Order of the error.
        view: ``"canonical"`` for the whole probability vector, or ``"top-label"``.
        ignore_index: Label of samples to ignore.
        sync: Compute on the global batch under ``torch.distributed``.

    See :func:`calibrant.functional.ece_kde` for formula, shapes and paper.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> loss = cal.ECEKDELoss(0.1, view="top-label")
        >>> round(loss(logits, torch.tensor([1, 1, 0, 0])).item(), 4)
        0.6798
    """

    name = "ECE-KDE"

    def __init__(
        self,
        bandwidth: float = 0.001,
        norm: float = 1.0,
        view: KernelView = "canonical",
        *,
        ignore_index: int | None = -100,
        sync: bool = True,
    ) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)
        self.bandwidth, self.norm = _checked(bandwidth, norm, view)
        self.view = view

    def minimum_samples(self) -> int:
        """Two: each sample is compared with the others."""
        return FEWEST

    @torch.no_grad()
    def fit_bandwidth(self, logits: Tensor, target: Tensor | None = None, mask: Tensor | None = None) -> Self:
        """Set the bandwidth with :func:`calibrant.functional.kde_bandwidth`, from the samples of all ranks.

        Args:
            logits: ``(N, C)``, dense ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``.
            target: Integer class indices, ``(N, ...)``. Only used to find samples to ignore; optional.
            mask: Boolean, ``(N, ...)``: True where a sample counts.
        """
        data = unlabelled(logits, mask) if target is None else self.classification(logits, target, mask)
        logits, _, mask = self._global_batch(data)
        _require_two(logits, mask, "the bandwidth of ECE-KDE")
        self.bandwidth = _best_bandwidth(logits, mask, self.view)
        return self

    def value(self, data: Classification) -> Tensor:
        """Return the estimate, of the global batch when ``sync`` is on."""
        logits, hot, mask = self._global_batch(data)
        _require_two(logits, mask, self.name)
        return _ece_kde(logits, hot, mask, self.bandwidth, self.norm, self.view)

    def _global_batch(self, data: Classification) -> tuple[Tensor, Tensor, Tensor | None]:
        hot = checks.one_hot(data)
        if not self.gathers():
            return data.logits, hot, data.mask
        mask = None if data.mask is None else data.mask.expand(data.logits.T.shape)
        (logits, labels), counts = distributed.gather_samples((data.logits.T, hot.T), mask)
        return logits.T, labels.T, counts[0]

    def get_extra_state(self) -> Tensor:
        """Keep the bandwidth, which may come from data, in the ``state_dict``."""
        return torch.tensor(self.bandwidth, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the bandwidth from a ``state_dict``."""
        self.bandwidth, _ = _checked(float(state), self.norm, self.view)
