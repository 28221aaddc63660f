"""Split conformal prediction: sets of classes that contain the right one with a given probability."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from calibrant import frames, inputs
from calibrant.frames import Array, IndexArray, is_tensor
from calibrant.inputs import FitWarning, counted
from calibrant.posthoc.fit import Fitted, HeldOut, checked_samples, random_words
from calibrant.posthoc.map import Part, evaluated

ScoreName = Literal["lac", "aps", "raps", "top-k"]
TuningGoal = Literal["size", "size-stratified coverage"]
CoverageName = Literal["marginal", "class-conditional", "group-conditional"]
# What JSON can hold, so that groups travel with the file.
Group = str | int | float | tuple[Any, ...]
# Scores this many roundings above a threshold count as equal to it: another order or runtime rounds differently.
ROUNDINGS = 16
# Width of the 90 % range of the coverage above which there is a notice: 5 points to each side.
WIDEST = 0.1
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
    """Sets of the classes whose score is at most a threshold: one, or one for each class or group."""

    score: ScoreName
    quantile: Any
    penalty: float = 0.0  # of RAPS, as the rank
    rank: float = 0.0
    seed: int | None = None  # of U, or None for U = 1
    grouped: bool = False

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
        return scores + self.penalty * xp.clip(rank - self.rank, 0.0, None) if self.score == "raps" else scores

    def sets(self, xp: Any, rows: Any, places: Any = None) -> Any:
        """Which classes are in each set, ``(N, C)``; places are the positions of the groups, -1 for an unknown one."""
        scores = self.scores(xp, rows)
        limit = xp.like(self.quantile, scores)
        if self.grouped:
            known = (places >= 0) & (places < len(self.quantile))
            of_known = limit[xp.where(known, places, 0)]
            limit = xp.where(known, of_known, math.inf)[:, None]
        slack = ROUNDINGS * float(np.finfo(np.float64 if xp.is_double(scores) else np.float32).eps)
        return scores <= limit + slack

    def of_right(self, data: HeldOut) -> Array:
        """Score of the right class of every sample."""
        return np.asarray(evaluated(self.scores, data.logits)[data.of_target])


def uniform(xp: Any, logits: Any, seed: int) -> Any:
    """A number in (0, 1) for each row, ``(N, 1)``, hashed from its bits and the seed: :doc:`/methods/conformal`."""
    words = xp.bits(logits + 0.0)  # since the two zeros have different bits
    factors = xp.like(random_words(seed, words.shape[1] + 1), words)
    low = 2**32 - 1
    half = ((words * factors[1:]).sum(1) + factors[0]) >> 32 & low
    for _ in range(3):
        half = ((half ^ (half >> 15)) * 2654435769) & low  # an odd number near 2^32 over the golden ratio
    return (xp.like(half ^ (half >> 15), logits)[:, None] + 0.5) / 2**32


def ranks(xp: Any, logits: Any, probability: Any) -> tuple[Any, Any]:
    """Probability of all classes ranked above each class, and its rank from 1; equal logits rank by class."""
    order = xp.descending(logits)
    place = xp.descending(-order)  # its inverse
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


def tuned_penalty(sets: Sets, data: HeldOut, alpha: float, goal: TuningGoal) -> float:
    """The penalty that is best for the goal; of equal ones the smallest."""
    costs = []
    for penalty in PENALTIES[goal]:
        scores = evaluated(replace(sets, penalty=penalty).scores, data.logits)
        held = scores <= conformal_quantile(scores[data.of_target], alpha)
        sizes = held.sum(1)
        if goal == "size":
            costs.append(float(sizes.sum()))
        else:
            costs.append(coverage_violation(sizes, held[data.of_target], alpha))
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
    """5 % and 95 % quantiles of the coverage, Beta distributed without ties; (1, 1) if the threshold is infinite."""
    from scipy.special import betaincinv

    place = place_of_quantile(samples, alpha)
    if place > samples:
        return 1.0, 1.0
    low, high = (float(betaincinv(place, samples + 1 - place, q)) for q in (0.05, 0.95))
    return low, high


class ConformalClassifier(Fitted):
    r"""Sets of classes that contain the right one with probability at least :math:`1 - \alpha`.

    A set holds every class whose score is at most a threshold :math:`\hat q`, a quantile of the scores of the right
    classes of held-out samples. If new samples are exchangeable with these, the coverage holds on average over samples,
    for any model; see :doc:`/methods/conformal`.

    With the probabilities :math:`p` of a sample in descending order, the score of a class of rank r is

    - ``"lac"``: :math:`1 - p_r`; the smallest sets on average, which may be empty;
    - ``"aps"``: :math:`\sum_{j < r} p_j + U p_r` with U uniform on [0, 1], a hash of the logits and the seed; sets that
      grow where the sample is hard;
    - ``"raps"``: the same plus :math:`\lambda \max(r - k, 0)`, which keeps sets of many classes small;
    - ``"top-k"``: :math:`r`; sets of the same size, with the smallest k that covers enough.

    Args:
        score: ``"lac"``, ``"aps"``, ``"raps"`` or ``"top-k"``.
        alpha: Share of samples whose set may miss the right class.
        coverage: ``"marginal"``, on average over all samples; ``"class-conditional"``, over those of each class; or
            ``"group-conditional"``, over those of each group: then ``fit`` and ``predict_set`` need the groups, and a
            module takes positions in ``groups_`` as a second argument.
        randomized: False replaces U by 1, as ONNX needs it: the sets are not random, and cover more than
            :math:`1 - \alpha`.
        penalty: :math:`\lambda` of RAPS, or ``"tune"``: the best for the goal ``tune_for``.
        rank: k of RAPS, or ``"tune"``: the rank that the right class exceeds with probability at most alpha.
            Tuning uses 30 % of the data, which is then not used for :math:`\hat q`.
        tune_for: Goal of a tuned penalty: ``"size"``, the smallest sets; or ``"size-stratified coverage"``, coverage
            near :math:`1 - \alpha` for sets of every size.
        seed: Seed of U, and of the data drawn for tuning.

    Attributes:
        groups_: Groups of the fitted samples, sorted; empty unless sets are group-conditional.

    Example:
        >>> logits = np.random.default_rng(0).normal(size=(500, 4))
        >>> conformal = ConformalClassifier("lac", alpha=0.1).fit(logits, logits.argmax(1))
        >>> conformal.predict_set(np.array([[5.0, 0.0, 0.0, 0.0]]))
        array([[ True, False, False, False]])
        >>> round(conformal.quantile_, 3)
        0.651
    """

    found = ("groups_",)

    def __init__(
        self,
        score: ScoreName = "lac",
        alpha: float = 0.1,
        *,
        coverage: CoverageName = "marginal",
        randomized: bool = True,
        penalty: float | Literal["tune"] = 0.01,
        rank: int | Literal["tune"] = 5,
        tune_for: TuningGoal = "size",
        seed: int = 0,
    ) -> None:
        super().__init__()
        inputs.check_choice("score", score, ("lac", "aps", "raps", "top-k"))
        inputs.check_choice("coverage", coverage, ("marginal", "class-conditional", "group-conditional"))
        inputs.check_choice("tune_for", tune_for, tuple(PENALTIES))
        if isinstance(penalty, str):
            inputs.check_choice("penalty", penalty, ("tune",))
        else:
            inputs.check_range("penalty", penalty, low=0.0)
        if isinstance(rank, str):
            inputs.check_choice("rank", rank, ("tune",))
        else:
            inputs.check_count("rank", rank, 0)
        self.score = score
        self.alpha = inputs.check_range("alpha", alpha, low=0.0, high=1.0, open_low=True, open_high=True)
        self.coverage = coverage
        self.randomized = bool(randomized)
        self.penalty = penalty
        self.rank = rank
        self.tune_for = tune_for
        self.seed = inputs.check_count("seed", seed, 0)
        self.groups_: tuple[Group, ...] = ()

    @property
    def quantile_(self) -> float:
        """Largest score of a class in a marginal set."""
        self.require_fitted()
        if self.coverage != "marginal":
            raise TypeError(f"{self.coverage} sets have one threshold for each: use quantiles_")
        return float(self.map_.quantile)

    @property
    def quantiles_(self) -> dict[Group, float]:
        """Largest score of a class in a set, by class or by group."""
        self.require_fitted()
        if self.coverage == "marginal":
            raise TypeError("marginal sets have one threshold: use quantile_")
        values = self.map_.quantile.tolist()
        names = self.groups_ if self.coverage == "group-conditional" else self.classes_.tolist()
        return dict(zip(names, values, strict=True))

    @property
    def penalty_(self) -> float:
        """Lambda of RAPS, as given or tuned."""
        self.require_fitted()
        return float(self.map_.penalty)

    @property
    def rank_(self) -> int:
        """K of RAPS, as given or tuned."""
        self.require_fitted()
        return int(self.map_.rank)

    def fit(
        self,
        logits: Any,
        target: Any,
        *,
        groups: Any = None,
        sample_weight: None = None,
        ignore_index: int | None = -100,
        classes: Sequence[Any] | None = None,
    ) -> Self:
        """Fit on predictions the model was not trained on, and return self.

        Arguments are those of :meth:`Calibrator.fit`, without weights; and for group-conditional sets ``groups``, the
        group of each sample: strings, numbers or tuples of them, in a list, an array, a tensor or a column of a frame.
        """
        if sample_weight is not None:
            raise ValueError(
                "conformal sets have no sample_weight: a threshold would depend on the new sample's weight"
            )
        self._check(groups)
        data, names = checked_samples(logits, target, None, ignore_index, classes)
        part, parts, known = np.zeros_like(data.target), 1, self.groups_
        if self.coverage == "class-conditional":
            part, parts = data.target, data.logits.shape[1]
        elif self.coverage == "group-conditional":
            every = frames.as_array(target).reshape(-1)
            labels = group_labels(groups, len(every))
            if ignore_index is not None:
                labels = [label for label, kept in zip(labels, (every != ignore_index).tolist(), strict=True) if kept]
            known = known_groups(labels)
            part, parts = positions(labels, known), len(known)
        self.map_, counts = self._sets(data, part, parts)
        self.groups_, self.labels_, self.notices_ = known, names, []
        self.class_count_, self.samples_ = data.logits.shape[1], len(data.target)
        self.examine(data)
        self._examine_thresholds(data, counts)
        return self.warned()

    def _sets(self, data: HeldOut, part: IndexArray, parts: int) -> tuple[Sets, list[int]]:
        """Tune the penalties if requested, and find the threshold of each part, from as many samples."""
        penalty, rank = (0.0 if value == "tune" else float(value) for value in (self.penalty, self.rank))
        seed = self.seed if self.randomized and self.score in ("aps", "raps") else None
        sets = Sets(self.score, np.array(0.0), penalty, rank, seed, self.coverage == "group-conditional")
        if self.score == "raps" and "tune" in (self.penalty, self.rank):
            share = math.ceil(TUNING_SHARE * len(part))
            if share == len(part):
                raise ValueError(f"tuning needs at least 2 samples, got {len(part)}: pass penalty and rank as numbers")
            order = random_words(self.seed, len(part)).argsort(kind="stable")
            tuning, rest = data.take(order[:share]), order[share:]
            data, part = data.take(rest), part[rest]
            if self.rank == "tune":
                rank = conformal_quantile(replace(sets, score="top-k").of_right(tuning), self.alpha)
                sets = replace(sets, rank=min(rank, float(data.logits.shape[1])))
            if self.penalty == "tune":
                sets = replace(sets, penalty=tuned_penalty(sets, tuning, self.alpha, self.tune_for))
        scores = sets.of_right(data)
        quantiles = np.array([conformal_quantile(scores[part == k], self.alpha) for k in range(parts)])
        limit = quantiles.reshape(()) if self.coverage == "marginal" else quantiles
        return replace(sets, quantile=limit), np.bincount(part, minlength=parts).tolist()

    def _examine_thresholds(self, data: HeldOut, counts: list[int]) -> None:
        """Add notices about thresholds from too few samples, and about classes without samples."""
        marginal = self.coverage == "marginal"
        names = [""] if marginal else [f"{name!r}: " for name in self.quantiles_]
        few = []
        for name, count in zip(names, counts, strict=True):
            low, high = coverage_range(count, self.alpha)
            if low == 1:
                few.append(f"{name}{counted(count, 'sample')}, no finite threshold")
            elif high - low > WIDEST:
                few.append(f"{name}{counted(count, 'sample')}, {low:.1%} to {high:.1%}")
        if few:
            self.notice(
                f"with few samples the coverage at alpha={self.alpha:g} may differ from {1 - self.alpha:.1%}, 90 % "
                f"range: {listed(few)}; with fewer than {fewest_samples(self.alpha)} there is no threshold, and sets "
                "hold all classes, or that class: fit on more samples, or raise alpha"
            )
        absent = np.bincount(data.target, minlength=data.logits.shape[1]) == 0
        if absent.any() and marginal and math.isfinite(self.map_.quantile):  # else every set holds all classes
            self.notice(
                f"no samples of {listed([repr(name) for name in self.classes_[absent].tolist()])}, so the coverage of "
                "these classes is unknown: fit on samples of all classes, or use coverage='class-conditional'"
            )

    def _check(self, groups: Any) -> None:
        if (groups is None) == (self.coverage == "group-conditional"):
            raise ValueError(
                f"{self.coverage} sets {'need' if groups is None else 'do not use'} groups: only with "
                "coverage='group-conditional' pass groups=, or to a module positions in groups_"
            )

    def predict_set(self, logits: Any, *, groups: Any = None) -> Any:
        """Return which classes are in the set of each sample: boolean, ``(N, C)``; ``(N, 2)`` for binary logits.

        Args:
            logits: ``(N, C)``, or binary ``(N,)`` or ``(N, 1)``.
            groups: Group of each sample, for group-conditional sets. The set of a group that ``fit`` did not see holds
                all classes, and a warning names the group.
        """
        self._check(groups)
        if groups is None:
            return self(logits)
        labels = group_labels(groups, len(logits))
        if unknown := set(labels) - set(self.groups_):
            inputs.warn(
                f"{counted(len(unknown), 'group')} had no samples in fit, so that the sets hold all classes: "
                f"{listed([repr(group) for group in known_groups(unknown)])}",
                FitWarning,
            )
        return self(logits, positions(labels, self.groups_))

    def __call__(self, logits: Any, places: Any = None) -> Any:
        """Return the sets, as ``predict_set`` does; those of groups by the position of each group in ``groups_``."""
        self._check(places)
        rows = self.rows(logits)
        if places is None:
            return self.in_container(logits, evaluated(self.map_.sets, rows))
        if is_tensor(rows) and not is_tensor(places):
            places = rows.new_tensor(places.tolist()).long()
        return self.in_container(logits, evaluated(self.map_.sets, rows, places))


def listed(items: list[str]) -> str:
    """The first five, and how many more there are."""
    return ", ".join(items[:5]) + (f" and {len(items) - 5} more" if len(items) > 5 else "")


def group_labels(groups: Any, samples: int) -> list[Group]:
    """Check the labels and convert them to Python's own types."""
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise TypeError(f"groups must be a list or an array of labels, got {type(groups).__name__}")
    if frames.opened(groups) is not None or is_tensor(groups):
        groups = frames.as_array(groups)
    shape = groups.shape if isinstance(groups, np.ndarray) else (samples,)
    if len(shape) != 1:
        raise ValueError(f"groups must have shape (N,), got {shape}: pass one label for each sample")
    values = groups.tolist() if isinstance(groups, np.ndarray) else list(groups)
    if len(values) != samples:
        raise ValueError(f"groups must have {counted(samples, 'label')}, one for each sample, got {len(values)}")
    return [plain_label(value) for value in values]


def plain_label(value: Any) -> Group:
    """Check one label and convert it to Python's own types, lists to tuples."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple | list):
        return tuple(plain_label(part) for part in value)
    if not isinstance(value, str | int | float) or value != value:
        raise TypeError(
            f"a group must be a string, a number or a tuple of them, got {value!r}: give samples without a group a "
            "label of their own"
        )
    return value


def known_groups(labels: Iterable[Group]) -> tuple[Group, ...]:
    """The different groups, in an order that does not depend on the samples' order."""
    return tuple(sorted(set(labels), key=lambda label: (type(label).__name__, label)))


def positions(labels: list[Group], known: Iterable[Group]) -> IndexArray:
    """Position of each label among the known ones, ``(N,)``; -1 for an unknown one."""
    places = {label: place for place, label in enumerate(known)}
    return np.array([places.get(label, -1) for label in labels], dtype=np.int64)
