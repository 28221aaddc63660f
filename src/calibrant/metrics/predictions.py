"""Predictions (pairs, probabilities or logits; NumPy or torch; any device) as checked NumPy arrays, sorted once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from calibrant import hints, inputs
from calibrant.arrays import Array, IndexArray, Marks
from calibrant.metrics.sorting import Block, Keys, TieGroups, blocks_of, key_blocks, pack, weighted_tie_groups
from calibrant.numerics import at_least_float32

Values = Tensor | np.ndarray[Any, Any] | Sequence[Any]
# Rows of logits converted to probabilities at a time: float64 of a thousand classes then has the size of a cache.
ROWS = 4096


# Largest distance of a sum of probabilities from 1: more than rounding to three digits, less than a defect.
TOLERANCE = 0.005


class Given(TypedDict, total=False):
    """Alternatives to ``(confidence, correct)``: one of the first two, and the target; weights, class names."""

    logits: Values
    probabilities: Values
    target: Values
    sample_weight: Values
    classes: Sequence[Any]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Checked predictions of one model on N samples: views of the given arrays, which must not change.

    Attributes:
        confidence: Confidence in the predicted class, ``(N,)``, float32 or float64 as given.
        correct: Whether the predicted class is right, ``(N,)``, boolean.
        probabilities: ``(N, C)``, if probabilities or logits were given.
        logits: ``(N, C)``, if logits were given.
        target: ``(N,)``, if given.
        weight: Weight of each sample, ``(N,)`` in float64, if given; a sample of weight 2 counts as two.
        names: Names of the classes, if given.
    """

    confidence: Array
    correct: Marks
    probabilities: Array | None = None
    logits: Array | None = None
    target: IndexArray | None = None
    weight: Array | None = None
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.confidence)

    @property
    def classes(self) -> int | None:
        """Number of classes, if known."""
        return None if self.probabilities is None else self.probabilities.shape[1]

    @cached_property
    def keys(self) -> Keys:
        """Confidence and correctness packed and sorted: the one sort that all metrics share, without weights."""
        keys = pack(self.confidence, self.correct)
        keys.sort()
        return keys

    @cached_property
    def groups(self) -> TieGroups:
        """Samples of equal confidence, ascending, from which every metric of the pairs is computed."""
        if self.weight is None:
            return TieGroups(*(np.concatenate(field) for field in zip(*self.blocks(), strict=True)))
        return weighted_tie_groups(self.confidence, self.correct, self.weight)

    def blocks(self) -> Iterator[Block]:
        """The same in blocks that fit in a core's cache, without ever holding them all."""
        return key_blocks(self.keys) if self.weight is None else blocks_of(self.groups)

    @cached_property
    def total(self) -> float:
        """Sum of the weights; without weights, the number of samples."""
        return float(len(self)) if self.weight is None else float(self.weight.sum())

    @cached_property
    def parts(self) -> dict[Any, Any]:
        """What :func:`calibrant.metrics.passes.collect` has added up over the groups."""
        return {}

    def of_classes(self, metric: str) -> tuple[Array, IndexArray]:
        """Return probabilities and target, or raise an error that this metric needs them."""
        if self.probabilities is None or self.target is None:
            raise ValueError(f"{metric} needs every class: pass probabilities= or logits=, and target=")
        return self.probabilities, self.target


