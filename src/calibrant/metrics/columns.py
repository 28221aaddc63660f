"""Names of the arrays or columns of a source of predictions, and which of them to read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["logits", "probabilities", "confidence"]
# What people write for right and wrong, besides 0 and 1.
RIGHT = {"yes": "1", "no": "0", "y": "1", "n": "0", "correct": "1", "incorrect": "0", "right": "1", "wrong": "0"}
KINDS: tuple[Kind, ...] = ("logits", "probabilities", "confidence")


@dataclass(frozen=True)
class Columns:
    """Names of the arrays or columns of a source, and what its numbers mean.

    Either ``target`` (class indices from 0, or names of classes) with ``logits`` or ``probabilities``; or
    ``confidence`` with ``correct`` (0 or 1, or boolean), or with ``prediction`` and ``target``. Values of classes are
    one array, or one column of lists; or one plain column for each class, named ``logits_0``, ``logits_1`` and so on,
    or by the classes, ``logits_cat``, ``logits_dog``; or one plain column for class 1 of two. If a source has several
    of the three, the one you have named is used, otherwise the first in the order logits, probabilities, confidence.

    The default of each name is the name of the attribute, or another that is common, such as ``y_true``; see
    :data:`calibrant.metrics.layouts.OTHER_NAMES`.

    Attributes:
        logits: Name of the array or column of logits, or prefix of several columns; or the columns of the classes,
            separated by commas: they name the classes.
        probabilities: The same for probabilities.
        target: Name of the true classes: indices, or names.
        confidence: Name of the confidence in the prediction, if there are no classes.
        correct: Name of the correctness (1 if the prediction is right), if there are no classes.
        prediction: Name of the predicted class, in place of the correctness.
        weight: Name of the weights of the samples.
        classes: File with the name of a class on each line, in the order of the values.
        positive: Label of the class, of two, that one column of probabilities or logits is for; by default the one
            that the column is named after, or the last in alphabetical order.
        ignore_index: Label of samples to leave out, such as -100.
        percent: Probabilities and confidences are percentages.

    Example:
        >>> Columns(confidence="score", correct="hit").kinds()
        ('confidence',)
    """

    logits: str | None = None
    probabilities: str | None = None
    target: str | None = None
    confidence: str | None = None
    correct: str | None = None
    prediction: str | None = None
    weight: str | None = None
    classes: Path | None = None
    positive: str | None = None
    ignore_index: int | None = None
    percent: bool = False

    def kinds(self) -> tuple[Kind, ...]:
        """Kinds to look for, in order of preference: those the user has named, else all three."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None) or KINDS

    def names_none(self) -> bool:
        """Whether no kind of values was named."""
        return all(getattr(self, kind) is None for kind in KINDS)

    def of(self, kind: Kind) -> tuple[str, str]:
        """Names of the values of this kind and of their labels."""
        labels = (self.correct or "correct") if kind == "confidence" else (self.target or "target")
        return getattr(self, kind) or kind, labels

    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, one on each line of the file that was given.

        Raises:
            ValueError: If it cannot be read, is empty, or repeats a name.
        """
        if self.classes is None:
            return None
        try:
            lines = self.classes.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"--classes {self.classes} cannot be read: write the name of a class on each line"
            ) from error
        names = tuple(line.strip() for line in lines if line.strip())
        if not names or len(set(names)) < len(names):
            raise ValueError(f"--classes {self.classes} must hold the name of a class on each line, each name once")
        return names
