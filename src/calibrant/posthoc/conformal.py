"""Split conformal prediction: sets of classes that contain the right one with a given probability."""

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from calibrant import frames, inputs
from calibrant.frames import IndexArray, is_tensor
from calibrant.posthoc.cross_validation import Samples, random_words
from calibrant.posthoc.fit import Fitted, FitWarning, counted
from calibrant.posthoc.map import NumpyOps, Part, evaluated

Array = npt.NDArray[Any]
ScoreName = Literal["lac", "aps", "raps", "top-k"]
CoverageName = Literal["marginal", "class-conditional", "group-conditional"]
TuningGoal = Literal["size", "size-stratified coverage"]
# A number, a string, or a tuple of them: what JSON can hold, so that groups travel with the file.
Group = str | int | float | tuple[Any, ...]
# Scores this many roundings above a threshold count as equal to it: the same probabilities in another order, or in
# another runtime such as ONNX's, are rounded differently.
ROUNDINGS = 16
# Width of the 90 % range of the coverage above which a fit gives a warning: 5 points to each side.
WIDEST = 0.1
NAMED = 5  # classes or groups that a warning names
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
        scores = above + (1.0 if self.seed is None else xp.uniform(logits, self.seed)) * probability
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


def ranks(xp: Any, logits: Any, probability: Any) -> tuple[Any, Any]:
    """Probability of all classes ranked above each class, and its rank from 1; equal logits rank by class."""
    order = xp.descending(logits)
    place = xp.inverse(order)
    ordered = xp.take(probability, order)
    return xp.take(xp.cumsum(ordered) - ordered, place), xp.like(place, probability) + 1.0


