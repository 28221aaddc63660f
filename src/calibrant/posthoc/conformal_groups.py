"""Labels of groups, in any container, as positions in the list of known groups."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import frames
from calibrant.posthoc.containers import Array
from calibrant.posthoc.notices import counted

# A number, a string, or a tuple of them: what JSON can hold, so that groups travel with the state.
Group = str | int | float | tuple[Any, ...]
Groups = Tensor | Array | Iterable[Any]


def group_labels(groups: Groups, samples: int) -> list[Group]:
    """Check the labels and convert them to Python's own types."""
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise TypeError(f"groups must be a list or an array of labels, got {type(groups).__name__}")
    if frames.opened(groups) is not None:
        groups = frames.as_array(groups)
    shape = tuple(groups.shape) if isinstance(groups, Tensor | np.ndarray) else (samples,)
    if len(shape) != 1:
        raise ValueError(f"groups must have shape (N,), got {shape}: pass one label for each sample")
    values = groups.tolist() if isinstance(groups, Tensor | np.ndarray) else list(groups)
    if len(values) != samples:
        raise ValueError(f"groups must have {counted(samples, 'label')}, one for each sample, got {len(values)}")
    return [plain_label(value) for value in values]


def plain_label(value: Any) -> Group:
    """Check one label and convert it to Python's own types, lists to tuples."""
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, Tensor) and value.dim() == 0:
        value = value.tolist()
    if isinstance(value, tuple | list):
        return tuple(plain_label(part) for part in value)
    if not isinstance(value, str | int | float) or value != value:
        raise TypeError(
            f"a group must be a string, a number or a tuple of them, got {value!r}: give samples without a group a "
            "label of their own"
        )
    return value


def known_groups(labels: Iterable[Group]) -> tuple[Group, ...]:
    """The different groups, in an order that does not depend on the samples' order."""
    different = set(labels)
    try:
        return tuple(sorted(different))
    except TypeError:  # strings and numbers
        return tuple(sorted(different, key=lambda label: (type(label).__name__, repr(label))))


def positions(labels: list[Group], known: Iterable[Group]) -> Tensor:
    """Position of each label among the known ones, ``(N,)``; -1 for an unknown one."""
    places: Mapping[Group, int] = {label: place for place, label in enumerate(known)}
    return torch.tensor([places.get(label, -1) for label in labels], dtype=torch.long)
