"""Which columns of a source hold its predictions, and which classes its labels and probabilities are of."""

import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from calibrant import inputs
from calibrant.files.cells import LEFT_OUT, TRUE_AND_FALSE, Kind, called, number_of, numbers_of
from calibrant.files.formats import Array
from calibrant.inputs import few

KINDS: tuple[Kind, ...] = ("logits", "probabilities", "confidence")
# Log-probabilities of options, whose number may differ between rows; and the answers in logs of lm-evaluation-harness.
LOG_PROBABILITIES = ("logprobs", "log_probs", "logprob")
RESPONSES = ("filtered_resps", "resps")
# Names that are taken for another, in order of preference; capital letters do not matter.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "logits": ("logit", *LOG_PROBABILITIES),
    "probabilities": (
        "probability",
        "probs",
        "prob",
        "p",
        "predict_proba",
        "proba",
        "y_prob",
        "y_proba",
        "y_pred_proba",
    ),
    "confidence": ("conf",),
    "target": ("targets", "label", "labels", "label_ids", "y_true", "y", "truth", "true_label", "ground_truth", "gold"),
    "correct": ("is_correct",),
    "prediction": ("predicted", "pred", "y_pred", "predicted_label", "predicted_class", "answer"),
}
SEPARATED = r"[_.:\- \[(]+(.+?)[\])]*"
NOT_TWO = "--positive is for probabilities or logits of two classes: leave it out"


@dataclass(frozen=True)
class Columns:
    """Names of the arrays or columns of a source, and what its numbers mean.

    Either ``target`` (class indices from 0, or names of classes) with ``logits`` or ``probabilities``; or
    ``confidence`` with ``correct`` (0 or 1, or boolean), or with ``prediction`` and ``target``. Values of classes are
    one array, or one column of lists; or one plain column for each class, named ``logits_0``, ``logits_1`` and so on,
    or by the classes, ``logits_cat``, ``logits_dog``; or one plain column for class 1 of two. If a source has several
    of the three, the one you have named is used, otherwise the first in the order logits, probabilities, confidence.

    The default of each name is the name of the attribute, or another that is common, such as ``y_true``; see
    :data:`calibrant.files.layout.OTHER_NAMES`.

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


@dataclass(frozen=True)
class Layout:
    """The columns of a source that hold predictions."""

    kind: Kind
    values: tuple[str, ...]  # one column, or one for each class
    option: str  # what an option calls the values: their column, or what their columns begin with
    labels: tuple[str, ...] = ()  # true class or correctness; one for each label if there are several; or none
    prediction: str | None = None  # predicted class, if the labels are true classes but the values only confidences
    classes: tuple[str, ...] | None = None  # names, if the columns have them
    notices: tuple[str, ...] = ()


def find_layout(there: Sequence[str], columns: Columns) -> Layout:
    """Find the predictions among the columns of a source; an error says what is there, and which option names it."""
    found = [layout for kind in columns.kinds() if (layout := _of_kind(kind, there, columns))]
    if found:
        return min(found, key=lambda layout: not layout.labels)
    if columns.names_none() and {"predictions", "label_ids"} <= set(there):
        saved = find_layout(there, Columns(logits="predictions", target=columns.target or "label_ids"))
        return replace(
            saved, notices=("'predictions' are taken for logits, as the Trainer of transformers returns them",)
        )
    looked_for = " or ".join(repr(columns.of(kind)[0]) for kind in columns.kinds())
    shown = ", ".join(there[:20]) + (", ..." if len(there) > 20 else "") or "no arrays"
    raise ValueError(f"has no {looked_for}; it has {shown}: name yours with --logits, --probabilities or --confidence")


def without_labels(layout: Layout, columns: Columns, there: Sequence[str]) -> str:
    """The error of a source whose labels are not found."""
    wanted = columns.of(layout.kind)[1]
    others = [name for name in there if name not in layout.values]
    shown = f"; it also has {', '.join(others[:20])}{', ...' * (len(others) > 20)}" if others else ""
    options = "--correct, or --prediction and --target" if layout.kind == "confidence" else "--target"
    return f"has {layout.kind} but no {wanted!r}{shown}: add it, or name yours with {options}"


def is_harness(there: Sequence[str]) -> bool:
    """Whether columns are those of lm-evaluation-harness (``samples_*.jsonl``)."""
    return "target" in there and not {*RESPONSES}.isdisjoint(there)


def _of_kind(kind: Kind, there: Sequence[str], columns: Columns) -> Layout | None:
    values, option, classes = _values(kind, there, getattr(columns, kind))
    if not values:
        return None
    target = _one("target", there, columns)
    used = {kind: values, "target": target}
    if kind == "confidence":
        correct, prediction = _one("correct", there, columns), _one("prediction", there, columns)
        compared = not correct and target and prediction
        used = {kind: values} | ({"target": target, "prediction": prediction} if compared else {"correct": correct})
    elif not target and (classes is not None or len(values) > 1):
        used["target"] = _one_each(there, columns.target, classes or [str(k) for k in range(len(values))])
    said = []
    for role, names in used.items():
        if names and getattr(columns, role) is None and not re.fullmatch(rf"{role}({SEPARATED})?", names[0], re.I):
            others = f" to {names[-1]!r}" if len(names) > 1 else ""
            said.append(f"{names[0]!r}{others} as {role}")
    return Layout(
        kind,
        values,
        option,
        labels=used.get("correct") or used.get("target", ()),
        prediction=next(iter(used.get("prediction", ())), None),
        classes=classes,
        notices=(f"read {', '.join(said)}",) if said else (),
    )


def _names_of(role: str, given: str | None) -> tuple[str, ...]:
    """Names to look for: the one that was given, or those that are common."""
    return (role, *OTHER_NAMES[role]) if given is None else (given,)


def _one(role: str, there: Sequence[str], columns: Columns) -> tuple[str, ...]:
    """The column of a role, if there is one."""
    given: str | None = getattr(columns, role)
    if given is not None:
        return (given,) if given in there else ()
    return next((found for name in _names_of(role, None) if (found := _called(name, there))), ())


def _values(kind: Kind, there: Sequence[str], given: str | None) -> tuple[tuple[str, ...], str, tuple[str, ...] | None]:
    """Columns of the values of this kind, what an option calls them, and the names of their classes."""
    if given is not None and given in there:
        return (given,), given, None
    if given is not None and "," in given and set(listed := given.split(",")) <= set(there):
        return tuple(listed), given, tuple(listed)
    for prefix in _names_of(kind, given):
        if given is None and (only := _called(prefix, there)):
            return only, only[0], None
        members = _members(prefix, there)
        if kind != "confidence" and len(members) > 1:
            values, classes = _ordered(prefix, members)
            return values, prefix, classes
    return (), "", None


def _called(name: str, there: Sequence[str]) -> tuple[str, ...]:
    """The first column of this name, if there is one; capital letters do not matter."""
    return next(((each,) for each in there if each.lower() == name), ())


def _members(prefix: str, there: Sequence[str]) -> dict[str, str]:
    """Columns that begin with a prefix, by what follows it."""
    matches = ((name, re.fullmatch(re.escape(prefix) + SEPARATED, name, re.IGNORECASE)) for name in there)
    return {found[1]: name for name, found in matches if found}


def _ordered(prefix: str, members: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Columns in the order of their numbers; columns with names stay in their order, and name the classes."""
    if not all(re.fullmatch(r"\d+", suffix) for suffix in members):
        return tuple(members.values()), tuple(members)
    numbered = {int(suffix): name for suffix, name in members.items()}
    first = min(numbered)
    for number in range(min(first, 1), min(first, 1) + len(members)):
        if number not in numbered:
            raise ValueError(f"has {len(members)} columns {prefix}_..., but no '{prefix}_{number}': number them from 0")
    columns = tuple(numbered[number] for number in sorted(numbered))
    # Numbered from 1: then the labels are, too.
    return columns, tuple(str(number) for number in sorted(numbered)) if first else None


