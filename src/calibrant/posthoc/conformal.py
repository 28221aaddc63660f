"""Split conformal prediction: sets of classes that contain the right one with a given probability."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from calibrant import frames, inputs
from calibrant.frames import IndexArray, is_tensor
from calibrant.inputs import FitWarning, counted
from calibrant.posthoc.conformal_sets import (
    PENALTIES,
    ScoreName,
    Sets,
    TuningGoal,
    absent_notices,
    conformal_quantile,
    threshold_notices,
    tuned_penalty,
    tuned_rank,
    tuning_split,
)
from calibrant.posthoc.cross_validation import HeldOut
from calibrant.posthoc.fit import Fitted
from calibrant.posthoc.map import Part, evaluated

Array = npt.NDArray[Any]
CoverageName = Literal["marginal", "class-conditional", "group-conditional"]
# A number, a string, or a tuple of them: what JSON can hold, so that groups travel with the file.
Group = str | int | float | tuple[Any, ...]


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

    U is a hash of the sample's logits and the seed: a sample has the same set whatever else is in its batch. Samples
    with exactly the same logits share their U; with many of them, sets cover more.

    Coverage holds on average over

    - ``"marginal"``: all samples; some classes or groups may be covered less, others more;
    - ``"class-conditional"``: the samples of each class. Class k has its own :math:`\hat q_k`, from the held-out
      samples of class k, and is in a set if its score is at most that;
    - ``"group-conditional"``: the samples of each group. Group g has its own :math:`\hat q_g`, and ``fit`` and
      ``predict_set`` need the group of each sample.

    With fewer than :math:`\lceil 1/\alpha \rceil - 1` samples, or samples of a class or group, the threshold is
    infinite: every set holds all classes, or that class. With n samples the coverage itself is random,
    :math:`\mathrm{Beta}(n + 1 - l, l)` with :math:`l = \lfloor (n+1)\alpha \rfloor`. ``fit`` gives a
    :class:`~calibrant.posthoc.FitWarning` if a threshold is infinite, if the 90 % range of its coverage is wider than
    10 points, or if a class has no samples.

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
        0.651
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
            inputs.check_count("rank", rank, 0)
        inputs.check_choice("tune_for", tune_for, tuple(PENALTIES))
        inputs.check_count("seed", seed, 0)
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
        self._groups_of_fit: list[Group] = []
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
            self._groups_of_fit = [label for label, use in zip(given, used.tolist(), strict=True) if use]
        try:
            return super().fit(logits, target, ignore_index=ignore_index, classes=classes)
        finally:
            self._groups_of_fit = []

    def examine(self, data: HeldOut) -> None:
        """Add notices about thresholds from few samples, and classes without samples."""
        super().examine(data)
        names = None if self.coverage == "marginal" else tuple(self.quantiles_)
        self.notices_ += threshold_notices(self._counts, names, self.alpha)
        if self.coverage == "marginal" and math.isfinite(self.map_.quantile):  # else every set holds all classes
            counts = np.bincount(data.target, minlength=data.logits.shape[1])
            self.notices_ += absent_notices(counts.tolist(), self.classes_.tolist())

    def _check_groups(self, groups: Any) -> None:
        if groups is None and self.coverage == "group-conditional":
            raise ValueError("group-conditional sets need the group of each sample: pass groups=")
        if groups is not None and self.coverage != "group-conditional":
            raise ValueError(
                f"{self.coverage} sets do not use groups: leave them out, or use coverage='group-conditional'"
            )

    def fit_map(self, data: HeldOut) -> Part:
        """Tune the penalties if requested, and compute the quantiles of the scores."""
        logits, target = data.logits, data.target
        known = known_groups(self._groups_of_fit)
        part, parts = np.zeros_like(target), 1
        if self.coverage == "class-conditional":
            part, parts = target, logits.shape[1]
        elif self.coverage == "group-conditional":
            part, parts = positions(self._groups_of_fit, known), len(known)
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
            inputs.check_count("seed", seed, 0)
        self._check_groups(groups)
        rows, sets = self.rows(logits), self.map_
        if seed is not None and sets.seed is not None:
            sets = replace(sets, seed=int(seed))
        more: tuple[Any, ...] = ()
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
        return self.in_container(logits, evaluated(sets.sets, rows, *more))

    def __call__(self, logits: Any) -> Any:
        """Return the sets, as ``predict_set`` does."""
        return self.predict_set(logits)


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
