"""Private names of Lightning that this package depends on, all of them here. Tested with lightning 2.6.0 and 2.6.6.

Undocumented names without an underscore, the stages and progress of the loops, are here too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning import LightningModule, Trainer
from lightning.fabric.utilities.cloud_io import _load

load_checkpoint = _load


def is_fitting(module: LightningModule) -> bool:
    """Whether a trainer is fitting the module."""
    return module._trainer is not None and module.trainer.state.fn == "fit"


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


def moved(trainer: Trainer, batch: Any) -> Any:
    """A batch in the precision and on the device of training."""
    return trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))


@contextmanager
def on_training_device(trainer: Trainer, module: LightningModule) -> Iterator[None]:
    """Run a module as in training, after the end of ``fit``, when the strategy has moved it to the CPU."""
    device = module.device
    module.to(trainer.strategy.root_device)
    with trainer.precision_plugin.forward_context():
        yield
    module.to(device)
