"""Predictions (pairs, probabilities or logits in any container) as checked NumPy arrays, sorted once; views of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypedDict, TypeVar

import numpy as np

from calibrant import frames
from calibrant.frames import Array, IndexArray, Marks
from calibrant.inputs import (
    IGNORED,
    Rows,
    Values,
    checked_weight,
    counted,
    distributions,
    finite_logits,
    in_unit_interval,
    numbers,
    rows_of,
    warn_if_mistaken,
    zero_one,
)
from calibrant.metrics.ties import BLOCK, Block, Keys, SortedRows, Ties, key_blocks, pack

Result = TypeVar("Result")
Task = Literal["confidence", "binary", "multi-class", "multi-label"]
# Rows of logits or probabilities converted to float64 at a time: of a thousand classes they have the size of a cache.
ROWS = 4096
# Most classes or labels that are tested one by one: the cost of a test grows with each.
MOST = 50


def row_blocks(rows: int) -> Iterator[slice]:
    """Slices of so many rows of logits or probabilities, in their order."""
    for start in range(0, rows, ROWS):
        yield slice(start, start + ROWS)


class Keywords(TypedDict, total=False):
    """Keywords of :func:`predictions` that every metric takes."""

    logits: Values
    probabilities: Values
    target: Values
    sample_weight: Values
    classes: Sequence[Any]
    ignore_index: int | None
    multi_label: bool


@dataclass(frozen=True, eq=False)
class Predictions:
    """Checked predictions of one model on N samples: views of the given arrays, which must not change.

    With several labels per sample the pairs are those of all labels: the probability of a label and whether it applies.
    ``len()`` is the number of pairs, ``predictions[rows]`` takes some samples (a slice, indices or a mask).

    Attributes:
        confidence: Confidence in the predicted class, ``(N,)``, float32 or float64 as given. With several labels the
            probability of each label of each sample, ``(N L,)`` without those ignored.
        correct: Whether the predicted class is right, or the label applies: the same shape, boolean.
        probabilities: ``(N, C)``, if probabilities or logits were given.
        logits: ``(N, C)``, if logits were given.
        target: Class indices, ``(N,)``, if given; with several labels 0 and 1, ``(N, L)``, and -1 where ignored.
        weight: Weight of each pair, the shape of ``confidence`` in float64, if given: 2 is the pair twice.
        names: Names of the classes or labels, if given.

    Example:
        >>> from calibrant import metrics
        >>> data = metrics.predictions(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], target=[0, 1, 1])
        >>> data, len(data[1:])
        (<Predictions: binary, 3 samples>, 2)
        >>> {name: metrics.accuracy(part) for name, part in data.group_by(["a", "a", "b"]).items()}
        {'a': 1.0, 'b': 0.0}
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

    def __repr__(self) -> str:
        return f"<Predictions: {self.task}, {counted(self.samples, 'sample')}>"

    @property
    def classes(self) -> int | None:
        """Number of classes or labels, if known."""
        return None if self.probabilities is None else self.probabilities.shape[1]

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.confidence) if self.probabilities is None else len(self.probabilities)

    @property
    def task(self) -> Task:
        """What is predicted: pairs of confidences only, two classes, several, or several labels per sample."""
        if self.probabilities is None or self.target is None:
            return "confidence"
        if self.target.ndim == 2:
            return "multi-label"
        return "binary" if self.probabilities.shape[1] == 2 else "multi-class"

    def __getitem__(self, rows: Any) -> "Predictions":
        if not isinstance(rows, slice):
            rows = frames.as_array(rows)
            if rows.ndim != 1 or rows.dtype.kind not in "biu":
                raise TypeError("take samples with a slice, a list of indices, or a boolean mask")
            if rows.dtype == bool and len(rows) != self.samples:
                raise IndexError(f"a mask must have one entry for each of the {self.samples} samples, got {len(rows)}")

        def some(field: Any) -> Any:
            return None if field is None else field[rows]

        probabilities, logits, target = some(self.probabilities), some(self.logits), some(self.target)
        weight = some(self.sample_weight)
        if self.task == "multi-label":
            return _of_labels(probabilities, target, logits, weight, self.names)
        confidence, correct = some(self.confidence), some(self.correct)
        return Predictions(confidence, correct, probabilities, logits, target, weight, self.names)

    def group_by(self, groups: Values) -> "dict[Any, Predictions]":
        """Split the samples by their group, ``(N,)`` strings or numbers in any container, in sorted order."""
        array = frames.as_array(groups)
        if array.shape != (self.samples,):
            raise ValueError(
                f"groups must have one entry for each of the {self.samples} samples, got shape {array.shape}: "
                "leave out ignored samples"
            )
        if any(name is None or name != name for name in array.tolist()):
            raise ValueError("groups must not be None or NaN: give samples without a group a name of their own")
        names, place = np.unique(array, return_inverse=True)
        return {name: self[place == k] for k, name in enumerate(names.tolist())}

    def of_class(self, k: int) -> "Predictions":
        """Return the probability of one class or label and whether it applies, as predictions of a single label."""
        probabilities, target = self.of_classes("a single class")
        name = None if self.names is None else (self.names[k],)
        if self.task != "multi-label":
            applies = (target == k).astype(np.intp)[:, np.newaxis]
            return _of_labels(probabilities[:, [k]], applies, None, self.weight, name)
        logits = None if self.logits is None else self.logits[:, [k]]
        label = _of_labels(probabilities[:, [k]], target[:, [k]], logits, self.sample_weight, name)
        known = target[:, k] != IGNORED
        return label if known.all() else label[known]

    @property
    def pairs(self) -> "Predictions":
        """Confidence and correctness alone, without classes."""
        return Predictions(self.confidence, self.correct, weight=self.weight)

    @property
    def sample_weight(self) -> Array | None:
        """Weight of each sample, ``(N,)``, which all of its labels have."""
        if self.weight is None or self.target is None or self.task != "multi-label":
            return self.weight
        weight = np.zeros(self.target.shape)
        weight[self.target != IGNORED] = self.weight
        found: Array = weight.max(1)
        return found

    def repeated(self, counts: Array) -> "Predictions":
        """Each sample as often as its count says, without weights."""
        return replace(self[np.repeat(np.arange(self.samples), counts.astype(np.intp))], weight=None)

    @cached_property
    def keys(self) -> Keys:
        """Confidence and correctness packed and sorted: the one sort that all metrics share, without weights."""
        keys = pack(self.confidence, self.correct)
        keys.sort()
        return keys

    @cached_property
    def ties(self) -> Ties:
        """Samples of equal confidence, ascending, from which every metric of the pairs is computed."""
        if self.weight is None:
            return Ties(*(np.concatenate(field) for field in zip(*self.blocks(), strict=True)))
        return SortedRows(self).ties

    def blocks(self) -> Iterator[Block]:
        """The same in blocks that fit in a core's cache, without ever holding them all."""
        if self.weight is None:
            yield from key_blocks(self.keys)
        else:
            for start in range(0, len(self.ties.samples), BLOCK):
                yield Block(*(field[start : start + BLOCK] for field in self.ties))

    @cached_property
    def total(self) -> float:
        """Sum of the weights; without weights, the number of samples."""
        return float(len(self)) if self.weight is None else float(self.weight.sum())

    @property
    def counts(self) -> Array:
        """How often each pair counts: its weight, or once."""
        return np.ones(len(self)) if self.weight is None else self.weight

    @cached_property
    def sums(self) -> dict[Any, Any]:
        """What metrics have computed and share."""
        return {}

    def once(self, function: Callable[["Predictions"], Result]) -> Result:
        """What a function makes of these predictions, computed when it is first asked for."""
        if function not in self.sums:
            self.sums[function] = function(self)
        made: Result = self.sums[function]
        return made

    def of_classes(self, metric: str) -> tuple[Array, IndexArray]:
        """Return probabilities and target, or raise an error that this metric needs them."""
        if self.probabilities is None or self.target is None:
            raise ValueError(f"{metric} needs every class: pass probabilities= or logits=, and target=")
        return self.probabilities, self.target


