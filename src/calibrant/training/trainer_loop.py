"""The temperature in the loop of a Hugging Face ``Trainer``."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.training.calibrated_loss import CalibratedLoss
from calibrant.training.divided_logits import DividedLogits, find_maker
from calibrant.training.finishing import Finished
from calibrant.training.outputs import evaluating, logits_of

FILE = "calibrated_loss.pt"


class TrainerLoop:
    """Divides the logits of a model by the temperature of its held-out batches until :meth:`finish`.

    Args:
        model: Returns an object with ``.logits``.
        batch: Keyword arguments of the model, by which the layer that makes the logits is found.
        label: Name of the labels in a batch.
        every: Use a held-out batch at every k-th optimizer step.
        guard: Whether to warn.
    """

    def __init__(self, model: nn.Module, batch: Mapping[str, Any], label: str, *, every: int, guard: bool) -> None:
        self._label = label
        with evaluating(model):
            maker = find_maker(model, lambda: logits_of(model, self._pair(batch)[0]))
        self.loss = CalibratedLoss(model, every=every, layer=maker, guard=guard)
        self.loss._output = maker
        self.loss.guard.told_of_epochs = True  # of the entries of the log, that is
        self._divided = DividedLogits(maker)
        self._seen_step = -1

    def is_due(self, step: int) -> bool:
        """Whether a held-out batch is due at an optimizer step, asked at each of its micro-batches."""
        if step == self._seen_step:
            return False
        self._seen_step = step
        return bool(self.loss._is_due(True))

    def observe(self, batch: Mapping[str, Any]) -> None:
        """Run a held-out batch forward and move the temperature."""
        x, y = self._pair(batch)
        with self._divided.raw():
            self.loss._observe(x, y, None)
        self._divided.set(self.loss.temperature)

    def watch(self, labels: Any) -> None:
        """Let the guard see the training batch that the model has just run on."""
        logits = self._divided.latest
        if logits is not None and isinstance(labels, Tensor) and logits.shape[:1] == labels.shape:
            self.loss._watch_training(logits, labels)

    def finish(self, batches: Iterable[Mapping[str, Any]]) -> Finished:
        """Fold the last temperature into the model."""
        self.remove()
        return self.loss.finish(self._pair(batch) for batch in batches)

    def remove(self) -> None:
        """No longer divide."""
        self._divided.remove()

    def log(self) -> dict[str, float]:
        """Values since the last entry of the log."""
        values = {name: value for name, value in self.loss.guard.close_window().items() if name != "pull"}
        return {"temperature": self.loss.temperature} | values | {"warnings": float(len(self.loss.guard.warnings_))}

    def save(self, folder: Path) -> None:
        """Write the state beside the weights."""
        torch.save(self.loss.state_dict() | {"temperature": self.loss.temperature}, folder / FILE)

    def load(self, folder: Path) -> None:
        """Go on from a state, if there is one."""
        if (folder / FILE).exists():
            self.loss.load_state_dict(torch.load(folder / FILE, weights_only=True))
            self._divided.set(self.loss.temperature)

    def _pair(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
        if batch.get(self._label) is None:
            found = ", ".join(batch)
            raise ValueError(f"the batch has no {self._label!r}, only {found}: give calibration_dataset labels")
        return {name: value for name, value in batch.items() if name != self._label}, batch[self._label]
