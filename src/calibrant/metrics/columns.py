"""What the arrays or columns of a source of predictions are called, and which of them to read."""

from dataclasses import dataclass, fields
from typing import Literal

Kind = Literal["logits", "probabilities", "confidence"]
KINDS: tuple[Kind, ...] = ("logits", "probabilities", "confidence")


@dataclass(frozen=True)
class Columns:
    """What the arrays or columns of a source are called.

    Either ``target`` (class indices from 0) with ``logits`` or ``probabilities``, or ``confidence`` and ``correct``
    (0 or 1, or boolean). Values of classes are one array, or one column of lists; or one plain column for each class,
    named ``logits_0``, ``logits_1`` and so on; or one plain column for class 1 of two. If a source has several of the
    three, the one you have named counts, else the first in this order, which says most.

    Attributes:
        logits: Array, column, or prefix of the columns of logits.
        probabilities: The same of probabilities.
        target: Class indices.
        confidence: Confidence in the prediction, where there are no classes.
        correct: 1 where the prediction is right, where there are no classes.

    Example:
        >>> Columns(confidence="score", correct="hit").kinds()
        ('confidence',)
    """

    logits: str = "logits"
    probabilities: str = "probabilities"
    target: str = "target"
    confidence: str = "confidence"
    correct: str = "correct"

    def changed(self) -> set[str]:
        """Which names the user has given."""
        return {field.name for field in fields(self) if getattr(self, field.name) != field.default}

    def kinds(self) -> tuple[Kind, ...]:
        """What to look for, the first choice first: those the user has named, else all three."""
        return tuple(kind for kind in KINDS if kind in self.changed()) or KINDS

    def of(self, kind: Kind) -> tuple[str, str]:
        """What values of this kind, and the labels that belong to them, are called."""
        return getattr(self, kind), self.correct if kind == "confidence" else self.target
