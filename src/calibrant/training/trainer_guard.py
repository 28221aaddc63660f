"""What a Hugging Face ``Trainer`` logs of calibrated training, and compares with its evaluations."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from calibrant.inputs import Classification
from calibrant.training.guard import Guard
from calibrant.training.running_scores import Scores, Sums


class TrainerGuard(Guard):
    """A guard that scores held-out batches by the entries of a log and by evaluations, too.

    It judges windows of its own: entries of the log may be a single step apart, too few for a judgement.
    """

    def __init__(self, on: bool = True, *, has_objective: bool = True) -> None:
        super().__init__(on, has_objective=has_objective)
        self._logged, self._compared = Sums(), Sums()
        self._accuracy = 0.0  # of the last evaluation

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def add_held_out(self, data: Classification) -> None:
        """Add a held-out batch, before the network has learned anything from it."""
        data = data._replace(logits=data.logits.detach())
        super().add_held_out(data)
        self._logged.add(data)
        self._compared.add(data)

    def log(self) -> dict[str, float]:
        """Scores of the held-out batches since the last entry, and the number of warnings so far."""
        scores, self._logged = self._logged.scores(across_ranks=True), Sums()
        return ({} if scores is None else scores.named()) | {"warnings": float(len(self.warnings_))}

    def compare_evaluation(
        self, accuracy: float, samples: int, distinct: float, *, learns: bool, dropout: bool
    ) -> None:
        """Compare the held-out batches since the previous evaluation with this one.

        Args:
            accuracy: Accuracy of the evaluation.
            samples: Number of its samples.
            distinct: Number of distinct held-out samples.
            learns: Whether a gradient from held-out data reaches the network.
            dropout: Whether held-out batches went through dropout, which those of the evaluation did not.
        """
        held_out, self._compared = self._compared.scores(across_ranks=True), Sums()
        before, self._accuracy = self._accuracy, accuracy
        if held_out is not None:
            new = Scores(samples, accuracy, math.nan, math.nan)
            self.compare_between(before, new, held_out, distinct, learns=learns, dropout=dropout)

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what is warned about and logged next."""
        own = {"logged": self._logged.state_dict(), "compared": self._compared.state_dict(), "accuracy": self._accuracy}
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        super().load_state_dict(state)
        self._logged.load_state_dict(state["logged"])
        self._compared.load_state_dict(state["compared"])
        self._accuracy = state["accuracy"]


class ObjectiveWindow:
    """Sums of the objective since the last log, left on the device so that no step waits for it."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    def add(self, objective: Tensor) -> None:
        """Add the value of a held-out batch."""
        entry = torch.stack((objective.float(), (objective <= 0).float(), torch.ones_like(objective).float()))
        self._sums = entry if self._sums is None else self._sums + entry

    def take(self) -> dict[str, float]:
        """Return the mean and the share of batches at or below 0, and begin anew."""
        if self._sums is None:
            return {}
        objective, silent, batches = self._sums.tolist()
        self._sums = None
        return {"objective": objective / batches, "silent": silent / batches}
