"""Names of the arrays or columns of a source of predictions, and which of them to read."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["logits", "probabilities", "confidence"]
KINDS: tuple[Kind, ...] = ("logits", "probabilities", "confidence")


@dataclass(frozen=True)
class Columns:
    """Names of the arrays or columns of a source.

    Either ``target`` (class indices from 0) with ``logits`` or ``probabilities``, or ``confidence`` and ``correct``
    (0 or 1, or boolean). Values of classes are one array, or one column of lists; or one plain column for each class,
    named ``logits_0``, ``logits_1`` and so on; or one plain column for class 1 of two. If a source has several of the
    three, the one you have named is used, otherwise the first in the order logits, probabilities, confidence.

    The default of each name is the name of the attribute.

    Attributes:
        logits: Name of the array or column of logits, or prefix of several columns.
        probabilities: The same for probabilities.
        target: Name of the class indices.
        confidence: Name of the confidence in the prediction, if there are no classes.
        correct: Name of the correctness (1 if the prediction is right), if there are no classes.

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
        """Kinds to look for, in order of preference: those the user has named, else all three."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None) or KINDS

    def of(self, kind: Kind) -> tuple[str, str]:
        """Names of the values of this kind and of their labels."""
        labels = (self.correct or "correct") if kind == "confidence" else (self.target or "target")
        return getattr(self, kind) or kind, labels
