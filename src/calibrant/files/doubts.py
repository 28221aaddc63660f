"""Notices about likely mistakes in a file, each with a remedy."""

import numpy as np

from calibrant.files.arrays import Array
from calibrant.files.labels import LEFT_OUT
from calibrant.files.source import Source
from calibrant.metrics.two_classes import fits_other

# Names of weights, which are never assumed.
WEIGHTS = ("sample_weight", "sample_weights", "weight", "weights")
# Share of rows that must agree before a confidence is taken for the probability of a class.
NEARLY_ALL = 0.99
# Fewest rows, and rows of a sample, that show whether logits are probabilities.
FEWEST, SAMPLED = 8, 1000
# Labels that a notice names.
MOST_NAMED = 5


def of_weights(names: list[str]) -> tuple[str, ...]:
    """Columns of weights that are not used."""
    return tuple(
        f"column {name!r} is not used: give --weight {name} if samples are to be weighted"
        for name in names
        if name.lower() in WEIGHTS
    )


def of_confidence(name: str, confidence: Array, predicted_name: str, predicted: Array, half: float) -> tuple[str, ...]:
    """A confidence below one half where one of two classes is predicted, and only there: a probability of the other.

    Args:
        name: Column of the confidence.
        confidence: Its values.
        predicted_name: Column of the predicted class.
        predicted: Its values.
        half: One half, in the unit of the confidence.
    """
    classes = sorted(set(predicted.tolist()))
    if len(classes) != 2 or confidence.dtype.kind not in "fiu" or not (confidence < half).any():
        return ()
    for other, one in (classes, classes[::-1]):
        if ((confidence < half) == (predicted == other)).mean() >= NEARLY_ALL:
            other_called, called = (f"{each:g}" if isinstance(each, float) else str(each) for each in (other, one))
            order = f" and --classes FILE with {other_called} and {called}, one on each line" * (one < other)
            return (
                f"{name!r} is below {half:g} where {predicted_name!r} is {other_called}, and only there: if it is the "
                f"probability of {called}, give --probabilities {name}{order}",
            )
    return ()


def of_labels(source: Source) -> tuple[str, ...]:
    """A target in which only one class occurs, or labels of several that never or always apply."""
    labels = source.labels
    if labels is None or source.kind == "confidence" or len(labels) < 3:
        return ()
    if labels.ndim == 2 and labels.shape == source.values.shape:
        return _constant(source, labels)
    if (labels != labels.flat[0]).any():
        return ()
    found = int(labels.flat[0])
    return (f"only class {_called(source, found)} occurs in {source.label!r}: check the labels",)


def _constant(source: Source, labels: Array) -> tuple[str, ...]:
    known = labels != LEFT_OUT
    told = []
    for mark, how in ((0, "never"), (1, "always")):
        alike = np.flatnonzero(known.any(0) & ((labels == mark) | ~known).all(0))
        if len(alike):
            named = ", ".join(_called(source, int(k)) for k in alike[:MOST_NAMED]) + ", ..." * (len(alike) > MOST_NAMED)
            told.append(f"{len(alike):,} of {labels.shape[1]:,} labels {how} apply ({named}): check them")
    return tuple(told)


def of_two_classes(source: Source, called: str) -> tuple[str, ...]:
    """Probabilities or logits that fit the other of two classes much better.

    Args:
        source: Values and class indices.
        called: What an option calls the values.
    """
    values, labels = source.values.astype(np.float64), source.labels
    if labels is None or not np.isin(labels, (0, 1)).all() or not np.isfinite(values).all():
        return ()
    if values.ndim > 1:
        values = values[:, -1] - values[:, 0] * (source.kind == "logits" and values.shape[1] == 2)
    p = 1 / (1 + np.exp(-np.clip(values, -700, 700))) if source.kind == "logits" else values
    p, place = np.unique(p, return_inverse=True)
    samples, events = (np.bincount(place, each).astype(np.float64) for each in (np.ones(len(place)), labels))
    return fits_other(called, _called(source, 0), p, samples, events)


def _called(source: Source, k: int) -> str:
    return source.names[k] if source.names and 0 <= k < len(source.names) else str(k)


def of_values(source: Source, called: str) -> tuple[str, ...]:
    """Logits that look like probabilities, and a column of ones.

    Args:
        source: Values and labels.
        called: What an option calls the values.
    """
    values, labels = source.values, source.labels
    if source.kind == "probabilities" and values.ndim == 1 and len(values) > 2 and (values == 1).all():
        return (f"every value of {called!r} is 1, as a softmax over one output gives: write its sigmoid",)
    if source.kind != "logits" or values.dtype.kind not in "fiu":
        return ()
    rows = values if values.ndim < 3 else np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])
    some = rows[:: max(1, len(rows) // SAMPLED)]
    if len(rows) < FEWEST or some.min() < 0 or some.max() > 1 or not some.any():
        return ()
    if some.ndim == 1 or some.shape[1] == 1 or (labels is not None and labels.shape == values.shape):
        return (f"these logits all lie in [0, 1], as probabilities do: give --probabilities {called} if they are",)
    if (np.abs(some.sum(1) - 1) <= 1e-3).all():
        return (f"these logits look like probabilities (rows sum to 1): give --probabilities {called} if they are",)
    return ()
