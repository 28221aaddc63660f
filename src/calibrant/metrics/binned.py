"""The ECE family: calibration errors over bins of equal width or equal mass, with named conventions."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array, IndexArray, Marks
from calibrant.metrics.predictions import Confidence, Correct, Keywords, Predictions, predictions
from calibrant.metrics.ties import BLOCK, Block, DrawsMetric, SortedRows, confidence_of, ends_of_ties, pack

# Default number of equal-mass bins, and the most that ECE-sweep tries.
MASS_BINS = 15
MOST_SWEPT = 4096
ConventionName = Literal["paper", "guo", "torchmetrics", "netcal"]


@dataclass(frozen=True)
class Convention:
    """A convention for equal-width bins: their number, and which edges belong to them."""

    bins: int
    closed: Literal["right", "left"]
    last: Literal["closed", "extra"]
    edges: Literal["quotients", "torch-linspace", "numpy-linspace"]

    def describe(self) -> str:
        """The convention in a few words, to show next to a number."""
        sides = "(lo, hi]" if self.closed == "right" else "[lo, hi)"
        return f"{self.bins} bins {sides}" + (", 1 separate" if self.last == "extra" else "")

    @property
    def slots(self) -> int:
        """Number of bins, with a separate one for a confidence of 1."""
        return self.bins + (self.last == "extra")

    def edges_like(self, confidence: Array) -> Array:
        """The edges, in the dtype in which confidences are compared.

        Our edges are rounded like the confidences, so that a confidence of k/bins is on the edge, not next to it.
        torchmetrics casts confidences to float32, netcal to float64.
        """
        if self.edges == "torch-linspace":
            # torch takes steps of a float32 from either end to the middle, and rounds once.
            step, place = np.float64(np.float32(1) / np.float32(self.bins)), np.arange(self.bins + 1)
            first_half = place < (self.bins + 1) // 2
            return np.where(first_half, step * place, 1 - step * (self.bins - place)).astype(np.float32)
        if self.edges == "numpy-linspace":
            return np.linspace(0, 1, self.bins + 1)
        return (np.arange(self.bins + 1) / self.bins).astype(confidence.dtype)

    def slots_of(self, confidence: Array) -> IndexArray:
        """The bin of each confidence; a confidence of 0 is in the first bin."""
        edges = self.edges_like(confidence)
        confidence = confidence.astype(edges.dtype, copy=False)
        scaled = confidence * confidence.dtype.type(self.bins)
        nearest = np.rint(scaled)
        slot = (np.ceil(scaled) - 1 if self.closed == "right" else np.floor(scaled)).astype(np.intp)
        # Multiplication is right up to rounding; values next to an edge are looked up, which takes far longer.
        doubtful = np.flatnonzero(np.abs(scaled - nearest) <= 4 * self.bins * np.finfo(confidence.dtype).eps)
        if len(doubtful):
            side: Literal["left", "right"] = "left" if self.closed == "right" else "right"
            slot[doubtful] = np.searchsorted(edges, confidence[doubtful], side=side) - 1
        return np.clip(slot, 0, self.slots - 1, out=slot)

    def __call__(self, given: Predictions) -> "BinTable":
        """The bins of predictions."""
        sums = bin_sums(given.confidence, given.correct, self, given.weight)
        return table_of(self.edges_like(given.confidence), sums)


CONVENTIONS: dict[ConventionName, Convention] = {
    "paper": Convention(20, "right", "closed", "quotients"),
    "guo": Convention(15, "right", "closed", "quotients"),
    "torchmetrics": Convention(15, "left", "extra", "torch-linspace"),
    "netcal": Convention(10, "left", "closed", "numpy-linspace"),
}


class BinTable(NamedTuple):
    """Edges of bins, and sums over the samples in each: of weights, of confidences, and of weights of right ones."""

    lower: Array
    upper: Array
    samples: Array
    confidence: Array
    right: Array

    @property
    def gaps(self) -> Array:
        """Mean confidence minus accuracy of each bin; 0 for empty bins."""
        return (self.confidence - self.right) / np.where(self.samples > 0, self.samples, 1)

    def error(self, norm: float = 1.0) -> float:
        """The mean of the gap of each sample's bin, its power mean with exponent ``norm``, or the largest gap."""
        if norm == math.inf:
            return float(np.abs(self.gaps).max())
        if norm == 1:
            return float(np.abs(self.confidence - self.right).sum() / self.samples.sum())
        return float(((self.samples / self.samples.sum()) @ np.abs(self.gaps) ** norm) ** (1 / norm))


def convention_of(convention: ConventionName, bins: int | None) -> Convention:
    """The convention with this name, and with this number of bins if one is given."""
    inputs.check_choice("convention", convention, tuple(CONVENTIONS))
    rule = CONVENTIONS[convention]
    return rule if bins is None else replace(rule, bins=inputs.check_count("bins", bins))


