"""A module whose record of scores is the same whether or not its run was interrupted, wherever a checkpoint is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from calibrant.losses.checks import Pairs
from calibrant.training.lightning import KEY, InterleavedModule
from calibrant.training.lightning_data import EpochScores
from calibrant_lab.trials import lightning_private


class RecordedModule(InterleavedModule):
    """An ``InterleavedModule`` that resumes exactly from within an epoch too.

    Lightning's own epoch means lose everything before a resume. A checkpoint from within an epoch is written before the
    validation and the end of epoch that may be due after the same step, and Lightning skips these on resuming. Here the
    sums are part of the checkpoint, and what was due is run on resuming.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.training_scores: SavedScores = SavedScores()
        self._epoch = 0
        self._has_new_step = False
        self._resumed: Mapping[str, Any] | None = None

    def on_train_start(self) -> None:
        """Continue from a checkpoint, if there is one, and run what was due when it was written."""
        super().on_train_start()
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            return
        self.training_scores.restore(resumed["scores"])
        self._epoch, self._validation = resumed["epoch"], dict(resumed["validation"])
        if resumed["validation_is_due"]:
            lightning_private.validate_now(self.trainer)
        if resumed["epoch_is_over"]:
            if not any(entry["epoch"] == self._epoch for entry in self.history):
                self._close_epoch(self._epoch)
                for logger in self.loggers:
                    logger.log_metrics(self.history[-1], step=self.global_step - 1)
            lightning_private.begin_next_epoch(self.trainer)
            self._begin_epoch(self._epoch + 1)

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        super()._begin_epoch(epoch)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Note that there is something new to validate."""
        super().on_train_batch_start(batch, batch_idx)
        self._has_new_step = True

    def on_validation_epoch_end(self) -> None:
        """Note that nothing is due any more."""
        super().on_validation_epoch_end()
        self._has_new_step = False

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the epoch so far, and what is due after it."""
        super().on_save_checkpoint(checkpoint)
        is_due = self._has_new_step and lightning_private.validation_is_due(self.trainer)
        checkpoint[KEY] |= {
            "epoch": self._epoch, "scores": self.training_scores.saved(), "validation": dict(self._validation),
            "validation_is_due": is_due, "epoch_is_over": self.trainer.is_last_batch,
        }  # fmt: skip

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remember the epoch so far in case training continues."""
        super().on_load_checkpoint(checkpoint)
        self._resumed = checkpoint[KEY]


class SavedScores(EpochScores):
    """Scores of an epoch so far that a checkpoint can hold."""

    def saved(self) -> dict[str, Any]:
        """Everything, in values that load with ``weights_only``."""
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


class WholeCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint to a file beside it and rename that: a killed run leaves the previous checkpoint intact.

    Lightning itself writes to the folder of temporary files and moves the result, which across file systems is a copy.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:  # noqa: ARG002
        """Save a checkpoint under ``path``."""
        final = Path(path).absolute()
        final.parent.mkdir(parents=True, exist_ok=True)
        # One temporary name per checkpoint, so that leftovers of a killed run are overwritten. Lightning ignores this
        # suffix when it looks for the last checkpoint.
        partial = final.with_name(f"{final.name}.partial")
        try:
            with partial.open("wb") as file:  # torch's own writer does not report a full disk
                torch.save(checkpoint, file)
            partial.replace(final)
        finally:
            partial.unlink(missing_ok=True)