def predictions(
    confidence: "Values | Predictions | None" = None,
    correct: Values | None = None,
    *,
    minimum: int = 1,
    name: str = "this metric",
    logits: Values | None = None,
    probabilities: Values | None = None,
    target: Values | None = None,
    sample_weight: Values | None = None,
    classes: Sequence[Any] | None = None,
) -> Predictions:
    """Check the given predictions and convert them to one form.

    Args:
        confidence: Confidence in the prediction, in [0, 1], ``(N,)``; or checked predictions.
        correct: 1 or True where the prediction is right, ``(N,)``.
        minimum: Fewest samples that the metric needs.
        name: Name of the metric, for the error message if there are fewer.
        logits: ``(N, C)``, or the logit of class 1 as ``(N,)``, in place of the pairs.
        probabilities: ``(N, C)``, or the probability of class 1 as ``(N,)``, in place of the pairs.
        target: Class indices, ``(N,)``, with logits or probabilities.
        sample_weight: Weight of each sample, ``(N,)``: a sample of weight 2 counts as two.
        classes: Names of the classes, in the order of the columns.
    """
    if isinstance(confidence, Predictions):
        if any(value is not None for value in (correct, logits, probabilities, target, sample_weight, classes)):
            raise ValueError("pass checked predictions alone, without other arrays")
        made = confidence
    else:
        sources = {"confidence": confidence, "logits": logits, "probabilities": probabilities}
        named = [source for source, value in sources.items() if value is not None]
        if len(named) != 1:
            got = "none of them" if not named else " and ".join(named)
            raise ValueError(f"pass one of (confidence, correct), logits= or probabilities=; got {got}")
        partner, value = ("correct", correct) if confidence is not None else ("target", target)
        if value is None:
            raise ValueError(f"{named[0]} needs {partner}: pass {partner}= too")
        stray = target if confidence is not None else correct
        if stray is not None:
            raise ValueError(f"{named[0]} goes with {partner}: leave out the other of correct and target")
        if confidence is not None:
            made = _from_pairs(confidence, value)
        elif probabilities is not None:
            made = _from_probabilities(probabilities, value)
        else:
            assert logits is not None  # noqa: S101 (one of the three is given; mypy cannot see it)
            made = _from_logits(logits, value)
        made = replace(made, weight=_weight(sample_weight, made), names=_names(classes, made))
    if made.weight is None and len(made) < minimum:
        raise ValueError(f"{name} needs at least {minimum} sample{'s'[: minimum > 1]}, got {len(made)}")
    if made.weight is not None and made.total < minimum > 1:
        raise ValueError(
            f"{name} needs weights that sum to at least {minimum}, got {made.total:g}: sample_weight is the number of "
            "times that a sample counts, so scale the weights to a mean of 1"
        )
    return made


