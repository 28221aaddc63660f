"""Hold out a part of the training data: the split, the batches of it, and warnings about data held out badly."""

import math
from collections.abc import Iterator, Sequence, Sized
from operator import length_hint
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, RandomSampler, Sampler, SequentialSampler, Subset

from calibrant import inputs
from calibrant.training.guard import warn

Labels = Tensor | Sequence[int]
ENOUGH = 3  # samples for every objective of this package, where the one in use is not known
# Held-out samples below which a user is warned at once.
FEWEST = 5


def interleaved_split(
    data: Dataset[Any] | int, calibration_fraction: float = 0.1, seed: int = 0, *,
    stratify: Labels | None = None, minimum_samples: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Split training data into the part the NLL sees and the part held out, as Karandikar et al. (NeurIPS 2021) do.

    The two parts together cover all data. The same seed gives the same split on every machine.

    Args:
        data: A dataset with a length, or that length.
        calibration_fraction: Share of the samples to hold out; that of the ESD paper is 0.1.
        seed: Seed of the split.
        stratify: Label of every sample, to hold out the same share of every class, to within one sample.
        minimum_samples: Fewest samples the objective is defined for; by default 3, enough for every objective.

    Returns:
        ``(train, calibration)``: two ``Subset`` of the dataset, or for a length two tensors of ascending indices.

    Example:
        >>> train, calibration = interleaved_split(20, calibration_fraction=0.2, seed=0)
        >>> len(train), len(calibration), bool(torch.isin(train, calibration).any())
        (16, 4, False)
    """
    if isinstance(data, bool) or not isinstance(data, int | Sized):
        raise TypeError(f"expected a dataset with a length, or a length, got {type(data).__name__}")
    length = data if isinstance(data, int) else len(data)
    inputs.check_range("calibration_fraction", calibration_fraction, low=0, high=1, open_low=True, open_high=True)
    held_out = round(calibration_fraction * length)
    minimum_samples = ENOUGH if minimum_samples is None else minimum_samples
    if held_out < minimum_samples:
        raise ValueError(
            f"a fraction of {calibration_fraction:g} holds out {held_out} of {length} samples, and the objective needs "
            f"at least {minimum_samples}: raise calibration_fraction or give more data"
        )
    if held_out == length:
        raise ValueError(
            f"a fraction of {calibration_fraction:g} leaves none of {length} samples for training: "
            "lower calibration_fraction or give more data"
        )
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    chosen = order[:held_out] if stratify is None else _stratified(order, stratify, held_out)
    is_held_out = torch.zeros(length, dtype=torch.bool)
    is_held_out[chosen] = True
    train, calibration = (~is_held_out).nonzero().flatten(), is_held_out.nonzero().flatten()
    if isinstance(data, int):
        return train, calibration
    return Subset(data, train.tolist()), Subset(data, calibration.tolist())


class EvenBatches(Sampler[list[int]]):
    """Batches of a sampler whose sizes differ by at most one: an objective of one or two samples is not defined."""

    def __init__(self, sampler: Any, batch_size: int) -> None:
        inputs.check_count("batch_size", batch_size)
        self.sampler = sampler
        self.batch_size = batch_size

    def __len__(self) -> int:
        return math.ceil(len(self.sampler) / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.tensor(list(self.sampler))
        return (batch.tolist() for batch in order.tensor_split(len(self)))


def even_size(samples: int, most: int) -> int:
    """Batch size of at most ``most`` whose last batch is at least three quarters full; for loaders without sizes."""
    if samples <= most:
        return most
    sizes = (math.ceil(samples / count) for count in range(math.ceil(samples / most), 2 * samples // most + 1))
    return next((size for size in sizes if size >= ENOUGH and 4 * (-samples % size) <= size), most)


def _stratified(order: Tensor, stratify: Labels, held_out: int) -> Tensor:
    """The first of every class in a random order; the samples left by rounding go to the largest remainders."""
    labels = torch.as_tensor(stratify)
    if labels.shape != order.shape or labels.is_floating_point():
        raise ValueError(
            f"stratify must hold one integer label for each of {len(order)} samples, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}"
        )
    classes, counts = labels.unique(return_counts=True)
    exact = counts.double() * (held_out / len(order))
    quota = exact.floor().long()
    left = held_out - int(quota.sum())
    quota[(exact - quota).argsort(descending=True, stable=True)[:left]] += 1
    in_order = labels[order]
    return torch.cat([order[in_order == label][:count] for label, count in zip(classes, quota.tolist(), strict=True)])


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
    (whole, rows), (other, other_rows) = (
        (each.dataset, set(each.indices)) if isinstance(each, Subset) else (each, None) for each in (held_out, train)
    )
    if whole is not other:
        return 0
    if rows is None or other_rows is None:  # all of them
        return len(rows or other_rows or held_out)
    return len(rows & other_rows)
