"""The objective of penalised multinomial regression: its value, its derivatives, and what they cost."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.posthoc.likelihood import CHUNK, nll_and_residual

# Elements of a chunk with a full matrix: products of large matrices are quicker in one piece.
LARGE_CHUNK = 2**23
# Rows from which the moments of the features are estimated.
SOME_ROWS = 1024


class Penalty(NamedTuple):
    """Factors of the squares of the off-diagonal entries, of the diagonal, and of the shifts."""

    off_diagonal: float
    diagonal: float
    shift: float


class Spread(NamedTuple):
    """How far probabilities are from 0 and 1, for a preconditioner: sums over samples of p (1 - p) =: s of each class.

    ``own`` has the means of s, of s times the feature of the same class, and of s times its square, ``(3, C)``;
    ``features`` the mean and the variance of every feature over samples weighted by the sum of their s, ``(2, C)``.
    """

    own: Tensor
    features: Tensor


class Problem:
    """Value, gradient and curvature at a position: the transposed matrix, or its diagonal, above the shift."""

    def __init__(
        self,
        features: Tensor,
        target: Tensor,
        weight: Tensor | None,
        penalty: Penalty,
        *,
        diagonal: bool,
        dtype: torch.dtype,
    ) -> None:
        self.samples, self.classes = features.shape
        self.diagonal = diagonal
        width = 2 if diagonal else self.classes + 1
        self.products = float(self.classes * width) ** 2 * self.samples
        self.dtype = dtype
        self.features, self.target = features.to(dtype), target
        self.weight = None if weight is None else (weight / weight.mean()).to(self.dtype)
        if diagonal:
            factors = features.new_tensor([penalty.diagonal, penalty.shift], dtype=self.dtype)
            self.penalty = factors.unsqueeze(1).expand(2, self.classes)
        else:
            self.penalty = features.new_full((width, self.classes), penalty.off_diagonal, dtype=self.dtype)
            self.penalty[:-1].fill_diagonal_(penalty.diagonal)
            self.penalty[-1] = penalty.shift

    def chunks(self, elements: int = CHUNK) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Features, labels and weights, in pieces of about so many elements."""
        rows = max(1, elements // self.classes)
        pieces = [self.features.split(rows), self.target.split(rows)]
        weights = [None] * len(pieces[0]) if self.weight is None else self.weight.split(rows)
        yield from zip(*pieces, weights, strict=True)

    def logits(self, part: Tensor, position: Tensor) -> Tensor:
        """The mapped features of some samples."""
        if self.diagonal:
            return torch.addcmul(position[1], part, 1 + position[0])
        own = position[:-1].diagonal()
        if int(position[:-1].count_nonzero()) == int(own.count_nonzero()):  # as at the start of most fits
            return torch.addcmul(position[-1], part, 1 + own)
        return torch.addmm(position[-1], part, position[:-1]).add_(part)

    def evaluate(self, position: Tensor, *, with_spread: bool = True) -> tuple[float, Tensor, Spread]:
        """Value, gradient, and the spread of the probabilities, or zeros."""
        value, slope = 0.0, torch.zeros_like(position)
        own, known = position.new_zeros(3, self.classes), position.new_zeros(2, self.classes)
        total = 0.0
        for part, labels, weight in self.chunks(CHUNK if self.diagonal else LARGE_CHUNK):
            nll, residual = nll_and_residual(self.logits(part, position), labels, weight)
            value += nll
            slope[-1] += residual.sum(0)
            if self.diagonal:
                slope[0] += (residual * part).sum(0)
            else:
                slope[:-1].addmm_(part.T, residual)
            if with_spread:
                # The residual of a label is p - 1 and others are p: the spread is the same function of both.
                distance = residual.abs_()
                unweighted = distance if weight is None else distance / weight.unsqueeze(1)
                spread = torch.addcmul(distance, distance, unweighted, value=-1)
                own[0] += spread.sum(0)
                some = slice(None, None, max(1, len(part) // SOME_ROWS))
                of_rows = spread[some].sum(1)
                known[0] += of_rows @ part[some]
                known[1] += of_rows @ part[some].square()
                total += float(of_rows.sum())
                own[1] += spread.mul_(part).sum(0)
                own[2] += spread.mul_(part).sum(0)
        known /= max(total, 1e-30)
        known[1] -= known[0].square()
        squares = (self.penalty * position.square()).sum(dtype=torch.float64)
        gradient = slope.div_(self.samples).addcmul_(self.penalty, position, value=2)
        return value / self.samples + float(squares), gradient, Spread(own / self.samples, known)

    def curvature(self, position: Tensor) -> Tensor:
        """Second derivatives, ``(width * C, width * C)``, in the order class by class."""
        width = len(self.penalty)
        size = self.classes * width
        blocks = position.new_zeros(self.classes, width, width)
        across = position.new_zeros(size, size)
        for part, _, weight in self.chunks(max(CHUNK, 2**20 // width)):
            probability = self.logits(part, position).softmax(1)
            one = torch.ones_like(part[:, :1])
            if self.diagonal:
                known = torch.stack((part, torch.ones_like(part)), dim=2)
            else:
                known = torch.cat((part, one), dim=1).unsqueeze(1)
            parts = probability.unsqueeze(2) * known  # (n, C, width)
            weighted = parts if weight is None else parts * weight[:, None, None]
            across.addmm_(weighted.flatten(1).T, parts.flatten(1))
            blocks += weighted.permute(1, 2, 0) @ known.permute(1, 0, 2).expand(self.classes, -1, -1)
        whole = -across / self.samples
        for k in range(self.classes):
            at = slice(k * width, (k + 1) * width)
            whole[at, at] += blocks[k] / self.samples
        whole.diagonal().add_(2 * self.penalty.T.flatten())
        return whole
