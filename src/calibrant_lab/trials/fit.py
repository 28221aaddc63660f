"""Train one network as its configuration says."""

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning import Trainer
from lightning.fabric.utilities import move_data_to_device
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.loggers import Logger
from torch import nn

from calibrant.report.formats import counted
from calibrant.torch_private import BatchNorm
from calibrant.training import CalibrationWarning, interleave
from calibrant.training.forward import evaluating, logits_of, minimum_samples
from calibrant.training.interleave import InterleavedLoader, kept_random_state, seed_all
from calibrant.training.lightning import InterleavedModule
from calibrant_lab import plugins
from calibrant_lab.data.samples import Data
from calibrant_lab.scores import Predicted
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.split import Loaders, make_loaders
from calibrant_lab.trials.watching import WholeCheckpointIO


class Prepared(NamedTuple):
    """Everything a run needs."""

    configuration: Configuration
    loaders: Loaders
    batches: InterleavedLoader
    classifier: InterleavedModule


class Trained(NamedTuple):
    """Result of a run: scores of every epoch, predictions, and the network."""

    history: list[dict[str, float]]
    validation: Predicted
    test: Predicted
    model: nn.Module


def prepare(configuration: Configuration, folder: Path | None = None) -> Prepared:
    """Read the data and build the network; leaves the random state as training expects it."""
    method, settings = configuration.of_method, configuration.settings
    loss, objective = method.build(dict(configuration.options))
    weight = configuration.option("weight")
    try:
        data = configuration.of_recipe.load(settings, folder, configuration.seed)
    except ValueError as error:
        if ":" not in configuration.recipe:
            raise
        raise ValueError(f"{plugins.short(configuration.recipe)}: {error}") from error
    fewest = minimum_samples(objective)
    loaders = make_loaders(configuration, data, minimum_samples=fewest)
    classifier = InterleavedModule(
        first_network(configuration, data), objective, weight, method=method.training,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(
            parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
        ),
        batchnorm=None if method.training == "head" else settings.batchnorm,
    )  # fmt: skip
    batches = interleave(
        loaders.train, loaders.calibration, calibration_every=settings.calibration_every, minimum_samples=fewest
    )
    return Prepared(configuration, loaders, batches, classifier)


def first_network(configuration: Configuration, data: Data) -> nn.Module:
    """Build the network of a configuration, with its initial weights; sets all random seeds."""
    seed_all(configuration.seed)
    network = configuration.of_recipe.build(data, configuration.settings)
    _check_width(network, data)
    if configuration.settings.compile:
        network.compile()
    return network


def _check_width(network: nn.Module, data: Data) -> None:
    """Raise ``ValueError`` if a network has more or fewer outputs than there are classes; nothing is changed by it."""
    width = data.classes
    # What cannot be predicted in this way fails in training, with its traceback.
    with suppress(Exception), kept_random_state(), evaluating(network), torch.no_grad():
        inputs, _ = next(iter(data.test.batches(2, torch.arange(min(2, len(data.test.labels))))))
        logits = logits_of(network, inputs)
        width = logits.shape[1] if logits.dim() > 1 else 1
    if width != data.classes and (width, data.classes) != (1, 2):
        counts = f"the network has {counted(width, 'output')}, but the data have {data.classes} classes"
        raise ValueError(f"{counts}: build it with data.classes outputs, or give Data the right classes=")


def fit(
    prepared: Prepared,
    *,
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[Callback] = (),
    resume_from: Path | None = None,
    accelerator: str = "auto",
) -> Trained:
    """Train a network that was just prepared, and predict the validation and test sets."""
    configuration, loaders, batches, classifier = prepared
    settings = configuration.settings
    trainer = _trainer(
        accelerator, max_epochs=settings.epochs, max_steps=settings.max_steps or -1, precision=settings.precision,
        logger=list(loggers), callbacks=[_UpdateLoss(classifier, loaders.validation), *callbacks],
    )  # fmt: skip
    with _quiet():
        try:
            trainer.fit(classifier, batches, loaders.validation, ckpt_path=resume_from, weights_only=True)
        except SystemExit as error:  # Lightning raises it after Ctrl-C
            raise KeyboardInterrupt from error
    model = classifier.model.to(trainer.strategy.root_device)
    return Trained(classifier.history, predict(model, loaders.validation), predict(model, loaders.test), model)


class _UpdateLoss(Callback):
    """Update a stateful loss from the validation set, before every epoch but the first.

    This happens at the first batch: a resumed run may start after the end of the previous epoch.
    """

    def __init__(self, classifier: InterleavedModule, validation: Iterable[Any]) -> None:
        self.classifier = classifier
        self.validation = validation

    def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Predict the validation set, then restore the random state."""
        del module, batch
        model, update = self.classifier.model, getattr(self.classifier.loss, "update", None)
        if not callable(update) or batch_idx or not trainer.current_epoch:
            return
        with kept_random_state():
            update(*predict(model, self.validation))


def check_accelerator(name: str) -> None:
    """Raise ``ValueError`` for an accelerator that this machine does not have."""
    _trainer(name, max_epochs=1, logger=False, callbacks=[])


def _trainer(accelerator: str, *, callbacks: list[Callback], **options: Any) -> Trainer:
    try:
        with _quiet():
            return Trainer(
                accelerator=accelerator, devices=1, callbacks=callbacks, plugins=[WholeCheckpointIO()],
                enable_checkpointing=any(isinstance(one, Checkpoint) for one in callbacks),
                enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, log_every_n_steps=10,
                **options,
            )  # fmt: skip
    except (MisconfigurationException, ValueError) as error:
        raise ValueError(f"accelerator {accelerator!r} is not available: choose another, or auto") from error


@torch.inference_mode()
def predict(model: nn.Module, batches: Iterable[Any], *, dropout: bool = False) -> Predicted:
    """Logits and targets of all batches, on the CPU; with ``dropout``, from one pass with dropout on.

    The modes of all layers are restored.
    """
    device = next(model.parameters()).device
    logits, target = [], []
    with evaluating(model):
        for layer in model.modules() if dropout else ():
            # Not only Dropout layers, since attention applies dropout without one.
            layer.training = not isinstance(layer, BatchNorm)
        for inputs, labels in batches:
            logits.append(logits_of(model, move_data_to_device(inputs, device)).cpu())
            target.append(labels)
    return Predicted(torch.cat(logits), torch.cat(target))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Lightning's hints; our own output and errors report what matters."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            warnings.simplefilter("always", CalibrationWarning)
            yield
    finally:
        logger.setLevel(level)
