"""Scoring of the arena: the same code, with the same floor, for every method.

A result is a dictionary with log_loss, brier, ece, infinite, fit, predict and failed. Arrays of results have a row for
each case and a column for each method.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import studentized_range

Array = NDArray[np.float64]

FLOOR = float(np.finfo(np.float32).tiny)
# Log losses that differ by no more than this are a tie; worse than nothing means worse by more.
TIE = 1e-6
ECE_BINS = 15


def floored(p: NDArray[Any]) -> Array:
    """Probabilities with the floor, in rows that sum to one."""
    p = np.maximum(np.asarray(p, dtype=np.float64), FLOOR)
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def score(p: NDArray[Any], y: NDArray[Any]) -> dict[str, float]:
    """Log loss, Brier score (sum over classes), ECE (top label) and whether the log loss was infinite before the floor.

    Raises:
        ValueError: If these are no probabilities: another shape, NaN, infinite or negative values.
    """
    p = np.asarray(p)
    if p.ndim != 2 or len(p) != len(y) or not np.isfinite(p).all() or (p < -1e-6).any():
        raise ValueError(f"not probabilities of {len(y)} rows: shape {p.shape}, finite {np.isfinite(p).all()}")
    rows = np.arange(len(y))
    infinite = bool((p[rows, y] <= 0).any())
    p = floored(p)
    hit = np.zeros_like(p)
    hit[rows, y] = 1
    return {
        "log_loss": float(-np.log(p[rows, y]).mean()),
        "brier": float(((p - hit) ** 2).sum(axis=1).mean()),
        "ece": ece(p.max(axis=1), p.argmax(axis=1) == y),
        "infinite": float(infinite),
    }


def ece(confidence: Array, correct: NDArray[np.bool_]) -> float:
    """Expected calibration error of the top label in 15 bins of equal width, open below and closed above."""
    bins = np.clip(np.ceil(confidence * ECE_BINS).astype(int) - 1, 0, ECE_BINS - 1)
    gap = np.bincount(bins, weights=correct - confidence, minlength=ECE_BINS)
    return float(np.abs(gap).sum() / len(confidence))


def wins(losses: Array) -> Array:
    """Share of the other methods that each method beats, case by case; a tie is half a win."""
    difference = losses[:, None, :] - losses[:, :, None]  # case, method, other
    won = (difference > TIE) + 0.5 * (np.abs(difference) <= TIE)
    others = losses.shape[1] - 1
    return np.asarray((won.sum(axis=2) - 0.5) / max(others, 1))


def ranks(losses: Array) -> Array:
    """Rank of each method, case by case: one plus the number of better methods, ties shared."""
    methods = losses.shape[1]
    return np.asarray(1 + (methods - 1) * (1 - wins(losses)))


def by_pair(values: Array, pairs: Sequence[str]) -> tuple[Array, list[str]]:
    """Means over the splits of each pair, so that pairs weigh equally."""
    names = list(dict.fromkeys(pairs))
    index = {name: k for k, name in enumerate(names)}
    which = np.array([index[pair] for pair in pairs])
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, which, values)
    return sums / np.bincount(which)[:, None], names


class Interval(NamedTuple):
    """A mean over pairs with its 95 % interval; NaN if there is only one block to draw."""

    mean: float
    low: float
    high: float


def bootstrap(values: Array, blocks: Sequence[str], draws: int = 2000, seed: int = 0) -> list[Interval]:
    """Mean over pairs of each column, with percentile intervals that draw whole blocks (data sets or networks)."""
    names = sorted(set(blocks))
    which = np.array([names.index(block) for block in blocks])
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, which, values)
    counts = np.bincount(which).astype(float)
    means = values.mean(axis=0)
    if len(names) < 2:
        return [Interval(float(mean), np.nan, np.nan) for mean in means]
    drawn = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    sampled = drawn @ sums / (drawn @ counts)[:, None]
    low, high = np.percentile(sampled, [2.5, 97.5], axis=0)
    return [Interval(*map(float, three)) for three in zip(means, low, high, strict=True)]


def critical_difference(methods: int, pairs: int, level: float = 0.05) -> float:
    """Nemenyi's critical difference between mean ranks (Demšar 2006)."""
    q = studentized_range.ppf(1 - level, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * pairs)))
