"""What is wrong with held-out data at first sight: too few, or trained on too."""

from collections.abc import Sized
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler, Subset

from calibrant.training.warning import warn

# Held-out samples below which a user is warned at once.
FEWEST = 5


def warn_of_data(held_out: Any, train: Any = None) -> None:
    """Warn of a held-out data set that is too small to say anything, or that shares samples with the training data.

    Args:
        held_out: Data set of held-out samples; of unknown things nothing is said.
        train: Data set of training samples.
    """
    if isinstance(held_out, Sized) and len(held_out) < FEWEST:
        warn(f"{len(held_out)} held-out samples say nothing about calibration: hold out hundreds")
    shared = _shared(held_out, train)
    if shared:
        warn(
            f"{shared} held-out samples are trained on too, and say nothing about new data: hold out samples of their "
            "own, see interleaved_split()"
        )


def warn_of_loaders(held_out: Any, train: Any) -> None:
    """Do the same for the data sets of two ``DataLoader``s, where their samplers take every sample."""
    both = [loader for loader in (held_out, train) if _takes_all(loader)]
    dataset = getattr(held_out, "dataset", None)
    warn_of_data(dataset, getattr(train, "dataset", None) if len(both) == 2 else None)


def _takes_all(loader: Any) -> bool:
    sampler = getattr(loader, "sampler", None)
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
        return 0
    return len(set(rows) if other_rows is None else set(other_rows) if rows is None else set(rows) & set(other_rows))


def _rows(dataset: Any) -> tuple[Any, Any]:
    """The data set that a subset is of, and which of its rows; None for all."""
    return (dataset.dataset, dataset.indices) if isinstance(dataset, Subset) else (dataset, None)
