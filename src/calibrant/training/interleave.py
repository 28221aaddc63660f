"""Training batches and calibration batches, side by side."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import length_hint
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import IterableDataset

from calibrant.distributed import is_distributed
from calibrant.losses import checks
from calibrant.training.ignored import ENOUGH, minimum_samples
from calibrant.training.randomness import RandomState, kept_random_state, random_state, set_random_state
from calibrant.training.warning import warn_of_loaders

SAME = "the {} loader would give every process the same samples: give it a torch.utils.data.DistributedSampler"


class InterleavedBatch(NamedTuple):
    """One step: a batch for the NLL, and one for the objective or None where ``calibration_every`` skips it."""

    train: Any
    calibration: Any


def interleave(
    train_loader: Iterable[Any], calibration_loader: Iterable[Any] | None, *, calibration_every: int = 1,
    minimum_samples: int | None = None, same_samples_on_every_rank: bool = False,
) -> "InterleavedLoader":  # fmt: skip
    """Pair every training batch with a calibration batch.

    One pass over the result is one pass over ``train_loader`` and has its length. The calibration loader is cycled:
    when it ends it is started again, and reshuffles if it shuffles. It continues from one pass to the next. Its workers
    may be persistent.

    Args:
        train_loader: Batches for the NLL: a ``DataLoader`` or any other object that can be iterated more than once.
        calibration_loader: Batches for the calibration objective, of any size; None gives a plain loader that can be
            resumed.
        calibration_every: Give a calibration batch every k-th step only, and None at the others.
        minimum_samples: Skip calibration batches with fewer samples, such as the last of a pass. By default
            :class:`CalibratedClassifier` asks its objective; elsewhere 3, which is enough for every objective.
        same_samples_on_every_rank: With several processes, a ``DataLoader`` without a distributed sampler, or with one
            for another rank or number of ranks, gives several processes the same samples, which raises an error. Set
            it to True to allow that, for example for model parallelism. Other loaders, and those of an
            ``IterableDataset``, are not checked.

    Returns:
        A loader of :class:`InterleavedBatch`. Its ``state_dict()`` holds its position and the random state; after
        ``load_state_dict()`` the next pass continues from there.

    Example:
        >>> train, calibration = [1, 2, 3], ["a", "b"]
        >>> [tuple(batch) for batch in interleave(train, calibration)]
        [(1, 'a'), (2, 'b'), (3, 'a')]
        >>> [tuple(batch) for batch in interleave(train, calibration, calibration_every=2)]
        [(1, 'a'), (2, None), (3, 'b')]
    """
    loader = InterleavedLoader(
        train_loader, calibration_loader, calibration_every, minimum_samples, same_samples_on_every_rank
    )
    if is_distributed():
        require_parts_for_ranks(loader)
    return loader


class InterleavedLoader:
    """Loader that :func:`interleave` returns.

    A pass is resumed by repeating it from the random state it started with, and skipping the batches that were already
    seen. That is exact for every loader that takes its order from torch's global generator, from a generator
    given to it or its sampler, or from a sampler with ``set_epoch``, which is called here. Random transforms in
    persistent workers are the exception: those workers' generators outlive a pass and cannot be restored.
    """

    def __init__(
        self, train_loader: Iterable[Any], calibration_loader: Iterable[Any] | None, calibration_every: int,
        minimum_samples: int | None = None, same_samples_on_every_rank: bool = False,
    ) -> None:  # fmt: skip
        checks.check_count("calibration_every", calibration_every)
        for name, loader in (("train", train_loader), ("calibration", calibration_loader)):
            if loader is None and name == "calibration":
                continue
            if isinstance(loader, Iterator) or not isinstance(loader, Iterable):
                raise TypeError(f"the {name} loader must be iterable more than once, got {type(loader).__name__}")
            if length_hint(loader, -1) == 0:
                raise ValueError(f"the {name} loader has no batches: give it more data or set drop_last=False")
        warn_of_loaders(calibration_loader, train_loader)
        self.train_loader = train_loader
        self.calibration_loader = calibration_loader
        self.calibration_every = calibration_every
        self.minimum_samples = minimum_samples
        self._fewest = ENOUGH if minimum_samples is None else minimum_samples
        self.same_samples_on_every_rank = same_samples_on_every_rank
        self._train = _Place(train_loader)
        self._calibration = _Place(() if calibration_loader is None else calibration_loader)
        self._steps = 0
        self._calibration_batches: Iterator[Any] | None = None
        self._resumes_from: RandomState | None = None

    def ask(self, objective: object, processes: int = 1) -> None:
        """Skip batches that are too small for an objective of all processes, unless ``minimum_samples`` was given."""
        if self.minimum_samples is None:
            self._fewest = math.ceil(minimum_samples(objective) / processes)

    def __len__(self) -> int:
        """Number of steps in a pass, that of the train loader."""
        return len(self.train_loader)  # type: ignore[arg-type]  # its own error says that it has no length

    def __iter__(self) -> Iterator[InterleavedBatch]:
        """Go through the train loader once, or through what is left of it after ``load_state_dict``."""
        for train_batch in self._begin():
            due = self.calibration_loader is not None and self._steps % self.calibration_every == 0
            calibration_batch = self._next_calibration_batch() if due else None
            self._train.batches += 1
            self._steps += 1
            yield InterleavedBatch(train_batch, calibration_batch)
        self._train.ended = True

    def _begin(self) -> Iterator[Any]:
        if self._resumes_from is None:
            return self._train.begin()
        if self._calibration.is_inside:
            self._calibration_batches = self._calibration.resume()
        rest = self._train.resume() if self._train.is_inside else None
        self._train.put_generators_back()
        self._calibration.put_generators_back()
        set_random_state(self._resumes_from)
        self._resumes_from = None
        return self._train.begin() if rest is None else rest

    def _next_calibration_batch(self) -> Any:
        for batches in (self._calibration_batches, None):  # what is left of this pass, then a new one
            if batches is None:
                batches = self._calibration_batches = self._calibration.begin()
            for batch in batches:
                self._calibration.batches += 1
                if is_large_enough(batch, self._fewest):
                    return batch
        raise ValueError(
            f"the calibration loader gave no batch of at least {self._fewest} samples, which the objective "
            "needs: raise its batch size or hold out more data"
        )

    def state_dict(self) -> dict[str, Any]:
        """Position of this loader and current random state, in values that load with weights_only."""
        return {
            "train": self._train.state_dict(),
            "calibration": self._calibration.state_dict(),
            "steps": self._steps,
            "random": self._resumes_from or random_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue from a state; the random state is restored when it begins."""
        self._train.load_state_dict(state["train"])
        self._calibration.load_state_dict(state["calibration"])
        self._steps = state["steps"]
        self._calibration_batches = None
        self._resumes_from = state["random"]


