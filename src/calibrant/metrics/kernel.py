"""Kernel calibration errors: MMCE of the pairs, and SKCE of whole probability vectors."""

from dataclasses import dataclass
from typing import Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics.cumulative import RowStatistic
from calibrant.metrics.predictions import Confidence, Correct, Keywords, Predictions, predictions
from calibrant.metrics.ties import Block, sums_of

# Number of elements of the kernel matrix in memory at a time.
CELLS = 1 << 22
# Below this bandwidth the exponentials overflow that the kernel is factorised into.
NARROWEST = 1e-3


def mmce_unbiased(
    confidence: Confidence = None, correct: Correct = None, bandwidth: float = 0.4, **keywords: Unpack[Keywords]
) -> float:
    r"""Squared maximum mean calibration error (MMCE) with a Laplace kernel, unbiased, exact in :math:`O(N \log N)`.

    The U-statistic over pairs of different samples, whose mean is 0 on calibrated data and which may be negative:
    :func:`calibrant.functional.mmce` with ``unbiased=True``. Its default, the published V-statistic (Kumar, Sarawagi,
    Jain, ICML 2018), is never negative.

    Args:
        bandwidth: Kernel width :math:`\phi` of :math:`\exp(-|r - r'| / \phi)`, at least 0.001.
    """
    inputs.check_range("bandwidth", bandwidth, low=NARROWEST)
    data = predictions(confidence, correct, minimum=2, name="MMCE", **keywords)
    return sums_of(data, Laplace(bandwidth)).pairs / (data.total * (data.total - 1))


@dataclass(frozen=True)
class Laplace:
    """A Laplace kernel, and the start of its sums."""

    bandwidth: float = 0.4

    def __call__(self, _: Predictions) -> "LaplaceSums":
        """Start the sums."""
        return LaplaceSums(self.bandwidth)


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
        self.pairs += float(_products(ties.residual, own, up, self.grown)) - float(ties.squares.sum())
        self.grown += float(own.sum())


def _products(residual: Array, own: Array, up: Array, grown: float = 0.0) -> Array:
    """The sum of R^2 and of 2 R_g R_h k_gh over ties, those below included; ``own`` is R u."""
    reach = own.cumsum(-1)
    reach += grown
    reach -= own
    reach /= up
    reach *= 2
    reach += residual
    total: Array = np.einsum("...i,...i->...", residual, reach)
    return total


def mmce_rows(given: Predictions, bandwidth: float = 0.4) -> RowStatistic:
    """Unbiased squared MMCE of each row of residuals."""
    z, samples, _ = given.ties
    n = given.total
    up = np.exp((z - 0.5) / bandwidth)
    slope, constant = 1 - 2 * z, float((samples * z * (1 - z)).sum())

    def value(residual: Array) -> Array:
        total = _products(residual, residual * up, up) - np.einsum("ij,j->i", residual, slope)
        found: Array = (total - constant) / (n * (n - 1))
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
    total, rows = -float((residual * weighted).sum()), max(CELLS // len(p), 1)
    for start in range(0, len(p), rows):
        with np.errstate(under="ignore"):
            kernel = np.exp(-cdist(p[start : start + rows], p) / bandwidth)
        total += float((kernel * (weighted[start : start + rows] @ weighted.T)).sum())
    return total / (checked.total * (checked.total - 1))
