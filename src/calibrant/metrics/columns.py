"""What the arrays or columns of a source of predictions are called, and which of them to read."""

from dataclasses import dataclass
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

    A name that is not given is the attribute's own.

    Attributes:
        logits: Array, column, or prefix of the columns of logits, if not called logits.
        probabilities: The same of probabilities.
        target: Class indices.
        confidence: Confidence in the prediction, where there are no classes.
        correct: 1 where the prediction is right, where there are no classes.

    Example:
        >>> Columns(confidence="score", correct="hit").kinds()
        ('confidence',)
    """

    logits: str | None = None
    probabilities: str | None = None
    target: str | None = None
    confidence: str | None = None
    correct: str | None = None

    def kinds(self) -> tuple[Kind, ...]:
        """What to look for, the first choice first: those the user has named, else all three."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None) or KINDS

    def of(self, kind: Kind) -> tuple[str, str]:
        """What values of this kind, and the labels that belong to them, are called."""
        labels = (self.correct or "correct") if kind == "confidence" else (self.target or "target")
        return getattr(self, kind) or kind, labels
