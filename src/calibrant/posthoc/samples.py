"""Held-out samples as they are given, checked; and probabilities as logits."""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from calibrant import frames, inputs
from calibrant.frames import Array, IndexArray, is_tensor
from calibrant.posthoc.map import TINY, operations


class FitWarning(UserWarning):
    """A post-hoc fit that is doubtful: too few samples, a class without any, or worse than doing nothing."""


def counted(several: float, word: str) -> str:
    """A number and its noun.

    Example:
        >>> counted(1, "sample"), counted(2000, "sample")
        ('1 sample', '2,000 samples')
    """
    return f"{several:,} {word}{'s' if several != 1 else ''}"


class Samples(NamedTuple):
    """Checked held-out samples.

    Attributes:
        logits: ``(N, C)``, float32 or float64, finite.
        target: Class indices, ``(N,)``.
        weight: ``(N,)`` in float64, all positive; None if all are 1.
    """

    logits: Array
    target: IndexArray
    weight: Array | None

    @property
    def count(self) -> float:  # type: ignore[override]
        """Number of samples, of which each counts as often as its weight says."""
        return len(self.target) if self.weight is None else float(self.weight.sum())

    @property
    def share(self) -> Array:
        """Weights that sum to 1, ``(N,)``."""
        return np.full(len(self.target), 1 / len(self.target)) if self.weight is None else self.weight / self.count

    def take(self, rows: IndexArray | Array) -> "Samples":
        """Some of the samples, by index or mask."""
        return Samples(self.logits[rows], self.target[rows], None if self.weight is None else self.weight[rows])


def checked_samples(
    logits: Any, target: Any, sample_weight: Any, ignore_index: int | None, classes: Sequence[Any] | None
) -> tuple[Samples, list[Any] | None]:
    """Samples that count, and the labels of their classes if these have any."""
    values = inputs.numbers("logits", logits)
    count = 2 if values.ndim < 2 or values.shape[1] == 1 else values.shape[1]
    names: list[Any] | None = None
    if classes is not None:
        names = frames.as_array(classes).tolist()
    elif frames.has_names(target):
        names = _names_in(target, logits, count)
    if names is not None:
        if len(set(names)) != count:
            raise ValueError(f"classes must have {count} different labels, one per class of the logits, got {names}")
        target = frames.class_indices(target, names, ignore_index)
    rows, marks, weight, _ = inputs.rows_of("logits", values, target, sample_weight, None, ignore_index, False)
    if weight is not None:
        kept = weight > 0
        rows, marks, weight = rows[kept], marks[kept], weight[kept]
        weight = None if (weight == 1).all() else weight
    if len(rows) == 0:
        raise ValueError("a fit needs at least 1 sample, got none: pass held-out data")
    if not (np.isfinite(rows.min()) and np.isfinite(rows.max())):
        bad = int((~np.isfinite(rows.reshape(len(rows), -1)).all(1)).sum())
        raise ValueError(
            f"logits must be finite, got NaN or infinity in {bad} of {counted(len(rows), 'sample')}: leave those "
            "samples out, or fix the model"
        )
    if rows.ndim == 1:
        rows = np.stack((np.zeros_like(rows), rows), axis=1)
    return Samples(rows, marks, weight), names


def _names_in(target: Any, logits: Any, count: int) -> list[Any]:
    """Labels of the columns: the names of a data frame's columns if the targets are among them, else sorted targets.

    A single column is that of the second of two classes, and if it has the name of a target, that is the second.
    """
    values = set(frames.as_array(target).ravel().tolist())
    columns = frames.columns(logits)
    if columns and values <= set(columns) and len(columns) == count:
        return columns
    if len(columns) == 1 and len(values) == 2 and columns[0] in values:
        return [*(values - set(columns)), *columns]
    if len(values) != count:
        raise ValueError(
            f"target holds {counted(len(values), 'different label')}, but the logits have {count} classes: "
            "pass classes= with the label of every column of the logits, in their order"
        )
    try:
        return sorted(values)
    except TypeError:
        raise ValueError(
            "target holds labels of different types, such as a name and None: leave samples without a label out, or "
            "pass classes="
        ) from None


def logits_from_probabilities(probabilities: Any) -> Any:
    """Logits whose softmax gives the probabilities, for models that only return probabilities.

    Probabilities are floored at float32's smallest normal number, 1.2e-38, in every dtype: a 0, as forests return,
    becomes a finite logit of -87, which does not dominate a fit.

    Args:
        probabilities: ``(N, C)`` with rows that sum to one; or ``(N,)`` or ``(N, 1)``, the probability of class 1.
            Torch, NumPy or a data frame; what comes out is what went in.

    Returns:
        ``(N, C)`` log-probabilities, or the ``(N,)`` or ``(N, 1)`` logit of class 1; at least float32.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import logits_from_probabilities
        >>> np.exp(logits_from_probabilities(np.array([[0.2, 0.8], [0.5, 0.5]])))
        array([[0.2, 0.8],
               [0.5, 0.5]])
        >>> logits_from_probabilities(np.array([0.5, 1.0])).round(1)
        array([ 0. , 87.3])
    """
    checked = inputs.in_unit_interval("probabilities", inputs.numbers("probabilities", probabilities))
    if checked.ndim not in (1, 2):
        raise ValueError(f"probabilities must have shape (N, C), or (N,) or (N, 1) if binary, got {checked.shape}")
    binary = checked.ndim == 1 or checked.shape[1] == 1
    if binary:
        inputs.warn_if_mistaken("probabilities", checked.ravel())
    elif len(checked):
        inputs.distributions(checked)
    values: Any = checked
    if is_tensor(probabilities) and (probabilities.requires_grad or probabilities.device.type != "cpu"):
        from calibrant.numerics import at_least_float32

        values = at_least_float32(probabilities)
    xp = operations(values)
    found = xp.log(xp.maximum(values, TINY))
    if binary:
        found = found - xp.log(xp.maximum(1 - values, TINY))
    if is_tensor(probabilities):
        return found if is_tensor(found) else sys.modules["torch"].from_numpy(found)
    return frames.like(probabilities, found, frames.columns(probabilities) or None)