def bin_sums(confidence: Array, correct: Any, rule: Convention, weight: Array | None = None) -> Array:
    """Number of samples, sum of confidences and number of right ones of each bin: (3, bins)."""
    if weight is not None:
        slot = rule.slots_of(confidence)
        columns = (weight, weight * confidence, weight * correct)
        return np.stack([np.bincount(slot, values, rule.slots) for values in columns])
    counts, total = np.zeros((rule.slots, 2), dtype=np.int64), np.zeros(rule.slots)
    for start in range(0, len(confidence), BLOCK):
        block = confidence[start : start + BLOCK]
        slot = rule.slots_of(block)
        total += np.bincount(slot, block, rule.slots)
        slot *= 2
        slot += correct[start : start + BLOCK]
        counts += np.bincount(slot, minlength=2 * rule.slots).reshape(-1, 2)
    return np.stack((counts.sum(1), total, counts[:, 1]))


def equal_width_bins(given: Predictions, *, bins: int | None = None, convention: ConventionName = "paper") -> BinTable:
    """Samples in bins of equal width, with the arguments of :func:`ece`."""
    return given.once(convention_of(convention, bins))


def table_of(edges: Array, sums: Array) -> BinTable:
    """Bins between edges; one of confidence 1 alone has no width."""
    slots = sums.shape[1]
    lower, upper = edges[:slots], np.minimum(np.append(edges, 1.0)[1 : slots + 1], 1.0)
    return BinTable(lower.astype(np.float64), upper.astype(np.float64), *sums)


def equal_mass_bins(given: Predictions, *, bins: int = MASS_BINS) -> BinTable:
    """Samples in bins that hold the same number of them; ties stay in the bin that the first of them belongs to."""
    return given.once(_EqualMass).table(inputs.check_count("bins", bins))


def swept_bins(given: Predictions) -> BinTable:
    """The bins of equal mass that :func:`ece_sweep` chooses."""
    mass = given.once(_EqualMass)
    best = 1
    for bins in range(2, int(min(given.total, MOST_SWEPT)) + 1):
        cuts = mass.cuts(bins)
        accuracy = np.diff(mass.right[cuts]) / mass.samples_of(cuts)
        if (np.diff(accuracy) < 0).any():
            break
        best = bins
        if len(accuracy) < bins and len(accuracy) == mass.most:
            break  # every group of ties has its own bin: there cannot be more
    return mass.table(best)


class _EqualMass:
    """Samples in order of confidence, ready to be cut into any number of bins."""

    def __init__(self, given: Predictions) -> None:
        self.weight, self.total = None, given.total
        self.whole = given.weight is None or bool((given.weight == np.rint(given.weight)).all())
        # Number of right ones before each place where the order can be cut; and of samples, if it is not the place.
        self.right: Marks = np.zeros(len(given) + 1, dtype=np.uint32)
        if given.weight is None:
            self.keys = given.keys
            last_bits = given.keys.astype(np.uint32, copy=False) & np.uint32(1)
            np.cumsum(last_bits, out=self.right[1:])
        else:
            rows = SortedRows(given)
            self.keys, self.weight = pack(rows.confidence, rows.correct), rows.weight
            self.samples = np.append(0.0, rows.weight.cumsum())
            self.right = np.append(0.0, (rows.weight * rows.correct).cumsum())

    @cached_property
    def most(self) -> int:
        """Number of groups of ties."""
        return 1 + int(np.count_nonzero((self.keys[1:] ^ self.keys[:-1]) > 1))

    def cuts(self, bins: int) -> IndexArray:
        inside = np.arange(1, bins)
        if self.whole:
            size, larger = divmod(self.total, bins)
            wanted = inside * size + np.minimum(inside, larger)  # the first few bins hold one more
        else:
            wanted = inside * (self.total / bins)  # equal shares, whatever the scale of the weights
        places = wanted.astype(np.intp) if self.weight is None else np.searchsorted(self.samples, wanted)
        return np.unique(np.concatenate(([0], ends_of_ties(self.keys, places), [len(self.keys)])))

    def samples_of(self, cuts: IndexArray) -> Array:
        return np.diff(cuts if self.weight is None else self.samples[cuts]).astype(np.float64)

    def table(self, bins: int) -> BinTable:
        cuts = self.cuts(bins)
        samples, right = self.samples_of(cuts), np.diff(self.right[cuts]).astype(np.float64)
        lower, upper, sums = np.zeros((3, len(samples)))
        for place, (start, stop) in enumerate(pairwise(cuts)):
            confidence = confidence_of(self.keys[start:stop])
            lower[place], upper[place] = confidence[0], confidence[-1]
            sums[place] = confidence.sum() if self.weight is None else self.weight[start:stop] @ confidence
        return BinTable(lower, upper, samples, sums, right)


