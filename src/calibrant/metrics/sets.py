"""Coverage and size of sets of classes, such as those of conformal prediction."""

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from calibrant import frames
from calibrant.frames import Marks, is_tensor
from calibrant.inputs import Values, as_array, checked_target

# Largest set of each stratum but the last, as in the authors' code of RAPS.
SIZES = (1, 3, 6, 10, 100)


def coverage(sets: Values, target: Values) -> float:
    r"""Share of sets that contain the right class, :math:`\frac1N \sum_i 1[y_i \in S_i]`.

    Args:
        sets: Whether each class is in the set of each sample, boolean or 0 and 1, ``(N, C)``.
        target: Class indices, ``(N,)``.
    """
    _, covered = _checked(sets, target)
    return float(covered.mean())


def mean_set_size(sets: Values) -> float:
    r"""Mean number of classes of a set, :math:`\frac1N \sum_i |S_i|`, with sets as in :func:`coverage`."""
    return float(_checked_sets(sets).sum(1).mean())


def group_coverage(sets: Values, target: Values, groups: Values | Iterable[Hashable]) -> dict[Any, float]:
    r"""Coverage of the samples of each group, :math:`\Pr(y \in S \mid g)`, in the order of first appearance.

    With ``groups=target`` it is the coverage of each class, with ``groups=sets.sum(1)`` that of each size of set (Vovk,
    "Conditional validity of inductive conformal predictors", ACML 2012).

    Args:
        sets: As in :func:`coverage`, and so is ``target``.
        groups: Group of each sample, any labels, ``(N,)``.
    """
    _, covered = _checked(sets, target)
    arrays = isinstance(groups, np.ndarray) or is_tensor(groups) or frames.opened(groups) is not None
    labels = frames.as_array(groups).tolist() if arrays else list(groups)  # type: ignore[arg-type]
    if len(labels) != len(covered):
        raise ValueError(f"groups must have one label for each of the {len(covered)} sets, got {len(labels)}")
    hits: dict[Any, list[bool]] = {}
    for label, hit in zip(labels, covered.tolist(), strict=True):
        hits.setdefault(label, []).append(hit)
    return {label: sum(of_group) / len(of_group) for label, of_group in hits.items()}


def size_stratified_coverage(
    sets: Values, target: Values, *, bounds: Sequence[int] = SIZES, at_least: int = 1
) -> float:
    r"""Smallest coverage among strata of set size, :math:`\min_j \Pr(y \in S \mid l_j \le |S| \le h_j)`.

    It is near the marginal coverage if sets are large where, and only where, samples are hard (Angelopoulos et al.,
    ICLR 2021). The minimum over strata of few samples is low by chance.

    Args:
        sets: As in :func:`coverage`, and so is ``target``.
        bounds: Size of the largest sets of each stratum but the last, ascending: by default the strata have 0 to 1,
            2 to 3, 4 to 6, 7 to 10, 11 to 100 and more classes.
        at_least: Number of samples of the smallest stratum that counts.
    """
    if any(one >= other for one, other in pairwise(bounds)) or min(bounds, default=0) < 0:
        raise ValueError(f"bounds must be ascending sizes of sets, from 0, got {tuple(bounds)}")
    inside, covered = _checked(sets, target)
    stratum = np.searchsorted(bounds, inside.sum(1))
    samples = np.bincount(stratum)
    judged = samples >= max(at_least, 1)
    if not judged.any():
        raise ValueError(f"no stratum has {at_least} samples, the largest has {samples.max()}: lower at_least")
    return float((np.bincount(stratum, covered)[judged] / samples[judged]).min())


def _checked_sets(sets: Values) -> Marks:
    given = as_array("sets", sets)
    if given.ndim != 2 or 0 in given.shape:
        raise ValueError(
            f"sets must have shape (N, C) with samples and classes, got {given.shape}: pass the output of predict_set"
        )
    marks: Marks = given.astype(bool)
    if not (given == marks).all():
        raise ValueError("sets must hold only 0 and 1, or booleans: pass the output of predict_set, not probabilities")
    return marks


def _checked(sets: Values, target: Values) -> tuple[Marks, Marks]:
    """The sets, and whether each contains the right class."""
    inside = _checked_sets(sets)
    labels = checked_target(target, len(inside), inside.shape[1], "sets")
    return inside, inside[np.arange(len(labels)), labels]
