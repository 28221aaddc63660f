"""Which columns of a source hold its predictions: by the names you give, or by those that are common."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from calibrant.metrics.columns import Columns, Kind

# Names that are taken for another, in order of preference; capital letters do not matter.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "logits": ("logit", "logprobs", "log_probs", "logprob"),
    "probabilities": ("probability", "probs", "prob", "predict_proba", "proba", "y_prob", "y_proba", "y_pred_proba"),
    "confidence": ("conf",),
    "target": ("targets", "label", "labels", "label_ids", "y_true", "y", "truth", "true_label", "ground_truth", "gold"),
    "correct": ("is_correct",),
    "prediction": ("predicted", "pred", "y_pred", "predicted_label", "predicted_class", "answer"),
}
SEPARATED = r"[_.:\- \[(]+(.+?)[\])]*"


@dataclass(frozen=True)
class Layout:
    """The columns of a source that hold predictions.

    Attributes:
        kind: Kind of the values.
        values: Column of values, or one column for each class.
        labels: Column of the true class, or of the correctness; one for each label if there are several; or none.
        prediction: Column of the predicted class, if the labels are true classes but the values only confidences.
        classes: Names of the classes, if the columns have them.
        notices: What was assumed, in sentences.
    """

    kind: Kind
    values: tuple[str, ...]
    labels: tuple[str, ...] = ()
    prediction: str | None = None
    classes: tuple[str, ...] | None = None
    notices: tuple[str, ...] = ()


def find_layout(there: Sequence[str], columns: Columns) -> Layout:
    """Find the predictions among the columns of a source.

    Args:
        there: Names of the columns.
        columns: Names that were given.

    Raises:
        ValueError: If there are none; the message says what is there, and which option names it.

    Example:
        >>> found = find_layout(["id", "prob_cat", "prob_dog", "label"], Columns())
        >>> found.kind, found.values, found.labels, found.classes
        ('probabilities', ('prob_cat', 'prob_dog'), ('label',), ('cat', 'dog'))
    """
    found = [layout for kind in columns.kinds() if (layout := _of_kind(kind, there, columns))]
    if not found and columns.names_none() and {"predictions", "label_ids"} <= set(there):
        found = [_predictions_of_a_trainer(there, columns)]
    for layout in sorted(found, key=lambda layout: not layout.labels):
        return layout
    looked_for = " or ".join(repr(columns.of(kind)[0]) for kind in columns.kinds())
    shown = ", ".join(there[:20]) + (", ..." if len(there) > 20 else "") or "no arrays"
    raise ValueError(f"has no {looked_for}; it has {shown}: name yours with --logits, --probabilities or --confidence")


def name_of_values(layout: Layout, columns: Columns) -> str:
    """What an option calls the values of a layout: their column, or what their columns begin with.

    Example:
        >>> name_of_values(find_layout(["Prob_cat", "Prob_cow", "label"], Columns()), Columns())
        'prob'
    """
    given: str | None = getattr(columns, layout.kind)
    prefixes = (layout.kind, *OTHER_NAMES[layout.kind]) if len(layout.values) > 1 else ()
    begins = (each for each in prefixes if len(_members(each, layout.values)) == len(layout.values))
    return given or next(begins, layout.values[0])


def name_of_target(there: Sequence[str], columns: Columns) -> str | None:
    """The column of the target: the one that was named, or one with a common name."""
    return _one("target", there, columns.target)


def _predictions_of_a_trainer(there: Sequence[str], columns: Columns) -> Layout:
    """What the Trainer of transformers returns: usually logits."""
    found = _of_kind("logits", there, Columns(logits="predictions", target=columns.target or "label_ids"))
    assert found is not None  # noqa: S101 (the caller has seen the column)
    notice = "'predictions' are taken for logits, as the Trainer of transformers returns them"
    return Layout("logits", found.values, found.labels, notices=(notice,))


def _of_kind(kind: Kind, there: Sequence[str], columns: Columns) -> Layout | None:
    values, classes = _values(kind, there, getattr(columns, kind))
    if not values:
        return None
    labels: tuple[str, ...] = ()
    prediction = None
    if kind == "confidence" and (correct := _one("correct", there, columns.correct)):
        labels = (correct,)
    elif target := _one("target", there, columns.target):
        prediction = _one("prediction", there, columns.prediction) if kind == "confidence" else None
        labels = (target,) if kind != "confidence" or prediction else ()
    elif classes is not None or len(values) > 1:
        labels = _one_each("target", there, columns.target, classes or [str(k) for k in range(len(values))])
    assumed = _assumed({kind: values, "target" if prediction or kind != "confidence" else "correct": labels,
                        "prediction": (prediction,) if prediction else ()}, columns)  # fmt: skip
    return Layout(kind, values, labels, prediction, classes, assumed)


def _assumed(used: dict[str, tuple[str, ...]], columns: Columns) -> tuple[str, ...]:
    """A notice of the columns that were found by another name than their own."""
    said = [
        f"{names[0]!r}{f' to {names[-1]!r}' * (len(names) > 1)} as {role}"
        for role, names in used.items()
        if names and getattr(columns, role) is None and not re.fullmatch(rf"{role}({SEPARATED})?", names[0], re.I)
    ]
    return (f"read {', '.join(said)}",) if said else ()


def _one(role: str, there: Sequence[str], given: str | None) -> str | None:
    """The column of a role: the one that was named, or one with a common name."""
    if given is not None:
        return given if given in there else None
    small: dict[str, str] = {}
    for name in there:
        small.setdefault(name.lower(), name)
    return next((small[name] for name in (role, *OTHER_NAMES[role]) if name in small), None)


def _values(kind: Kind, there: Sequence[str], given: str | None) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Columns of the values of this kind, and the names of their classes."""
    if given is not None and given in there:
        return (given,), None
    if given is not None and "," in given and set(listed := given.split(",")) <= set(there):
        return tuple(listed), tuple(listed)
    for prefix in (given,) if given is not None else (kind, *OTHER_NAMES[kind]):
        if given is None and (only := _one_of(prefix, there)):
            return (only,), None
        members = _members(prefix, there)
        if kind != "confidence" and len(members) > 1:
            return _ordered(prefix, members)
    return (), None


def _one_of(name: str, there: Sequence[str]) -> str | None:
    return next((each for each in there if each.lower() == name), None)


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


def _one_each(role: str, there: Sequence[str], given: str | None, suffixes: Sequence[str]) -> tuple[str, ...]:
    """Columns of a role, one for each class: those of several labels."""
    for prefix in (given,) if given is not None else (role, *OTHER_NAMES[role]):
        members = _members(prefix, there)
        if set(suffixes) <= set(members):
            return tuple(members[suffix] for suffix in suffixes)
    return ()
