"""What goes on beside training: checkpoints to go on from, and a bar for who is watching."""

import time
from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from calibrant.training.lightning import CalibratedClassifier

# Often enough for an eye, seldom enough to cost nothing.
SECONDS_SHOWN = 0.5


class KeepLast(Checkpoint):
    """Keep one checkpoint to go on from: after every epoch, and within long ones every so many seconds.

    Where it was saved changes nothing about the result.
    """

    def __init__(self, path: Path, *, seconds: float = 60) -> None:
        self.path = path
        self.seconds = seconds
        self._saved = 0.0

    def on_train_start(self, *_: Any) -> None:
        """Begin to count the seconds, which reading data may have taken many of."""
        self._saved = time.monotonic()

    def _save(self, trainer: Trainer) -> None:
        trainer.save_checkpoint(self.path)
        self._saved = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save if it is time."""
        if time.monotonic() - self._saved >= self.seconds:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save the epoch."""
        self._save(trainer)


class Bar(Callback):
    """Epochs done, the time left, and scores of the epoch so far, those of the last validation in brackets."""

    def __init__(self, progress: Progress, task: TaskID, *, label: str) -> None:
        self.progress = progress
        self.task = task
        self.label = label
        self._shown = 0.0
        self._validated: dict[str, float] = {}

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Name the epoch."""
        self.progress.update(
            self.task,
            description=f"{self.label}: epoch {trainer.current_epoch + 1} of {trainer.max_epochs}",
        )

    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        """Move on by a step, and show the running scores now and then."""
        if self.progress.disable:
            return
        steps = trainer.num_training_batches
        self.progress.update(self.task, completed=trainer.global_step / steps, total=trainer.max_epochs)
        if time.monotonic() - self._shown >= SECONDS_SHOWN:
            self._show(module)

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        """Show the epoch."""
        if trainer.state.fn == "fit" and not self.progress.disable:
            self._validated = {name: float(value) for name, value in trainer.callback_metrics.items()}
            self._show(module)

    def _show(self, module: CalibratedClassifier) -> None:
        running = module.training_scores.values(across_ranks=False)
        shown = []
        for label, name in (("accuracy", "accuracy"), ("ECE", "ece")):
            if name in running:
                validated = self._validated.get(f"validation/{name}")
                brackets = "" if validated is None else f" ({100 * validated:.2f})"
                shown.append(f"{label} {100 * running[name]:.2f}{brackets} %")
        if "objective" in running:
            shown.append(f"objective {running['objective']:.4f}")
        self.progress.update(self.task, scores=", ".join(shown))
        self._shown = time.monotonic()


def training_progress(console: Console) -> Progress:
    """The bar, quiet where nobody is watching."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        TextColumn("{task.fields[scores]}"),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
