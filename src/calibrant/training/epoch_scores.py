"""Running scores of an epoch: loss, accuracy, ECE and objective, in constant memory."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.losses.checks import Classification, Pairs
from calibrant.metrics.streaming import StreamingECE

# Number of batches that are summed up together, so that there is hardly any waiting for an accelerator.
WAITING = 32
MOST_SAMPLES = 2**16  # a batch of dense predictions has many


class EpochScores(StreamingECE):
    """Scores of an epoch so far, on this rank or on all; ECE follows the paper's convention.

    Example:
        >>> logits, target = torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([1, 1])
        >>> scores = EpochScores()
        >>> scores.add(checks.classification(logits, target), torch.tensor(0.72))
        >>> {name: round(value, 2) for name, value in scores.values().items()}
        {'loss': 0.72, 'accuracy': 0.5, 'ece': 0.43}
    """

    totals: Tensor

    def __init__(self, bins: int = 20) -> None:
        super().__init__(bins, "paper", takes="confidence")
        # Loss times samples; sum of objective values, their number, and the number of silent ones.
        self.add_state("totals", torch.zeros(4, dtype=torch.float64), dist_reduce_fx="sum")
        self._waiting: list[tuple[Pairs, Tensor]] = []
        self._objectives: list[Tensor] = []

    # The two growing lists would make torch.compile recompile every step.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def add(self, data: Classification, loss: Tensor) -> None:
        """Add a batch and its mean loss."""
        self._waiting.append((checks.top_label_pairs(data), loss.detach()))
        if len(self._waiting) == WAITING or sum(pairs.confidence.numel() for pairs, _ in self._waiting) > MOST_SAMPLES:
            self._sum_up()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def add_objective(self, value: Tensor) -> None:
        """Add the objective of a calibration batch; at 0 it is silent."""
        self._objectives.append(value.detach())

    def values(self, *, across_ranks: bool = True) -> dict[str, float]:
        """Means so far; empty before the first sample, and without an objective before its first value."""
        self._sum_up()
        with self.sync_context(should_sync=across_ranks):
            samples, table = int(self.samples), self.table()
            loss, objective, batches, silent = self.totals.tolist()
        if samples == 0:
            return {}
        accuracy = float(table.right.sum()) / samples
        scores = {"loss": loss / samples, "accuracy": accuracy, "ece": table.error()}
        return scores | ({"objective": objective / batches, "silent": silent / batches} if batches else {})

    def counted(self) -> int:
        """Samples so far, on all ranks."""
        self._sum_up()
        with self.sync_context():
            return int(self.samples)

    def _sum_up(self) -> None:
        kept, total_loss = [], 0.0
        losses = _on_host([loss for _, loss in self._waiting])
        for (pairs, _), loss in zip(self._waiting, losses, strict=True):
            confidence, correct, mask = pairs.confidence, pairs.correct, pairs.mask
            kept.append((confidence, correct) if mask is None else (confidence[mask], correct[mask]))
            if len(kept[-1][0]):  # the mean loss of nothing is NaN
                total_loss += loss * len(kept[-1][0])
        objectives = _on_host(self._objectives)
        added = [total_loss, sum(objectives), len(objectives), sum(value == 0 for value in objectives)]
        self.totals += torch.tensor(added, dtype=torch.float64).to(self.totals)
        if sum(len(confidence) for confidence, _ in kept):
            self.update(*(torch.cat(column) for column in zip(*kept, strict=True)))
        self._waiting, self._objectives = [], []

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._waiting, self._objectives = [], []

    def saved(self) -> dict[str, Any]:
        """Everything, summed over ranks, in values that load with ``weights_only``."""
        if self.distributed_available_fn is not None and self.distributed_available_fn():
            self._sum_up()
        with self.sync_context():
            return {name: getattr(self, name).clone() for name in ("sums", "samples", "totals")} | {
                # As they are: another order of summation would round differently.
                "waiting": [(tuple(pairs[:3]), loss) for pairs, loss in self._waiting],
                "objectives": list(self._objectives),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.reset()
        for name in ("sums", "samples", "totals"):
            setattr(self, name, state[name].to(self.device))
        self._waiting = [(Pairs(*pairs), loss) for pairs, loss in state["waiting"]]
        self._objectives = list(state["objectives"])


def _on_host(scalars: list[Tensor]) -> list[float]:
    """Values of scalars, in one transfer."""
    return torch.stack([scalar.double() for scalar in scalars]).tolist() if scalars else []