class ConformalClassifier(Fitted):
    r"""Sets of classes that contain the right one with probability at least :math:`1 - \alpha`.

    A score measures how unusual a class is for a sample. With :math:`\hat q` the
    :math:`\lceil (n+1)(1-\alpha) \rceil`-th smallest score of the right classes of n held-out samples (infinity
    if that is more than n), the set holds every class whose score is at most :math:`\hat q`. If new samples are
    exchangeable with the held-out ones, this coverage holds on average over samples, for any model.

    With the probabilities :math:`p` of a sample in descending order, a class of rank r and :math:`U` uniform on [0, 1],

    - ``"lac"``: :math:`1 - p_y`; the smallest sets on average, which may be empty;
    - ``"aps"``: :math:`\sum_{j < r} p_j + U p_r`; sets that grow where the sample is hard;
    - ``"raps"``: the same plus :math:`\lambda \max(r - k, 0)`, which keeps sets of many classes small;
    - ``"top-k"``: :math:`r`, not randomised; sets of the same size, with the smallest k that covers enough.

    Classes of equal probability rank by their index.

    U is not drawn at each call but is a hash of the sample's logits and the seed, which is as good as random: a sample
    has the same set whatever else is in its batch, and single samples are covered as often as a batch. Samples with
    exactly the same logits share their U; with many of them, sets cover more.

    Coverage holds on average over

    - ``"marginal"``: all samples; some classes or groups may be covered less, others more;
    - ``"class-conditional"``: the samples of each class. Class k has its own :math:`\hat q_k`, from the held-out
      samples of class k, and is in a set if its score is at most that;
    - ``"group-conditional"``: the samples of each group. Group g has its own :math:`\hat q_g`, and ``fit`` and
      ``predict_set`` need the group of each sample.

    With fewer than :math:`\lceil 1/\alpha \rceil - 1` samples, or samples of a class or group, the threshold is
    infinite: every set holds all classes, or that class. With n samples the coverage itself is random,
    :math:`\mathrm{Beta}(n + 1 - l, l)` with :math:`l = \lfloor (n+1)\alpha \rfloor`. ``fit`` gives a
    :class:`~calibrant.posthoc.FitWarning` if a threshold is infinite, or if the 90 % range of its coverage is
    wider than 10 points; and of marginal sets if a class has no samples, whose coverage is then unknown.

    You can calibrate the logits first, on other data than the sets: use :func:`logits_from_probabilities` for the
    output of any calibrator's ``predict_proba``.

    For ONNX, use ``randomized=False`` with APS and RAPS: it cannot hash the bits of a logit. A module or an exported
    program takes the position of a group in ``groups_``, as a second argument.

    Args:
        score: ``"lac"``, ``"aps"``, ``"raps"`` or ``"top-k"``.
        alpha: Share of samples whose set may miss the right class.
        coverage: ``"marginal"``, ``"class-conditional"`` or ``"group-conditional"``.
        randomized: False replaces U by 1: the sets are not random, and cover more than :math:`1 - \alpha`.
        penalty: :math:`\lambda` of RAPS, or ``"tune"``: the best for the goal ``tune_for``.
        rank: k of RAPS, or ``"tune"``: the rank that the right class exceeds with probability at most alpha.
            Tuning uses 30 % of the data, drawn by ``seed``, which is then not used for :math:`\hat q`; it tunes for
            marginal sets.
        tune_for: Goal of a tuned penalty. ``"size"``: the smallest sets, with a penalty of 0.001, 0.01, 0.1, 0.2 or
            0.5. ``"size-stratified coverage"``: coverage near :math:`1 - \alpha` for sets of every size, with a penalty
            from 0 to 0.002; the worst of the strata 0 to 1, 2 to 3, 4 to 6, 7 to 10, 11 to 100 and more classes counts.
        seed: Seed of U, and of the data drawn for tuning.

    Attributes:
        groups_: Groups of the fitted samples, sorted; empty unless sets are group-conditional.

    References:
        Sadinle, Lei, Wasserman, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels", JASA 2019;
        Romano, Sesia, Candès, "Classification with Valid and Adaptive Coverage", NeurIPS 2020; Angelopoulos,
        Bates, Malik, Jordan, "Uncertainty Sets for Image Classifiers using Conformal Prediction", ICLR 2021; Vovk,
        "Conditional validity of inductive conformal predictors", ACML 2012 (classes, groups, spread).

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import ConformalClassifier
        >>> logits = np.random.default_rng(0).normal(size=(500, 4))
        >>> conformal = ConformalClassifier("lac", alpha=0.1).fit(logits, logits.argmax(1))
        >>> conformal.predict_set(np.array([[5.0, 0.0, 0.0, 0.0]]))
        array([[ True, False, False, False]])
        >>> round(conformal.quantile_, 3)
        QUANTILE
        >>> by_group = ConformalClassifier("top-k", coverage="group-conditional")
        >>> by_group = by_group.fit(logits, logits.argmax(1), groups=["north", "south"] * 250)
        >>> by_group.quantiles_
        {'north': 1.0, 'south': 1.0}
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
        inputs.check_range("alpha", alpha, low=0.0, high=1.0, open_low=True, open_high=True)
        inputs.check_choice("coverage", coverage, ("marginal", "class-conditional", "group-conditional"))
        if isinstance(penalty, str):
            inputs.check_choice("penalty", penalty, ("tune",))
        else:
            inputs.check_range("penalty", penalty, low=0.0)
        if isinstance(rank, str):
            inputs.check_choice("rank", rank, ("tune",))
        else:
            check_whole("rank", rank, low=0)
        inputs.check_choice("tune_for", tune_for, tuple(PENALTIES))
        check_whole("seed", seed)
        self.score = score
        self.alpha = float(alpha)
        self.coverage = coverage
        self.randomized = bool(randomized)
        self.penalty = penalty
        self.rank = rank
        self.tune_for = tune_for
        self.seed = int(seed)
        self.groups_: tuple[Group, ...] = ()
        # Of the fit under way: the groups of its samples, and the number of samples of each threshold.
        self._given_groups: list[Group] = []
        self._counts: list[int] = []

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

        Args:
            logits: ``(N, C)``, or binary ``(N,)`` or ``(N, 1)``: the logit of class 1. Torch, NumPy or a data frame.
            target: Class indices, or names of classes, ``(N,)``.
            groups: Group of each sample, for group-conditional sets: strings, numbers or tuples of them; a list, an
                array, a tensor or a column of a data frame.
            sample_weight: Not supported: a weighted threshold would depend on the weight of the new sample.
            ignore_index: Label of samples to ignore; None to ignore none.
            classes: Label of each column of the logits; see :meth:`Calibrator.fit`.
        """
        if sample_weight is not None:
            raise ValueError(
                "conformal sets have no sample_weight: a threshold would depend on the new sample's weight"
            )
        self._check_groups(groups)
        labels = frames.as_array(target).reshape(-1)
        used = np.ones(len(labels), dtype=bool) if ignore_index is None else labels != ignore_index
        if groups is not None:
            given = group_labels(groups, len(labels))
            self._given_groups = [label for label, use in zip(given, used.tolist(), strict=True) if use]
        try:
            return super().fit(logits, target, ignore_index=ignore_index, classes=classes)
        finally:
            self._given_groups = []

    def examine(self, data: Samples) -> None:
        """Add notices about thresholds from few samples, and classes without samples."""
        super().examine(data)
        names = None if self.coverage == "marginal" else tuple(self.quantiles_)
        kind = "group" if self.coverage == "group-conditional" else "class"
        found = doubts(self._counts, names, self.alpha, kind)
        if self.coverage == "marginal" and math.isfinite(self.map_.quantile):  # else every set holds all classes
            found += unseen(np.bincount(data.target, minlength=data.logits.shape[1]).tolist(), self.classes_.tolist())
        for text in found:
            self.notice(text)

    def _check_groups(self, groups: Any) -> None:
        if groups is None and self.coverage == "group-conditional":
            raise ValueError("group-conditional sets need the group of each sample: pass groups=")
        if groups is not None and self.coverage != "group-conditional":
            raise ValueError(
                f"{self.coverage} sets do not use groups: leave them out, or use coverage='group-conditional'"
            )

    def fit_map(self, data: Samples) -> Part:
        """Tune the penalties if requested, and compute the quantiles of the scores."""
        logits, target = data.logits, data.target
        known = known_groups(self._given_groups)
        part, parts = np.zeros_like(target), 1
        if self.coverage == "class-conditional":
            part, parts = target, logits.shape[1]
        elif self.coverage == "group-conditional":
            part, parts = positions(self._given_groups, known), len(known)
        seed = self.seed if self.randomized and self.score in ("aps", "raps") else None
        penalty, rank = (0.0 if value == "tune" else float(value) for value in (self.penalty, self.rank))
        if self.score == "raps" and "tune" in (self.penalty, self.rank):
            tuning, rest = tuning_split(len(logits), self.seed)
            penalty, rank = self._tuned(logits[tuning], target[tuning], seed)
            logits, target, part = logits[rest], target[rest], part[rest]
        sets = Sets(self.score, np.array(0.0), penalty, rank, seed, False)
        scores = evaluated(sets.scores, logits)[np.arange(len(target)), target]
        quantiles = np.array([conformal_quantile(scores[part == k], self.alpha) for k in range(parts)])
        self.groups_ = known
        self._counts = np.bincount(part, minlength=parts).tolist()
        limit = quantiles.reshape(()) if self.coverage == "marginal" else quantiles
        return Sets(self.score, limit, penalty, rank, seed, self.coverage == "group-conditional")

    def _tuned(self, logits: Array, target: Array, seed: int | None) -> tuple[float, float]:
        rank = tuned_rank(logits, target, self.alpha) if self.rank == "tune" else float(self.rank)
        if self.penalty != "tune":
            return float(self.penalty), rank

        def scores(penalty: float) -> Array:
            sets = Sets(self.score, np.array(0.0), penalty, rank, seed, False)
            return np.asarray(evaluated(sets.scores, logits))

        return tuned_penalty(scores, target, self.alpha, self.tune_for), rank

    def predict_set(self, logits: Any, *, groups: Any = None, seed: int | None = None) -> Any:
        """Return which classes are in the set of each sample: boolean, ``(N, C)``; ``(N, 2)`` for binary logits.

        Args:
            logits: ``(N, C)``, or binary ``(N,)`` or ``(N, 1)``. A NumPy array gives a NumPy array.
            groups: Group of each sample, for group-conditional sets. The set of a group that ``fit`` did not see holds
                all classes, the only set that is sure to cover, and a warning names the group.
            seed: Gives the samples another U, if scores are randomised. With the default, the classifier's seed, the
                coverage holds even for samples with the same logits.
        """
        if seed is not None:
            check_whole("seed", seed)
        self._check_groups(groups)
        rows, sets = self.rows(logits), self.map_
        if seed is not None and sets.seed is not None:
            sets = replace(sets, seed=int(seed))
        more = ()
        if groups is not None:
            labels = group_labels(groups, len(rows))
            if unknown := set(labels) - set(self.groups_):
                inputs.warn(
                    f"{counted(len(unknown), 'group')} had no samples in fit, so that the sets hold all classes: "
                    f"{', '.join(map(repr, known_groups(unknown)[:5]))}{', ...' if len(unknown) > 5 else ''}",
                    FitWarning,
                )
            places = positions(labels, self.groups_)
            more = (rows.new_tensor(places.tolist()).long() if is_tensor(rows) else places,)
        return self.as_given(logits, evaluated(sets.sets, rows, *more))

    def __call__(self, logits: Any) -> Any:
        """Return the sets, as ``predict_set`` does."""
        return self.predict_set(logits)