def _one_each(there: Sequence[str], given: str | None, suffixes: Sequence[str]) -> tuple[str, ...]:
    """Columns of targets, one for each class: those of several labels."""
    for prefix in _names_of("target", given):
        members = _members(prefix, there)
        if set(suffixes) <= set(members):
            return tuple(members[suffix] for suffix in suffixes)
    return ()


def _with_positive(
    label: str, positive: str, names: Sequence[str] | None, found: set[str], count: int
) -> tuple[str, str]:
    """Names of two classes, the positive one last; an error if it is none of the names or labels, or comes first."""
    known = sorted(set(names or found))
    if set(known) <= {"0", "1"}:
        known = ["0", "1"]
    if count != 2:
        raise ValueError(NOT_TWO)
    if positive not in known or len(known) != 2:
        raise ValueError(
            f"--positive {positive!r} must be one of two labels, but those of {label!r} are {few(known, 5)}"
        )
    if names is not None and names[1] != positive:
        raise ValueError(
            f"its values are named {names[0]!r} and {names[1]!r}, in this order: leave out --positive, or correct the "
            "names"
        )
    (other,) = (each for each in known if each != positive)
    return other, positive


def _in_order(found: set[str], column: str | None) -> tuple[tuple[str, ...], str]:
    """Names in alphabetical order, unless the one column of values names one of two; and what was assumed."""
    names = tuple(sorted(found))
    if column is None or len(names) != 2:
        order = ", ".join(f"{k} = {each!r}" for k, each in enumerate(names[:3])) + ", ..." * (len(names) > 3)
        return names, f"the classes are taken in alphabetical order ({order}): give --classes FILE if it is another"
    why = "the last in alphabetical order"
    if (named := _named(column, names)) is not None:
        names, why = (names[1 - named], names[named]), "as its name says"
    other = shlex.quote(names[0])
    return names, f"{column!r} is taken for class {names[1]!r}, {why}: give --positive {other} if it is for that one"


