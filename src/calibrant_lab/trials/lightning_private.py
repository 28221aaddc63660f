"""Private names of Lightning that the laboratory depends on, all of them here. Tested with lightning 2.6.0 and 2.6.6.

Undocumented names without an underscore, the stages and progress of the loops, are here too.
"""

from typing import Any

from lightning import Trainer


def validation_is_due(trainer: Trainer) -> bool:
    """Whether validation follows the training step that has just ended."""
    fetcher = trainer.fit_loop._data_fetcher
    return fetcher is not None and trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)


def validate_now(trainer: Trainer) -> None:
    """Run a validation in the middle of ``fit``."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop.restarting = False
    trainer.validating = True
    loop.run()
    trainer.training = True


def begin_next_epoch(trainer: Trainer) -> None:
    """Start and count the next epoch when a run resumes from the very end of one."""
    progress: Any = trainer.fit_loop.epoch_progress.current
    if progress.processed == progress.started:
        trainer.fit_loop.reset_restart_stage()
