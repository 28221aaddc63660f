"""Accuracy, log loss and confidence of batches, as running sums."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from calibrant import distributed
from calibrant.losses.checks import Classification
from calibrant.numerics import accumulation_dtype


class Scores(NamedTuple):
    """Means over samples."""

    samples: float
    accuracy: float
    nll: float
    gap: float  # mean confidence minus accuracy
    doubt: float = 0.0  # mean of 1 minus the probability of the target

    @property
    def deviation(self) -> float:
        """Standard error of the accuracy, with one right and one wrong answer added."""
        p = (self.accuracy * self.samples + 1) / (self.samples + 2)
        return math.sqrt(p * (1 - p) / max(self.samples, 1))

    def named(self) -> dict[str, float]:
        """Scores of held-out samples for a log."""
        return {"held_out_accuracy": self.accuracy, "held_out_nll": self.nll, "held_out_gap": self.gap}


class Sums:
    """Running sums on the device of the batches, several batches at a time, so that a step takes hardly longer."""

    WAITING = 16

    def __init__(self) -> None:
        self._sums: Tensor | None = None
        self._waiting: list[Classification] = []
        self.batches = 0

    def add(self, data: Classification) -> None:
        """Add a batch of logits as the loss sees them."""
        self._waiting.append(data)
        self.batches += 1
        if len(self._waiting) == self.WAITING:
            self._sum_up()

    @torch.no_grad()
    def _sum_up(self) -> None:
        if not self._waiting:
            return
        data = joined(self._waiting)
        self._waiting = []
        logits = data.logits if data.logits.dtype == torch.float64 else data.logits.float()
        log_probabilities = logits.log_softmax(1)
        top, predicted = log_probabilities.max(1)
        nll = -log_probabilities.gather(1, data.target.unsqueeze(1)).squeeze(1)
        right = (predicted == data.target).to(top.dtype)
        rows = torch.stack((torch.ones_like(top), right, nll, top.exp(), 1 - (-nll).exp()))
        if data.mask is not None:
            rows = torch.where(data.mask, rows, 0.0)
        sums = rows.sum(1, dtype=accumulation_dtype(rows))
        self._sums = sums if self._sums is None else self._sums + sums

    def scores(self, *, across_ranks: bool = False) -> Scores | None:
        """Means so far, of this rank or of all, or None before the first sample."""
        self._sum_up()
        sums = self._sums
        if across_ranks and distributed.is_distributed():
            sums = distributed.sum_across_ranks(torch.zeros(5, dtype=torch.float64) if sums is None else sums)
        if sums is None:
            return None
        samples, right, nll, confidence, doubt = sums.tolist()
        if samples == 0:
            return None
        return Scores(samples, right / samples, nll / samples, (confidence - right) / samples, doubt / samples)

    def state_dict(self) -> dict[str, Any]:
        """Sums in plain values; pending batches stay separate, since another order of summation rounds differently."""
        return {"sums": self._sums, "batches": self.batches, "waiting": [tuple(data) for data in self._waiting]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self._sums, self.batches = state["sums"], state["batches"]
        self._waiting = [Classification(*data) for data in state["waiting"]]


def joined(parts: list[Classification]) -> Classification:
    """Join batches."""
    logits, target = torch.cat([part.logits for part in parts]), torch.cat([part.target for part in parts])
    if all(part.mask is None for part in parts):
        return Classification(logits, target)
    masks = [torch.ones_like(part.target, dtype=torch.bool) if part.mask is None else part.mask for part in parts]
    return Classification(logits, target, torch.cat(masks))


def with_current_names(scores: Mapping[str, float]) -> dict[str, float]:
    """Return scores under their current names; histories and checkpoints of earlier versions have a slash in them.

    Example:
        >>> with_current_names({"epoch": 0, "validation/ece": 0.1, "test_ece": 0.2})
        {'epoch': 0, 'validation_ece': 0.1, 'test_ece': 0.2}
    """
    return {name.replace("/", "_", 1): value for name, value in scores.items()}
