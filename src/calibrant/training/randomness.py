"""Random state as plain values that a checkpoint can hold."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

RandomState = dict[str, Any]


def random_state() -> RandomState:
    """The state of torch's, Python's and NumPy's global generators, in tensors, tuples and numbers only.

    Such values load with ``torch.load(..., weights_only=True)``.
    """
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 (the state transforms draw from)
    state: RandomState = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
    }
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: RandomState) -> None:
    """Restore a state that :func:`random_state` returned."""
    torch.set_rng_state(state["torch"].cpu())
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))  # noqa: NPY002
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
