"""Train one network as its configuration says."""

import logging
import random
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning import Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.loggers import Logger
from torch import nn

from calibrant.experiments.configuration import Configuration
from calibrant.experiments.loaders import TEXT, Loaders, make_loaders
from calibrant.experiments.models import build_image_model
from calibrant.experiments.models.weights import load_weights
from calibrant.experiments.objectives import losses
from calibrant.experiments.outcome import Predicted
from calibrant.training import interleave
from calibrant.training.lightning import CalibratedClassifier, WholeCheckpointIO

# ESD needs three; a batch of fewer says nothing about calibration to any of them.
MINIMUM_SAMPLES = 3


class Trained(NamedTuple):
    """What is left of a run: scores an epoch, and predictions to judge it by."""

    history: list[dict[str, float]]
    validation: Predicted
    test: Predicted
    model: nn.Module


def fit(
    configuration: Configuration,
    folder: Path | None = None,
    *,
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[Callback] = (),
    resume_from: Path | None = None,
    accelerator: str = "auto",
) -> Trained:
    """Train a network, and predict the validation and the test set with it.

    Args:
        configuration: Of the run.
        folder: With the official files of the data; None for digits, or to fetch from the hub.
        loggers: Of Lightning.
        callbacks: Of Lightning.
        resume_from: A checkpoint of the same run.
        accelerator: As Lightning names them.
    """
    loss, objective = losses(configuration)
    loaders = make_loaders(configuration, folder, hold_out=objective is not None, minimum_samples=MINIMUM_SAMPLES)
    _seed(configuration.seed)
    classifier = CalibratedClassifier(
        make_model(configuration, loaders), objective, configuration.weight, loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(
            parameters, lr=configuration.learning_rate, weight_decay=configuration.weight_decay
        ),
        batchnorm=configuration.batchnorm,
    )  # fmt: skip
    batches = interleave(
        loaders.train, loaders.calibration, calibration_every=configuration.calibration_every,
        minimum_samples=MINIMUM_SAMPLES,
    )  # fmt: skip
    with _quiet():
        trainer = Trainer(
            accelerator=accelerator, devices=1, max_epochs=configuration.epochs, logger=list(loggers),
            callbacks=list(callbacks), plugins=[WholeCheckpointIO()], enable_checkpointing=any(isinstance(one, Checkpoint) for one in callbacks),
            enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
            log_every_n_steps=10,
        )  # fmt: skip
        trainer.fit(
            classifier, batches, loaders.validation,
            ckpt_path=None if resume_from is None else str(resume_from), weights_only=True,
        )  # fmt: skip
    if trainer.interrupted:
        raise KeyboardInterrupt
    model = classifier.model.to(trainer.strategy.root_device)
    return Trained(classifier.history, predict(model, loaders.validation), predict(model, loaders.test), model)


def make_model(configuration: Configuration, loaders: Loaders) -> nn.Module:
    """The network of a configuration, with its first weights."""
    if configuration.recipe in TEXT:
        from calibrant.experiments.models.text import TextClassifier

        if configuration.initial_weights is not None:
            raise ValueError("initial-weights are for images: a text model brings its own, give its folder as --model")
        return TextClassifier.from_pretrained(configuration.model, classes=loaders.classes)
    model = build_image_model(configuration.model, classes=loaders.classes, channels=loaders.channels)
    if configuration.initial_weights is not None:
        load_weights(model, configuration.initial_weights)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@torch.inference_mode()
def predict(model: nn.Module, batches: Iterable[Any]) -> Predicted:
    """Logits and targets of all batches, on the CPU."""
    device = next(model.parameters()).device
    model.eval()
    logits, target = [], []
    for inputs, labels in batches:
        if isinstance(inputs, dict):
            output = model(**{name: value.to(device) for name, value in inputs.items()})
        else:
            output = model(inputs.to(device))
        logits.append(output.cpu())
        target.append(labels)
    return Predicted(torch.cat(logits), torch.cat(target))


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (the generator transforms of others draw from)


class _quiet:  # noqa: N801 (reads as the context it is)
    """Lightning tells about hardware and habits; what matters here is said by our own lines and errors."""

    def __enter__(self) -> None:
        self._logger = logging.getLogger("lightning.pytorch")
        self._level = self._logger.level
        self._logger.setLevel(logging.ERROR)
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.filterwarnings("ignore", module="lightning")

    def __exit__(self, *error: object) -> None:
        self._warnings.__exit__(None, None, None)
        self._logger.setLevel(self._level)
