"""Class-adaptive label smoothing (CALS): constraints on logit distances by an augmented Lagrangian."""

from typing import Any, Self

import torch
from torch import Tensor

from calibrant import distributed
from calibrant.losses import checks
from calibrant.losses.base import HeldOutObjective, log_likelihood, mean_over_samples
from calibrant.losses.checks import Classification
from calibrant.numerics import accumulation_dtype

LEAST_MULTIPLIER, MOST_MULTIPLIER = 1e-6, 1e6
# In margins. Beyond, the penalty is linear, so that a square cannot overflow.
MOST_EXCESS = 1e6


def cals(
    logits: Tensor,
    target: Tensor,
    multiplier: Tensor | float = LEAST_MULTIPLIER,
    rho: Tensor | float = 1.0,
    margin: float = 10.0,
    *,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    r"""NLL plus a penalty of logit distances above a margin, with multipliers for each class (CALS-ALM).

    The excess of class k over the margin m is :math:`h_k = (\max_j l_j - l_k) / m - 1`, and

    .. math::
        -\ln p_y + \frac1C \sum_k P(h_k), \qquad P(h) =
        \begin{cases}
            \lambda_k h + \tfrac12 \rho_k h^2 & \text{if } \lambda_k + \rho_k h \ge 0 \\
            -\lambda_k^2 / (2 \rho_k) & \text{else,}
        \end{cases}

    averaged over samples. An excess above a million margins is penalised linearly instead, which keeps the
    value finite. See :class:`calibrant.CALSLoss` for the update rule of :math:`\lambda` and :math:`\rho`.

    Args:
        logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``.
        target: Integer class indices, ``(N, ...)``.
        multiplier: :math:`\lambda`, shape ``(C,)`` or one number for all classes.
        rho: :math:`\rho`, above 0, shape ``(C,)`` or one number for all classes.
        margin: m, at least 0.1.
        mask: Boolean, same shape as ``target``: True where a sample counts.
        ignore_index: Label of samples to ignore.

    References:
        Liu, Rony, Galdran, Dolz, Ben Ayed, "Class Adaptive Network Calibration", CVPR 2023.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[12.0, 0.0], [0.0, 1.0]])
        >>> round(cal.functional.cals(logits, torch.tensor([0, 0]), multiplier=0.5).item(), 4)
        0.5929
    """
    margin = _checked_margin(margin)
    data = checks.classification(logits, target, mask, ignore_index)
    multiplier, rho = torch.as_tensor(multiplier).detach(), torch.as_tensor(rho).detach()
    return _cals(data, multiplier, rho, margin).to(data.logits.dtype)


def _cals(data: Classification, multiplier: Tensor, rho: Tensor, margin: float) -> Tensor:
    nll = -log_likelihood(data)
    excess = _excess(data.logits, margin)
    multiplier, rho = _of_classes("multiplier", multiplier, excess), _of_classes("rho", rho, excess)
    near = excess.clamp_max(MOST_EXCESS)
    slope = multiplier + rho * near
    inside = (slope.square() - multiplier.square()) / (2 * rho)
    penalty = torch.where(slope >= 0, inside, -multiplier.square() / (2 * rho))
    beyond = (multiplier + rho * MOST_EXCESS).clamp_min(0.0) * torch.relu(excess - MOST_EXCESS)
    return mean_over_samples(nll.to(excess) + (penalty + beyond).mean(1), data, "CALS")


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


def _checked_margin(margin: float) -> float:
    return checks.check_range("margin", margin, low=0.1, high=1e6)


class CALSLoss(HeldOutObjective):
    r"""Class-adaptive label smoothing (CALS-ALM), a replacement for the NLL.

    Call :meth:`update` with the logits of held-out data after every epoch. It sets each class's multiplier to
    the mean slope of the penalty, :math:`\lambda_k \leftarrow \overline{\max(0, \lambda_k + \rho_k h_k)}`, each
    term and the mean clipped to [1e-6, 1e6]. At every ``rho_every``-th update :math:`\rho_k` grows by
    ``rho_growth``, to at most ``rho_max``, if the mean excess of the class is above ``progress`` times what it
    was one update earlier (0 if that was negative). Before the first update every class has :math:`\lambda` =
    1e-6: the loss is the NLL with a quadratic penalty. Multipliers and :math:`\rho` are part of the
    ``state_dict``.

    Args:
        margin: Logit distance up to which nothing is penalised.
        rho: Weight of the quadratic term before the first update.
        rho_max: Upper bound of that weight.
        rho_growth: Factor by which it grows.
        rho_every: Number of updates between checks of that weight.
        progress: :math:`\rho` grows if the excess is above this share of the previous excess.
        ignore_index: Label of samples to ignore.
        sync: Under ``torch.distributed``, update from the samples of all ranks.

    See :func:`calibrant.functional.cals` for formula, shapes and paper.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[12.0, 0.0], [0.0, 1.0]])
        >>> loss = cal.CALSLoss().update(logits)
        >>> [round(multiplier, 4) for multiplier in loss.multiplier.tolist()]
        [0.0, 0.1]
        >>> round(loss(logits, torch.tensor([0, 0])).item(), 4)
        0.6654
    """

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
        self.margin = _checked_margin(margin)
        rho = checks.check_range("rho", rho, low=1e-6, high=1e6)
        self.rho_max = checks.check_range("rho_max", rho_max, low=rho, high=1e6)
        self.rho_growth = checks.check_range("rho_growth", rho_growth, low=1, high=1e6)
        self.rho_every = checks.check_count("rho_every", rho_every)
        self.progress = checks.check_range("progress", progress, low=0, high=1e6)
        # One number until the first update, which sets the number of classes.
        self.register_buffer("multiplier", torch.tensor(LEAST_MULTIPLIER))
        self.register_buffer("rho", torch.tensor(rho))
        self.register_buffer("excess", torch.tensor(0.0))
        self.register_buffer("updates", torch.tensor(0))

    @torch.no_grad()
    def update(self, logits: Tensor, target: Tensor | None = None, mask: Tensor | None = None) -> Self:
        r"""Set the multipliers, and at times :math:`\rho`, from all logits of held-out data.

        Args:
            logits: ``(N, C)``, dense ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``.
            target: Integer class indices, ``(N, ...)``. Only used to find samples to ignore; optional.
            mask: Boolean, same shape as ``target``: True where a sample counts.
        """
        data = self.held_out(logits, target, mask)
        excess = _excess(data.logits, self.margin)
        multiplier, rho = (_of_classes(name, getattr(self, name), excess) for name in ("multiplier", "rho"))
        slope = (multiplier + rho * excess).clamp(LEAST_MULTIPLIER, MOST_MULTIPLIER)
        counts = torch.ones_like(excess[:, :1]) if data.mask is None else data.mask.to(excess).unsqueeze(1)
        sums = torch.cat((slope * counts, excess * counts, counts), dim=1).sum(0)
        if self.updates_together():
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

    def value(self, data: Classification) -> Tensor:
        """Return the mean NLL plus the penalty."""
        return _cals(data, self.multiplier, self.rho, self.margin)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        for name in ("multiplier", "rho", "excess"):
            given = state_dict.get(prefix + name)
            if isinstance(given, Tensor) and given.dim() <= 1:
                setattr(self, name, getattr(self, name).new_empty(given.shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
