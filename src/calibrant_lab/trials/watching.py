"""Callbacks during training: checkpoints, and the progress bar."""

import time
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, Checkpoint
from rich.progress import Progress, TaskID

# Less than this is lost when a run is interrupted; short epochs would take longer to save than to train again.
SECONDS_BETWEEN_EPOCHS = 1.0


class KeepLast(Checkpoint):
    """Keep the last checkpoint, saved at the ends of epochs.

    An epoch that ends within a second of the last checkpoint is not saved, unless it is the last. Resuming from a
    checkpoint does not change the result.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saved = 0.0

    def on_train_start(self, *_: Any) -> None:
        """Start the timer here, after the data were read."""
        self._saved = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save if a second has passed, or training ends here."""
        last = trainer.current_epoch + 1 == trainer.max_epochs or trainer.global_step == trainer.max_steps
        if last or trainer.should_stop or time.monotonic() - self._saved >= SECONDS_BETWEEN_EPOCHS:
            trainer.save_checkpoint(self.path)
            self._saved = time.monotonic()


class WholeCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint to a file beside it and rename that: a killed run leaves the previous checkpoint intact.

    Lightning itself writes to the folder of temporary files and moves the result, which across file systems is a copy.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:  # noqa: ARG002
        """Save a checkpoint under ``path``."""
        final = Path(path).absolute()
        final.parent.mkdir(parents=True, exist_ok=True)
        # One temporary name per checkpoint, so that leftovers of a killed run are overwritten.
        partial = final.with_name(f"{final.name}.partial")
        try:
            with partial.open("wb") as file:  # torch's own writer does not report a full disk
                torch.save(checkpoint, file)
            partial.replace(final)
        finally:
            partial.unlink(missing_ok=True)


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
