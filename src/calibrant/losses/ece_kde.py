"""Kernel estimate of the canonical calibration error (ECE-KDE)."""

import math
from typing import Literal, Self

import torch
from torch import Tensor

from calibrant import distributed, inputs
from calibrant.losses import checks
from calibrant.losses.base import Objective
from calibrant.losses.checks import Classification
from calibrant.numerics import accumulation_dtype, bounded_power, log_softmax

KernelView = Literal["canonical", "top-label"]
# The candidates of the authors' search.
BANDWIDTHS = (*(10 ** (-5 + 4 * step / 14) for step in range(15)), 0.2, 0.4, 0.6, 0.8, 1.0)
# A sample is compared with the others.
FEWEST = 2
# Lower bound of log-probabilities, so that no sum of exponents overflows.
LOWEST_LOG = -700.0


class ECEKDELoss(Objective):
    r"""Kernel estimate of the calibration error of the whole probability vector (ECE-KDE), to be added to the NLL.

    The mean label of samples with similar predictions, minus the prediction; :doc:`methods/ece_kde` has the formula.
    The value is the p-th power of the error, without a root. It takes :math:`O(N^2 C)` time and :math:`O(N^2)` memory.

    Args:
        bandwidth: h, from 1e-6 to 100; :meth:`fit_bandwidth` chooses it from data. It is part of the ``state_dict``.
        norm: Order p, from 1 to 16.
        view: ``"canonical"`` for the whole probability vector, or ``"top-label"``.

    Example:
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> loss = ECEKDELoss(0.1, view="top-label")
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
        inputs.check_choice("view", view, ("canonical", "top-label"))
        self.bandwidth = _checked_bandwidth(bandwidth)
        self.norm = inputs.check_range("norm", norm, low=1, high=16)
        self.view = view

    def minimum_samples(self) -> int:
        return FEWEST

    @torch.no_grad()
    def fit_bandwidth(self, logits: Tensor, target: Tensor | None = None, mask: Tensor | None = None) -> Self:
        """Set that of the authors' candidates under which each prediction is most likely, given the others."""
        data = self.checked(logits, target, mask)
        logits, _, mask = self._global_batch(data, "the bandwidth of ECE-KDE")
        log_p, _ = self._predictions(logits, torch.zeros_like(logits))
        counted = slice(None) if mask is None else mask
        likelihoods = [_log_kernel_of_others(log_p, mask, h).logsumexp(1)[counted].sum() for h in BANDWIDTHS]
        self.bandwidth = BANDWIDTHS[int(torch.stack(likelihoods).argmax())]
        return self

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        data = self.checked(logits, target, mask)
        logits, hot, mask = self._global_batch(data, self.name)
        log_p, hot = self._predictions(logits, hot)
        share = torch.softmax(_log_kernel_of_others(log_p, mask, self.bandwidth), dim=1)
        error = bounded_power((share @ hot - log_p.exp()).abs(), self.norm)
        error = error.sum(1) if self.view == "canonical" else error[:, 0]
        if mask is None:
            return error.mean().to(data.logits.dtype)
        counts = mask.to(error.dtype)
        # A single sample cannot be compared with others, and there is no mean of no samples.
        value = torch.where(counts.sum() < FEWEST, 0.0, (error * counts).sum() / counts.sum().clamp_min(1))
        return value.to(data.logits.dtype)

    def _predictions(self, logits: Tensor, hot: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and labels of all classes, or of the predicted class and of all others together."""
        log_p = log_softmax(logits.to(accumulation_dtype(logits))).clamp_min(LOWEST_LOG)
        hot = hot.to(log_p.dtype)
        if self.view == "canonical":
            return log_p, hot
        predicted = logits.argmax(1, keepdim=True)
        others = log_p.masked_fill(torch.arange(logits.shape[1], device=logits.device) == predicted, -math.inf)
        log_p = torch.cat((log_p.gather(1, predicted), others.logsumexp(1, keepdim=True)), dim=1)
        right = hot.gather(1, predicted)
        return log_p, torch.cat((right, 1 - right), dim=1)

    def _global_batch(self, data: Classification, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits, one-hot labels and which samples count, of all ranks when ``sync`` is on."""
        logits, hot, mask = data.logits, checks.one_hot(data), data.mask
        if self.gathers():
            rows = None if mask is None else mask.expand(logits.T.shape)
            (logits, hot), counts = distributed.gather_samples((logits.T, hot.T), rows)
            logits, hot, mask = logits.T, hot.T, counts[0]
        checks.require_samples(Classification(logits, logits[:, 0], mask), FEWEST, name)
        return logits, hot, mask

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.bandwidth, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        self.bandwidth = _checked_bandwidth(float(state))


def _log_kernel_of_others(log_p: Tensor, mask: Tensor | None, bandwidth: float) -> Tensor:
    """Logarithm of the Dirichlet kernel around sample i at sample j in row j; minus infinity where i = j."""
    excess = log_p.exp() / bandwidth
    log_beta = torch.lgamma(excess + 1).sum(1) - torch.lgamma(excess.sum(1) + log_p.shape[1])
    absent = torch.eye(len(log_p), dtype=torch.bool, device=log_p.device)
    if mask is not None:
        absent = absent | ~mask
        absent = absent & ~absent.all(1, keepdim=True)  # a row of only minus infinity has no softmax
    return (log_p @ excess.T - log_beta).masked_fill(absent, -math.inf)


def _checked_bandwidth(bandwidth: float) -> float:
    return inputs.check_range("bandwidth", bandwidth, low=1e-6, high=100)
