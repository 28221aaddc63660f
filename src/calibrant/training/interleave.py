"""Training batches and held-out batches, side by side, from a position that can be saved."""

import math
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from operator import length_hint
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from calibrant import inputs
from calibrant.distributed import is_distributed
from calibrant.training.forward import minimum_samples
from calibrant.training.held_out import ENOUGH, warn_of_loaders

RandomState = dict[str, Any]
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

    One pass over the result is one pass over ``train_loader`` and has its length. The calibration loader is cycled, and
    continues from one pass to the next. ``state_dict()`` and ``load_state_dict()`` let a resumed run continue.

    Args:
        train_loader: Batches for the NLL: a ``DataLoader`` or any other object that can be iterated more than once.
        calibration_loader: Batches for the calibration objective, of any size; None gives a plain loader.
        calibration_every: Give a calibration batch every k-th step only, and None at the others.
        minimum_samples: Skip smaller calibration batches; by default 3, unless :class:`InterleavedModule` knows better.
        same_samples_on_every_rank: Allow a ``DataLoader`` that gives several processes the same samples, for example
            for model parallelism. Otherwise it is an error, as far as its sampler shows.

    Example:
        >>> train, calibration = [1, 2, 3], ["a", "b"]
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

    Its state is exact at the end of a pass, except for random transforms in persistent workers. A state from within a
    pass continues with the next one.
    """

    def __init__(
        self, train_loader: Iterable[Any], calibration_loader: Iterable[Any] | None, calibration_every: int,
        minimum_samples: int | None = None, same_samples_on_every_rank: bool = False,
    ) -> None:  # fmt: skip
        inputs.check_count("calibration_every", calibration_every)
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
        self.same_samples_on_every_rank = same_samples_on_every_rank
        self._generators = _generators_of(train_loader, calibration_loader)
        self._train = Passes(train_loader)
        self._calibration = Passes(() if calibration_loader is None else calibration_loader, minimum_samples or ENOUGH)
        self._steps = 0
        self._resumes_from: RandomState | None = None

    def ask(self, objective: object, processes: int = 1) -> None:
        """Skip batches that are too small for an objective of all processes, unless ``minimum_samples`` was given."""
        if self.minimum_samples is None:
            self._calibration.minimum = math.ceil(minimum_samples(objective) / processes)

    def __len__(self) -> int:
        """Number of steps in a pass, that of the train loader."""
        return len(self.train_loader)  # type: ignore[arg-type]  # its own error says that it has no length

    def __iter__(self) -> Iterator[InterleavedBatch]:
        """Go through the train loader once."""
        if self._resumes_from is not None:
            self._calibration.resume()
            set_random_state(self._resumes_from, self._generators)
            self._resumes_from = None
        for train_batch in self._train.begin():
            due = self.calibration_loader is not None and self._steps % self.calibration_every == 0
            calibration_batch = self._calibration.next_batch() if due else None
            self._steps += 1
            yield InterleavedBatch(train_batch, calibration_batch)

    def state_dict(self) -> dict[str, Any]:
        """Position of this loader and current random state, in values that load with weights_only."""
        return {
            "train": self._train.state_dict(), "calibration": self._calibration.state_dict(), "steps": self._steps,
            "random": self._resumes_from or random_state(self._generators),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue from a state; the random state is restored when it begins."""
        self._train.load_state_dict(state["train"])
        self._calibration.load_state_dict(state["calibration"])
        self._steps, self._resumes_from = state["steps"], state["random"]


