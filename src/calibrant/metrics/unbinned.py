r"""Calibration errors without bins: of cumulative residuals, by kernels, and of a smooth curve.

With :math:`R_g` the residual of a group of :math:`n_g` ties, :math:`Q_g` the sum of its squared residuals,
:math:`E_g` the sum of residuals up to and with it and :math:`s_g` the number of samples below, the sums of ESD
(:doc:`/methods/esd`) are those of :math:`n_g E_g^2 - 2 E_g R_g + Q_g` and :math:`(N - 1 - s_g) Q_g`.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics.predictions import Confidence, Correct, Keywords, Predictions, predictions
from calibrant.metrics.ties import Block, DrawsMetric, sums_of

# Number of elements of the kernel matrix in memory at a time.
KERNEL_CELLS = 1 << 22
# Default bandwidth of MMCE.
BANDWIDTH = 0.4
# Below this bandwidth the exponentials overflow that the kernel is factorised into.
NARROWEST = 1e-3
# Cells of [0, 1]. Halving their width changes the golden values by less than 1e-6.
GRID_CELLS = 4096
SMALLEST_WIDTH = 1e-3


class CumulativeSums:
    """Sums over ties in ascending order that give ESD, the KS error and the Brier score."""

    def __init__(self, _: Predictions | None = None) -> None:
        self.samples = self.end = self.high = self.low = self.triples = self.squares = 0.0

    def add(self, ties: Block) -> None:
        """Add the next block."""
        ends = ties.residual.cumsum()
        ends += self.end
        self.end = float(ends[-1])
        self.high, self.low = max(self.high, float(ends.max())), min(self.low, float(ends.min()))
        total = float(ties.squares.sum())
        self.triples += float(_cumulative_products(ties.samples, ties.residual, ends)) + self.samples * total
        self.triples += float(np.einsum("i,i->", ties.squares, ties.below))
        self.squares += total
        self.samples += float(ties.samples.sum())

    @property
    def esd(self) -> float:
        """The expected squared difference."""
        n = self.samples
        return (self.triples - (n - 2) * self.squares) / (n * (n - 1) * (n - 2)) if n > 2 else np.nan

    @property
    def ks(self) -> float:
        """The KS error."""
        return max(self.high, -self.low) / self.samples if self.samples else np.nan


def _cumulative_products(samples: Array, residual: Array, ends: Array) -> Array:
    """The sum of n E^2 - 2 E R over ties."""
    pairs = ends * samples
    pairs -= residual
    pairs -= residual
    # einsum rather than a BLAS product, whose threads wait for each other on a busy machine.
    total: Array = np.einsum("...i,...i->...", pairs, ends)
    return total


def esd_of_draws(given: Predictions) -> DrawsMetric:
    """ESD of many draws; Q is linear in R: a matrix of squares would double the time."""
    z, samples, _ = given.ties
    n = given.total
    above = n - 2 - (samples.cumsum() - samples)
    slope, constant = (1 - 2 * z) * above, float((samples * z * (1 - z) * above).sum())

    def value(ties: Block) -> Array:
        products = _cumulative_products(samples, ties.residual, ties.residual.cumsum(1))
        found: Array = (products - np.einsum("ij,j->i", ties.residual, slope) - constant) / (n * (n - 1) * (n - 2))
        return found

    return value


def ks_of_draws(given: Predictions) -> DrawsMetric:
    """KS error of many draws."""

    def value(ties: Block) -> Array:
        ends = ties.residual.cumsum(1)
        largest: Array = np.maximum(ends.max(1), -ends.min(1))
        return largest / given.total

    return value


def esd(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    """Expected squared difference (ESD; Yoon et al., ICLR 2023), without gradient: :doc:`/methods/esd`.

    It is unbiased, and has mean 0 on calibrated data, so it is often negative there. It needs 3 samples.
    """
    return sums_of(predictions(confidence, correct, minimum=3, name="ESD", **keywords), CumulativeSums).esd


def ks_error(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    r"""Kolmogorov-Smirnov calibration error: :math:`\max_t |\sum_{i: z_i \le t} (c_i - z_i)| / N`.

    It is the largest gap between cumulative correctness and confidence, with ties together (Gupta et al., ICLR 2021).
    """
    return sums_of(predictions(confidence, correct, **keywords), CumulativeSums).ks


def mmce_unbiased(
    confidence: Confidence = None, correct: Correct = None, bandwidth: float = BANDWIDTH, **keywords: Unpack[Keywords]
) -> float:
    r"""Squared maximum mean calibration error (MMCE) with a Laplace kernel, unbiased, exact in :math:`O(N \log N)`.

    The U-statistic over pairs of different samples, with mean 0 on calibrated data: :func:`calibrant.functional.mmce`
    with ``unbiased=True``. The published V-statistic (Kumar, Sarawagi, Jain, ICML 2018) is never negative.

    Args:
        bandwidth: Kernel width :math:`\phi` of :math:`\exp(-|r - r'| / \phi)`, at least 0.001.
    """
    inputs.check_range("bandwidth", bandwidth, low=NARROWEST)
    data = predictions(confidence, correct, minimum=2, name="MMCE", **keywords)
    return sums_of(data, laplace(bandwidth)).pairs / (data.total * (data.total - 1))


@cache
def laplace(bandwidth: float) -> "Callable[[Predictions], LaplaceSums]":
    """What starts the sums of a Laplace kernel, the same for the same bandwidth."""
    return lambda _: LaplaceSums(bandwidth)


class LaplaceSums:
    r"""Products of residuals of two different samples, times the kernel, from ties in ascending order.

    They sum to :math:`\sum_g (R_g^2 - Q_g) + 2 \sum_{g<h} R_g R_h k_{gh}`, and :math:`k_{gh} = u_g / u_h` with
    :math:`u = \exp(z / \phi)`: one running sum of :math:`R_g u_g` serves all pairs.
    """

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.grown = self.pairs = 0.0

    def add(self, ties: Block) -> None:
        """Add the next block."""
        up = np.exp((ties.confidence - 0.5) / self.bandwidth)
        own = ties.residual * up
        self.pairs += float(_kernel_products(ties.residual, own, up, self.grown)) - float(ties.squares.sum())
        self.grown += float(own.sum())


def _kernel_products(residual: Array, own: Array, up: Array, grown: float = 0.0) -> Array:
    """The sum of R^2 and of 2 R_g R_h k_gh over ties, those below included; ``own`` is R u."""
    reach = own.cumsum(-1)
    reach += grown
    reach -= own
    reach /= up
    reach *= 2
    reach += residual
    total: Array = np.einsum("...i,...i->...", residual, reach)
    return total


def mmce_of_draws(given: Predictions) -> DrawsMetric:
    """Unbiased squared MMCE of many draws."""
    z, samples, _ = given.ties
    n = given.total
    up = np.exp((z - 0.5) / BANDWIDTH)
    slope, constant = 1 - 2 * z, float((samples * z * (1 - z)).sum())

    def value(ties: Block) -> Array:
        products = _kernel_products(ties.residual, ties.residual * up, up)
        found: Array = (products - np.einsum("ij,j->i", ties.residual, slope) - constant) / (n * (n - 1))
        return found

    return value


def skce(data: Predictions | None = None, /, *, bandwidth: float = 1.0, **keywords: Unpack[Keywords]) -> float:
    r"""Squared kernel calibration error (SKCE) of whole probability vectors, unbiased.

    .. math:: h_{ij} = (e_{y_i} - p_i)^\top (e_{y_j} - p_j)\, \exp(-\lVert p_i - p_j \rVert / \nu)

    averaged over all pairs of samples, in :math:`O(N^2)` time and little memory (Widmann, Lindsten, Zachariah, NeurIPS
    2019). For two classes seen as (top label, other) it is twice the unbiased MMCE squared at bandwidth
    :math:`\nu / \sqrt2`.

    Args:
        bandwidth: Kernel width :math:`\nu`.
    """
    from scipy.spatial.distance import cdist

    inputs.check_range("bandwidth", bandwidth, low=1e-6)
    checked = predictions(data, minimum=2, name="SKCE", **keywords)
    probabilities, target = checked.of_classes("SKCE")
    if checked.task == "multi-label":
        raise ValueError(
            "SKCE needs one class per sample: pass of_class(k) of the predictions to mmce_unbiased instead"
        )
    p = probabilities.astype(np.float64)
    residual = -p
    residual[np.arange(len(p)), target] += 1
    weighted = residual * checked.counts[:, np.newaxis]
    total, rows = -float((residual * weighted).sum()), max(KERNEL_CELLS // len(p), 1)
    for start in range(0, len(p), rows):
        with np.errstate(under="ignore"):
            kernel = np.exp(-cdist(p[start : start + rows], p) / bandwidth)
        total += float((kernel * (weighted[start : start + rows] @ weighted.T)).sum())
    return total / (checked.total * (checked.total - 1))


def smooth_ece(confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]) -> float:
    r"""Smooth ECE: residuals smoothed by a reflected Gaussian, integrated in absolute value.

    .. math:: \mathrm{smECE}_\sigma = \int_0^1 \Big| \frac1N \sum_i K_\sigma(t, z_i)\,(z_i - c_i) \Big| dt

    falls as :math:`\sigma` rises; the value is where the two are equal, so there is no bin width to choose (Błasiok,
    Nakkiran, ICLR 2024). It is computed on a grid of 4,096 cells, with a width of at least 0.001.
    """
    # The Gaussian reflected at 0 and 1 is diagonal in cosines.
    from scipy.fft import dct, idct

    data = predictions(confidence, correct, **keywords)
    spectrum = dct(sums_of(data, ResidualGrid).cells / data.total, type=2)

    def error(width: float) -> float:
        return float(np.abs(idct(spectrum * _damping(width), type=2)).sum())

    low, high = SMALLEST_WIDTH, 1.0
    if error(low) <= low:
        return error(low)
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return error(high)


def integrated_calibration_index(
    confidence: Confidence = None, correct: Correct = None, **keywords: Unpack[Keywords]
) -> float:
    r"""Integrated calibration index (ICI): the mean of :math:`|z_i - \hat c(z_i)|` over the samples.

    The calibration curve :math:`\hat c(z)` is z plus the residuals :math:`c_i - z_i`, averaged with a Gaussian kernel
    that is reflected at 0 and 1 (Nadaraya-Watson), of width :math:`1.06\, s\, n^{-1/5}` (Scott's rule, s the standard
    deviation of z, and at least 0.001). Austin and Steyerberg (Statistics in Medicine 2019) smooth with loess, whose
    numbers differ slightly.
    """
    from scipy.fft import dct, idct

    data = predictions(confidence, correct, **keywords)
    z, samples, _ = data.ties
    variance = float(samples @ z**2) / data.total - (float(samples @ z) / data.total) ** 2
    damping = _damping(max(1.06 * math.sqrt(max(variance, 0.0)) * data.total**-0.2, SMALLEST_WIDTH))
    held: Array = np.zeros(GRID_CELLS)
    _share_out(held, z, samples)
    smooth_held, smooth_residual = (
        idct(dct(cells, type=2) * damping, type=2) for cells in (held, sums_of(data, ResidualGrid).cells)
    )
    inside = held > 0
    error = np.abs(smooth_residual[inside] / smooth_held[inside])
    return float((held[inside] * error).sum() / data.total)


def _damping(width: float) -> Array:
    """What a Gaussian of this width leaves of each cosine."""
    with np.errstate(under="ignore"):
        found: Array = np.exp(-0.5 * (np.pi * width * np.arange(GRID_CELLS)) ** 2)
    return found


class ResidualGrid:
    """Each group's residual, correctness minus confidence, shared between the two nearest cell centres."""

    def __init__(self, _: Predictions) -> None:
        self.cells: Array = np.zeros(GRID_CELLS)

    def add(self, ties: Block) -> None:
        """Add the next block."""
        _share_out(self.cells, ties.confidence, ties.residual)


def _share_out(cells: Array, z: Array, values: Array) -> None:
    """Add values at places in [0, 1] to the two nearest cell centres."""
    place = np.clip(z * GRID_CELLS - 0.5, 0, GRID_CELLS - 1)
    left = np.minimum(place.astype(np.intp), GRID_CELLS - 2)
    of_right = (place - left) * values
    cells += np.bincount(left, values - of_right, GRID_CELLS)
    cells[1:] += np.bincount(left, of_right, GRID_CELLS - 1)
