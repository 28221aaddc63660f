"""Labels as class indices: names of classes come from the columns, from a file, or in alphabetical order."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibrant.files.arrays import Array
from calibrant.files.cells import WORDS, filled, is_text, numbers_of
from calibrant.inputs import TOLERANCE
from calibrant.metrics.two_classes import called, in_order, with_positive

# Mark that predictions leave out.
LEFT_OUT = -100


class Labels(NamedTuple):
    """Class indices, names of the classes if known, and what was assumed."""

    indices: Array
    names: tuple[str, ...] | None
    notices: tuple[str, ...] = ()


def names_of_classes(
    of_columns: Sequence[str] | None, given: Sequence[str] | None, count: int
) -> tuple[str, ...] | None:
    """Names of the classes, from the columns or from what was given, which must agree."""
    names = of_columns
    if given is not None and (of_columns is None or sorted(given) != sorted(of_columns)):
        if of_columns is not None and not all(name.isdecimal() for name in of_columns):
            raise ValueError(f"its columns name the classes {_few(of_columns)}, but --classes has {_few(given)}")
        names = given
    if names is not None and len(names) != max(count, 2):
        raise ValueError(f"has {max(count, 2)} classes, but --classes has {len(names)} names: write one for each")
    return None if names is None else tuple(names)


def class_indices(
    name: str,
    labels: Array,
    names: tuple[str, ...] | None,
    count: int,
    *,
    column: str | None = None,
    positive: str | None = None,
) -> Labels:
    """Class indices of labels, which may be names.

    Args:
        name: Name of the labels, for errors.
        labels: Numbers or text, ``(N,)``.
        names: Names of the classes, if known.
        count: Number of classes.
        column: Column of the values of one class of two, if there is one.
        positive: Class that it is for, if given.

    Raises:
        ValueError: If a label is no class, or the order of the classes is unknown.

    Example:
        >>> import numpy as np
        >>> class_indices("label", np.array(["dog", "cat", "dog"], dtype=object), None, 2).indices
        array([1, 0, 1])
    """
    labels = filled(name, labels)
    if positive is not None:
        labels = np.array([called(cell) for cell in labels.tolist()], dtype=object)
        names = with_positive(name, positive, names, labels.tolist(), count)
    if not is_text(labels):
        return _numbered(name, labels, names, count)
    cells = [str(cell).strip() for cell in labels.tolist()]
    found = set(cells)
    if names is None and (found <= {"", *WORDS} or all(_is_whole(cell) for cell in found)):
        return _numbered(name, numbers_of(name, labels), None, count)
    notices: tuple[str, ...] = ()
    if names is None:
        if len(found) != count:
            raise ValueError(
                f"column {name!r} has {len(found)} names of classes ({_few(sorted(found))}), but there are {count} "
                "classes: give their order with --classes FILE"
            )
        names, notice = in_order(found, column)
        notices = (notice,)
    if unknown := found - set(names):
        if all(_is_whole(cell) for cell in found):
            return Labels(numbers_of(name, labels), names)
        raise ValueError(f"column {name!r} has {_few(sorted(unknown))}, which is none of the classes {_few(names)}")
    place = {each: k for k, each in enumerate(names)}
    return Labels(np.fromiter((place[cell] for cell in cells), np.int64, len(cells)), names, notices)


def _numbered(name: str, labels: Array, names: tuple[str, ...] | None, count: int) -> Labels:
    """Numbers are class indices, unless the classes are called by other numbers."""
    if names is None or not all(_is_whole(each) for each in names):
        if count == 2 and labels.dtype.kind in "fi" and set(np.unique(labels).tolist()) == {-1, 1}:
            return Labels((labels > 0).astype(np.int64), names, (f"read {name} -1 and 1 as classes 0 and 1",))
        if labels.dtype.kind in "fiu" and len(labels) > 1 and labels.min() == 1 and labels.max() == count:
            raise ValueError(
                f"column {name!r} counts {count} classes from 1: subtract 1, or give --classes FILE with 1 to {count}, "
                "one on each line"
            )
        return Labels(labels, names)
    place = {float(each): k for k, each in enumerate(names)}
    unknown = sorted(set(labels.tolist()) - set(place))
    if unknown:
        raise ValueError(
            f"column {name!r} has {_few([f'{each:g}' for each in unknown])}, none of the classes {_few(names)}"
        )
    return Labels(np.array([place[each] for each in labels.tolist()], np.int64), names)


def refuse_stray(name: str, labels: Array, count: int) -> None:
    """Refuse a single label that is no class, such as -100 or 255, with the option that leaves it out.

    Raises:
        ValueError: If there is one; several are left to the checks of predictions.
    """
    if labels.dtype.kind not in "fiu":
        return
    outside = labels[(labels < 0) | (labels >= count)]
    # The mark of pixels and of single labels that predictions leave out by themselves.
    unknown = labels.ndim > 1 and (outside == LEFT_OUT).all()
    if len(outside) and len(outside) < labels.size and (outside == outside[0]).all() and not unknown:
        places = "rows" if labels.ndim == 1 else "places"
        raise ValueError(
            f"column {name!r} has {outside[0]:g} in {len(outside):,} of {labels.size:,} {places}: give "
            f"--ignore-index {outside[0]:g} if they are to be left out; classes are 0 to {count - 1}"
        )


def refuse_one_hot(name: str, labels: Array, probabilities: Array | None) -> None:
    """Refuse 0 and 1 for each class with one 1 in every row: these are not several labels.

    Args:
        name: Name of the labels, for errors.
        labels: ``(N, C)``.
        probabilities: Of the same shape; if their rows do not sum to 1, labels may be several.

    Raises:
        ValueError: If they are one-hot.
    """
    sums = np.ones(1) if probabilities is None else probabilities.sum(1)
    if (np.abs(sums - 1) < TOLERANCE).all() and (labels.sum(1) == 1).all() and labels.max() == 1:
        raise ValueError(
            f"{name!r} is one-hot, with one 1 in every row: write the number of the class of each row in its place, "
            "which is target.argmax(1) in Python"
        )


def _is_whole(cell: str) -> bool:
    return cell.removeprefix("-").removesuffix(".0").isdecimal()


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + ", ..." * (len(names) > 3)