class Passes:
    """Passes over a loader without end, from a position that can be saved; samplers are told their number."""

    def __init__(self, loader: Iterable[Any], minimum: int = 1, seed: int | None = None) -> None:
        self.loader = loader
        self.minimum = minimum  # fewest samples of a batch that next_batch() returns
        self._seed = seed  # of random numbers of its own, which leave those of training alone; None for none
        self._random = random_state()  # of its own
        self._generators = _generators_of(loader)
        self._count = self._drawn = 0  # passes begun, and batches of the latest
        self._begun_from: RandomState | None = None  # what the latest began with
        self._rest: Iterator[Any] | None = None
        self._resumes = False
        self._was_opened = False

    def begin(self) -> Iterator[Any]:
        """Begin the next pass."""
        if self._seed is not None:
            seed_all(self._seed + self._count)
        self._count, self._drawn = self._count + 1, 0
        self._begun_from = random_state(self._generators)
        self._rest = self._opened()
        return self._rest

    def next_batch(self) -> Any:
        """Return the next batch, of this pass or the next."""
        with self._random_numbers():
            if self._resumes:
                self.resume()
            for batches in (self._rest, None):
                for batch in self.begin() if batches is None else batches:
                    self._drawn += 1
                    # The last part is the target, with one entry per sample; the first may be a list of images.
                    if next(_lengths(batch), self.minimum) >= self.minimum:
                        return batch
        raise ValueError(
            f"the calibration loader gave no batch of at least {self.minimum} samples, which the objective needs: "
            "raise its batch size, hold out more data, or set drop_last=False"
        )

    def whole_pass(self) -> Iterator[Any]:
        """Give every batch once, in the order of the first pass, without a change of position."""
        with self._random_numbers():
            seed_all(self._seed or 0)
            yield from self.loader

    def resume(self) -> None:
        """Draw again what the pass of a state had drawn."""
        self._resumes = False
        if self._begun_from is not None:
            set_random_state(self._begun_from, self._generators)
            self._rest = self._opened()
            deque(islice(self._rest, self._drawn), maxlen=0)

    def state_dict(self) -> dict[str, Any]:
        """The position, in values that load with weights_only."""
        return {"count": self._count, "drawn": self._drawn, "begun_from": self._begun_from}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a position, when the next batch is asked for."""
        self._count, self._drawn, self._begun_from = state["count"], state["drawn"], state["begun_from"]
        self._rest, self._resumes = None, True

    def _opened(self) -> Iterator[Any]:
        if self._count > 1 and not self._was_opened and getattr(self.loader, "persistent_workers", False):
            # The first pass starts the workers and draws their seed; later passes, such as this one, do not.
            with kept_random_state():
                iter(self.loader)
        self._was_opened = True
        for part in (self.loader, *_samplers(self.loader)):
            if callable(set_epoch := getattr(part, "set_epoch", None)):  # as of samplers that do not reshuffle alone
                set_epoch(self._count - 1)
        return iter(self.loader)

    @contextmanager
    def _random_numbers(self) -> Iterator[None]:
        if self._seed is None:
            yield
            return
        with kept_random_state():
            set_random_state(self._random)
            try:
                yield
            finally:
                self._random = random_state()


def require_parts_for_ranks(loader: InterleavedLoader) -> None:
    """Raise if a part of the loader would give several processes the same samples, unless that is allowed."""
    if loader.same_samples_on_every_rank:
        return
    other = ", use InterleavedDataModule, or set same_samples_on_every_rank=True"
    for name, part in (("train", loader.train_loader), ("calibration", loader.calibration_loader)):
        if gives_ranks_the_same(part):
            raise ValueError(SAME.format(name) + other)


def gives_ranks_the_same(loader: Any) -> bool:
    """Whether a loader would give every process the same samples, as far as can be seen."""
    samplers = _samplers(loader)
    if all(sampler is None for sampler in samplers) or isinstance(getattr(loader, "dataset", None), IterableDataset):
        return False
    # Samplers of torch have num_replicas, those of accelerate num_processes.
    return not any(hasattr(sampler, known) for sampler in samplers for known in ("num_replicas", "num_processes"))


def _samplers(loader: Any) -> tuple[Any, Any, Any]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    return batch_sampler, getattr(batch_sampler, "sampler", None), getattr(loader, "sampler", None)


def _generators_of(*loaders: Any) -> list[torch.Generator]:
    """Generators of loaders and their samplers, each once."""
    owners = [owner for loader in loaders for owner in (loader, *_samplers(loader))]
    found = [getattr(owner, "generator", None) for owner in owners]
    return list(dict.fromkeys(generator for generator in found if isinstance(generator, torch.Generator)))


def _lengths(batch: Any) -> Iterator[int]:
    """Lengths of the tensors in a batch of any structure, the last one first."""
    if isinstance(batch, Tensor):
        yield from batch.shape[:1]
    elif isinstance(batch, Mapping):
        yield from _lengths(tuple(batch.values()))
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        for part in reversed(batch):
            yield from _lengths(part)


def random_state(generators: Iterable[torch.Generator] = ()) -> RandomState:
    """The state of all global generators and of others, in values that load with weights_only."""
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 (the state transforms draw from)
    state: RandomState = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "others": [generator.get_state() for generator in generators],
    }
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: RandomState, generators: Iterable[torch.Generator] = ()) -> None:
    """Restore a state that :func:`random_state` returned."""
    torch.set_rng_state(state["torch"].cpu())
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))  # noqa: NPY002
    for generator, of_generator in zip(generators, state["others"], strict=False):
        generator.set_state(of_generator.cpu())
    if "cuda" in state:
        torch.cuda.set_rng_state_all([generator.cpu() for generator in state["cuda"]])


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore the current state of the generators on exit."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


def seed_all(seed: int) -> None:
    """Seed the global generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (the global generator is what transforms draw from)
    torch.manual_seed(seed)
