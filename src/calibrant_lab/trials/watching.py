"""Callbacks during training: checkpoints, and the progress bar."""

import time
from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint
from rich.progress import Progress, TaskID

SECONDS_BETWEEN_STEPS = 60.0  # that are saved within an epoch
# Less than this is lost when a run is interrupted; short epochs would take longer to save than to train again.
SECONDS_BETWEEN_EPOCHS = 1.0


class KeepLast(Checkpoint):
    """Keep the last checkpoint: saved after the last epoch and others, and every minute within long epochs.

    An epoch that ends within a second of the last checkpoint is not saved, unless it is the last. Resuming from a
    checkpoint does not change the result.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saved = 0.0

    def on_train_start(self, *_: Any) -> None:
        """Start the timer here, after the data were read."""
        self._saved = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save if a minute has passed."""
        if time.monotonic() - self._saved >= SECONDS_BETWEEN_STEPS:
            self.save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save if a second has passed, or training ends here."""
        last = trainer.current_epoch + 1 == trainer.max_epochs or trainer.global_step == trainer.max_steps
        if last or trainer.should_stop or time.monotonic() - self._saved >= SECONDS_BETWEEN_EPOCHS:
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Save the checkpoint."""
        trainer.save_checkpoint(self.path)
        self._saved = time.monotonic()


class Bar(Callback):
    """Progress bar: epochs done, time left, and scores of the current epoch / of the last validation."""

    def __init__(self, progress: Progress, task: TaskID, *, label: str) -> None:
        self.progress = progress
        self.task = task
        self.label = label

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Show the number of the epoch."""
        epoch = f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}"
        self.progress.update(self.task, description=f"{self.label}: {epoch}")

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Advance by one step, and show the last logged scores."""
        if not self.progress.disable:
            done = trainer.global_step / trainer.num_training_batches
            self.progress.update(self.task, completed=done, total=trainer.max_epochs)
            self._show(trainer)

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        """Show the validation scores."""
        if not self.progress.disable:
            self._show(trainer)

    def _show(self, trainer: Trainer) -> None:
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        shown = []
        for label, name in (("accuracy", "accuracy"), ("ECE", "ece")):
            parts = [f"{100 * logged[key]:.2f}" for key in (f"train_{name}", f"validation_{name}") if key in logged]
            if parts:
                shown.append(f"{label} {' / '.join(parts)} %")
        if "train_objective" in logged:
            shown.append(f"objective {logged['train_objective']:.4f}")
        self.progress.update(self.task, scores=", ".join(shown))