def check_whole(name: str, value: int, low: int | None = None) -> None:
    """Raise unless ``value`` is a whole number, and at least ``low`` if that is given."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if low is not None and value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


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
    elif is_tensor(value):
        value = value.tolist()
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
    different = set(labels)
    try:
        return tuple(sorted(different))
    except TypeError:  # strings and numbers
        return tuple(sorted(different, key=lambda label: (type(label).__name__, repr(label))))


def positions(labels: list[Group], known: Iterable[Group]) -> IndexArray:
    """Position of each label among the known ones, ``(N,)``; -1 for an unknown one."""
    places = {label: place for place, label in enumerate(known)}
    return np.array([places.get(label, -1) for label in labels], dtype=np.int64)


def fewest_samples(alpha: float) -> int:
    r"""Smallest number of samples with a finite threshold: :math:`\lceil 1/\alpha \rceil - 1`, at least 1."""
    return max(1, math.ceil(1 / alpha - 1e-9) - 1)


def coverage_range(samples: int, alpha: float) -> tuple[float, float]:
    r"""5 % and 95 % quantiles of the coverage of a threshold from n samples; (1, 1) if it is infinite.

    Over draws of the n samples, the coverage of all future ones is Beta distributed with parameters
    :math:`n + 1 - l` and :math:`l = \lfloor (n+1)\alpha \rfloor` if no scores tie, and larger if they do (Vovk,
    "Conditional validity of inductive conformal predictors", ACML 2012).

    Example:
        >>> from calibrant.posthoc.conformal import coverage_range
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