def _named(column: str, names: Sequence[str]) -> int | None:
    """Class that the name of a column ends in, after a word for probabilities or logits; such as ``p_default``."""
    ends = {column.lower()}
    for word in (*_names_of("logits", None), *_names_of("probabilities", None)):
        ends |= {end.lower() for end in _members(word, [column])}
    return next((k for k, name in enumerate(names) if name.lower() in ends), None)


def names_of_classes(columns: Columns, of_values: Sequence[str] | None, count: int) -> tuple[str, ...] | None:
    """Names of the classes, from the columns of the values or from the file of ``--classes``, which must agree."""
    names = of_values
    if columns.classes is not None:
        try:
            lines = columns.classes.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"--classes {columns.classes} cannot be read: write the name of a class on each line"
            ) from error
        given = [line.strip() for line in lines if line.strip()]
        if not given or len(set(given)) < len(given):
            raise ValueError(f"--classes {columns.classes} must hold the name of a class on each line, each name once")
        if of_values is None or sorted(given) != sorted(of_values):
            names = given
        if of_values is not None and names is given and not all(name.isdecimal() for name in of_values):
            raise ValueError(f"its columns name the classes {few(of_values)}, but --classes has {few(given)}")
    if names is not None and len(names) != count:
        raise ValueError(f"has {count} classes, but --classes has {len(names)} names: write one for each")
    return None if names is None else tuple(names)


class ClassLabels(NamedTuple):
    """What the labels of a column mean."""

    keys: tuple[float, ...] | tuple[str, ...] | None  # label of each class; None if labels are indices of the classes
    names: tuple[str, ...] | None
    notices: tuple[str, ...] = ()


def class_labels(
    name: str,
    found: Collection[Any],
    names: tuple[str, ...] | None,
    count: int,
    *,
    column: str | None = None,
    positive: str | None = None,
) -> ClassLabels:
    """Decide which class each label of the column ``name`` means; one ``column`` of values is for ``positive``."""
    known = {called(each) for each in found}
    if "" in known:
        raise ValueError(f"column {name!r} has empty cells: fill or drop the rows")
    if positive is not None:
        names = _with_positive(name, positive, names, known, count)
    if any(isinstance(each, str) and not _is_number(each) for each in found):
        return _of_words(name, known, names, count, column)
    numbers = set(map(number_of, found))
    if names is None and count == 2 and numbers == {-1, 1}:
        return ClassLabels((-1.0, 1.0), None, (f"read {name} -1 and 1 as classes 0 and 1",))
    if names is None and len(numbers) > 1 and min(numbers) == 1 and max(numbers) == count:
        raise ValueError(
            f"column {name!r} counts {count} classes from 1: subtract 1, or give --classes FILE with 1 to {count}, "
            "one on each line"
        )
    if names is None or not all(map(_is_number, names)):
        return ClassLabels(None, names)
    keys = tuple(map(number_of, names))
    _refuse_unknown(name, [f"{each:g}" for each in sorted(numbers - set(keys))], names)
    return ClassLabels(keys, names)


def _of_words(name: str, known: set[str], names: tuple[str, ...] | None, count: int, column: str | None) -> ClassLabels:
    notices: tuple[str, ...] = ()
    if names is None:
        if len(known) != count:
            raise ValueError(
                f"column {name!r} has {'more' if len(known) > count else 'fewer'} names of classes "
                f"({few(sorted(known))}) than the {count} classes: give their order with --classes FILE"
            )
        names, notice = _in_order(known, column)
        notices = (notice,)
    _refuse_unknown(name, sorted(known - set(names)), names)
    return ClassLabels(names, names, notices)


def _refuse_unknown(name: str, unknown: Sequence[str], names: Sequence[str]) -> None:
    if unknown:
        raise ValueError(f"column {name!r} has {few(unknown)}, which is none of the classes {few(names)}")


def class_indices(name: str, labels: Array, meaning: ClassLabels) -> Array:
    """Class indices of labels, by what they mean."""
    if meaning.keys is None:
        return numbers_of(name, labels)
    if isinstance(meaning.keys[0], str):
        return inputs.class_indices([str(cell).strip() for cell in labels.tolist()], meaning.keys)
    return inputs.class_indices(numbers_of(name, labels), meaning.keys)


def refuse_stray(name: str, labels: Array, count: int) -> None:
    """Refuse a single label that is no class, such as -100 or 255, with the option that leaves it out."""
    if labels.dtype.kind not in "fiu":
        return
    outside = labels[(labels < 0) | (labels >= count)]
    left_out = labels.ndim > 1 and (outside == LEFT_OUT).all()
    if 0 < len(outside) < labels.size and (outside == outside[0]).all() and not left_out:
        places = "rows" if labels.ndim == 1 else "places"
        raise ValueError(
            f"column {name!r} has {outside[0]:g} in {len(outside):,} of {labels.size:,} {places}: give "
            f"--ignore-index {outside[0]:g} if they are to be left out; classes are 0 to {count - 1}"
        )


def _is_number(label: str) -> bool:
    """Whether the text of a label is a number, or true or false."""
    return label.lower() in TRUE_AND_FALSE or re.fullmatch(r"-?\d+(\.\d+)?", label) is not None
