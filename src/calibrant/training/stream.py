"""An endless stream of held-out batches whose position is given by two integers."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from calibrant.training.interleave import after, is_large_enough, set_epoch
from calibrant.training.randomness import kept_random_state, random_state, seed_all, set_random_state


class Stream:
    """An endless stream of held-out batches of at least ``minimum`` samples.

    Every pass has its own random state, seeded by its number, and does not affect that of training. Two integers give
    the position, up to which a pass can be repeated: the number of complete ``passes``, and the number of ``batches``
    drawn from the next one.
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

    @property
    def place(self) -> dict[str, int]:
        """Position of the stream, as arguments of a new one."""
        return {"passes": self.passes, "batches": self.batches}

    def next_batch(self) -> Any:
        """Return the next batch."""
        with self._own_random_numbers():
            for _ in range(2):  # what is left of this pass, then all of the next
                if self._rest is None:
                    self._rest = self._begin()
                for batch in self._rest:
                    self.batches += 1
                    if is_large_enough(batch, self._minimum):
                        return batch
                self.passes, self.batches, self._rest = self.passes + 1, 0, None
        raise ValueError(
            f"the calibration set gave no batch of at least {self._minimum} samples, which the objective needs: "
            "hold out more data, or set dataloader_drop_last=False"
        )

    def whole_pass(self) -> Iterator[Any]:
        """Give every batch once, without moving the stream."""
        with self._own_random_numbers():
            loader = self._opened()
            seed_all(self._seed)
            yield from loader

    def _begin(self) -> Iterator[Any]:
        loader = self._opened()
        seed_all(self._seed + self.passes)
        set_epoch(loader, self.passes)
        return after(iter(loader), self.batches)

    def _opened(self) -> Iterable[Any]:
        if self._loader is None:
            seed_all(self._seed)  # accelerate's sampler keeps this seed and adds the number of the pass
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
