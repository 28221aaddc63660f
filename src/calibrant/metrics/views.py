"""Views: what a test of calibration judges, as a name and pairs of a probability and whether it came true."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from calibrant.frames import Array, Marks
from calibrant.inputs import IGNORED
from calibrant.metrics import notebook
from calibrant.metrics.predictions import Predictions

Kind = Literal["confidence", "risk", "top label", "class", "label"]
# Most classes or labels that are judged one by one: the cost of a test grows with each.
MOST = 50


@dataclass(frozen=True, eq=False)
class View:
    """One kind of probability that a model states, and whether it came true.

    Attributes:
        kind: ``"confidence"`` of pairs, ``"risk"`` of class 1 of two, ``"top label"``, ``"class"`` or ``"label"``.
        name: Name of the class or label; empty for confidences.
        pairs: Probability and whether it came true, as predictions without classes.
    """

    kind: Kind
    name: str
    pairs: Predictions

    def __str__(self) -> str:
        stated = {"confidence": "confidence", "top label": "confidence in the top label", "risk": "risk of class"}
        return f"{stated.get(self.kind, f'probability of {self.kind}')} {self.name}".rstrip()

    @property
    def of_event(self) -> bool:
        """Whether the probability is that of one event, rather than of whatever is predicted."""
        return self.kind not in ("confidence", "top label")

    def _repr_html_(self) -> str:
        return notebook.table(str(self), (), [("samples", f"{len(self.pairs):,}")])


def views(given: Predictions, most: int = MOST) -> tuple[View, ...]:
    """What to judge, by the task.

    Of two classes the probability of class 1; of several the top label and each class; of labels each label; of pairs
    the confidence. If there are more classes or labels than ``most``, those that the model expects most often are
    judged: they are chosen by the probabilities alone, so a test of them stays valid.

    Args:
        given: Checked predictions.
        most: Most classes or labels.

    Example:
        >>> from calibrant import metrics
        >>> given = metrics.predictions(probabilities=[[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]], target=[0, 1])
        >>> [str(view) for view in metrics.views(given)][:2]
        ['confidence in the top label', 'probability of class 0']
        >>> metrics.views(given)[1].pairs.correct.tolist()
        [True, False]
    """
    task = given.task
    if task == "confidence":
        return (View("confidence", "", _pairs(given, given.confidence, given.correct)),)
    probabilities, target = given.of_classes("a view of classes")
    if task == "binary":
        return (View("risk", name_of(given, 1), _pairs(given, probabilities[:, 1], target == 1)),)
    many = task == "multi-label"
    kind: Kind = "label" if many else "class"
    weight = sample_weight(given)
    expected = (np.ones(len(target)) if weight is None else weight) @ probabilities
    chosen = np.sort(np.argsort(-expected, kind="stable")[:most]).tolist()
    one = _label if many else _class
    each = tuple(View(kind, name_of(given, k), one(given, k)) for k in chosen)
    if many:
        return each
    return (View("top label", "", _pairs(given, given.confidence, given.correct)), *each)


def name_of(given: Predictions, k: int) -> str:
    """Name of a class or label; its index if it has none."""
    return str(k) if given.names is None else given.names[k]


def sample_weight(given: Predictions) -> Array | None:
    """Weight of each sample, ``(N,)``; of labels, the largest of any of its labels."""
    if given.weight is None or given.task != "multi-label":
        return given.weight
    _, target = given.of_classes("labels")
    weight = np.zeros(target.shape)
    weight[target != IGNORED] = given.weight
    largest: Array = weight.max(1)
    return largest


def _label(given: Predictions, k: int) -> Predictions:
    label = given.of_class(k)
    return Predictions(label.confidence, label.correct, weight=label.weight)


def _class(given: Predictions, k: int) -> Predictions:
    probabilities, target = given.of_classes("classes")
    return _pairs(given, probabilities[:, k], target == k)


def _pairs(given: Predictions, probability: Array, happened: Marks) -> Predictions:
    return Predictions(np.ascontiguousarray(probability), np.asarray(happened, bool), weight=given.weight)