def ece(
    confidence: Confidence = None,
    correct: Correct = None,
    bins: int | None = None,
    convention: ConventionName = "paper",
    *,
    norm: float = 1.0,
    **keywords: Unpack[Keywords],
) -> float:
    r"""Expected calibration error (ECE) with bins of equal width (Naeini et al., AAAI 2015; Guo et al., ICML 2017).

    .. math:: \mathrm{ECE} = \sum_m \frac{n_m}{N} |\mathrm{acc}_m - \mathrm{conf}_m|

    On confidences with ties, as trained networks have them, conventions differ by up to 0.4 points: report the
    convention with the number.

    Args:
        bins: Number of bins; by default the convention's.
        convention: ``"paper"`` (20 bins), ``"guo"`` (15), ``"torchmetrics"`` (15) or ``"netcal"`` (10): :doc:`/metrics`
            has their edges.
        norm: Exponent p of :math:`(\sum_m n_m/N\,|\mathrm{gap}_m|^p)^{1/p}`; infinity for :func:`mce`.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.ece([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]), 4)
        0.5
    """
    inputs.check_range("norm", norm, low=1, high=math.inf)
    data = predictions(confidence, correct, **keywords)
    return equal_width_bins(data, bins=bins, convention=convention).error(norm)


def mce(
    confidence: Confidence = None,
    correct: Correct = None,
    bins: int | None = None,
    convention: ConventionName = "paper",
    **keywords: Unpack[Keywords],
) -> float:
    """Maximum calibration error (MCE): the largest gap of a bin of :func:`ece`; one sample in a bin can decide it."""
    return ece(confidence, correct, bins, convention, norm=math.inf, **keywords)


def equal_mass_ece(
    confidence: Confidence = None, correct: Correct = None, bins: int = MASS_BINS, **keywords: Unpack[Keywords]
) -> float:
    """ECE with bins of equal mass ("adaptive" ECE), ties together (Nguyen, O'Connor, EMNLP 2015)."""
    return equal_mass_bins(predictions(confidence, correct, **keywords), bins=bins).error()


def debiased_l2(
    confidence: Confidence = None,
    correct: Correct = None,
    bins: int = MASS_BINS,
    *,
    squared: bool = False,
    **keywords: Unpack[Keywords],
) -> float:
    r"""Debiased L2 calibration error with bins of equal mass (Kumar, Liang, Ma, NeurIPS 2019).

    .. math:: \sum_m \frac{n_m}{N} \Big[(\bar c_m - \bar z_m)^2 - \frac{\bar c_m (1 - \bar c_m)}{n_m - 1}\Big],

    clipped at 0, then the square root. The subtracted term is what chance alone adds to the square of a gap. Bins with
    one sample count as 0.

    Args:
        bins: Number of bins.
        squared: Return the sum itself, without clipping and square root; it may be negative.
    """
    table = equal_mass_bins(predictions(confidence, correct, **keywords), bins=bins)
    accuracy = table.right / table.samples
    several = table.samples > 1
    terms = table.gaps**2 - accuracy * (1 - accuracy) / np.where(several, table.samples - 1, 1)
    value = float((table.samples * several) @ terms / table.samples.sum())
    return value if squared else float(np.sqrt(max(value, 0.0)))


def ece_sweep(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    """ECE with the most equal-mass bins, up to 4,096, before accuracy falls between bins (Roelofs et al., 2022)."""
    return predictions(confidence, correct, **keywords).once(swept_bins).error()


def classwise_ece(
    data: Predictions | None = None,
    /,
    *,
    bins: int | None = None,
    convention: ConventionName = "paper",
    **keywords: Unpack[Keywords],
) -> float:
    """Class-wise ECE: the mean of the :func:`ece` of each class or label (Kull et al., NeurIPS 2019)."""
    return mean_of_classes(classwise_sums(predictions(data, **keywords), convention_of(convention, bins)))


def classwise_sums(given: Predictions, rule: Convention) -> Array:
    """The :func:`bin_sums` of each class: (classes, 3, bins)."""
    probabilities, target = given.of_classes("class-wise ECE")
    sums = []
    for k in range(probabilities.shape[1]):
        if given.task == "multi-label":
            label = given.of_class(k)
            sums.append(bin_sums(label.confidence, label.correct, rule, label.weight))
        else:
            sums.append(bin_sums(np.ascontiguousarray(probabilities[:, k]), target == k, rule, given.weight))
    return np.stack(sums)


def mean_of_classes(sums: Array) -> float:
    """Class-wise ECE from the sums of each class."""
    samples, confidence, right = sums.transpose(1, 0, 2)
    totals = samples.sum(1)
    known = totals > 0  # a label may be ignored everywhere
    return float((np.abs(confidence - right).sum(1)[known] / totals[known]).mean())


def ece_of_draws(given: Predictions, bins: int | None, convention: ConventionName) -> DrawsMetric:
    """ECE of many draws: ties of one bin are adjacent."""
    confidence = given.ties.confidence.astype(given.confidence.dtype)  # in which edges are compared
    slot = convention_of(convention, bins).slots_of(confidence)
    starts = np.flatnonzero(np.diff(slot, prepend=-1))

    def value(ties: Block) -> Array:
        gaps = np.add.reduceat(ties.residual, starts, axis=-1)
        total: Array = np.abs(gaps, out=gaps).sum(-1) / ties.samples.sum(-1)
        return total

    return value
