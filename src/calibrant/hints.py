"""Hints about common mistakes, recognised by the input: parts of error messages, and warnings."""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.floating[Any]]]


class InputWarning(UserWarning):
    """Input that is probably not what it was passed as, such as probabilities passed as logits."""


def warn(text: str, category: type[Warning] = InputWarning) -> None:
    """Issue a warning at the first line outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("calibrant."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def of_logits(logits: object) -> str:
    """How to get the logits of a model's output, such as the ``ModelOutput`` of transformers."""
    if hasattr(logits, "logits"):
        return "pass outputs.logits"
    return 'pass outputs.logits, or outputs["logits"] of a dict' if isinstance(logits, Mapping) else ""


def of_range(values: Array) -> str:
    """What values outside [0, 1] probably are, and what to do."""
    if (values >= 0).all():
        if values.ndim > 1 and (np.abs(values.sum(-1) - 100) < 0.5).all():
            return "these look like percentages: divide them by 100"
        if values.ndim == 1 and (values <= 100).all():
            return "divide by 100 if they are percentages, or pass logits= if they are logits"
    return "these look like logits: pass logits="


def warn_of_given(name: str, values: Array, independent: bool) -> None:
    """Warn about logits that look like probabilities, and a column of ones.

    Args:
        name: ``"logits"`` or ``"probabilities"``.
        values: ``(N, C)``, or ``(N,)`` of class 1 of two.
        independent: Whether each column is a label of its own.
    """
    if name == "probabilities":
        if values.ndim == 1 and len(values) > 2 and (values == 1).all():
            warn(
                "every probability of class 1 is 1, probably by a softmax over one class: pass the sigmoid of the "
                "logit, or logits="
            )
        return
    some = values[:: max(1, len(values) // 1000)]
    if len(values) < 8 or some.min() < 0 or some.max() > 1 or not some.any():
        return
    if some.ndim == 1 or independent:
        warn("these logits all lie in [0, 1], as probabilities do: pass probabilities= if they are")
    elif is_distribution(some):
        warn("these logits look like probabilities (rows sum to 1): pass probabilities=")


def like_probabilities(rows: Array) -> bool:
    """Whether rows of logits look like probabilities: they sum to 1, or are a 0 and a number up to 1."""
    if len(rows) < 8 or not rows[:, 1:].any():
        return False
    binary = rows.shape[1] == 2 and not rows[:, 0].any()
    return bool(rows.min() >= 0 and rows.max() <= 1) if binary else is_distribution(rows)


def is_distribution(rows: Array) -> bool:
    """Whether every row holds probabilities that sum to 1."""
    inside = rows.max() <= 1 and rows.min() >= 0  # first, because the sum of large logits may overflow
    return bool(inside and (np.abs(rows.sum(-1) - 1) <= 1e-3).all())
