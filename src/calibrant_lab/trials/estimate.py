"""What a trial would take, estimated from a few of its steps."""

import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from lightning import Trainer
from lightning.pytorch.callbacks import Callback
from torch import nn

from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.fit import fit, prepare

STEPS = 5  # that are timed, after one that is not: the first takes longer
BYTES_OF_EPOCH = 1000  # in history.json
COPIES = 3  # of the weights in a checkpoint: AdamW has two more


class Estimate(NamedTuple):
    """What one trial takes."""

    seconds: float  # of its steps, and of the evaluation after every epoch and in the end
    disk: int  # bytes that it leaves
    checkpoint: int  # bytes that it needs besides while it runs
    on_gpu: bool


def estimate(configuration: Configuration, data: Path | None, accelerator: str = "auto") -> Estimate:
    """Train a few steps, evaluate once, and multiply."""
    settings, clock = configuration.settings, _Clock()
    prepared = prepare(configuration.replaced({"max_steps": STEPS + 1}), data)
    trained = fit(prepared, callbacks=[clock], accelerator=accelerator)
    evaluation = time.monotonic() - clock.ended
    # The median leaves validation out, where an epoch has several steps.
    step = statistics.median(later - earlier for earlier, later in pairwise(clock.times)) if clock.times[1:] else 0.0
    steps = min(settings.epochs * clock.steps_in_epoch, settings.max_steps or settings.epochs * clock.steps_in_epoch)
    epochs = -(-steps // clock.steps_in_epoch)
    weights = sum(value.nbytes for value in trained.model.state_dict().values())
    predictions = sum(tensor.nbytes for part in (trained.validation, trained.test) for tensor in part)
    if any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in trained.model.modules()):
        predictions *= 2
    return Estimate(
        steps * step + (epochs + 1) * evaluation, weights + predictions + epochs * BYTES_OF_EPOCH,
        COPIES * weights, next(trained.model.parameters()).is_cuda,
    )  # fmt: skip


class _Clock(Callback):
    def __init__(self) -> None:
        self.times: list[float] = []
        self.ended = 0.0
        self.steps_in_epoch = 1

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.times.append(time.monotonic())
        self.steps_in_epoch = int(trainer.num_training_batches)

    def on_train_end(self, *_: Any) -> None:
        self.ended = time.monotonic()
