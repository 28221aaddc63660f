"""Parameters of RAPS chosen on a part of the data, as its paper does."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.posthoc.conformal_scores import conformal_quantile, ranks

TuningGoal = Literal["size", "size-stratified coverage"]
# Penalties to try, those of the authors' code, and the share of the data used for tuning.
PENALTIES: dict[TuningGoal, tuple[float, ...]] = {
    "size": (0.001, 0.01, 0.1, 0.2, 0.5),
    "size-stratified coverage": (0.0, 1e-5, 1e-4, 8e-4, 9e-4, 1e-3, 1.5e-3, 2e-3),
}
TUNING_SHARE = 0.3
# Largest set of each stratum but the last, as in the authors' code.
STRATA = (1, 3, 6, 10, 100)


def tuning_split(samples: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Indices of the samples for tuning, and of the rest."""
    share = math.ceil(TUNING_SHARE * samples)
    if share == samples:
        raise ValueError(f"tuning needs at least 2 samples, got {samples}: pass penalty and rank as numbers")
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed)).to(device)
    return order[:share], order[share:]


def tuned_rank(logits: Tensor, target: Tensor, alpha: float) -> float:
    """The rank that the right class exceeds with probability at most alpha."""
    of_right = ranks(logits, logits.softmax(1))[1].gather(1, target.unsqueeze(1)).squeeze(1).double()
    return float(conformal_quantile(of_right, alpha).clamp_max(logits.shape[1]))


def tuned_penalty(scores_of: Callable[[float], Tensor], target: Tensor, alpha: float, goal: TuningGoal) -> float:
    """The penalty that is best for the goal; of equal ones the smallest.

    Args:
        scores_of: Scores of every class of the samples for tuning, ``(N, C)``, with a penalty.
        target: Their classes, ``(N,)``.
        alpha: Share of samples whose set may miss the right class.
        goal: ``"size"`` or ``"size-stratified coverage"``.
    """
    costs, column = [], target.unsqueeze(1)
    for penalty in PENALTIES[goal]:
        scores = scores_of(penalty)
        sets = scores <= conformal_quantile(scores.gather(1, column).squeeze(1), alpha)
        sizes = sets.sum(1)
        if goal == "size":
            costs.append(float(sizes.sum()))
        else:
            costs.append(coverage_violation(sizes, sets.gather(1, column).squeeze(1), alpha))
    return PENALTIES[goal][int(np.argmin(costs))]


def coverage_violation(sizes: Tensor, covered: Tensor, alpha: float) -> float:
    """Largest distance of the coverage from 1 - alpha among the strata of set size that have samples."""
    stratum = torch.bucketize(sizes, sizes.new_tensor(STRATA))
    counts = stratum.bincount(minlength=len(STRATA) + 1)
    rates = stratum.bincount(covered.double(), minlength=len(STRATA) + 1) / counts
    return float((rates[counts > 0] - (1 - alpha)).abs().max())
