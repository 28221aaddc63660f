"""The ECE family: calibration errors over bins of equal width or equal mass, with named conventions."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array, IndexArray
from calibrant.metrics.mass import BinTable as BinTable
from calibrant.metrics.mass import mass_of
from calibrant.metrics.predictions import Given, Predictions, Values, predictions
from calibrant.metrics.sorting import BLOCK, Block

# Default number of equal-mass bins, and the most that ECE-sweep tries.
MASS_BINS = 15
MOST_SWEPT = 4096
ConventionName = Literal["paper", "guo", "torchmetrics", "netcal"]


class Convention(NamedTuple):
    """A convention for equal-width bins: their number, and which edges belong to them."""

    bins: int
    closed: Literal["right", "left"]
    last: Literal["closed", "extra"]
    edges: Literal["quotients", "torch-linspace", "numpy-linspace"]

    def describe(self, bins: int) -> str:
        """The convention in a few words, to show next to a number."""
        sides = "(lo, hi]" if self.closed == "right" else "[lo, hi)"
        return f"{bins} bins {sides}" + (", 1 separate" if self.last == "extra" else "")

    def edges_like(self, confidence: Array, bins: int) -> Array:
        """The edges, in the dtype in which confidences are compared.

        Our edges are rounded like the confidences, so that a confidence of k/bins is on the edge, not next to it.
        torchmetrics casts confidences to float32, netcal to float64.
        """
        if self.edges == "torch-linspace":
            # torch takes steps of a float32 from either end to the middle, and rounds once.
            step, place = np.float64(np.float32(1) / np.float32(bins)), np.arange(bins + 1)
            return np.where(place < (bins + 1) // 2, step * place, 1 - step * (bins - place)).astype(np.float32)
        if self.edges == "numpy-linspace":
            return np.linspace(0, 1, bins + 1)
        return (np.arange(bins + 1) / bins).astype(confidence.dtype)


CONVENTIONS: dict[ConventionName, Convention] = {
    "paper": Convention(20, "right", "closed", "quotients"),
    "guo": Convention(15, "right", "closed", "quotients"),
    "torchmetrics": Convention(15, "left", "extra", "torch-linspace"),
    "netcal": Convention(10, "left", "closed", "numpy-linspace"),
}


def equal_width_bins(given: Predictions, *, bins: int | None = None, convention: ConventionName = "paper") -> BinTable:
    """Sort samples into bins of equal width.

    Args:
        given: Checked predictions.
        bins: Number of bins; by default the convention's.
        convention: As in :func:`ece`.
    """
    kind = EqualWidth(convention, bins)
    if kind in given.parts:
        made: WidthSums = given.parts[kind]
        return made.table
    rule, count = rule_of(convention, bins)
    edges = rule.edges_like(given.confidence, count)
    return _width_table(edges, *bin_sums(given.confidence, given.correct, edges, rule, given.weight))


def _width_table(edges: Array, samples: Array, confidence: Array, right: Array) -> BinTable:
    slots = len(samples)
    lower, upper = edges[:slots], np.minimum(np.append(edges, 1.0)[1 : slots + 1], 1.0)
    return BinTable(lower.astype(np.float64), upper.astype(np.float64), samples, confidence, right)


@dataclass(frozen=True)
class EqualWidth:
    """Bins of equal width, and the start of their sums over sorted groups: faster, once the samples are sorted."""

    convention: ConventionName
    bins: int | None

    def __call__(self, data: Predictions) -> "WidthSums":
        """Start the sums."""
        rule, count = rule_of(self.convention, self.bins)
        return WidthSums(rule, rule.edges_like(data.confidence, count))


class WidthSums:
    """Sums of bins of equal width, from groups in ascending order."""

    def __init__(self, rule: Convention, edges: Array) -> None:
        self.rule, self.edges = rule, edges
        self.sums = np.zeros((3, len(edges) - 1 + (rule.last == "extra")))

    def add(self, groups: Block) -> None:
        """Add the next block of groups."""
        z, samples, right = groups
        first, last = slots_of(z[[0, -1]], self.edges, self.rule)
        if first == last:  # most blocks lie in one bin
            self.sums[:, first] += groups.sums
            return
        slot = slots_of(z, self.edges, self.rule)
        for row, values in zip(self.sums, (samples, samples * z, right), strict=True):
            row += np.bincount(slot, weights=values, minlength=len(row))

    @property
    def table(self) -> BinTable:
        """The bins."""
        return _width_table(self.edges, *self.sums)


def rule_of(convention: ConventionName, bins: int | None) -> tuple[Convention, int]:
    """The convention with this name, and its number of bins."""
    inputs.check_choice("convention", convention, tuple(CONVENTIONS))
    rule = CONVENTIONS[convention]
    if bins is not None:
        inputs.check_count("bins", bins)
    return rule, int(rule.bins if bins is None else bins)


def slots_of(confidence: Array, edges: Array, rule: Convention) -> IndexArray:
    """The bin of each confidence; a confidence of 0 is in the first bin."""
    count = len(edges) - 1
    confidence = confidence.astype(edges.dtype, copy=False)
    scaled = confidence * confidence.dtype.type(count)
    nearest = np.rint(scaled)
    slot = (np.ceil(scaled) - 1 if rule.closed == "right" else np.floor(scaled)).astype(np.intp)
    # Multiplication is right up to rounding; values next to an edge are looked up, which takes far longer.
    doubtful = np.flatnonzero(np.abs(scaled - nearest) <= 4 * count * np.finfo(confidence.dtype).eps)
    if len(doubtful):
        side: Literal["left", "right"] = "left" if rule.closed == "right" else "right"
        slot[doubtful] = np.searchsorted(edges, confidence[doubtful], side=side) - 1
    return np.clip(slot, 0, count if rule.last == "extra" else count - 1, out=slot)


def bin_sums(
    confidence: Array, correct: Any, edges: Array, rule: Convention, weight: Array | None = None
) -> tuple[Array, Array, Array]:
    """Number of samples, sum of confidences and number of right predictions of each bin, in any order of samples."""
    slots = len(edges) - 1 + (rule.last == "extra")
    if weight is not None:
        slot = slots_of(confidence, edges, rule)
        sums = np.zeros((3, slots))
        for row, values in zip(sums, (weight, weight * confidence, weight * correct), strict=True):
            row += np.bincount(slot, weights=values, minlength=slots)
        return sums[0], sums[1], sums[2]
    counts, total = np.zeros((slots, 2), dtype=np.int64), np.zeros(slots)
    for start in range(0, len(confidence), BLOCK):
        block = confidence[start : start + BLOCK]
        slot = slots_of(block, edges, rule)
        total += np.bincount(slot, weights=block, minlength=slots)
        slot *= 2
        slot += correct[start : start + BLOCK]
        counts += np.bincount(slot, minlength=2 * slots).reshape(-1, 2)
    return counts.sum(1).astype(np.float64), total, counts[:, 1].astype(np.float64)


def equal_mass_bins(given: Predictions, *, bins: int = MASS_BINS, split_ties: bool = False) -> BinTable:
    """Sort samples into bins that hold the same number of them, as nearly as ties allow.

    Args:
        given: Checked predictions.
        bins: Number of bins; the result has fewer if there are too few samples or too many ties.
        split_ties: Cut tie groups in the order given, as most published code does. By default a group stays
            together in the bin its first sample belongs to, and the result does not depend on the order.
    """
    inputs.check_count("bins", bins)
    return mass_of(given, split_ties).table(bins)


def ece_of(table: BinTable, samples: float, norm: float = 1.0) -> float:
    """The mean of the gap of each sample's bin, or its power mean with exponent ``norm``."""
    if norm == 1:
        return float(np.abs(table.confidence - table.right).sum() / samples)
    return float(((table.samples / samples) @ np.abs(table.gaps) ** norm) ** (1 / norm))


