"""Split conformal prediction: sets of classes that contain the right one with a given probability."""

import math
from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor

from calibrant import inputs
from calibrant.numerics import accumulation_dtype
from calibrant.posthoc.base import Fitted, check_whole
from calibrant.posthoc.containers import Array

ScoreName = Literal["lac", "aps", "raps"]
# Penalties that RAPS tries when tuned, and the share of the data used for tuning.
PENALTIES = (0.001, 0.01, 0.1, 0.2, 0.5)
TUNING_SHARE = 0.3
LOW_32_BITS = 2**32 - 1
# 2^32 over the golden ratio, made odd: multiplying by it modulo 2^32 is invertible and spreads every bit upwards.
GOLDEN = 2654435769


class ConformalClassifier(Fitted):
    r"""Sets of classes that contain the right one with probability at least :math:`1 - \alpha`.

    A score measures how unusual a class is for a sample. With :math:`\hat q` the
    :math:`\lceil (n+1)(1-\alpha) \rceil`-th smallest score of the right classes of n held-out samples (infinity
    if that is more than n), the set holds every class whose score is at most :math:`\hat q`. If new samples are
    exchangeable with the held-out ones, this coverage holds on average over samples, for any model.

    With the probabilities :math:`p` of a sample in descending order, a class of rank r and :math:`U` uniform on [0, 1],

    - ``"lac"``: :math:`1 - p_y`; the smallest sets on average, which may be empty;
    - ``"aps"``: :math:`\sum_{j < r} p_j + U p_r`; sets that grow where the sample is hard;
    - ``"raps"``: the same plus :math:`\lambda \max(r - k, 0)`, which keeps sets of many classes small.

    U is not drawn at each call but is a hash of the sample's logits and the seed, which is as good as random: a sample
    has the same set whatever else is in its batch, and single samples are covered as often as a batch. Samples with
    exactly the same logits share their U; with many of them, sets cover more.

    You can calibrate the logits first, on other data than the sets: use :func:`logits_from_probabilities` for the
    output of any calibrator's ``predict_proba``.

    Args:
        score: ``"lac"``, ``"aps"`` or ``"raps"``.
        alpha: Share of samples whose set may miss the right class.
        randomized: False replaces U by 1: the sets are not random, and cover more than :math:`1 - \alpha`.
        penalty: :math:`\lambda` of RAPS, or ``"tune"``: the one of 0.001, 0.01, 0.1, 0.2, 0.5 with the smallest sets.
        rank: k of RAPS, or ``"tune"``: the rank that the right class exceeds with probability at most alpha.
            Tuning uses 30 % of the data, drawn by ``seed``, which is then not used for :math:`\hat q`.
        seed: Seed of U, and of the data drawn for tuning.

    References:
        Sadinle, Lei, Wasserman, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels", JASA 2019;
        Romano, Sesia, Candès, "Classification with Valid and Adaptive Coverage", NeurIPS 2020; Angelopoulos,
        Bates, Malik, Jordan, "Uncertainty Sets for Image Classifiers using Conformal Prediction", ICLR 2021.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import ConformalClassifier
        >>> logits = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
        >>> conformal = ConformalClassifier("lac", alpha=0.1).fit(logits, logits.argmax(1))
        >>> conformal.predict_set(torch.tensor([[5.0, 0.0, 0.0, 0.0]]))
        tensor([[ True, False, False, False]])
        >>> round(conformal.quantile_, 3)
        0.637
    """

    decisive = ("score", "alpha", "randomized")
    quantile: Tensor
    penalties: Tensor

    def __init__(
        self,
        score: ScoreName = "lac",
        alpha: float = 0.1,
        *,
        randomized: bool = True,
        penalty: float | Literal["tune"] = 0.01,
        rank: int | Literal["tune"] = 5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        inputs.check_choice("score", score, ("lac", "aps", "raps"))
        inputs.check_range("alpha", alpha, low=0.0, high=1.0, open_low=True, open_high=True)
        if isinstance(penalty, str):
            inputs.check_choice("penalty", penalty, ("tune",))
        else:
            inputs.check_range("penalty", penalty, low=0.0)
        if isinstance(rank, str):
            inputs.check_choice("rank", rank, ("tune",))
        else:
            check_whole("rank", rank, low=0)
        check_whole("seed", seed)
        self.score = score
        self.alpha = float(alpha)
        self.randomized = bool(randomized)
        self.penalty = penalty
        self.rank = rank
        self.seed = int(seed)
        self.register_buffer("quantile", None)
        self.register_buffer("penalties", None)

    @property
    def quantile_(self) -> float:
        """Largest score of a class in a set."""
        self.require_fitted()
        return float(self.quantile)

    def narrowed(self, buffer: Tensor) -> Tensor:
        """Round up: a threshold rounded down would leave out the samples at the threshold."""
        near = buffer.float()
        return torch.where(near < buffer, near.nextafter(near.new_tensor(torch.inf)), near)

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:  # noqa: ARG002
        """Tune the penalties if requested, and compute the quantile of the scores."""
        penalty, rank = (0.0 if value == "tune" else float(value) for value in (self.penalty, self.rank))
        if self.score == "raps" and "tune" in (self.penalty, self.rank):
            order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(self.seed)).to(logits.device)
            share = math.ceil(TUNING_SHARE * len(logits))
            if share == len(logits):
                raise ValueError(
                    f"tuning needs at least 2 samples, got {len(logits)}: pass penalty and rank as numbers"
                )
            penalty, rank = self._tuned(logits[order[:share]], target[order[:share]])
            logits, target = logits[order[share:]], target[order[share:]]
        self.penalties = torch.tensor([penalty, rank], dtype=logits.dtype, device=logits.device)
        scores = self._scores(logits, self.penalties, self.seed).gather(1, target.unsqueeze(1)).squeeze(1)
        self.quantile = _conformal_quantile(scores, self.alpha)

    def _tuned(self, logits: Tensor, target: Tensor) -> tuple[float, float]:
        column = target.unsqueeze(1)
        if self.rank == "tune":
            ranks = _ranks(logits.softmax(1))[1].gather(1, column).squeeze(1).double()
            rank = float(_conformal_quantile(ranks, self.alpha).clamp_max(logits.shape[1]))
        else:
            rank = float(self.rank)
        if self.penalty != "tune":
            return float(self.penalty), rank
        sizes = []
        for penalty in PENALTIES:
            scores = self._scores(logits, logits.new_tensor([penalty, rank]), self.seed)
            quantile = _conformal_quantile(scores.gather(1, column).squeeze(1), self.alpha)
            sizes.append(float((scores <= quantile).sum()))
        return PENALTIES[int(np.argmin(sizes))], rank

    @overload
    def predict_set(self, logits: Tensor, *, seed: int | None = None) -> Tensor: ...
    @overload
    def predict_set(self, logits: Array, *, seed: int | None = None) -> Array: ...
    def predict_set(self, logits: Tensor | Array, *, seed: int | None = None) -> Tensor | Array:
        """Return which classes are in the set of each sample: boolean, ``(N, C)``; ``(N, 2)`` for binary logits.

        Args:
            logits: ``(N, C)``, or binary ``(N,)`` or ``(N, 1)``. A NumPy array gives a NumPy array.
            seed: Gives the samples another U, if scores are randomised. With the default, the classifier's seed, the
                coverage holds even for samples with the same logits.
        """
        if seed is not None:
            check_whole("seed", seed)
        with torch.no_grad():
            rows = self.rows(logits)
            sets = self._scores(rows, self.penalties, self.seed if seed is None else seed) <= self.quantile
        return sets.cpu().numpy() if isinstance(logits, np.ndarray) else sets

    def forward(self, logits: Tensor) -> Tensor:
        """Return the sets, as ``predict_set`` does."""
        return self.predict_set(logits)

    def _scores(self, logits: Tensor, penalties: Tensor, seed: int) -> Tensor:
        """Score of every class of every sample, ``(N, C)``, float64 where the device has it."""
        logits = logits.to(accumulation_dtype(logits))
        probability = logits.softmax(1)
        if self.score == "lac":
            return 1 - probability
        above, rank = _ranks(probability)
        scores = above + (_uniform(logits, seed) if self.randomized else 1.0) * probability
        if self.score == "raps":
            penalty, free = penalties.to(scores)
            scores = scores + penalty * (rank - free).clamp_min(0)
        return scores


