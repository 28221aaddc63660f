"""The parts of a data set that a training run uses, as batches."""

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from calibrant.training import interleaved_split
from calibrant_lab.data.samples import Data, TensorSamples
from calibrant_lab.trials.configuration import Configuration

# Numbers in a batch that is only predicted: a network of table rows spends most of its time between smaller batches.
PREDICTED_AT_ONCE = 2**15


class Parts(NamedTuple):
    """Indices into the training data; validation is None if the data have a validation set."""

    train: Tensor
    calibration: Tensor | None
    validation: Tensor | None


class Loaders(NamedTuple):
    """Batches of each part; calibration batches only if the method uses them."""

    train: Iterable[Any]
    calibration: Iterable[Any] | None
    validation: Iterable[Any]
    test: Iterable[Any]
    targets: dict[str, Tensor]  # of the validation and the test set
    classes: int
    description: dict[str, Any]  # sizes, and a fingerprint of the data


def split(configuration: Configuration, samples: int, *, validates: bool, minimum_samples: int) -> Parts:
    """Split the training samples into validation (if needed), held-out and training samples."""
    settings, seed = configuration.settings, configuration.seed
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    count = round(settings.validation_fraction * samples) if validates else 0
    validation, training = order[:count], order[count:]
    if validates and not (len(validation) and len(training)):
        raise ValueError(
            f"a validation-fraction of {settings.validation_fraction:g} of {samples} samples leaves "
            f"{len(validation)} for validation and {len(training)} for training: change it, or give more data"
        )
    kept = validation if validates else None
    holds_out, share = configuration.of_method.holds_out, settings.calibration_fraction
    if not holds_out and not settings.reduced_split:
        return Parts(training, None, kept)
    train, calibration = interleaved_split(len(training), share, seed, minimum_samples=minimum_samples)
    return Parts(training[train], training[calibration] if holds_out else None, kept)


def make_loaders(configuration: Configuration, data: Data, *, minimum_samples: int) -> Loaders:
    """Split the data: validation first, then the held-out part from what remains."""
    size, own = configuration.settings.batch_size, data.validation
    parts = split(configuration, len(data.train.labels), validates=own is None, minimum_samples=minimum_samples)
    train, calibration = data.train.batches(size, parts.train, training=True), None
    if parts.calibration is not None:
        held_out_size = configuration.settings.calibration_batch_size or size
        calibration = data.train.batches(held_out_size, parts.calibration, training=True, even=True)
    validation = data.train.batches(size, parts.validation) if own is None else own.batches(size)
    small = isinstance(data.test, TensorSamples)
    test = data.test.batches(max(size, PREDICTED_AT_ONCE // data.test.x[0].numel()) if small else size)
    validated = data.train.labels[parts.validation] if own is None else own.labels
    targets = {"validation": validated, "test": data.test.labels}
    return Loaders(train, calibration, validation, test, targets, data.classes, _described(data, parts))


def _described(data: Data, parts: Parts) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=8)
    for samples in (data.train, data.validation, data.test):
        for tensor in () if samples is None else samples.content():
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().data)
    sizes = {name: len(part) for name, part in parts._asdict().items() if part is not None}
    return {**sizes, "fingerprint": digest.hexdigest()}
