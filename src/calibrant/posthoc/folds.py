"""Folds for cross-validation that depend on the samples, not on their order."""

import torch
from torch import Tensor

LOW_32_BITS = 2**32 - 1
# 2^32 over the golden ratio, made odd: multiplying by it modulo 2^32 is invertible and spreads every bit upwards.
GOLDEN = 2654435769


def row_hash(rows: Tensor, seed: int = 0) -> Tensor:
    """A whole number from 0 to 2^32 - 1 for each row, ``(N,)``, that depends only on its bits and the seed.

    Multilinear hashing: the words of a row, each times a random number, are summed modulo 2^64, and the upper half of
    the sum is used. Over the seeds it is uniform, and independent for any two rows that differ (Lemire and
    Kaser, "Strongly Universal String Hashing is Fast", The Computer Journal, 2014). For one seed, rows at equal
    distances would still have numbers at equal distances: shifts and products that permute the 32 bits prevent that.

    Args:
        rows: ``(N, C)``, float32 or float64.
        seed: Seed of the random numbers.
    """
    words = (rows + 0.0).contiguous().view(torch.int32)  # plus 0, since the two zeros have different bits
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randint(-(2**63), 2**63 - 1, (words.shape[1] + 1,), generator=generator).to(words.device)
    total = (words.long() * factors[1:]).sum(1) + factors[0]
    half = (total >> 32) & LOW_32_BITS
    for _ in range(3):
        half = half ^ (half >> 15)
        half = (half * GOLDEN) & LOW_32_BITS
    return half ^ (half >> 15)


def canonical_order(rows: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """A permutation of the samples, by class and then by hash: the same sequence whatever order they came in."""
    order = row_hash(rows.double()).argsort(stable=True)
    if weight is not None:  # copies of a row may differ in their weight
        order = weight.argsort(stable=True)
        order = order[row_hash(rows.double())[order].argsort(stable=True)]
    return order[target[order].argsort(stable=True)]


def fold_numbers(rows: Tensor, target: Tensor, folds: int) -> Tensor:
    """Fold of each sample, ``(N,)``: every class is spread evenly, and the order of the samples does not matter."""
    order = canonical_order(rows, target)
    number = torch.empty_like(order)
    number[order] = torch.arange(len(order), device=order.device) % folds
    return number
