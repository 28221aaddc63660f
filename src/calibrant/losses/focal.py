"""Losses that weight samples by how wrong they are, replacements for the NLL: focal losses and the Brier score."""

from typing import Literal, Self

import torch
from torch import Tensor

from calibrant import inputs
from calibrant.losses import checks
from calibrant.losses.base import MeanLoss, log_likelihood, of_target, pairs_of_all_ranks
from calibrant.losses.checks import Classification, Pairs
from calibrant.numerics import accumulation_dtype, bounded_power, log_softmax

Gamma = float | Literal["flsd-53"]


class FocalLoss(MeanLoss):
    r"""Focal loss, :math:`-(1 - p_y)^\gamma \ln p_y`, or its schedule FLSD-53, a replacement for the NLL.

    Args:
        gamma: Focusing strength; 0 is the NLL. ``"flsd-53"`` is 5 where :math:`p_y < 0.2`, else 3, held constant in the
            gradient.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(FocalLoss("flsd-53")(logits, torch.tensor([0, 0])).item(), 4)
        0.2567
    """

    name = "the focal loss"

    def __init__(self, gamma: Gamma = 3.0, *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        if isinstance(gamma, str):
            inputs.check_choice("gamma", gamma, ("flsd-53",))
            self.gamma: Gamma = gamma
        else:
            self.gamma = inputs.check_range("gamma", gamma, low=0, high=100)

    def losses(self, data: Classification) -> Tensor:
        log_p = log_likelihood(data)
        # Computing 1 - p from log p is precise as p nears 1.
        miss = -torch.expm1(log_p)
        if isinstance(self.gamma, str):
            return -miss.pow(torch.where(log_p.detach().exp() < 0.2, 5.0, 3.0)) * log_p
        return -bounded_power(miss, self.gamma) * log_p


class DualFocalLoss(MeanLoss):
    r"""Dual focal loss, a replacement for the NLL, which also widens the gap to the runner-up.

    It is :math:`-(1 - p_y + p_j)^\gamma \ln p_y` with :math:`p_j` the largest probability below :math:`p_y`, or 0.

    Args:
        gamma: Focusing strength; the authors tune it per network, 5 for ResNet50 on CIFAR.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(DualFocalLoss()(logits, torch.tensor([0, 0])).item(), 4)
        0.1372
    """

    name = "the dual focal loss"

    def __init__(self, gamma: float = 5.0, *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.gamma = inputs.check_range("gamma", gamma, low=0, high=100)

    def losses(self, data: Classification) -> Tensor:
        log_probabilities = log_softmax(data.logits)
        probabilities = log_probabilities.exp()
        p, log_p = of_target(probabilities, data), of_target(log_probabilities, data)
        runner_up = torch.where(probabilities < p.unsqueeze(1), probabilities, 0.0).amax(1)
        return -bounded_power(runner_up - torch.expm1(log_p), self.gamma) * log_p


class BrierLoss(MeanLoss):
    r"""Multi-class Brier score :math:`\sum_k (p_k - 1[y = k])^2`, from 0 to 2, a replacement for the NLL.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(BrierLoss()(logits, torch.tensor([0, 0])).item(), 4)
        0.5487
    """

    name = "the Brier score"

    def losses(self, data: Classification) -> Tensor:
        gap = data.logits.softmax(1) - checks.one_hot(data).to(data.logits.dtype)
        return gap.square().sum(1, dtype=accumulation_dtype(gap))


class BSCEGRALoss(MeanLoss):
    r"""Cross entropy weighted by the generalized Brier score (BSCE-GRA), a replacement for the NLL.

    :math:`-u \ln p_y` with :math:`u = \lVert p - y \rVert_\beta^\gamma` and the one-hot label y. Because u is held
    constant in the gradient, this is u times that of the NLL, and not the derivative of the returned value.

    Args:
        gamma: Power :math:`\gamma` of the norm, from 0 to 100; 0 is the NLL.
        norm: Order :math:`\beta` of the norm, from 1 to 16.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(BSCEGRALoss()(logits, torch.tensor([0, 0])).item(), 4)
        0.7037
    """

    name = "BSCE-GRA"

    def __init__(self, gamma: float = 2.0, norm: float = 2.0, *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.gamma = inputs.check_range("gamma", gamma, low=0, high=100)
        self.norm = inputs.check_range("norm", norm, low=1, high=16)

    def losses(self, data: Classification) -> Tensor:
        log_p = log_likelihood(data)
        wide = accumulation_dtype(log_p)
        gap = data.logits.detach().to(wide).softmax(1) - checks.one_hot(data).to(wide)
        weight: Tensor = torch.linalg.vector_norm(gap, self.norm, dim=1).pow(self.gamma)
        return -weight * log_p.to(wide)


class AdaFocalLoss(MeanLoss):
    r"""Focal loss whose strength follows the calibration of held-out data (AdaFocal), a replacement for the NLL.

    Call :meth:`update` with the logits of held-out data after every epoch: it sets bins of equal mass and the strength
    of each, as :doc:`methods/adafocal` says. Both are part of the ``state_dict``.

    Args:
        bins: Number of bins, closed on the right.
        rate: :math:`\lambda`, how fast the strength follows the gap of confidence and accuracy in its bin.
        gamma: Strength of every bin before the first update.
        lowest: Lower bound of the strength; negative is inverse focal.
        highest: Upper bound of the strength.
        switch: Size below which the strength changes its sign.

    Example:
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> loss = AdaFocalLoss(bins=2).update(logits, torch.tensor([1, 0, 0, 0]))
        >>> [round(strength, 4) for strength in loss.strength.tolist()]
        [1.0812, 2.5924]
        >>> round(loss(logits, torch.tensor([0, 0, 0, 0])).item(), 4)
        0.2785
    """

    name = "AdaFocal"
    strength: Tensor
    edges: Tensor

    def __init__(
        self,
        bins: int = 15,
        rate: float = 1.0,
        gamma: float = 1.0,
        lowest: float = -2.0,
        highest: float = 20.0,
        switch: float = 0.2,
        *,
        ignore_index: int | None = -100,
        sync: bool = True,
    ) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)
        self.bins = inputs.check_count("bins", bins)
        self.rate = inputs.check_range("rate", rate, low=0, high=100)
        self.lowest = inputs.check_range("lowest", lowest, low=-100, high=0)
        self.highest = inputs.check_range("highest", highest, low=0, high=100)
        self.switch = inputs.check_range("switch", switch, low=0, high=100)
        gamma = inputs.check_range("gamma", gamma, low=lowest, high=highest)
        self.register_buffer("strength", torch.full((self.bins,), gamma))
        self.register_buffer("edges", torch.arange(1, self.bins) / self.bins)

    @torch.no_grad()
    def update(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Self:
        """Set the bins, and the strength of each, from all logits of held-out data: at least as many as bins."""
        pairs = checks.top_label_pairs(self.checked(logits, target, mask))
        if self.gathers():
            pairs = pairs_of_all_ranks(pairs)
        if pairs.mask is not None:
            pairs = Pairs(pairs.confidence[pairs.mask], pairs.correct[pairs.mask])
        checks.require_samples(pairs, self.bins, "the update of AdaFocal")
        wide = accumulation_dtype(pairs.confidence)
        self.edges.copy_(_equal_mass_edges(pairs.confidence.to(wide), self.bins))
        slot = torch.bucketize(pairs.confidence, self.edges.to(pairs.confidence))
        excess, empty = -pairs.residual(), torch.zeros(self.bins, dtype=wide, device=slot.device)
        counts = empty.scatter_add(0, slot, torch.ones_like(excess))
        gap = empty.scatter_add(0, slot, excess) / counts.clamp_min(1)
        self.strength.copy_(self._next(self.strength.to(gap), gap))
        return self

    def _next(self, strength: Tensor, gap: Tensor) -> Tensor:
        strength = strength * torch.exp(self.rate * torch.where(strength > 0, gap, -gap))
        # Rounded to the dtype of the strengths, so that a strength equal to it is not below it.
        switch = self.strength.new_tensor(self.switch).to(strength)
        flipped = torch.where(strength > 0, -switch, switch)
        return torch.where(strength.abs() < switch, flipped, strength).clamp(self.lowest, self.highest)

    def losses(self, data: Classification) -> Tensor:
        log_p = log_likelihood(data)
        strength = self.strength.to(log_p)[torch.bucketize(log_p.detach().exp(), self.edges.to(log_p))]
        # Computing 1 - p from log p is precise as p nears 1, where a small power has an infinite slope.
        miss = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).eps)
        base = torch.where(strength > 0, miss, 1 + log_p.exp())
        return -base.pow(strength.abs()) * log_p


def _equal_mass_edges(confidence: Tensor, bins: int) -> Tensor:
    """Edges between bins of equal mass: the sorted confidences at positions k N / M, interpolated."""
    ascending = confidence.sort().values
    samples = len(ascending)
    position = torch.arange(1, bins, device=confidence.device) * samples
    below = torch.div(position, bins, rounding_mode="floor")
    above = (below + 1).clamp_max(samples - 1)
    return ascending[below].lerp(ascending[above], (position % bins).to(ascending) / bins)
