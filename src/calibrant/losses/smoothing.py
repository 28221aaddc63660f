"""Losses that keep the logits from growing: label smoothing, by a margin or by class, and LogitNorm."""

from typing import Any, Literal, Self

import torch
from torch import Tensor

from calibrant import distributed, inputs
from calibrant.losses import checks
from calibrant.losses.base import MeanLoss, log_likelihood, of_target
from calibrant.losses.checks import Classification
from calibrant.numerics import accumulation_dtype, log_softmax

Spread = Literal["all", "others"]
LEAST_MULTIPLIER, MOST_MULTIPLIER = 1e-6, 1e6
# In margins. Beyond, the penalty of CALS is linear, so that a square cannot overflow.
MOST_EXCESS = 1e6
# Keeps the quotient of LogitNorm finite where all logits are 0.
EPSILON = 1e-7


class LabelSmoothingLoss(MeanLoss):
    r"""Cross entropy against smoothed labels, a replacement for the NLL.

    Args:
        smoothing: Share :math:`\alpha` of the label that is spread evenly, in [0, 1).
        spread: ``"all"`` spreads it over all C classes, as in torch; ``"others"`` over the C - 1 others, which smooths
            more.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(LabelSmoothingLoss(0.1)(logits, torch.tensor([0, 0])).item(), 4)
        0.7451
    """

    name = "label smoothing"

    def __init__(self, smoothing: float = 0.05, spread: Spread = "all", *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        inputs.check_choice("spread", spread, ("all", "others"))
        self.smoothing = inputs.check_range("smoothing", smoothing, low=0, high=1, open_high=True)
        self.spread = spread

    def losses(self, data: Classification) -> Tensor:
        log_probabilities = log_softmax(data.logits)
        classes = data.logits.shape[1]
        # Moving alpha onto the C - 1 others equals spreading alpha * C / (C - 1) over all C.
        share = self.smoothing if self.spread == "all" else self.smoothing * classes / (classes - 1)
        wide = accumulation_dtype(log_probabilities)
        everywhere = log_probabilities.mean(1, dtype=wide)
        return (share - 1) * of_target(log_probabilities, data).to(wide) - share * everywhere


class MarginLabelSmoothingLoss(MeanLoss):
    r"""Margin-based label smoothing (MbLS), a replacement for the NLL.

    It is the NLL plus a penalty on logit distances above a margin; :doc:`methods/margin_label_smoothing` defines it.

    Args:
        margin: Distances up to it are not penalised.
        weight: Weight of the penalty relative to the NLL.

    Example:
        >>> logits = torch.tensor([[12.0, 0.0], [0.0, 1.0]])
        >>> round(MarginLabelSmoothingLoss()(logits, torch.tensor([0, 0])).item(), 4)
        0.7066
    """

    name = "margin label smoothing"

    def __init__(self, margin: float = 10.0, weight: float = 0.1, *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.margin = inputs.check_range("margin", margin, low=0, high=1e6)
        self.weight = inputs.check_range("weight", weight, low=0, high=1e6)

    def losses(self, data: Classification) -> Tensor:
        distance = data.logits.amax(1, keepdim=True) - data.logits
        penalty = torch.relu(distance - self.margin).mean(1, dtype=accumulation_dtype(data.logits))
        return self.weight * penalty - log_likelihood(data).to(penalty)


class CALSLoss(MeanLoss):
    r"""Class-adaptive label smoothing (CALS-ALM), a replacement for the NLL.

    Logit distances above a margin are penalised by a multiplier for each class; :doc:`methods/cals` has the formulas.
    Call :meth:`update` with the logits of held-out data after every epoch. What it sets is part of the ``state_dict``.

    Args:
        margin: Logit distance up to which nothing is penalised.
        rho: Weight of the quadratic term before the first update.
        rho_max: Upper bound of that weight.
        rho_growth: Factor by which it grows.
        rho_every: Number of updates between checks of that weight.
        progress: :math:`\rho` grows if the excess is above this share of the previous excess.

    Example:
        >>> logits = torch.tensor([[12.0, 0.0], [0.0, 1.0]])
        >>> loss = CALSLoss().update(logits)
        >>> [round(multiplier, 4) for multiplier in loss.multiplier.tolist()]
        [0.0, 0.1]
        >>> round(loss(logits, torch.tensor([0, 0])).item(), 4)
        0.6654
    """

    name = "CALS"
    multiplier: Tensor
    rho: Tensor
    excess: Tensor
    updates: Tensor

    def __init__(
        self,
        margin: float = 10.0,
        rho: float = 1.0,
        rho_max: float = 10.0,
        rho_growth: float = 1.2,
        rho_every: int = 10,
        progress: float = 0.9,
        *,
        ignore_index: int | None = -100,
        sync: bool = True,
    ) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)
        self.margin = inputs.check_range("margin", margin, low=0.1, high=1e6)
        rho = inputs.check_range("rho", rho, low=1e-6, high=1e6)
        self.rho_max = inputs.check_range("rho_max", rho_max, low=rho, high=1e6)
        self.rho_growth = inputs.check_range("rho_growth", rho_growth, low=1, high=1e6)
        self.rho_every = inputs.check_count("rho_every", rho_every)
        self.progress = inputs.check_range("progress", progress, low=0, high=1e6)
        # One number until the first update, which sets the number of classes.
        self.register_buffer("multiplier", torch.tensor(LEAST_MULTIPLIER))
        self.register_buffer("rho", torch.tensor(rho))
        self.register_buffer("excess", torch.tensor(0.0))
        self.register_buffer("updates", torch.tensor(0))

    @torch.no_grad()
    def update(self, logits: Tensor, target: Tensor | None = None, mask: Tensor | None = None) -> Self:
        r"""Set the multipliers, and at times :math:`\rho`, from held-out logits; the target says what to ignore."""
        data = self.checked(logits, target, mask)
        excess = _excess(data.logits, self.margin)
        multiplier, rho = (_of_classes(name, getattr(self, name), excess) for name in ("multiplier", "rho"))
        slope = (multiplier + rho * excess).clamp(LEAST_MULTIPLIER, MOST_MULTIPLIER)
        counts = torch.ones_like(excess[:, :1]) if data.weight is None else data.weight.to(excess).unsqueeze(1)
        sums = torch.cat((slope * counts, excess * counts, counts), dim=1).sum(0)
        if self.gathers():
            sums = distributed.sum_across_ranks(sums)
        checks.require(sums[-1] >= 1, lambda: "the update of CALS needs at least 1 sample, got none: check the mask")
        slope, excess = (sums[:-1] / sums[-1]).chunk(2)
        self.rho = self._next_rho(rho.expand_as(excess), excess).to(self.rho)
        self.multiplier = slope.clamp(LEAST_MULTIPLIER, MOST_MULTIPLIER).to(self.multiplier)
        self.excess = excess.to(self.excess)
        self.updates += 1
        return self

    def _next_rho(self, rho: Tensor, excess: Tensor) -> Tensor:
        update = int(self.updates) + 1
        if update == 1 or update % self.rho_every:
            return rho
        stalled = excess > self.progress * self.excess.to(excess).clamp_min(0.0)
        return torch.where(stalled, self.rho_growth * rho, rho).clamp_max(self.rho_max)

    def losses(self, data: Classification) -> Tensor:
        excess = _excess(data.logits, self.margin)
        multiplier, rho = (_of_classes(name, getattr(self, name), excess) for name in ("multiplier", "rho"))
        slope = multiplier + rho * excess.clamp_max(MOST_EXCESS)
        inside = (slope.square() - multiplier.square()) / (2 * rho)
        penalty = torch.where(slope >= 0, inside, -multiplier.square() / (2 * rho))
        beyond = (multiplier + rho * MOST_EXCESS).clamp_min(0.0) * torch.relu(excess - MOST_EXCESS)
        return (penalty + beyond).mean(1) - log_likelihood(data).to(excess)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        for name in ("multiplier", "rho", "excess"):
            given = state_dict.get(prefix + name)
            if isinstance(given, Tensor) and given.dim() <= 1:
                setattr(self, name, getattr(self, name).new_empty(given.shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _excess(logits: Tensor, margin: float) -> Tensor:
    """Distance of each class to the largest logit in margins, minus one."""
    # Divided first: the distance from the largest to the smallest float overflows.
    logits = logits.to(accumulation_dtype(logits)) / margin
    return logits.amax(1, keepdim=True) - logits - 1


def _of_classes(name: str, value: Tensor, excess: Tensor) -> Tensor:
    if value.shape not in ((), excess.shape[1:]):
        raise ValueError(
            f"{name} must be one number or have shape ({excess.shape[1]},) for {excess.shape[1]} classes, "
            f"got {tuple(value.shape)}: CALS keeps one for each class of its last update"
        )
    return value.to(excess)


class LogitNormLoss(MeanLoss):
    r"""Cross entropy of normalised logits (LogitNorm), a replacement for the NLL.

    The softmax is taken of :math:`l / \big(\tau (\lVert l \rVert_2 + 10^{-7})\big)`: the loss sees the direction
    of the logits, not their length. Only the sign of a binary logit is left, so it has no gradient: use two logits.

    Args:
        temperature: :math:`\tau`, at least 1e-4.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
        >>> round(LogitNormLoss(1.0)(logits, torch.tensor([0, 1])).item(), 4)
        0.8152
    """

    name = "LogitNorm"

    def __init__(self, temperature: float = 0.04, *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.temperature = inputs.check_range("temperature", temperature, low=1e-4)

    def losses(self, data: Classification) -> Tensor:
        # Any common factor cancels; dividing by the largest logit keeps the squares in range.
        scale = data.logits.detach().abs().amax(1, keepdim=True).clamp_min(1.0)
        scaled = data.logits / scale
        length = torch.linalg.vector_norm(scaled, dim=1, keepdim=True) + EPSILON / scale
        return -of_target(log_softmax(scaled / (self.temperature * length)), data)