class _Place:
    """Position in one loader, and the random state that its pass started from."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.passes = 0
        self.batches = 0
        self.ended = True
        self.begun_from: RandomState | None = None
        self.begun_generators: list[Tensor] = []
        self.generators_now: list[Tensor] | None = None  # to be restored after load_state_dict
        self.was_opened = False

    @property
    def is_inside(self) -> bool:
        """Whether a pass has started and has batches left, as far as known."""
        return not self.ended and self.batches != length_hint(self.loader, -1)

    def begin(self) -> Iterator[Any]:
        self.begun_from = random_state()
        self.begun_generators = [generator.get_state() for generator in self.generators()]
        self.passes += 1
        self.batches = 0
        self.ended = False
        return self._iterate()

    def resume(self) -> Iterator[Any]:
        assert self.begun_from is not None  # noqa: S101 (a place inside a pass was begun)
        set_random_state(self.begun_from)
        for generator, state in zip(self.generators(), self.begun_generators, strict=True):
            generator.set_state(state.cpu())
        return after(self._iterate(), self.batches)

    def _iterate(self) -> Iterator[Any]:
        if self.passes > 1 and not self.was_opened and getattr(self.loader, "persistent_workers", False):
            # The first pass starts the workers and draws their seed; later passes, such as this one, do not.
            with kept_random_state():
                iter(self.loader)
        self.was_opened = True
        set_epoch(self.loader, self.passes - 1)
        return iter(self.loader)

    def generators(self) -> list[torch.Generator]:
        """Generators of the loader and its samplers, each once."""
        found = [getattr(owner, "generator", None) for owner in (self.loader, *_samplers(self.loader))]
        return list(dict.fromkeys(generator for generator in found if isinstance(generator, torch.Generator)))

    def put_generators_back(self) -> None:
        """Restore the generators to the saved state."""
        for generator, state in zip(self.generators(), self.generators_now or [], strict=False):
            generator.set_state(state.cpu())
        self.generators_now = None

    def state_dict(self) -> dict[str, Any]:
        now = [generator.get_state() for generator in self.generators()]
        return {
            "passes": self.passes, "batches": self.batches, "ended": self.ended, "begun_from": self.begun_from,
            "begun_generators": self.begun_generators,
            "generators_now": now if self.generators_now is None else self.generators_now,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.passes, self.batches = state["passes"], state["batches"]
        self.ended, self.begun_from = state["ended"], state["begun_from"]
        self.begun_generators, self.generators_now = state["begun_generators"], state["generators_now"]


def require_parts_for_ranks(loader: InterleavedLoader) -> None:
    """Raise if a part of the loader would give several processes the same samples, unless that is allowed."""
    if loader.same_samples_on_every_rank:
        return
    other = ", use InterleavedDataModule, or set same_samples_on_every_rank=True"
    for name, part in (("train", loader.train_loader), ("calibration", loader.calibration_loader)):
        if gives_ranks_the_same(part):
            raise ValueError(SAME.format(name) + other)
        if is_distributed():
            _check_place(name, part)


def gives_ranks_the_same(loader: Any) -> bool:
    """Whether a loader would give every process the same samples, as far as can be seen."""
    samplers = _samplers(loader)
    if all(sampler is None for sampler in samplers) or isinstance(getattr(loader, "dataset", None), IterableDataset):
        return False
    # Samplers of torch have num_replicas, those of accelerate num_processes.
    return not any(hasattr(sampler, known) for sampler in samplers for known in ("num_replicas", "num_processes"))


def _check_place(name: str, loader: Any) -> None:
    """Raise if a sampler takes the samples of another rank, or of another number of ranks."""
    here = dist.get_rank(), dist.get_world_size()
    for sampler in _samplers(loader):
        place = getattr(sampler, "rank", None), getattr(sampler, "num_replicas", None)
        if None not in place and place != here:
            raise ValueError(
                f"the {name} loader's sampler is for rank {place[0]} of {place[1]}, and this is rank {here[0]} of "
                f"{here[1]}: leave out rank and num_replicas, which a DistributedSampler finds itself, or set "
                "same_samples_on_every_rank=True for model parallelism"
            )


def _samplers(loader: Any) -> tuple[Any, Any, Any]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    return batch_sampler, getattr(batch_sampler, "sampler", None), getattr(loader, "sampler", None)


def after(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Skip batches that were already seen, and return the rest."""
    deque(islice(batches, count), maxlen=0)
    return batches


def set_epoch(loader: Iterable[Any], epoch: int) -> None:
    """Set the epoch of samplers such as DistributedSampler, which do not reshuffle by themselves."""
    for part in (loader, *_samplers(loader)):
        if callable(setter := getattr(part, "set_epoch", None)):
            setter(epoch)


def is_large_enough(batch: Any, minimum: int) -> bool:
    """Whether a batch of any structure has at least ``minimum`` samples, as far as can be seen."""
    # The last part is the target, with one entry per sample; the first may be a list of images.
    return next(_lengths(batch), minimum) >= minimum


def _lengths(batch: Any) -> Iterator[int]:
    """Lengths of the tensors in a batch of any structure, the last one first."""
    if isinstance(batch, Tensor):
        yield from batch.shape[:1]
    elif isinstance(batch, Mapping):
        yield from _lengths(tuple(batch.values()))
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        for part in reversed(batch):
            yield from _lengths(part)