def ece(
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
    bins: int | None = None,
    convention: ConventionName = "paper",
    *,
    norm: float = 1.0,
    **given: Unpack[Given],
) -> float:
    r"""Expected calibration error (ECE) with bins of equal width.

    .. math:: \mathrm{ECE} = \sum_m \frac{n_m}{N} |\mathrm{acc}_m - \mathrm{conf}_m|

    ======================  ====  ==================================================================
    convention              bins  edges
    ======================  ====  ==================================================================
    ``"paper"`` (ESD)       20    (lo, hi], the first bin includes 0
    ``"guo"``               15    the same
    ``"torchmetrics"``      15    [lo, hi), and a separate bin for a confidence of exactly 1; compared in float32
    ``"netcal"``            10    [lo, hi), the last bin includes 1
    ======================  ====  ==================================================================

    On confidences with ties, as trained networks have them, these differ by up to 0.4 points: report the convention
    with the number. The published code of the first two leaves a confidence of exactly 0 out of every bin; a top label
    never has it, but a class may, and class-wise ECE would not count it.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        bins: Number of bins; by default the convention's.
        convention: See above.
        norm: Exponent p of :math:`(\sum_m n_m/N\,|\mathrm{gap}_m|^p)^{1/p}`.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    References:
        Naeini, Cooper, Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning",
        AAAI 2015; Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.ece([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]), 4)
        0.5
    """
    inputs.check_range("norm", norm, low=1)
    data = predictions(confidence, correct, name="ECE", **given)
    return ece_of(equal_width_bins(data, bins=bins, convention=convention), data.total, norm)