# First two arguments of metrics.
Confidence = Values | Predictions | None
Correct = Values | None


def predictions(
    confidence: Confidence = None,
    correct: Correct = None,
    *,
    minimum: int = 1,
    name: str = "this metric",
    logits: Values | None = None,
    probabilities: Values | None = None,
    target: Values | None = None,
    sample_weight: Values | None = None,
    classes: Sequence[Any] | None = None,
    ignore_index: int | None = -100,
    multi_label: bool | None = None,
) -> Predictions:
    """Check the given predictions and convert them to one form. Metrics, tests and intervals take the same arguments.

    Everything may be a NumPy array, a torch tensor on any device, a list, or a data frame or series of any library.
    A target of 0 and 1 in the shape of the values is taken as multi-label, unless it could be one-hot: then
    ``multi_label`` must say which.

    Args:
        confidence: Confidence in the prediction, or probability of an event, in [0, 1], ``(N,)``; or checked
            predictions, in place of all other arguments.
        correct: 1 or True where the prediction is right, or where the event came true, ``(N,)``.
        minimum: Fewest samples that the metric needs.
        name: Name of the metric, for the error message if there are fewer.
        logits: ``(N, C)``, dense ``(N, C, d1, ...)``, or the logit of class 1 as ``(N,)``, in place of the pairs.
        probabilities: The same shapes, in place of the pairs.
        target: Class indices, or names of classes, with logits or probabilities: their shape without the classes. Or 0
            and 1 for each of several labels, in the same shape.
        sample_weight: Weight of each sample, ``(N,)`` or dense ``(N, d1, ...)``: a weight of 2 is the sample twice, in
            metrics, tests and intervals.
        classes: Names of the classes, in the order of the columns; by default the columns of a data frame. If they are
            numbers, the target holds these numbers; if they are strings, it holds names or indices.
        ignore_index: Target of samples, or of single labels, to ignore; None to ignore none.
        multi_label: Whether each class is a label of its own; by default, the shape of the target decides.

    Warns:
        InputWarning: If logits look like probabilities, or probabilities like a softmax over one class.
    """
    if isinstance(confidence, Predictions):
        others = (correct, logits, probabilities, target, sample_weight, classes, multi_label)
        if any(value is not None for value in others):
            raise ValueError("pass checked predictions alone, without other arrays")
        made = confidence
    else:
        sources = {"confidence": confidence, "logits": logits, "probabilities": probabilities}
        kind, values, answers = _chosen(sources, correct, target)
        if kind != "confidence":
            made = _from_rows(kind, rows_of(kind, values, answers, sample_weight, classes, ignore_index, multi_label))
        elif classes is None and multi_label is None:
            made = _from_pairs(values, answers, sample_weight)
        else:
            raise ValueError("confidence has no classes: leave out classes= and multi_label=, or pass logits=")
    if made.weight is None and len(made) < minimum:
        raise ValueError(f"{name} needs at least {counted(minimum, 'sample')}, got {len(made)}")
    if made.weight is not None and made.total < minimum > 1:
        raise ValueError(
            f"{name} needs weights that sum to at least {minimum}, got {made.total:g}: sample_weight is the number of "
            "times that a sample counts, so scale the weights to a mean of 1"
        )
    return made


