"""Values of a file, made ready: percentages, rows that were rounded, shapes that hide a mistake."""

import numpy as np

from calibrant.files.arrays import Array
from calibrant.metrics.columns import Kind
from calibrant.metrics.rounding import EXACT, explained_by_rounding, renormalised

# Values between these are too close to [0, 1] for logits and percentages.
LEAST, MOST = 0.1, 1.5


def checked(
    kind: Kind, values: Array, called: str, *, percent: bool, several: bool = False
) -> tuple[Array, tuple[str, ...]]:
    """Values without percentages and rounding, and notices of what was changed.

    Args:
        kind: Kind of the values.
        values: The values.
        called: What an option calls them, for errors.
        percent: Whether they are percentages.
        several: Whether a sample has several labels, so that a row need not sum to 1.

    Raises:
        ValueError: If they cannot be what they are said to be.

    Example:
        >>> import numpy as np
        >>> p = np.array([[0.33, 0.33, 0.33], [0.5, 0.3, 0.2]])
        >>> values, notices = checked("probabilities", p, "probs", percent=False)
        >>> values[0].sum().round(6), notices
        (np.float64(1.0), ('1 of 2 rows of rounded probabilities sum to 0.99 to 0.99: they are divided by their sum',))
    """
    if values.ndim and not len(values):
        raise ValueError("has no rows: was it written to the end?")
    if kind == "logits" or values.dtype.kind not in "fiub":
        if percent and kind == "logits":
            raise ValueError("has logits, which are no percentages: leave out --percent")
        if kind == "logits" and not several:
            _refuse_minus_infinity(values)
        return values, ()
    if percent:
        values = values / 100
    if values.ndim == 2 and values.shape[1] == 1 and (values == 1).all():
        raise ValueError(
            f"{kind} has one column, and every value is 1, as a softmax over one output gives: write its sigmoid"
        )
    notices: tuple[str, ...] = ()
    if values.ndim == 2 and values.shape[1] > 1 and not several and values.min() >= 0 and values.max() <= MOST:
        values, notices = _renormalised(values)
    low, high = float(values.min(initial=1)), float(values.max(initial=0))
    slack = 8 * np.finfo(np.result_type(values.dtype, np.float32)).eps
    if low < -slack or high > 1 + slack:
        remedy = _remedy(kind, low, high, called, percent=percent)
        raise ValueError(f"{kind} must lie in [0, 1], got values from {low:.4g} to {high:.4g}: {remedy}")
    return values, notices


def _remedy(kind: Kind, low: float, high: float, called: str, *, percent: bool) -> str:
    """What values outside [0, 1] probably are, and what to do."""
    if percent:
        return "leave out --percent"
    if low > -LEAST and high <= MOST:
        return "they are too close to it for logits, so clip them, or check how they were computed"
    logits = f"--logits {called}" if kind == "probabilities" else ""
    if low >= 0 and high <= 100:
        return "give --percent if they are percentages" + f", or {logits} if they are logits" * bool(logits)
    return f"these look like logits: give {logits}" if logits else "write the probability of the predicted class"


def _refuse_minus_infinity(values: Array) -> None:
    if values.dtype.kind != "f" or values.ndim < 1 or np.isnan(values).any() or (values == np.inf).any():
        return
    rows = (values.reshape(len(values), -1) == -np.inf).any(1).sum()
    if rows:
        raise ValueError(
            f"logits must be finite, got -inf in {rows:,} of {len(values):,} rows: write a large negative number, such "
            "as -10000, for a class that cannot be"
        )


def _renormalised(values: Array) -> tuple[Array, tuple[str, ...]]:
    """Rows divided by their sum if rounding explains how far it is from 1.

    Raises:
        ValueError: If rounding does not explain it.
    """
    sums = values.sum(1, dtype=np.float64)
    off = np.abs(sums - 1) > EXACT
    if not off.any():
        return values, ()
    low, high = sums[off].min(), sums[off].max()
    if np.abs(sums - 1).max() > explained_by_rounding(values):
        few = np.allclose(values, values.round(1), rtol=0, atol=1e-7)
        remedy = "write more digits" if few else "divide each row by its sum, or write the softmax of the logits"
        raise ValueError(
            f"probabilities must sum to 1 in every row, but {off.sum():,} of {len(values):,} rows sum to {low:.6g} to "
            f"{high:.6g}: {remedy}"
        )
    notice = renormalised(int(off.sum()), len(values), float(low), float(high))
    return np.where(off[:, None], values / sums[:, None], values).astype(values.dtype, copy=False), (notice,)


def looks_normalised(values: Array) -> bool:
    """Whether rows are probabilities, by their range and their sums."""
    if values.ndim != 2 or values.dtype.kind != "f" or not values.shape[1] > 1:
        return False
    return bool(values.min(initial=0) >= 0 and (np.abs(values.sum(1, dtype=np.float64) - 1) < EXACT).all())


def flattened(values: Array, labels: Array | None, weight: Array | None) -> tuple[Array, Array | None, Array | None]:
    """Values of tokens or pixels, ``(N, T, C)`` with labels and weights ``(N, T)``, as one row each."""
    if labels is None or labels.ndim < 2 or labels.ndim != values.ndim - 1 or values.shape[:-1] != labels.shape:
        return values, labels, weight
    if weight is not None and weight.shape == labels.shape:
        weight = weight.reshape(-1)
    return values.reshape(-1, values.shape[-1]), labels.reshape(-1), weight
