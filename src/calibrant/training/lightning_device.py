"""Batches and modules on the device that a Lightning ``Trainer`` trains on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning import LightningModule, Trainer


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