def _chosen(sources: dict[str, Any], correct: Any, target: Any) -> tuple[str, Any, Any]:
    """Which of confidence, logits and probabilities was given; its values; and what goes with it."""
    named = [source for source, value in sources.items() if value is not None]
    if len(named) != 1:
        got = " and ".join(named) or "none of them"
        raise ValueError(f"pass one of (confidence, correct), logits= or probabilities=; got {got}")
    (kind,) = named
    partner, answers, other = ("correct", correct, target) if kind == "confidence" else ("target", target, correct)
    if answers is None:
        raise ValueError(f"{kind} needs {partner}: pass {partner}= too")
    if other is not None:
        raise ValueError(f"{kind} goes with {partner}: leave out the other of correct and target")
    return kind, sources[kind], answers


def _from_pairs(confidence: Values, correct: Values, sample_weight: Values | None) -> Predictions:
    z = numbers("confidence", confidence)
    if z.ndim != 1:
        raise ValueError(f"confidence must have shape (N,), got {z.shape}: pass probabilities= for (N, C)")
    z = in_unit_interval("confidence", z)
    weight = None if sample_weight is None else checked_weight(sample_weight, z.shape)
    return Predictions(z, zero_one("correct", correct, z.shape, "confidence"), weight=weight)


def _from_rows(kind: str, rows: Rows) -> Predictions:
    values, target, weight, names = rows
    values = finite_logits(values) if kind == "logits" else in_unit_interval(kind, values)
    several = target.ndim == 2
    warn_if_mistaken(kind, values, several)
    logits = values if kind == "logits" else None
    if several:
        probabilities = values if logits is None else _sigmoid(logits)
        return _of_labels(probabilities, target, logits, weight, names)
    if values.ndim == 1:  # of class 1 of two
        of_class_0 = np.zeros_like(values) if kind == "logits" else 1 - values
        values = np.stack((of_class_0, values), 1)
    if kind == "logits":
        logits = np.ascontiguousarray(values)
        probabilities = _softmax(logits)
    else:
        probabilities = distributions(values)
    top = values.argmax(1)
    confidence = probabilities[np.arange(len(top)), top]
    return Predictions(confidence, top == target, probabilities, logits, target, weight, names)