def doubts(counts: Sequence[int], names: Sequence[object] | None, alpha: float, kind: str) -> list[str]:
    """Warnings about thresholds from too few samples.

    Args:
        counts: Number of samples of each threshold.
        names: Class or group of each threshold; None if there is one threshold for all.
        alpha: Share of samples whose set may miss the right class.
        kind: ``"class"`` or ``"group"``.
    """
    ranges = [coverage_range(count, alpha) for count in counts]
    infinite = [place for place, count in enumerate(counts) if place_of_quantile(count, alpha) > count]
    wide = [place for place, (low, high) in enumerate(ranges) if high - low > WIDEST]
    needs = f"a threshold for alpha={alpha:g} needs at least {counted(fewest_samples(alpha), 'sample')}"
    remedy = f"about {enough_samples(alpha)} samples give +-5 points"
    if names is None:
        (count,) = counts
        start = f"conformal sets from {counted(count, 'sample')}:"
        if infinite:
            return [
                f"{start} {needs}, so every set must hold all classes; fit on more samples, or set alpha to "
                f"{_up(1 / (count + 1))} or more"
            ]
        text = f"{start} at alpha={alpha:g}, 90 % of such fits cover between {_percent(ranges[0])}; {remedy}"
        return [text] if wide else []
    found = []
    of_all = f"of {len(counts)} {'classes' if kind == 'class' else 'groups'}"
    if infinite:
        listed = _listed([f"{names[place]!r} ({counted(counts[place], 'sample')})" for place in infinite])
        effect = "every set must hold them" if kind == "class" else "their sets must hold all classes"
        found.append(
            f"conformal sets: {len(infinite)} {of_all} {_have(infinite)} too few samples: {listed}; {needs}, so "
            f"{effect}; fit on more samples, raise alpha, or use coverage='marginal'"
        )
    if wide:
        listed = _listed(
            [f"{names[at]!r} ({counted(counts[at], 'sample')}, between {_percent(ranges[at])})" for at in wide]
        )
        found.append(
            f"conformal sets: {len(wide)} {of_all} {_have(wide)} few samples, and 90 % of such fits at "
            f"alpha={alpha:g} cover: {listed}; {remedy}"
        )
    return found


def unseen(counts: Sequence[int], names: Sequence[object]) -> list[str]:
    """A warning about classes without samples, whose coverage a marginal threshold says nothing about.

    Args:
        counts: Number of samples of each class.
        names: Label of each class.
    """
    absent = [place for place, count in enumerate(counts) if count == 0]
    if not absent:
        return []
    these = "this class" if len(absent) == 1 else "these classes"
    return [
        f"conformal sets: {len(absent)} of {len(counts)} classes {_have(absent)} no samples: "
        f"{_listed([repr(names[place]) for place in absent])}; coverage holds on average, but nothing is known about "
        f"{these}; fit on samples of all classes, or use coverage='class-conditional', whose sets hold {these}"
    ]


def _have(several: list[int]) -> str:
    return "has" if len(several) == 1 else "have"


def _percent(ends: tuple[float, float]) -> str:
    return f"{100 * ends[0]:.1f} % and {100 * ends[1]:.1f} %"


def _up(alpha: float) -> str:
    """Three digits, rounded up: a smaller alpha would not do."""
    return f"{math.ceil(alpha * 1000 - 1e-9) / 1000:g}"


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return ", ".join(items[:NAMED]) + more


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
