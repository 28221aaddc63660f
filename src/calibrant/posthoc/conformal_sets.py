"""Sets of conformal prediction: scores, thresholds, their tuning, and how far coverage may be off."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from calibrant.frames import IndexArray
from calibrant.inputs import counted
from calibrant.posthoc.cross_validation import random_words, row_hash
from calibrant.posthoc.map import NumpyOps, Part

Array = npt.NDArray[Any]
ScoreName = Literal["lac", "aps", "raps", "top-k"]
TuningGoal = Literal["size", "size-stratified coverage"]
# Scores this many roundings above a threshold count as equal to it: the same probabilities in another order, or in
# another runtime such as ONNX's, are rounded differently.
ROUNDINGS = 16
# Width of the 90 % range of the coverage above which there is a notice: 5 points to each side.
WIDEST = 0.1
NAMED = 5  # classes or groups that a notice names
# Penalties to try, those of the authors' code, and the share of the data used for tuning.
PENALTIES: dict[TuningGoal, tuple[float, ...]] = {
    "size": (0.001, 0.01, 0.1, 0.2, 0.5),
    "size-stratified coverage": (0.0, 1e-5, 1e-4, 8e-4, 9e-4, 1e-3, 1.5e-3, 2e-3),
}
TUNING_SHARE = 0.3
# Largest set of each stratum but the last, as in the authors' code.
STRATA = (1, 3, 6, 10, 100)


@dataclass(frozen=True, eq=False)
class Sets(Part):
    """Sets of the classes whose score is at most a threshold: one, or one for each class or group.

    ``penalty`` and ``rank`` are those of RAPS; ``seed`` is that of U, or None for U = 1.
    """

    score: ScoreName
    quantile: Any
    penalty: float
    rank: float
    seed: int | None
    grouped: bool

    def scores(self, xp: Any, logits: Any) -> Any:
        """Score of every class of every sample, ``(N, C)``."""
        logits = xp.wide(logits)
        probability = xp.softmax(logits)
        if self.score == "lac":
            return 1 - probability
        above, rank = ranks(xp, logits, probability)
        if self.score == "top-k":
            return rank
        scores = above + (1.0 if self.seed is None else uniform(xp, logits, self.seed)) * probability
        return scores + self.penalty * xp.maximum(rank - self.rank, 0.0) if self.score == "raps" else scores

    def sets(self, xp: Any, rows: Any, places: Any = None) -> Any:
        """Which classes are in each set, ``(N, C)``; places are the positions of the groups, -1 for an unknown one."""
        scores = self.scores(xp, rows)
        limit = xp.const(self.quantile, scores)
        if self.grouped:
            known = (places >= 0) & (places < len(self.quantile))
            limit = xp.where(known, limit[xp.where(known, places, 0)], math.inf)[:, None]
        slack = ROUNDINGS * float(np.finfo(np.float64 if xp.is_double(scores) else np.float32).eps)
        return scores <= limit + slack


def uniform(xp: Any, logits: Any, seed: int) -> Any:
    """A number in (0, 1) for each row, ``(N, 1)``, that depends only on its bits and the seed."""
    if not xp.has_bits():
        raise ValueError("ONNX cannot hash the bits of logits for randomised sets: fit with randomized=False to export")
    return (xp.like(row_hash(logits, seed), logits)[:, None] + 0.5) / 2**32


def ranks(xp: Any, logits: Any, probability: Any) -> tuple[Any, Any]:
    """Probability of all classes ranked above each class, and its rank from 1; equal logits rank by class."""
    order = xp.descending(logits)
    place = xp.inverse(order)
    ordered = xp.take(probability, order)
    return xp.take(xp.cumsum(ordered) - ordered, place), xp.like(place, probability) + 1.0


def conformal_quantile(scores: Array, alpha: float) -> float:
    """The ceil((n + 1)(1 - alpha))-th smallest score, or infinity if there are fewer."""
    place = place_of_quantile(len(scores), alpha)
    return float(np.sort(scores)[place - 1]) if place <= len(scores) else math.inf


def place_of_quantile(samples: int, alpha: float) -> int:
    """Rank of the threshold among the ascending scores of so many samples: ceil((n + 1)(1 - alpha))."""
    # A rounding error must not turn 0.9 * 10 = 9.000000000000002 into the tenth.
    return max(1, math.ceil((samples + 1) * (1 - alpha) - 1e-9))


def tuning_split(samples: int, seed: int) -> tuple[IndexArray, IndexArray]:
    """Indices of the samples for tuning, and of the rest."""
    share = math.ceil(TUNING_SHARE * samples)
    if share == samples:
        raise ValueError(f"tuning needs at least 2 samples, got {samples}: pass penalty and rank as numbers")
    order = random_words(seed, samples).argsort(kind="stable")
    return order[:share], order[share:]


def tuned_rank(logits: Array, target: Array, alpha: float) -> float:
    """The rank that the right class exceeds with probability at most alpha."""
    xp = NumpyOps()
    wide = xp.wide(logits)
    of_right = ranks(xp, wide, xp.softmax(wide))[1][np.arange(len(target)), target]
    return min(conformal_quantile(of_right, alpha), float(logits.shape[1]))


def tuned_penalty(scores_of: Callable[[float], Array], target: Array, alpha: float, goal: TuningGoal) -> float:
    """The penalty that is best for the goal; of equal ones the smallest.

    Args:
        scores_of: Scores of every class of the samples for tuning, ``(N, C)``, with a penalty.
        target: Their classes, ``(N,)``.
        alpha: Share of samples whose set may miss the right class.
        goal: ``"size"`` or ``"size-stratified coverage"``.
    """
    costs, each = [], np.arange(len(target))
    for penalty in PENALTIES[goal]:
        scores = scores_of(penalty)
        sets = scores <= conformal_quantile(scores[each, target], alpha)
        sizes = sets.sum(1)
        costs.append(float(sizes.sum()) if goal == "size" else coverage_violation(sizes, sets[each, target], alpha))
    return PENALTIES[goal][int(np.argmin(costs))]


def coverage_violation(sizes: Array, covered: Array, alpha: float) -> float:
    """Largest distance of the coverage from 1 - alpha among the strata of set size that have samples."""
    stratum = np.searchsorted(STRATA, sizes)
    counts = np.bincount(stratum, minlength=len(STRATA) + 1)
    rates = np.bincount(stratum, covered, len(STRATA) + 1)[counts > 0] / counts[counts > 0]
    return float(np.abs(rates - (1 - alpha)).max())


def fewest_samples(alpha: float) -> int:
    r"""Smallest number of samples with a finite threshold: :math:`\lceil 1/\alpha \rceil - 1`, at least 1."""
    return max(1, math.ceil(1 / alpha - 1e-9) - 1)


def coverage_range(samples: int, alpha: float) -> tuple[float, float]:
    r"""5 % and 95 % quantiles of the coverage of a threshold from n samples; (1, 1) if it is infinite.

    Over draws of the n samples, the coverage of all future ones is Beta distributed with parameters
    :math:`n + 1 - l` and :math:`l = \lfloor (n+1)\alpha \rfloor` if no scores tie, and larger if they do (Vovk,
    "Conditional validity of inductive conformal predictors", ACML 2012).

    Example:
        >>> from calibrant.posthoc.conformal_sets import coverage_range
        >>> [round(end, 3) for end in coverage_range(1000, 0.1)]
        [0.884, 0.915]
    """
    from scipy.special import betaincinv

    place = place_of_quantile(samples, alpha)
    if place > samples:
        return 1.0, 1.0
    low, high = (float(betaincinv(place, samples + 1 - place, q)) for q in (0.05, 0.95))
    return low, high


def enough_samples(alpha: float) -> int:
    """About how many samples bring the 90 % range of the coverage within 5 points of its centre."""
    return max(fewest_samples(alpha), math.ceil(alpha * (1 - alpha) * (2 * 1.645 / WIDEST) ** 2))


def threshold_notices(counts: Sequence[int], names: Sequence[object] | None, alpha: float) -> list[str]:
    """Notices about thresholds from too few samples: infinite ones, and those whose coverage varies widely.

    Args:
        counts: Number of samples of each threshold.
        names: Class or group of each threshold; None if there is one threshold for all.
        alpha: Share of samples whose set may miss the right class.
    """
    infinite, wide = [], []
    for place, count in enumerate(counts):
        low, high = coverage_range(count, alpha)
        samples = counted(count, "sample") if names is None else f"{names[place]!r} ({counted(count, 'sample')})"
        if low == high == 1:
            infinite.append(samples)
        elif high - low > WIDEST:
            wide.append(f"{samples}: {low:.1%} to {high:.1%}")
    found = []
    if infinite:
        found.append(
            f"sets hold all classes, or a class is in all sets, with too few samples for a threshold: "
            f"{_listed(infinite)}; alpha={alpha:g} needs at least {fewest_samples(alpha)}: fit on more samples, or "
            "raise alpha"
        )
    if wide:
        found.append(
            f"coverage at alpha={alpha:g} may differ from {1 - alpha:.1%} with few samples, 90 % range: "
            f"{_listed(wide)}; about {enough_samples(alpha)} samples give +-5 points"
        )
    return found


def absent_notices(counts: Sequence[int], names: Sequence[object]) -> list[str]:
    """A notice about classes without samples, whose coverage a marginal threshold says nothing about."""
    absent = [repr(name) for count, name in zip(counts, names, strict=True) if count == 0]
    if not absent:
        return []
    return [
        f"no samples of {_listed(absent)}, so the coverage of these classes is unknown: fit on samples of all classes, "
        "or use coverage='class-conditional'"
    ]


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return ", ".join(items[:NAMED]) + more