def as_tensor(name: str, value: Values) -> Tensor:
    """Convert any array to a CPU tensor, without a copy if possible."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: remove masked samples first")
    if name == "logits" and not hasattr(value, "__array__") and (hint := hints.of_logits(value)):
        raise TypeError(f"logits must be an array, got {type(value).__name__}: {hint}")
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold numbers, got an array of {array.dtype}")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind == "u" and native.dtype.itemsize > 1:
        native = native.astype(np.int64)
    if native.dtype == np.longdouble:
        native = native.astype(np.float64)
    native = np.ascontiguousarray(native)
    # torch warns about read-only arrays; we only read.
    return torch.from_numpy(native if native.flags.writeable else native.copy())


def _numbers(name: str, value: Values) -> Tensor:
    """The same in floating point; integers are converted."""
    tensor = as_tensor(name, value)
    if not isinstance(value, Tensor) and not tensor.is_floating_point():
        return tensor.double()
    return tensor


def _rounded_into_unit_interval(tensor: Tensor) -> Tensor:
    """Clip values that rounding has pushed past 0 or 1, as in a softmax or a sum of probabilities."""
    slack = 8 * torch.finfo(tensor.dtype).eps
    array = tensor.numpy()
    if len(array) and (array.max() > 1 or array.min() < 0) and array.min() >= -slack and array.max() <= 1 + slack:
        return tensor.clamp(0, 1)
    return tensor


def _from_pairs(confidence: Values, correct: Values) -> Predictions:
    z = _numbers("confidence", confidence)
    inputs.check_float("confidence", z)
    if z.dim() != 1:
        raise ValueError(f"confidence must have shape (N,), got {tuple(z.shape)}: pass probabilities= for (N, C)")
    z = _rounded_into_unit_interval(at_least_float32(z))
    pairs = inputs.pairs(z, as_tensor("correct", correct), None, name="this metric", minimum=0)
    return Predictions(pairs.confidence.numpy(), pairs.correct.bool().numpy())


def _from_probabilities(probabilities: Values, target: Values) -> Predictions:
    p = _numbers("probabilities", probabilities)
    y = _labels(target)
    inputs.check_float("probabilities", p)
    p = _rounded_into_unit_interval(at_least_float32(p))
    if p.dim() == 2 and p.shape[1] == 1:
        p = p.squeeze(1)
    if p.dim() == 1:
        inputs.check_unit_interval("probabilities", p)
        p = torch.stack((1 - p, p), 1)
    if p.dim() != 2:
        raise ValueError(f"probabilities must have shape (N, C) or (N,), got {tuple(p.shape)}")
    inputs.check_probabilities(p, None, TOLERANCE)
    _check_target(y, p.shape[:1], p.shape[1], "probabilities")
    confidence, predicted = p.numpy().max(1), p.numpy().argmax(1)
    return Predictions(confidence, predicted == y.numpy(), p.numpy(), None, y.numpy())


def _from_logits(logits: Values, target: Values) -> Predictions:
    raw, y = _numbers("logits", logits), _labels(target)
    if raw.dim() > 2:
        raise ValueError(f"logits must have shape (N, C) or (N,), got {tuple(raw.shape)}: flatten dense predictions")
    inputs.check_float("logits", raw)
    unusable = int((~raw.isfinite()).reshape(len(raw), raw[:1].numel() or 1).any(1).sum()) if raw.numel() else 0
    if unusable:
        raise ValueError(f"logits must be finite, got NaN or infinity in {unusable} of {len(raw)} samples: drop them")
    classes = raw.shape[1] if raw.dim() == 2 and raw.shape[1] > 1 else 2
    _check_target(y, raw.shape[:1], classes, "logits")
    data = inputs.classification(raw, y, ignore_index=None)
    rows = data.logits.numpy()
    probabilities = np.empty_like(rows)
    confidence = np.empty(len(rows), rows.dtype)
    for start in range(0, len(rows), ROWS):
        block = rows[start : start + ROWS]
        # In float64, rounded at the end: rows with the same logits in another order must stay tied.
        with np.errstate(over="ignore", under="ignore"):  # the exponential of a large negative logit is 0
            powers = np.exp(block.astype(np.float64) - block.max(1, keepdims=True))
        terms = np.sort(powers, 1) if rows.dtype == np.float64 else powers
        totals = terms.sum(1, keepdims=True)
        confidence[start : start + ROWS] = 1 / totals[:, 0]
        with np.errstate(under="ignore"):
            probabilities[start : start + ROWS] = powers / totals
    predicted, labels = rows.argmax(1), data.target.numpy()
    return Predictions(confidence, predicted == labels, probabilities, rows, labels)


def checked_target(target: Values, samples: int, classes: int, like: str) -> IndexArray:
    """Return class indices as an array, or raise an error if they do not match ``like``."""
    labels = _labels(target)
    _check_target(labels, torch.Size([samples]), classes, like)
    return labels.numpy()


def _weight(sample_weight: Values | None, made: Predictions) -> Array | None:
    if sample_weight is None:
        return None
    weight = as_tensor("sample_weight", sample_weight).double()
    inputs.check_shape("sample_weight", weight, torch.Size([len(made)]), "the samples")
    if not bool((weight.isfinite() & (weight >= 0)).all()) or not bool((weight > 0).any()):
        raise ValueError("sample_weight must be finite and at least 0, and above 0 somewhere: check the weights")
    return weight.numpy()


def _names(classes: Sequence[Any] | None, made: Predictions) -> tuple[str, ...] | None:
    if classes is None:
        return None
    if made.classes != len(classes):
        raise ValueError(f"classes must have a name for each of the {made.classes} classes, got {len(classes)}")
    return tuple(str(name) for name in classes)


def _labels(target: Values) -> Tensor:
    labels = as_tensor("target", target)
    if labels.dim() == 2 and labels.shape[1] == 1:
        labels = labels.squeeze(1)
    if labels.dim() == 2:
        raise ValueError(
            f"target must have shape (N,), got {tuple(labels.shape)}: call target.argmax(1) if it is one-hot"
        )
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        kind = "NaN" if bool(labels.isnan().any()) else "fractions"
        raise TypeError(f"target must hold whole class indices, got {kind}")
    return labels.long()


def _check_target(target: Tensor, expected: torch.Size, classes: int, like: str) -> None:
    inputs.check_shape("target", target, expected, like)
    inputs.require_between(
        target, 0, classes - 1,
        lambda found: f"target must lie in 0..{classes - 1} for {classes} classes, got labels{found}",
    )  # fmt: skip
