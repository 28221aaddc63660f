"""Scores of conformal prediction: how unusual a class is for a sample, and quantiles of such scores."""

import math
from typing import Literal

import torch
from torch import Tensor

from calibrant.numerics import accumulation_dtype
from calibrant.posthoc.folds import row_hash
from calibrant.torch_private import is_exporting_to_onnx

ScoreName = Literal["lac", "aps", "raps", "top-k"]


def class_scores(logits: Tensor, score: ScoreName, penalties: Tensor, seed: int | None) -> Tensor:
    """Score of every class of every sample, ``(N, C)``, float64 where the device has it.

    Args:
        logits: ``(N, C)``.
        score: Name of the score.
        penalties: Lambda and k of RAPS, ``(2,)``.
        seed: Seed of U; None for U = 1.
    """
    logits = logits.to(accumulation_dtype(logits))
    probability = logits.softmax(1)
    if score == "lac":
        return 1 - probability
    above, rank = ranks(logits, probability)
    if score == "top-k":
        return rank.to(probability)
    scores = above + (1.0 if seed is None else uniform(logits, seed)) * probability
    if score == "raps":
        penalty, free = penalties.to(scores)
        scores = scores + penalty * (rank - free).clamp_min(0)
    return scores


def ranks(logits: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
    """Probability of all classes ranked above each class, and its rank from 1; equal logits rank by class."""
    if is_exporting_to_onnx():
        # ONNX has no stable sort, but its TopK puts equal values in the order of their indices.
        order = logits.topk(logits.shape[1], dim=1).indices
    else:
        order = logits.argsort(dim=1, descending=True, stable=True)
    descending = probability.gather(1, order)
    above = torch.zeros_like(probability).scatter(1, order, descending.cumsum(1) - descending)
    places = torch.arange(1, logits.shape[1] + 1, device=order.device).expand_as(order)
    return above, torch.zeros_like(order).scatter(1, order, places)


def uniform(logits: Tensor, seed: int) -> Tensor:
    """A number in (0, 1) for each row, ``(N, 1)``, that depends only on its bits and the seed."""
    return (row_hash(logits, seed).to(logits.dtype).unsqueeze(1) + 0.5) / 2**32


def conformal_quantile(scores: Tensor, alpha: float) -> Tensor:
    """The ceil((n + 1)(1 - alpha))-th smallest score, or infinity if there are fewer."""
    place = place_of_quantile(len(scores), alpha)
    return scores.sort().values[place - 1] if place <= len(scores) else scores.new_tensor(torch.inf)


def conformal_quantiles(scores: Tensor, part: Tensor, parts: int, alpha: float) -> Tensor:
    """The same for the scores of each part of the samples, ``(parts,)``, from two sorts.

    Args:
        scores: ``(N,)``.
        part: Part of each sample, from 0, ``(N,)``.
        parts: Number of parts, which may be empty.
        alpha: Share of scores that may be above.
    """
    counts = part.bincount(minlength=parts)
    by_score = scores.argsort()
    order = by_score[part[by_score].argsort(stable=True)]
    places = counts.new_tensor([place_of_quantile(count, alpha) for count in counts.tolist()])
    finite = places <= counts
    last = counts.cumsum(0) - counts + places - 1
    return scores[order][last.where(finite, 0)].where(finite, torch.inf)


def place_of_quantile(samples: int, alpha: float) -> int:
    """Rank of the threshold among the ascending scores of so many samples: ceil((n + 1)(1 - alpha))."""
    # A rounding error must not turn 0.9 * 10 = 9.000000000000002 into the tenth.
    return max(1, math.ceil((samples + 1) * (1 - alpha) - 1e-9))
