"""Warnings about calibrated training, located at the line of the user's program that causes them."""

import math
import sys
import warnings
from collections.abc import Iterator, Sized
from operator import length_hint
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import RandomSampler, SequentialSampler, Subset

# A warning located in a framework would be silenced with the framework's own.
PASSED_OVER = ("calibrant", "torch", "lightning", "pytorch_lightning", "transformers", "accelerate")
# Held-out samples below which a user is warned at once.
FEWEST = 5
# Steps of training, and log T, from which on a forgotten finish() matters although the training loss is at T = 1.
FEWEST_STEPS, NEAR_ONE = 100, 0.1
# The rows that Dataset.select of Hugging Face took are private, so contents are compared. Data may naturally have a
# few equal samples. Reading this many bytes of each data set takes about a second.
USUAL_REPEATS, MOST_BYTES = 0.05, 2**24
# Relative change of the last layer that is more than rounding to another precision.
NOTICED = 0.01


class CalibrationWarning(UserWarning):
    """Calibrated training does not work as intended."""


class Place(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int
    module: str


def place_of_call() -> Place:
    """The line where the user's program calls this package."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in PASSED_OVER:
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", ""))


class Divided:
    """The weights that ``finish()`` divided, and their norm since then."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.norm = self._norm()

    def has_changed(self) -> bool:
        """Whether other weights were loaded, or these trained, since then; another precision is no change."""
        return not math.isclose(self._norm(), self.norm, rel_tol=NOTICED / 2)

    def _norm(self) -> float:
        local = getattr(self.weights, "to_local", self.weights.detach)()  # the part of this process, if it is sharded
        return float(torch.linalg.vector_norm(local.float()))


class Reminder:
    """Reminds the user of ``finish()`` when a loss is gone and logits are not divided by its temperature."""

    def __init__(self, on: bool) -> None:
        self.on = on
        self.place = place_of_call()
        self.divided: Divided | None = None
        self.expect(1.0, 1.0, 0)

    def expect(self, temperature: float, best: float, steps: int) -> None:
        """Note the temperature of the training loss, and the best one for held-out data after so many steps."""
        self.temperature = temperature
        self.best = best if steps >= FEWEST_STEPS and abs(math.log(best)) > NEAR_ONE else 1.0

    def tell(self) -> None:
        """Warn if ``finish()`` is missing."""
        temperature = self.best if self.temperature == 1 else self.temperature
        if self.on and temperature != 1:
            warn(
                f"training ended without finish(): the model's logits are not divided by the temperature of held-out "
                f"data, {temperature:.3g}, and are {'over' if temperature > 1 else 'under'}-confident. Call "
                "finish(held_out_loader) on the loss",
                self.place,
            )
        elif self.on and self.divided is not None and self.divided.has_changed():
            warn(
                "the model's weights have changed since finish(): weights saved before it are not divided by the "
                "temperature. Load weights saved after it, or call finish(held_out_loader) again",
                self.place,
            )


def warn(message: str, place: Place | None = None) -> None:
    """Give a :class:`CalibrationWarning`, located where the user's program calls this package."""
    file, line, module = place or place_of_call()
    # Python shows equal texts of a line once; with a new registry a second model with the same problem is reported too.
    warnings.warn_explicit(message, CalibrationWarning, file, line, module, registry={})


def warn_of_data(held_out: Any, train: Any = None, sampler: Any = None) -> None:
    """Warn about a held-out data set, or a sampler of it, that is too small, or that shares training samples."""
    # The samples of all ranks count, and a sampler may repeat samples.
    count = min(length_hint(held_out, FEWEST), getattr(sampler, "total_size", length_hint(sampler, FEWEST)))
    if count < FEWEST:
        warn(f"{count} held-out samples are too few to measure calibration: hold out more data, hundreds of samples")
    shared = _shared(held_out, train)
    if shared:
        warn(
            f"{shared} held-out samples are also training samples, and say nothing about new data: hold out other "
            "samples, see interleaved_split()"
        )


def warn_of_loaders(held_out: Any, train: Any) -> None:
    """Do the same for the data sets of two ``DataLoader``s, where their samplers take every sample."""
    both = _takes_all(held_out) and _takes_all(train)
    warn_of_data(getattr(held_out, "dataset", None), train.dataset if both else None, _sampler(held_out))


def _sampler(loader: Any) -> Any:
    """The sampler in use: a loader with a batch sampler has another one, which it does not use."""
    batches = getattr(loader, "batch_sampler", None)
    return getattr(loader if batches is None else batches, "sampler", None)


def _takes_all(loader: Any) -> bool:
    sampler = _sampler(loader)
    return isinstance(sampler, SequentialSampler | RandomSampler) and len(sampler) == len(loader.dataset)


def _shared(held_out: Any, train: Any) -> int:
    """How many samples two data sets share, as far as can be seen."""
    if held_out is None or train is None or not isinstance(held_out, Sized):
        return 0
    if held_out is train:
        return len(held_out)
    whole, rows = _rows(held_out)
    other, other_rows = _rows(train)
    if whole is not other:
        return _equal_samples(held_out, train)
    return len(set(rows) if other_rows is None else set(other_rows) if rows is None else set(rows) & set(other_rows))


def _rows(dataset: Any) -> tuple[Any, Any]:
    """The data set behind a subset, and the rows it takes; None for all."""
    return (dataset.dataset, dataset.indices) if isinstance(dataset, Subset) else (dataset, None)


def _equal_samples(held_out: Any, train: Any) -> int:
    """How many held-out samples of two Hugging Face data sets are equal to one in training, if more than usual."""
    of_datasets = [type(each).__module__.partition(".")[0] == "datasets" for each in (held_out, train)]
    if not all(of_datasets) or not hasattr(train, "__len__") or set(held_out.column_names) != set(train.column_names):
        return 0
    columns = sorted(train.column_names)
    seen = set(_contents(train, columns))
    equal = sum(content in seen for content in _contents(held_out, columns))
    return equal if equal > USUAL_REPEATS * len(held_out) else 0


def _contents(dataset: Any, columns: list[str]) -> Iterator[int]:
    """Hashes of stored samples, as many as can be read quickly."""
    read = 0
    for table in dataset.with_format("arrow").select_columns(columns).iter(batch_size=1000):
        yield from (hash(repr(row)) for row in table.to_pylist())
        read += table.nbytes
        if read > MOST_BYTES:
            return