def ece_guo(
    confidence: Values | Predictions | None = None, correct: Values | None = None, **given: Unpack[Given]
) -> float:
    """ECE with the 15 bins of Guo et al. (2017): :func:`ece` with ``convention="guo"``.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.ece_guo([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]), 4)
        0.5
    """
    return ece(confidence, correct, convention="guo", **given)


def mce(
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
    bins: int | None = None,
    convention: ConventionName = "paper",
    **given: Unpack[Given],
) -> float:
    """Maximum calibration error (MCE): the largest gap of a bin that is not empty.

    A bin with one sample can decide it, so check the counts (``metrics.equal_width_bins``) before you rely on it.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        bins: Number of bins; by default the convention's.
        convention: As in :func:`ece`.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    References:
        Naeini, Cooper, Hauskrecht, AAAI 2015.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.mce([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]), 4)
        0.8
    """
    data = predictions(confidence, correct, name="MCE", **given)
    return float(np.abs(equal_width_bins(data, bins=bins, convention=convention).gaps).max())


def equal_mass_ece(
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
    bins: int = MASS_BINS,
    *,
    split_ties: bool = False,
    **given: Unpack[Given],
) -> float:
    """ECE with bins of equal mass ("adaptive" ECE): sorted samples cut into chunks of the same length.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        bins: Number of bins.
        split_ties: Cut tie groups in the order given; by default they stay together.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    References:
        Nguyen, O'Connor, "Posterior calibration and exploratory analysis for natural language processing
        models", EMNLP 2015.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.equal_mass_ece([0.9, 0.8, 0.6, 0.7], [1, 0, 1, 0], bins=2), 4)
        0.25
    """
    data = predictions(confidence, correct, name="ECE", **given)
    return ece_of(equal_mass_bins(data, bins=bins, split_ties=split_ties), data.total)


def debiased_l2(
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
    bins: int = MASS_BINS,
    *,
    squared: bool = False,
    split_ties: bool = False,
    **given: Unpack[Given],
) -> float:
    r"""Debiased L2 calibration error with bins of equal mass.

    .. math:: \sum_m \frac{n_m}{N} \Big[(\bar c_m - \bar z_m)^2 - \frac{\bar c_m (1 - \bar c_m)}{n_m - 1}\Big],

    clipped at 0, then the square root. The subtracted term is what chance alone adds to the square of a gap. Bins with
    one sample count as 0.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        bins: Number of bins.
        squared: Return the sum itself, without clipping and square root; it may be negative.
        split_ties: Cut tie groups in the order given; by default they stay together.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    References:
        Kumar, Liang, Ma, "Verified Uncertainty Calibration", NeurIPS 2019.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.debiased_l2([0.9, 0.8, 0.6, 0.7], [0, 0, 0, 1], bins=2), 4)
        0.4975
    """
    data = predictions(confidence, correct, name="the debiased L2 error", **given)
    table = equal_mass_bins(data, bins=bins, split_ties=split_ties)
    accuracy = table.right / table.samples
    several = table.samples > 1
    terms = table.gaps**2 - accuracy * (1 - accuracy) / np.where(several, table.samples - 1, 1)
    value = float((table.samples * several) @ terms / data.total)
    return value if squared else float(np.sqrt(max(value, 0.0)))


def ece_sweep(
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
    *,
    norm: float = 1.0,
    split_ties: bool = False,
    **given: Unpack[Given],
) -> float:
    """ECE with the largest number of equal-mass bins whose accuracies are in ascending order.

    The number of bins rises from 2 until accuracy first falls from one bin to the next; the number before that is used,
    or a single bin if 2 already fail. It stops at 4,096: if accuracy never falls, as when every sample is right, more
    bins would hardly change the value.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        norm: As in :func:`ece`.
        split_ties: Cut tie groups in the order given; by default they stay together.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    See :func:`swept_bins` for the bins themselves.

    References:
        Roelofs, Cain, Shlens, Mozer, "Mitigating Bias in Calibration Error Estimation", AISTATS 2022.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.ece_sweep([0.6, 0.7, 0.8, 0.9], [0, 1, 0, 1]), 4)
        0.25
    """
    inputs.check_range("norm", norm, low=1)
    data = predictions(confidence, correct, name="ECE-sweep", **given)
    return ece_of(swept_bins(data, split_ties=split_ties), data.total, norm)


def swept_bins(given: Predictions, *, split_ties: bool = False) -> BinTable:
    """The bins of equal mass that :func:`ece_sweep` chooses.

    Args:
        given: Checked predictions.
        split_ties: Cut tie groups in the order given; by default they stay together.
    """
    mass = mass_of(given, split_ties)
    best = 1
    for bins in range(2, int(min(given.total, MOST_SWEPT)) + 1):
        accuracy = mass.accuracy(bins)
        if (np.diff(accuracy) < 0).any():
            break
        best = bins
        if len(accuracy) < bins and len(accuracy) == mass.most:
            break  # every tie group has its own bin: there cannot be more
    return mass.table(best)
