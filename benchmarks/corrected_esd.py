"""ESD with the finite-set correction and a running root: a row of the ablation, not part of the package."""

import math

import torch
from torch import Tensor, nn

from calibrant import functional

DECAY = 0.9


class CorrectedESDLoss(nn.Module):
    r"""ESD without the force that un-learns a finite held-out set, with the root's slope from earlier batches.

    The value is :math:`s\,\big(\mathrm{ESD} + \frac{1}{M - 2} \operatorname{mean}_{i \ne j} 1(z_j \le z_i) d_j^2\big)`.
    Over random batches of a set of M samples the mean of the bracket is :math:`\sum_i A_i^2 / M(M-1)(M-2)` of the whole
    set, which is at least 0 and has no gradient where it is 0. The slope :math:`s = 1 / (2 \sqrt m)` has for m the
    exponential mean of earlier batches, at least its standard error, so that no label of this batch is in it. Two
    batches make a standard error, so the loss of the first two is 0.

    Args:
        samples: M, the size of the held-out set.
    """

    def __init__(self, samples: int) -> None:
        super().__init__()
        if samples < 3:
            raise ValueError(f"samples must be at least 3, got {samples}")
        self.samples = samples
        self._sums: Tensor
        self.register_buffer("_sums", torch.zeros(3, dtype=torch.float64))  # of weights, values and squares

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Loss of a held-out batch."""
        confidence, predicted = logits.softmax(1).max(1)
        value = corrected_esd(confidence, predicted == target, self.samples)
        loss = value * self._slope()
        with torch.no_grad():
            seen = value.detach().double()
            self._sums = DECAY * self._sums + torch.stack((torch.ones_like(seen), seen, seen.square()))
        return loss

    def _slope(self) -> float:
        weight, total, squares = self._sums.tolist()
        if weight <= 1:
            return 0.0
        mean = total / weight
        variance = max(squares / weight - mean**2, 0.0)
        # Weights DECAY^k: the mean has the variance of one value times sum w^2 / (sum w)^2, about (1-a)/(1+a).
        error = math.sqrt(variance * (1 - DECAY) / (1 + DECAY))
        floor = max(mean, error)
        return 1 / (2 * math.sqrt(floor)) if floor > 0 else 0.0


def corrected_esd(confidence: Tensor, correct: Tensor, samples: int) -> Tensor:
    """ESD of a batch plus the diagonal, with the weight that it has in a set of so many samples."""
    ascending = confidence.detach().sort().values
    others_above = len(ascending) - 1 - torch.searchsorted(ascending, confidence.detach())
    squares = (correct.to(confidence.dtype) - confidence).square() * others_above
    diagonal = squares.sum() / (len(ascending) * (len(ascending) - 1))
    return functional.esd(confidence, correct) + diagonal / (samples - 2)
