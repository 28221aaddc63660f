"""Samples of any kind, and their batches."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset

from calibrant_lab.data.batching import Batches


@runtime_checkable
class Samples(Protocol):
    """A labelled set of samples.

    Attributes:
        labels: ``(N,)`` class indices.
    """

    labels: Tensor

    def batches(
        self, size: int, rows: Tensor | None = None, *, training: bool = False, even: bool = False
    ) -> Iterable[tuple[Any, Tensor]]:
        """Batches ``(inputs, labels)``; the result can be iterated any number of times.

        Args:
            size: Samples per batch.
            rows: Indices of the samples to use; by default all.
            training: Whether to shuffle and augment the samples.
            even: Whether to make the last batch as large as the others, to within one sample, by making all smaller:
                129 samples in batches of 128 become 65 and 64. An objective on held-out batches needs that.
        """

    def content(self) -> Iterable[Tensor]:
        """Tensors whose bytes identify this set."""


class TensorSamples:
    """Inputs in memory: arrays or tensors, such as table rows or saved features.

    Args:
        x: ``(N, ...)`` inputs. Floating-point values become float32.
        y: ``(N,)`` class indices.

    Example:
        >>> samples = TensorSamples(np.zeros((5, 3)), [0, 1, 2, 0, 1])
        >>> [(tuple(x.shape), y.tolist()) for x, y in samples.batches(3)]
        [((3, 3), [0, 1, 2]), ((2, 3), [0, 1])]
    """

    def __init__(self, x: Any, y: Any) -> None:
        x = torch.as_tensor(np.asarray(x) if isinstance(x, Sequence) else x)
        self.x = x.float() if x.is_floating_point() else x
        self.labels = _labels(y)
        if len(self.x) != len(self.labels):
            raise ValueError(f"every sample needs a label, got {len(self.x)} samples and {len(self.labels)} labels")
        if len(wrong := (~self.x.isfinite()).nonzero()):
            raise ValueError(f"row {int(wrong[0, 0])} has a NaN or infinite input: remove or replace such values")

    def batches(self, size: int, rows: Tensor | None = None, *, training: bool = False, even: bool = False) -> Batches:
        """Batches of the rows, shuffled for training."""
        return Batches(
            len(self.labels), size, lambda chosen: (self.x[chosen], self.labels[chosen]), indices=rows,
            shuffle=training, even=even,
        )  # fmt: skip

    def content(self) -> Iterable[Tensor]:
        """Inputs and labels."""
        return self.x, self.labels


class DatasetSamples:
    """Any ``torch.utils.data.Dataset`` whose samples are ``(input, label)``.

    Args:
        dataset: Samples for evaluation.
        augmented: The same samples in the same order, augmented for training; by default ``dataset``.
        labels: ``(N,)`` class indices; by default read from the dataset, sample by sample.
        collate: Function that makes a batch from a list of samples, as in ``DataLoader``.
        workers: Number of processes that load samples; each has its own random numbers.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        augmented: Dataset[Any] | None = None,
        labels: Any = None,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 0,
    ) -> None:
        self.dataset = dataset
        self.augmented = dataset if augmented is None else augmented
        found: Any = getattr(dataset, "labels", None) if labels is None else labels
        count = len(dataset)  # type: ignore[arg-type]
        self.labels = _labels([dataset[row][1] for row in range(count)] if found is None else found)
        self.collate = collate
        self.workers = workers

    def batches(
        self, size: int, rows: Tensor | None = None, *, training: bool = False, even: bool = False
    ) -> "DataLoader[Any]":
        """A ``DataLoader`` of the rows."""
        chosen: Any = self.augmented if training else self.dataset
        part = chosen if rows is None else Subset(chosen, rows.tolist())
        batching: dict[str, Any] = {"batch_size": size, "shuffle": training}
        if even:
            from calibrant.training.held_out import EvenBatches  # imports torch's compiler, which takes two seconds

            batching = {"batch_sampler": EvenBatches(RandomSampler(part) if training else range(len(part)), size)}
        return DataLoader(
            part, **batching, num_workers=self.workers, collate_fn=self.collate,
            pin_memory=torch.accelerator.is_available(),
        )  # fmt: skip

    def content(self) -> Iterable[Tensor]:
        """Only the labels, since reading all samples may take hours."""
        return (self.labels,)


@dataclass(frozen=True)
class Data:
    """A data set as a recipe loads it.

    Each part is a :class:`Samples`, a pair ``(x, y)`` of arrays or tensors, or a ``torch.utils.data.Dataset``.

    Args:
        train: Training samples; held-out samples are split off it.
        test: Test samples, on which results are reported.
        validation: Validation samples, on which settings are chosen; by default split off ``train``.
        classes: Number of classes; by default one more than the largest label.
    """

    train: Any
    test: Any
    validation: Any = field(default=None, kw_only=True)
    classes: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        for part in ("train", "test", "validation"):
            given = getattr(self, part)
            if given is not None:
                object.__setattr__(self, part, _samples(given, part))
        labels = torch.cat([part.labels for part in (self.train, self.test, self.validation) if part is not None])
        smallest, largest = int(labels.min()), int(labels.max())
        if not self.classes:
            if smallest == largest:
                raise ValueError(f"all labels are {largest}: give data of at least 2 classes, or classes=")
            object.__setattr__(self, "classes", largest + 1)
        if smallest < 0 or largest >= self.classes:
            wrong = smallest if smallest < 0 else largest
            raise ValueError(f"label {wrong} is not one of {self.classes} classes: number them from 0")


def _samples(given: Any, part: str) -> Samples:
    if isinstance(given, Samples):
        return given
    if isinstance(given, tuple | list) and len(given) == 2:
        try:
            return TensorSamples(*given)
        except ValueError as error:
            raise ValueError(f"{part}: {error}") from error
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return DatasetSamples(given)
    raise TypeError(
        f"the {part} part must be (x, y), a Dataset or Samples, got {type(given).__name__}: return one from load"
    )


def _labels(y: Any) -> Tensor:
    labels = y if isinstance(y, Tensor) else np.array(y)
    if str(labels.dtype)[:2] in ("<U", "|S", "ob"):
        raise ValueError("labels must be class indices, got strings or other objects: number the classes from 0")
    labels = torch.as_tensor(labels)
    if labels.dim() != 1 or labels.is_floating_point() or not len(labels):
        raise ValueError(
            f"labels must be whole numbers of shape (N,), got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    return labels.long()
