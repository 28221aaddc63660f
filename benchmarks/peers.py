"""What we measure against: transcriptions of published pseudocode, dense and in float32 as written there."""

from itertools import pairwise

import torch
from torch import Tensor


def esd_pseudocode(confidence: Tensor, correct: Tensor) -> Tensor:
    """The N x N pseudocode in the appendix of the ESD paper."""
    n = confidence.shape[0]
    difference = correct.to(confidence.dtype) - confidence
    off_diagonal = torch.ones(n, n) - torch.eye(n)
    columns = confidence.expand(n, n)
    at_or_below = torch.le(columns, columns.T).to(confidence.dtype)
    terms = difference.view(1, n).expand(n, n) * at_or_below * off_diagonal
    mean = terms.sum(dim=1) / (n - 1)
    variance = (terms * terms).sum(dim=1) / (n - 2) - (n - 1) / (n - 2) * mean * mean
    return (mean * mean - variance / (n - 1)).sum() / n


def mmce_dense(confidence: Tensor, correct: Tensor, bandwidth: float = 0.4) -> Tensor:
    """The published definition of MMCE: all pairs in one N x N matrix."""
    difference = correct.to(confidence.dtype) - confidence
    kernel = torch.exp(-(confidence.unsqueeze(1) - confidence.unsqueeze(0)).abs() / bandwidth)
    return (torch.outer(difference, difference) * kernel).sum() / confidence.shape[0] ** 2


def ece_loop(confidence: Tensor, correct: Tensor, bins: int = 20) -> Tensor:
    """ECE as published code computes it: a mask and two means for each right-closed bin."""
    edges = torch.linspace(0, 1, bins + 1)
    error = torch.zeros(1)
    for low, high in pairwise(edges.tolist()):
        inside = confidence.gt(low) * confidence.le(high)
        share = inside.float().mean()
        if share.item() > 0:
            error += torch.abs(confidence[inside].mean() - correct[inside].float().mean()) * share
    return error
