"""What a run under Lightning reads: interleaved data, and their position in checkpoints."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import lightning
import torch.distributed as dist
from lightning import Trainer
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from calibrant.training.held_out import EvenBatches, Labels, interleaved_split
from calibrant.training.interleave import InterleavedLoader, interleave


class InterleavedDataModule(lightning.LightningDataModule):
    """Hold out a part of the training data, and load it alongside the rest.

    The order of the samples depends only on ``seed`` and the epoch. Evaluation sees every sample once.

    Args:
        train: Training data; samples are ``(inputs, target)``.
        validation: Data to validate on, if any; ``test`` and ``predict`` likewise.
        batch_size: Number of samples for the NLL per step and process.
        calibration_fraction: Share of ``train`` to hold out; 0 holds out nothing and gives plain batches.
        calibration_batch_size: Most samples for the objective per step and process; ``batch_size`` by default.
        calibration_every: Give a calibration batch every k-th step only.
        stratify: Label of every sample of ``train``, to hold out the same share of every class.
        drop_last: Drop the last training batch if it is not full; BatchNorm, for example, cannot take a single sample.
        **options: Other arguments of every ``DataLoader``, such as ``num_workers`` and ``collate_fn``.

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
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.datasets = {"train": train, "validation": validation, "test": test, "predict": predict}
        self.batch_size = batch_size
        self.calibration_batch_size = batch_size if calibration_batch_size is None else calibration_batch_size
        self.calibration_every = calibration_every
        self.seed = seed
        self.drop_last = drop_last
        self._loader: InterleavedLoader | None = None
        self._options = options
        if validation is None:
            self.val_dataloader = None  # type: ignore[method-assign, assignment]  # means no validation to Lightning
        self.train_part: Dataset[Any] = train
        self.calibration_part: Dataset[Any] | None = None
        if calibration_fraction != 0:
            self.train_part, self.calibration_part = interleaved_split(
                train, calibration_fraction, seed, stratify=stratify, minimum_samples=1
            )  # the loader asks the objective

    def train_dataloader(self) -> InterleavedLoader:
        if self._loader is not None and self.trainer is not None and self.trainer.current_epoch > 0:
            return self._loader  # called again within a run: it continues, and does not start over with the first order
        calibration = self.calibration_part
        self._loader = interleave(
            self._shuffled(self.train_part, self.batch_size, drop_last=self.drop_last),
            None if calibration is None else self._shuffled(calibration, self.calibration_batch_size, even=True),
            calibration_every=self.calibration_every,
        )
        return self._loader

    def val_dataloader(self) -> DataLoader[Any]:
        return self._in_order("validation")

    def test_dataloader(self) -> DataLoader[Any]:
        return self._in_order("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        return self._in_order("predict")

    def _shuffled(
        self, dataset: Dataset[Any], batch_size: int, *, drop_last: bool = False, even: bool = False
    ) -> DataLoader[Any]:
        sampler: DistributedSampler[Any] = DistributedSampler(dataset, *self._place(), seed=self.seed)
        if even:
            return DataLoader(dataset, batch_sampler=EvenBatches(sampler, batch_size), **self._options)
        return DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=drop_last, **self._options)

    def _in_order(self, name: str) -> DataLoader[Any]:
        dataset = self.datasets[name]
        if dataset is None:
            raise ValueError(f"there is no {name} data: pass {name}= to InterleavedDataModule")
        # Torch's own sampler repeats some samples to give all ranks as many; scores would count them.
        sampler = UnrepeatedDistributedSampler(dataset, *self._place(), shuffle=False)
        return DataLoader(dataset, batch_size=self.batch_size, sampler=sampler, **self._options)

    def _place(self) -> tuple[int, int]:
        """Number of processes, and rank of this one."""
        return (1, 0) if self.trainer is None else (self.trainer.world_size, self.trainer.global_rank)


def loader_states(trainer: Any) -> list[dict[str, Any]]:
    """Position of the train loader of each rank, if it can be resumed; their random states differ."""
    loader = trainer.train_dataloader
    if not isinstance(loader, InterleavedLoader):
        return []
    return of_ranks(trainer, loader.state_dict())


def restore_loader(trainer: Any, states: Sequence[Mapping[str, Any]]) -> None:
    """Restore the position of a loader: Lightning does so itself, but not from a checkpoint at the end of an epoch."""
    loader = trainer.train_dataloader
    if not (isinstance(loader, InterleavedLoader) and states):
        return
    if trainer.num_training_batches == float("inf"):
        raise ValueError(
            "a train loader without a length cannot be resumed, since Lightning reads it one batch ahead: "
            "give it a length"
        )
    loader.load_state_dict(states[trainer.global_rank % len(states)])  # the number of ranks may be another one


def moved(trainer: Trainer, batch: Any) -> Any:
    """A batch in the precision and on the device of training."""
    return trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))


@contextmanager
def on_training_device(trainer: Trainer, module: lightning.LightningModule) -> Iterator[None]:
    """Run a module as in training, after the end of ``fit``, when the strategy has moved it to the CPU."""
    device = module.device
    module.to(trainer.strategy.root_device)
    with trainer.precision_plugin.forward_context():
        yield
    module.to(device)


def of_ranks(trainer: Any, state: Any) -> list[Any]:
    """What each rank has."""
    if trainer.world_size == 1:
        return [state]
    states: list[Any] = [None] * trainer.world_size
    dist.all_gather_object(states, state)
    return states
