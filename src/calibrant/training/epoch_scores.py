"""Running scores of an epoch: loss, accuracy, ECE and what the objective said, in constant memory."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from calibrant import inputs
from calibrant.inputs import Classification
from calibrant.metrics.binned import ece_of
from calibrant.metrics.streaming import StreamingECE

# Batches that wait before they are sorted into bins together, so that an accelerator is hardly ever waited for.
WAITING = 32


class EpochScores(StreamingECE):
    """What the samples of an epoch add up to so far, on this rank or on all.

    Args:
        bins: Number of bins of ECE, in the paper's convention.

    Example:
        >>> logits, target = torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([1, 1])
        >>> scores = EpochScores()
        >>> scores.add(inputs.classification(logits, target), torch.tensor(0.72))
        >>> {name: round(value, 2) for name, value in scores.values().items()}
        {'loss': 0.72, 'accuracy': 0.5, 'ece': 0.43}
    """

    totals: Tensor

    def __init__(self, bins: int = 20) -> None:
        super().__init__(bins, "paper", takes="confidence")
        # Loss times samples; values of the objective, how many, and how many of them were silent.
        self.add_state("totals", torch.zeros(4, dtype=torch.float64), dist_reduce_fx="sum")
        self._waiting: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def add(self, data: Classification, loss: Tensor) -> None:
        """Add a batch and its mean loss."""
        confidence, correct, mask = inputs.top_label_pairs(data)
        if mask is not None:
            confidence, correct = confidence[mask], correct[mask]
        if len(confidence) == 0:  # the mean loss of nothing is NaN
            return
        self.totals[0] += loss * len(confidence)
        self._waiting.append((confidence, correct))
        if len(self._waiting) == WAITING:
            self._sort_into_bins()

    @torch.no_grad()
    def add_objective(self, value: Tensor) -> None:
        """Add the objective of a calibration batch; at or below 0 it is silent."""
        self.totals[1] += value
        self.totals[2] += 1
        self.totals[3] += value <= 0

    def values(self, *, across_ranks: bool = True) -> dict[str, float]:
        """Means so far; nothing before the first sample, and no objective before its first value."""
        self._sort_into_bins()
        with self.sync_context(should_sync=across_ranks):
            samples, table = int(self.samples), self.table()
            loss, objective, batches, silent = self.totals.tolist()
        if samples == 0:
            return {}
        scores = {
            "loss": loss / samples,
            "accuracy": float(table.right.sum()) / samples,
            "ece": ece_of(table, samples),
        }
        return scores | ({"objective": objective / batches, "silent": silent / batches} if batches else {})

    def _sort_into_bins(self) -> None:
        if self._waiting:
            confidence, correct = zip(*self._waiting, strict=True)
            self._waiting.clear()
            self.update(torch.cat(confidence), torch.cat(correct))

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._waiting.clear()

    def saved(self) -> dict[str, Any]:
        """Everything, summed over ranks, in values that load with ``weights_only``."""
        if self.distributed_available_fn is not None and self.distributed_available_fn():
            self._sort_into_bins()
        with self.sync_context():
            return {name: getattr(self, name).clone() for name in ("sums", "samples", "totals")} | {
                "waiting": list(self._waiting)  # as they are: another order of summation would round differently
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what was saved."""
        self.reset()
        for name in ("sums", "samples", "totals"):
            setattr(self, name, state[name].to(self.device))
        self._waiting = [
            (confidence.to(self.device), correct.to(self.device)) for confidence, correct in state["waiting"]
        ]
