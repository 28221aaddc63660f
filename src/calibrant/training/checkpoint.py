"""Checkpoints that are whole or not there at all."""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO


class WholeCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint beside its place and rename it: a run killed meanwhile leaves the previous one untouched.

    Lightning itself writes to the folder of temporary files and moves the result. Where that folder is on another
    file system, as is usual, to move is to copy, and a kill in the middle leaves half a ``last.ckpt``. Remote paths
    such as ``s3://`` are left to Lightning.

    Example:
        >>> from lightning import Trainer
        >>> trainer = Trainer(plugins=[WholeCheckpointIO()], accelerator="cpu", logger=False)
        >>> type(trainer.strategy.checkpoint_io).__name__
        'WholeCheckpointIO'
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Save a checkpoint under ``path``."""
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        final = Path(path).absolute()
        final.parent.mkdir(parents=True, exist_ok=True)
        # One name for one checkpoint: what a killed run leaves is overwritten, not added to. Lightning, looking for
        # the last checkpoint, passes over this suffix.
        partial = final.with_name(f"{final.name}.partial")
        try:
            with partial.open("wb") as file:  # torch's own writer does not say that a disk is full
                torch.save(checkpoint, file)
            partial.replace(final)
        finally:
            partial.unlink(missing_ok=True)
