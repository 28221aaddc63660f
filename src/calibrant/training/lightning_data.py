"""Interleaved data for Lightning: which rank sees which samples, and in which order."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import lightning
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from calibrant.training.interleave import InterleavedLoader, interleave
from calibrant.training.split import EvenBatches, Labels, interleaved_split


class InterleavedDataModule(lightning.LightningDataModule):
    """Hold out a part of the training data, and load it alongside the rest.

    The order of the samples depends only on ``seed`` and the epoch. With W processes, process r takes every W-th sample
    of that order, starting with the r-th, so W processes with batches of B together see the batches that one process
    with batches of W times B sees. If W does not divide the number of training samples, up to W - 1 of them are seen
    twice in an epoch, so that no process waits for another; evaluation sees every sample once.

    The sizes of calibration batches on a process differ by at most one: 129 samples in batches of 128 become 65 and 64,
    since an objective of one sample is noise. With several processes their boundaries may differ from those of one.

    Args:
        train: Training data; samples are ``(inputs, target)``.
        validation: Data to validate on, if any.
        test: Data to test on, if any.
        predict: Data to predict, if any: samples with or without target.
        batch_size: Number of samples for the NLL per step and process.
        calibration_fraction: Share of ``train`` to hold out; 0 holds out nothing and gives plain batches.
        calibration_batch_size: Most samples for the objective per step and process; ``batch_size`` by default.
        calibration_every: Give a calibration batch every k-th step only.
        seed: Seed of the split and of the order.
        stratify: Label of every sample of ``train``, to hold out the same share of every class.
        minimum_samples: Fewest samples, in all processes together, that the objective is defined for. By default
            :class:`CalibratedClassifier` asks its objective; with another module 3, enough for every objective.
        drop_last: Drop the last training batch if it is not full; BatchNorm, for example, cannot take a single sample.
        num_workers: As in ``DataLoader``.
        persistent_workers: As in ``DataLoader``.
        pin_memory: As in ``DataLoader``.
        collate_fn: As in ``DataLoader``.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> train = TensorDataset(torch.randn(100, 2), torch.randint(3, (100,)))
        >>> data = InterleavedDataModule(train, batch_size=45, calibration_batch_size=5)
        >>> [(len(batch.train[1]), len(batch.calibration[1])) for batch in data.train_dataloader()]
        [(45, 5), (45, 5)]
    """

    def __init__(
        self,
        train: Dataset[Any],
        *,
        validation: Dataset[Any] | None = None,
        test: Dataset[Any] | None = None,
        predict: Dataset[Any] | None = None,
        batch_size: int = 512,
        calibration_fraction: float = 0.1,
        calibration_batch_size: int | None = None,
        calibration_every: int = 1,
        seed: int = 0,
        stratify: Labels | None = None,
        minimum_samples: int | None = None,
        drop_last: bool = False,
        num_workers: int = 0,
        persistent_workers: bool = False,
        pin_memory: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__()
        self.datasets = {"train": train, "validation": validation, "test": test, "predict": predict}
        self.batch_size = batch_size
        self.calibration_batch_size = batch_size if calibration_batch_size is None else calibration_batch_size
        self.calibration_every = calibration_every
        self.seed = seed
        self.minimum_samples = minimum_samples
        self.drop_last = drop_last
        self._loader: InterleavedLoader | None = None
        self._loader_options: dict[str, Any] = {
            "num_workers": num_workers, "persistent_workers": persistent_workers, "pin_memory": pin_memory,
            "collate_fn": collate_fn,
        }  # fmt: skip
        if validation is None:
            self.val_dataloader = None  # type: ignore[method-assign, assignment]  # means no validation to Lightning
        self.train_part: Dataset[Any] = train
        self.calibration_part: Dataset[Any] | None = None
        if calibration_fraction != 0:
            self.train_part, self.calibration_part = interleaved_split(
                train,
                calibration_fraction,
                seed,
                stratify=stratify,
                minimum_samples=1 if minimum_samples is None else minimum_samples,  # the loader checks it later
            )

    def train_dataloader(self) -> InterleavedLoader:
        """Training batches, each with a calibration batch beside it."""
        if self._loader is not None and self.trainer is not None and self.trainer.current_epoch > 0:
            return self._loader  # called again within a run: it continues, and does not start over with the first order
        calibration, (processes, _) = self.calibration_part, self._place()
        self._loader = interleave(
            self._shuffled(self.train_part, self.batch_size, drop_last=self.drop_last),
            None if calibration is None else self._shuffled(calibration, self.calibration_batch_size, even=True),
            calibration_every=self.calibration_every,
            # The objective sees all processes.
            minimum_samples=None if self.minimum_samples is None else math.ceil(self.minimum_samples / processes),
        )
        return self._loader

    def val_dataloader(self) -> DataLoader[Any]:
        """Validation batches."""
        return self._in_order("validation")

    def test_dataloader(self) -> DataLoader[Any]:
        """Test batches."""
        return self._in_order("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """Batches to predict."""
        return self._in_order("predict")

    def _shuffled(
        self, dataset: Dataset[Any], batch_size: int, *, drop_last: bool = False, even: bool = False
    ) -> DataLoader[Any]:
        sampler: DistributedSampler[Any] = DistributedSampler(dataset, *self._place(), seed=self.seed)
        if even:
            return DataLoader(dataset, batch_sampler=EvenBatches(sampler, batch_size), **self._loader_options)
        return DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=drop_last, **self._loader_options)

    def _in_order(self, name: str) -> DataLoader[Any]:
        dataset = self.datasets[name]
        if dataset is None:
            raise ValueError(f"there is no {name} data: pass {name}= to InterleavedDataModule")
        sampler = _OnceEach(dataset, *self._place())
        return DataLoader(dataset, batch_size=self.batch_size, sampler=sampler, **self._loader_options)

    def _place(self) -> tuple[int, int]:
        """Number of processes, and rank of this one."""
        return (1, 0) if self.trainer is None else (self.trainer.world_size, self.trainer.global_rank)


class _OnceEach(DistributedSampler[Any]):
    """Every W-th sample in order. Torch's sampler repeats some to give all ranks as many; scores would count them."""

    def __init__(self, dataset: Dataset[Any], replicas: int, rank: int) -> None:
        super().__init__(dataset, replicas, rank, shuffle=False)
        self.indices = range(rank, len(dataset), replicas)  # type: ignore[arg-type]  # raises without a length

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def loader_states(trainer: Any) -> list[dict[str, Any]]:
    """Position of the train loader of each rank, if it can be resumed; their random states differ."""
    loader = trainer.train_dataloader
    if not isinstance(loader, InterleavedLoader):
        return []
    state = loader.state_dict()
    # Lightning may end an epoch before the loader does, and never asks a loader for one batch too many.
    state["train"]["ended"] |= trainer.is_last_batch
    return of_ranks(trainer, state)


def restore_loader(trainer: Any, states: Sequence[Mapping[str, Any]]) -> None:
    """Restore the position of a loader: Lightning does so itself, but not from a checkpoint at the end of an epoch."""
    loader = trainer.train_dataloader
    if not isinstance(loader, InterleavedLoader) or not states:
        return
    if trainer.num_training_batches == float("inf"):
        raise ValueError(
            "a train loader without a length cannot be resumed, since Lightning reads it one batch ahead: "
            "give it a length"
        )
    loader.load_state_dict(of_rank(states, trainer.global_rank))


def of_ranks(trainer: Any, state: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of all ranks."""
    if trainer.world_size == 1:
        return [state]
    states: list[Any] = [None] * trainer.world_size
    dist.all_gather_object(states, state)
    return states


def of_rank(states: Sequence[Mapping[str, Any]], rank: int) -> Mapping[str, Any]:
    """The state of one rank; the number of ranks may have changed."""
    return states[rank % len(states)]
