"""Split conformal prediction: sets of classes that contain the right one with a given probability."""

import warnings
from collections.abc import Sequence
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.posthoc.conformal_groups import Group, Groups, group_labels, known_groups, plain_label, positions
from calibrant.posthoc.conformal_samples import doubts, unseen
from calibrant.posthoc.conformal_scores import ScoreName, class_scores, conformal_quantiles
from calibrant.posthoc.conformal_tuning import PENALTIES, TuningGoal, tuned_penalty, tuned_rank, tuning_split
from calibrant.posthoc.containers import Array, like
from calibrant.posthoc.fitted import Fitted, check_whole, saved_settings
from calibrant.posthoc.notices import FitWarning, counted
from calibrant.torch_private import is_exporting_to_onnx

CoverageName = Literal["marginal", "class-conditional", "group-conditional"]
# Scores this far above a threshold count as equal to it: the same probabilities in another order, or in another runtime
# such as ONNX's, are rounded differently.
ROUNDING = 16 * torch.finfo(torch.float64).eps


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
    :class:`~calibrant.posthoc.notices.FitWarning` if a threshold is infinite, or if the 90 % range of its coverage is
    wider than 10 points; and of marginal sets if a class has no samples, whose coverage is then unknown.

    You can calibrate the logits first, on other data than the sets: use :func:`logits_from_probabilities` for the
    output of any calibrator's ``predict_proba``.

    For ``torch.onnx.export``, use ``randomized=False`` with APS and RAPS: ONNX cannot hash the bits of a logit. Before
    torch 2.8 use :func:`to_onnx`. An exported program takes the position of a group in ``groups_``: see
    :meth:`forward`.

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
        >>> import torch
        >>> from calibrant.posthoc import ConformalClassifier
        >>> logits = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
        >>> conformal = ConformalClassifier("lac", alpha=0.1).fit(logits, logits.argmax(1))
        >>> conformal.predict_set(torch.tensor([[5.0, 0.0, 0.0, 0.0]]))
        tensor([[ True, False, False, False]])
        >>> round(conformal.quantile_, 3)
        0.637
        >>> by_group = ConformalClassifier("top-k", coverage="group-conditional")
        >>> by_group = by_group.fit(logits, logits.argmax(1), groups=["north", "south"] * 250)
        >>> by_group.quantiles_
        {'north': 1.0, 'south': 1.0}
    """

    decisive = ("score", "alpha", "randomized", "coverage")
    found = ("groups_", "seed")
    quantile: Tensor
    penalties: Tensor

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
        checks.check_choice("score", score, ("lac", "aps", "raps", "top-k"))
        checks.check_range("alpha", alpha, low=0.0, high=1.0, open_low=True, open_high=True)
        checks.check_choice("coverage", coverage, ("marginal", "class-conditional", "group-conditional"))
        if isinstance(penalty, str):
            checks.check_choice("penalty", penalty, ("tune",))
        else:
            checks.check_range("penalty", penalty, low=0.0)
        if isinstance(rank, str):
            checks.check_choice("rank", rank, ("tune",))
        else:
            check_whole("rank", rank, low=0)
        checks.check_choice("tune_for", tune_for, tuple(PENALTIES))
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
        self.register_buffer("quantile", None)
        self.register_buffer("penalties", None)

    @property
    def quantile_(self) -> float:
        """Largest score of a class in a marginal set."""
        self.require_fitted()
        if self.coverage != "marginal":
            raise TypeError(f"{self.coverage} sets have one threshold for each: use quantiles_")
        return float(self.quantile)

    @property
    def quantiles_(self) -> dict[Group, float]:
        """Largest score of a class in a set, by class or by group."""
        self.require_fitted()
        if self.coverage == "marginal":
            raise TypeError("marginal sets have one threshold: use quantile_")
        values = self.quantile.tolist()
        names = self.groups_ if self.coverage == "group-conditional" else self.classes_.tolist()
        return dict(zip(names, values, strict=True))

    @property
    def penalty_(self) -> float:
        """Lambda of RAPS, as given or tuned."""
        self.require_fitted()
        return float(self.penalties[0])

    @property
    def rank_(self) -> int:
        """K of RAPS, as given or tuned."""
        self.require_fitted()
        return int(self.penalties[1])

    def narrowed(self, buffer: Tensor) -> Tensor:
        """Round up: a threshold rounded down would leave out the samples at the threshold."""
        near = buffer.float()
        return torch.where(near < buffer, near.nextafter(near.new_tensor(torch.inf)), near)

    def fit(
        self,
        logits: Any,
        target: Any,
        *,
        groups: Groups | None = None,
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
        labels = np.asarray(target.cpu() if isinstance(target, Tensor) else target).reshape(-1)
        used = np.ones(len(labels), dtype=bool) if ignore_index is None else labels != ignore_index
        if groups is not None:
            given = group_labels(groups, len(labels))
            self._given_groups = [label for label, use in zip(given, used.tolist(), strict=True) if use]
        try:
            return super().fit(logits, target, ignore_index=ignore_index, classes=classes)
        finally:
            self._given_groups = []

    def examine(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Add notices about thresholds from few samples, and classes without samples."""
        super().examine(rows, target, weight)
        names = None if self.coverage == "marginal" else tuple(self.quantiles_)
        kind = "group" if self.coverage == "group-conditional" else "class"
        found = doubts(self._counts, names, self.alpha, kind)
        if self.coverage == "marginal" and bool(self.quantile.isfinite()):  # else every set holds all classes
            found += unseen(target.bincount(minlength=rows.shape[1]).tolist(), self.classes_.tolist())
        for text in found:
            self.notice(text)

    def _check_groups(self, groups: Groups | None) -> None:
        if groups is None and self.coverage == "group-conditional":
            raise ValueError("group-conditional sets need the group of each sample: pass groups=")
        if groups is not None and self.coverage != "group-conditional":
            raise ValueError(
                f"{self.coverage} sets do not use groups: leave them out, or use coverage='group-conditional'"
            )

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:  # noqa: ARG002 (refused by fit)
        """Tune the penalties if requested, and compute the quantiles of the scores."""
        known = known_groups(self._given_groups)
        part, parts = torch.zeros_like(target), 1
        if self.coverage == "class-conditional":
            part, parts = target, logits.shape[1]
        elif self.coverage == "group-conditional":
            part, parts = positions(self._given_groups, known).to(target.device), len(known)
        penalty, rank = (0.0 if value == "tune" else float(value) for value in (self.penalty, self.rank))
        if self.score == "raps" and "tune" in (self.penalty, self.rank):
            tuning, rest = tuning_split(len(logits), self.seed, logits.device)
            penalty, rank = self._tuned(logits[tuning], target[tuning])
            logits, target, part = logits[rest], target[rest], part[rest]
        self.penalties = torch.tensor([penalty, rank], dtype=logits.dtype, device=logits.device)
        scores = self._scores(logits, self.penalties, self.seed).gather(1, target.unsqueeze(1)).squeeze(1)
        quantiles = conformal_quantiles(scores, part, parts, self.alpha)
        self.quantile = quantiles[0] if self.coverage == "marginal" else quantiles
        self.groups_ = known
        self._counts = part.bincount(minlength=parts).tolist()

    def _tuned(self, logits: Tensor, target: Tensor) -> tuple[float, float]:
        rank = tuned_rank(logits, target, self.alpha) if self.rank == "tune" else float(self.rank)
        if self.penalty != "tune":
            return float(self.penalty), rank

        def scores(penalty: float) -> Tensor:
            return self._scores(logits, logits.new_tensor([penalty, rank]), self.seed)

        return tuned_penalty(scores, target, self.alpha, self.tune_for), rank

    @overload
    def predict_set(self, logits: Tensor, *, groups: Groups | None = None, seed: int | None = None) -> Tensor: ...
    @overload
    def predict_set(self, logits: Array, *, groups: Groups | None = None, seed: int | None = None) -> Array: ...
    def predict_set(
        self, logits: Tensor | Array, *, groups: Groups | None = None, seed: int | None = None
    ) -> Tensor | Array:
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
        rows = self.rows(logits)
        places = None
        if groups is not None:
            labels = group_labels(groups, len(rows))
            places = positions(labels, self.groups_).to(rows.device)
            if unknown := set(labels) - set(self.groups_):
                warnings.warn(
                    f"{counted(len(unknown), 'group')} had no samples in fit, so that the sets hold all classes: "
                    f"{', '.join(map(repr, known_groups(unknown)[:5]))}{', ...' if len(unknown) > 5 else ''}",
                    FitWarning,
                    stacklevel=2,
                )
        sets = self._sets(rows, places, self.seed if seed is None else seed)
        converted: Tensor | Array = like(logits, sets, self.classes_)
        return converted

    def forward(self, logits: Tensor, places: Tensor | None = None) -> Tensor:
        """Return the sets, as ``predict_set`` does, from tensors alone, as exported programs need.

        Args:
            logits: ``(N, C)``, or binary ``(N,)`` or ``(N, 1)``.
            places: Position in ``groups_`` of the group of each sample, ``(N,)``, for group-conditional sets. Any other
                number, such as -1, stands for an unknown group, whose sets hold all classes.
        """
        if (places is None) == (self.coverage == "group-conditional"):
            needed = "need" if places is None else "do not use"
            raise ValueError(f"{self.coverage} sets {needed} positions in groups_, the second argument")
        return self._sets(self.rows(logits), places, self.seed)

    @torch.no_grad()
    def _sets(self, rows: Tensor, places: Tensor | None, seed: int) -> Tensor:
        limit = self.quantile
        if places is not None:
            checks.check_shape("places", places, rows.shape[:1], "the samples of logits")
            known = (places >= 0) & (places < len(limit))
            limit = limit[places.where(known, 0)].where(known, torch.inf).unsqueeze(1)
        return self._scores(rows, self.penalties, seed) <= limit + ROUNDING

    def _scores(self, logits: Tensor, penalties: Tensor, seed: int) -> Tensor:
        randomized = self.randomized and self.score in ("aps", "raps")
        if randomized and is_exporting_to_onnx():
            raise ValueError(
                f"ONNX cannot hash the bits of logits, which randomised {self.score} sets need: "
                "fit with randomized=False to export"
            )
        return class_scores(logits, self.score, penalties, seed if randomized else None)

    def set_extra_state(self, state: Tensor | dict[str, Any]) -> None:
        """Load the part of a state_dict that is not a buffer."""
        saved = saved_settings(state)
        groups = tuple(plain_label(label) for label in saved.get("groups_", ()))
        super().set_extra_state({**saved, "groups_": groups})

    def _refusal(self, saved: dict[str, Any]) -> str | None:
        return super()._refusal({"coverage": "marginal", **saved})  # version 0.1 had no other
