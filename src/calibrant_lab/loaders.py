"""From a configuration to the batches of each part of its data."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from calibrant.training import interleaved_split
from calibrant_lab import data
from calibrant_lab.configuration import TEXT, Configuration
from calibrant_lab.data import ImageBatches, ImageData, TextBatches, TextData, TokenisedPairs

EVALUATION_BATCH = 1000


class Loaders(NamedTuple):
    """Batches of each part of a data set; of the calibration part only where an objective needs it."""

    train: Iterable[Any]
    calibration: Iterable[Any] | None
    validation: Iterable[Any]
    test: Iterable[Any]
    classes: int
    channels: int
    description: dict[str, Any]  # sizes, and a fingerprint that tells one data set from another


def make_loaders(configuration: Configuration, folder: Path | None, *, hold_out: bool, minimum_samples: int) -> Loaders:
    """Read the data and split it: validation first, then the calibration part from what remains.

    Args:
        configuration: Of the run.
        folder: With the official files; None for those of the hub.
        hold_out: Whether an objective needs a calibration part.
        minimum_samples: Of a calibration batch.
    """
    c = configuration
    match c.recipe:
        case "imagenet100":
            return _on_disk(c, folder, hold_out, minimum_samples)
        case "snli":
            return _text(c, data.load_snli(folder), hold_out, minimum_samples)
        case "anli":
            return _text(c, data.load_anli(folder), hold_out, minimum_samples)
        case _:
            return _in_memory(c, load_images(c, folder), hold_out, minimum_samples)


def load_images(configuration: Configuration, folder: Path | None) -> ImageData:
    """The images of a recipe that keeps them in memory: digits, mnist, cifar10 and cifar100."""
    match configuration.recipe:
        case "digits":
            if folder is not None:
                raise ValueError("digits are embedded: leave out --data-dir")
            return data.load_digits(configuration.noise)
        case "mnist":
            return data.load_mnist(folder, configuration.image_size)
        case "cifar10":
            return data.load_cifar10(folder)
        case "cifar100":
            return data.load_cifar100(folder)
        case other:
            raise ValueError(f"{other} is not kept in memory")


class Parts(NamedTuple):
    """Indices into the training data."""

    train: Tensor
    calibration: Tensor | None
    validation: Tensor


def split(configuration: Configuration, samples: int, *, hold_out: bool, minimum_samples: int) -> Parts:
    """Which training samples validate, which are held out for the objective, and which are left for the NLL."""
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(configuration.seed))
    validation_samples = 0 if configuration.recipe in TEXT else round(configuration.validation_fraction * samples)
    validation, training = order[:validation_samples], order[validation_samples:]
    if configuration.recipe not in TEXT and not (len(validation) and len(training)):
        raise ValueError(
            f"a validation-fraction of {configuration.validation_fraction:g} of {samples} samples leaves "
            f"{len(validation)} to validate and {len(training)} to train: change it, or give more data"
        )
    if not hold_out and not configuration.reduced_split:
        return Parts(training, None, validation)
    train, calibration = interleaved_split(
        len(training), configuration.calibration_fraction, configuration.seed, minimum_samples=minimum_samples
    )
    return Parts(training[train], training[calibration] if hold_out else None, validation)


def _in_memory(configuration: Configuration, found: ImageData, hold_out: bool, minimum_samples: int) -> Loaders:
    c = configuration
    parts = split(c, len(found.train.labels), hold_out=hold_out, minimum_samples=minimum_samples)

    def shuffled(indices: Tensor, size: int) -> ImageBatches:
        return ImageBatches(
            found.train, size, indices=indices, shuffle=True, mean=c.mean, std=c.std, crop_padding=c.crop_padding,
            flip=c.flip,
        )  # fmt: skip

    return Loaders(
        *_for_training(c, parts, shuffled),
        validation=ImageBatches(found.train, EVALUATION_BATCH, indices=parts.validation, mean=c.mean, std=c.std),
        test=ImageBatches(found.test, EVALUATION_BATCH, mean=c.mean, std=c.std),
        classes=found.classes,
        channels=found.train.pixels.shape[1],
        description=_described(parts, found.train.labels, found.train.pixels, found.test.labels, found.test.pixels),
    )


def _on_disk(configuration: Configuration, folder: Path | None, hold_out: bool, minimum_samples: int) -> Loaders:
    c = configuration
    classes = None if c.class_list is None else Path(c.class_list)
    found = data.load_image_folder(folder, size=c.image_size, mean=c.mean, std=c.std, flip=c.flip, classes=classes)
    parts = split(c, len(found.labels), hold_out=hold_out, minimum_samples=minimum_samples)

    def loader(pictures: Any, indices: Tensor | None, size: int, *, shuffle: bool = False) -> DataLoader[Any]:
        chosen = pictures if indices is None else Subset(pictures, indices.tolist())
        return DataLoader(
            chosen, size, shuffle=shuffle, num_workers=c.workers, pin_memory=torch.accelerator.is_available()
        )

    return Loaders(
        *_for_training(c, parts, lambda indices, size: loader(found.train, indices, size, shuffle=True)),
        validation=loader(found.train_unaugmented, parts.validation, c.batch_size),
        test=loader(found.test, None, c.batch_size),
        classes=found.classes,
        channels=3,
        description=_described(parts, found.labels, found.test.labels),
    )


def _text(configuration: Configuration, found: TextData, hold_out: bool, minimum_samples: int) -> Loaders:
    from calibrant_lab.models.text import tokenizer_for

    c = configuration
    tokenizer = tokenizer_for(c.model)
    train, validation, test = (
        TokenisedPairs(pairs, tokenizer, max_length=c.max_length)
        for pairs in (found.train, found.validation, found.test)
    )
    parts = split(c, len(train), hold_out=hold_out, minimum_samples=minimum_samples)
    return Loaders(
        *_for_training(c, parts, lambda indices, size: TextBatches(train, size, indices=indices, shuffle=True)),
        validation=TextBatches(validation, c.batch_size),
        test=TextBatches(test, c.batch_size),
        classes=found.classes,
        channels=0,
        description=_described(
            parts, *(tensor for part in (train, validation, test) for tensor in (part.labels, *part.flat.values()))
        ),
    )


def _for_training(
    configuration: Configuration, parts: Parts, shuffled: Callable[[Tensor, int], Iterable[Any]]
) -> tuple[Iterable[Any], Iterable[Any] | None]:
    size = configuration.calibration_batch_size or configuration.batch_size
    calibration = None if parts.calibration is None else shuffled(parts.calibration, size)
    return shuffled(parts.train, configuration.batch_size), calibration


def _described(parts: Parts, *contents: Tensor) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in contents:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    sizes = {name: len(part) for name, part in parts._asdict().items() if part is not None}
    return {**sizes, "fingerprint": digest.hexdigest()}
