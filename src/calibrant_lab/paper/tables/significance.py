"""Paired comparisons of methods over seeds.

The same seed gives two methods the same validation split and the same initial weights, so their results are paired.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from calibrant.metrics.tests import holm

LEVEL = 0.05
_NOTHING = 1e-9  # smaller differences are rounding errors
Verdict = Literal["better", "worse", "equal", "unclear"]


@dataclass(frozen=True)
class Paired:
    """The mean difference of pairs, with its 95 % interval from Student's t."""

    difference: float
    low: float
    high: float
    # Of the two-sided paired t-test; of the sign-flip test if all differences are equal and have no spread.
    p_t: float
    p_permutation: float  # of the two-sided exact sign-flip test, which assumes no distribution
    pairs: int


@dataclass(frozen=True)
class Comparison:
    """Comparison of two rows of a table in one column, over the seeds that both have."""

    method: str
    against: str
    measure: str  # the column, by its key
    paired: Paired
    p_holm: float  # of the t-test, corrected for the number of comparisons
    verdict: Verdict  # of the first row; better or worse if p_holm is below 5 %, equal if all differences are zero


def paired_test(differences: Sequence[float]) -> Paired:
    """Test whether the mean of two or more paired differences is zero.

    Example:
        >>> found = paired_test([1.0, 2.0, 3.0])
        >>> found.difference, round(found.p_t, 4), found.p_permutation
        (2.0, 0.0742, 0.25)
    """
    from scipy.special import stdtr, stdtrit

    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2 or not np.isfinite(values).all():
        raise ValueError(f"a paired test needs at least 2 finite differences, got {list(differences)}: run more seeds")
    count, mean = len(values), float(values.mean())
    p_permutation = _sign_flips(values)
    if np.ptp(values) <= _NOTHING:
        return Paired(mean, mean, mean, p_permutation, p_permutation, count)
    error = float(values.std(ddof=1)) / math.sqrt(count)
    reach = float(stdtrit(count - 1, 0.975)) * error
    p_t = 2 * float(stdtr(count - 1, -abs(mean) / error))
    return Paired(mean, mean - reach, mean + reach, p_t, p_permutation, count)


def least_p(pairs: int) -> float:
    """The smallest p-value that the sign-flip test can give.

    Example:
        >>> least_p(5), least_p(6)
        (0.0625, 0.03125)
    """
    return 2.0 ** (1 - pairs)


def compare(
    results: Mapping[str, Mapping[str, Mapping[int, float]]],
    pairs: Iterable[tuple[str, str]],
    measures: Mapping[str, int],
) -> tuple[Comparison, ...]:
    """Compare rows that share at least two seeds, and correct for the number of comparisons.

    Results are row -> measure -> seed -> value; a measure is 1 if higher is better, -1 if lower is better.
    """
    found = []
    for measure, (method, against) in product(measures, pairs):
        ours, theirs = results[method][measure], results[against][measure]
        differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
        if len(differences) >= 2 and all(map(math.isfinite, differences)):
            found.append((method, against, measure, paired_test(differences)))
    corrected = holm([paired.p_t for *_, paired in found])
    return tuple(
        Comparison(method, against, measure, paired, p, _verdict(paired, p, measures[measure]))
        for (method, against, measure, paired), p in zip(found, corrected, strict=True)
    )


def _verdict(paired: Paired, p: float, better: int) -> Verdict:
    if abs(paired.low) <= _NOTHING and abs(paired.high) <= _NOTHING:
        return "equal"
    if p >= LEVEL:
        return "unclear"
    return "better" if paired.difference * better > 0 else "worse"


def _sign_flips(values: np.ndarray) -> float:
    """Share of all 2^n sign choices with a sum at least as far from zero; split in two halves, 2^(n/2) suffice."""
    least = abs(float(values.sum())) - _NOTHING
    if least <= 0:
        return 1.0
    first, second = (_signed_sums(half) for half in np.array_split(values, 2))
    second.sort()
    above = int((len(second) - np.searchsorted(second, least - first)).sum())
    return 2 * above / (len(first) * len(second))  # by symmetry, as many are as far below


def _signed_sums(values: np.ndarray) -> np.ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums
