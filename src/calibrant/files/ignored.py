"""Labels that are left out: rows of samples, pixels, and single labels of several."""

from dataclasses import replace

import numpy as np

from calibrant.files.cells import filled, is_text
from calibrant.files.labels import LEFT_OUT
from calibrant.files.source import Source


def without_ignored(source: Source, ignored: int | None) -> Source:
    """A source without the rows, pixels or labels that are ``ignored``, with a notice of their number.

    Raises:
        ValueError: If nothing is left.
    """
    if source.labels is None or is_text(source.labels) or source.kind == "confidence":
        return source
    if ignored is None:
        return _told(source) if source.labels.ndim > 1 else source
    labels = filled(str(source.label), source.labels)
    left_out = labels == ignored
    if not left_out.any():
        return source
    if left_out.all():
        raise ValueError(f"has the label {ignored} in every row: --ignore-index {ignored} leaves none")
    count = f"{left_out.sum():,} of {left_out.size:,}"
    if labels.ndim > 1 and labels.shape == source.values.shape:
        marked = np.where(left_out, LEFT_OUT, labels)
        return replace(source, labels=marked, notices=(*source.notices, f"{count} labels are {ignored}, and left out"))
    return _as_rows(source).keep(
        np.flatnonzero(~left_out), f"{count} rows with the label {ignored} are left out"
    )  # fmt: skip


def _told(source: Source) -> Source:
    """A notice of the pixels or single labels that predictions leave out by themselves."""
    labels = filled(str(source.label), np.asanyarray(source.labels))
    left_out = labels == LEFT_OUT
    if not left_out.any() or left_out.all():
        return source
    several = labels.shape == source.values.shape
    notice = f"{left_out.sum():,} of {left_out.size:,} {'labels' if several else 'places'} are {LEFT_OUT}, and left out"
    if several and (rows := int(left_out.all(1).sum())):
        notice += f"; {rows:,} of {len(labels):,} samples have no other"
    return replace(source, notices=(*source.notices, notice))


def _as_rows(source: Source) -> Source:
    """Values of pixels, ``(N, C, d1, ...)`` with labels ``(N, d1, ...)``, as one row each."""
    labels, values, weight = source.labels, source.values, source.weight
    if labels is None or labels.ndim < 2 or values.shape[:1] + values.shape[2:] != labels.shape:
        return source
    if weight is not None and weight.shape != labels.shape:
        raise ValueError(f"weights must have the shape of {source.label!r}, {labels.shape}, got {weight.shape}")
    values = np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])
    return replace(source, values=values, labels=labels.ravel(), weight=None if weight is None else weight.ravel())