def _of_labels(
    probabilities: Array,
    target: IndexArray,
    logits: Array | None,
    weight: Array | None,
    names: tuple[str, ...] | None,
) -> Predictions:
    """Predictions of several labels; weights are those of samples, ``(N,)``."""
    kept = target != IGNORED
    if weight is not None:
        weight = np.broadcast_to(weight[:, np.newaxis], target.shape)[kept]
    confidence, correct = probabilities[kept], target[kept] == 1
    return Predictions(confidence, correct, probabilities, logits, target, weight, names)


def _softmax(rows: Array) -> Array:
    """The probabilities of each row; its largest is 1 over their sum, so rows with the same logits stay tied."""
    probabilities = np.empty_like(rows)
    for chosen in row_blocks(len(rows)):
        block = rows[chosen]
        with np.errstate(over="ignore", under="ignore"):  # the exponential of a large negative logit is 0
            powers = np.exp(block.astype(np.float64) - block.max(1, keepdims=True))
        # In float64, rounded at the end, and in ascending order: the sum must not depend on the order of the classes.
        terms = np.sort(powers, 1) if rows.dtype == np.float64 else powers
        with np.errstate(under="ignore"):
            probabilities[chosen] = powers / terms.sum(1, keepdims=True)
    return probabilities


def _sigmoid(logits: Array) -> Array:
    with np.errstate(under="ignore"):
        small = np.exp(-np.abs(logits.astype(np.float64)))
        found: Array = (np.where(logits >= 0, 1, small) / (1 + small)).astype(logits.dtype)
    return found


@dataclass(frozen=True, eq=False)
class View:
    """One kind of probability that a model states, and whether it came true.

    Attributes:
        kind: ``"confidence"`` of pairs, ``"risk"`` of class 1 of two, ``"top label"``, ``"class"`` or ``"label"``.
        name: Name of the class or label; empty for confidences.
        pairs: Probability and whether it came true, as predictions without classes.
    """

    kind: Literal["confidence", "risk", "top label", "class", "label"]
    name: str
    pairs: Predictions

    def __str__(self) -> str:
        stated = {"confidence": "confidence", "top label": "confidence in the top label", "risk": "risk of class"}
        return f"{stated.get(self.kind, f'probability of {self.kind}')} {self.name}".rstrip()

    @property
    def of_event(self) -> bool:
        """Whether the probability is that of one event, rather than of the predicted class."""
        return self.kind not in ("confidence", "top label")


def views(given: Predictions, most: int = MOST) -> tuple[View, ...]:
    """Pairs of a probability and an outcome to test, by the task.

    Of two classes the probability of class 1; of several the top label and each class; of labels each label; of pairs
    the confidence. Of more classes or labels than ``most``, those that the model expects most often, whatever came.
    """
    task = given.task
    if task == "confidence":
        return (View("confidence", "", given.pairs),)
    probabilities, _ = given.of_classes("a view of classes")
    if task == "binary":
        return (View("risk", name_of(given, 1), given.of_class(1).pairs),)
    weight = given.sample_weight
    expected = (np.ones(given.samples) if weight is None else weight) @ probabilities
    chosen = np.sort(np.argsort(-expected, kind="stable")[:most]).tolist()
    kind: Literal["class", "label"] = "label" if task == "multi-label" else "class"
    each = tuple(View(kind, name_of(given, k), given.of_class(k).pairs) for k in chosen)
    return each if task == "multi-label" else (View("top label", "", given.pairs), *each)


def name_of(given: Predictions, k: int) -> str:
    """Name of a class or label; its index if it has none."""
    return str(k) if given.names is None else given.names[k]
