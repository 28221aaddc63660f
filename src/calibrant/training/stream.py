"""Held-out batches without end, whose place two integers tell."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from calibrant.training.interleave import is_large_enough, set_epoch
from calibrant.training.randomness import kept_random_state, random_state, seed_all, set_random_state


class Stream:
    """Held-out batches without end.

    Every pass draws from random numbers of its own, seeded by its number, and leaves those of the training alone. So
    two integers tell where the stream is, and a pass can be drawn again up to there.

    Args:
        make_loader: Makes the loader, once.
        seed: Seed of the first pass; later ones add their number to it.
        minimum: Leave out batches with fewer samples.
        passes: Passes that are complete.
        batches: Batches of the next pass that were drawn.
    """

    def __init__(
        self, make_loader: Callable[[], Iterable[Any]], seed: int, minimum: int, passes: int = 0, batches: int = 0
    ) -> None:
        self.passes = passes
        self.batches = batches
        self._make_loader = make_loader
        self._loader: Iterable[Any] | None = None
        self._seed = seed
        self._minimum = minimum
        self._rest: Iterator[Any] | None = None
        self._random = random_state()

    def next_batch(self) -> Any:
        """Return the next batch."""
        with self._own_random_numbers():
            for _ in range(2):  # what is left of this pass, then all of the next
                for batch in self._this_pass():
                    self.batches += 1
                    if is_large_enough(batch, self._minimum):
                        return batch
                self.passes, self.batches, self._rest = self.passes + 1, 0, None
        raise ValueError(
            f"the calibration set gave no batch of at least {self._minimum} samples, which the objective needs: "
            "hold out more data, or set dataloader_drop_last=False"
        )

    def whole_pass(self) -> Iterator[Any]:
        """Give every batch once, beside the stream, which stays where it is."""
        with self._own_random_numbers():
            loader = self._opened()
            seed_all(self._seed)
            yield from loader

    def _this_pass(self) -> Iterator[Any]:
        if self._rest is None:
            self._rest = self._begin()
            for _ in islice(self._rest, self.batches):
                pass
        return self._rest

    def _begin(self) -> Iterator[Any]:
        loader = self._opened()
        seed_all(self._seed + self.passes)
        set_epoch(loader, self.passes)
        return iter(loader)

    def _opened(self) -> Iterable[Any]:
        if self._loader is None:
            seed_all(self._seed)  # which accelerate's sampler keeps, to add the number of the pass to it
            self._loader = self._make_loader()
        return self._loader

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        with kept_random_state():
            set_random_state(self._random)
            try:
                yield
            finally:
                self._random = random_state()