def _uniform(logits: Tensor, seed: int) -> Tensor:
    """A number in (0, 1) for each row, ``(N, 1)``, that depends only on its bits and the seed.

    Multilinear hashing: the words of a row, each times a random number, are summed modulo 2^64, and the upper half of
    the sum is used. Over the seeds it is uniform, and independent for any two rows that differ (Lemire and
    Kaser, "Strongly Universal String Hashing is Fast", The Computer Journal, 2014). For one seed, rows at equal
    distances would still have numbers at equal distances: shifts and products that permute the 32 bits prevent that.
    """
    words = (logits + 0.0).contiguous().view(torch.int32)  # plus 0, since the two zeros have different bits
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randint(-(2**63), 2**63 - 1, (words.shape[1] + 1,), generator=generator).to(words.device)
    total = (words.long() * factors[1:]).sum(1, keepdim=True) + factors[0]
    half = (total >> 32) & LOW_32_BITS
    for _ in range(3):
        half = half ^ (half >> 15)
        half = (half * GOLDEN) & LOW_32_BITS
    half = half ^ (half >> 15)
    return (half.to(logits.dtype) + 0.5) / 2**32


def _ranks(probability: Tensor) -> tuple[Tensor, Tensor]:
    """Probability of all classes ranked above each class, and its rank from 1; ties rank by class."""
    descending, order = probability.sort(stable=True, dim=1, descending=True)
    above = torch.zeros_like(probability).scatter(1, order, descending.cumsum(1) - descending)
    places = torch.arange(1, probability.shape[1] + 1, device=order.device).expand_as(order)
    return above, torch.zeros_like(order).scatter(1, order, places)


def _conformal_quantile(scores: Tensor, alpha: float) -> Tensor:
    """The ceil((n + 1)(1 - alpha))-th smallest score, or infinity if there are fewer."""
    # A rounding error must not turn 0.9 * 10 = 9.000000000000002 into the tenth.
    place = max(1, math.ceil((len(scores) + 1) * (1 - alpha) - 1e-9))
    return scores.sort().values[place - 1] if place <= len(scores) else scores.new_tensor(torch.inf)
