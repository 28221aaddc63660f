"""Kernel calibration errors: MMCE of the pairs, and SKCE of whole probability vectors."""

from dataclasses import dataclass
from typing import Literal, Unpack

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics.passes import part_of
from calibrant.metrics.predictions import Given, Predictions, Values, predictions
from calibrant.metrics.sorting import Block

# Number of elements of the kernel matrix in memory at a time.
BLOCK = 1 << 22
# Bandwidths below this overflow the exponentials that the faster sums factorise the kernel into.
NARROW = 1e-3


def mmce_unbiased(
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
    bandwidth: float = 0.4,
    **given: Unpack[Given],
) -> float:
    r"""Squared maximum mean calibration error (MMCE) with a Laplace kernel, unbiased, exact in :math:`O(N \log N)`.

    The U-statistic over pairs of different samples, whose mean is 0 on calibrated data and which may be negative:
    :func:`calibrant.functional.mmce` with ``unbiased=True``. Its default, the published V-statistic, is never negative.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)``.
        correct: 1 or True where the prediction is right, same shape.
        bandwidth: Kernel width :math:`\phi` of :math:`\exp(-|r - r'| / \phi)`.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of confidence and correct.

    References:
        Kumar, Sarawagi, Jain, "Trainable Calibration Measures for Neural Networks from Kernel Mean Embeddings",
        ICML 2018.

    Example:
        >>> from calibrant import metrics
        >>> round(metrics.mmce_unbiased([0.9, 0.8, 0.6, 0.9], [1, 0, 1, 0]), 4)
        0.0105
    """
    inputs.check_range("bandwidth", bandwidth, low=1e-6)
    data = predictions(confidence, correct, minimum=2, name="MMCE", **given)
    n = data.total
    if bandwidth >= NARROW:
        return part_of(data, Laplace(bandwidth)).pairs / (n * (n - 1))
    groups = Block(*data.groups)
    below = _decayed_below(groups.confidence, groups.residual, bandwidth)
    return float(groups.residual @ (groups.residual + 2 * below) - groups.squares.sum()) / (n * (n - 1))


def _decayed_below(position: Array, weight: Array, bandwidth: float) -> Array:
    """Sums of w_j exp(-(x_i - x_j) / bandwidth) over the positions below each, ascending and distinct.

    A doubling scan: after step k each element holds its 2^k predecessors, and nothing ever grows.
    """
    total, step = weight.copy(), 1
    while step < len(position):
        with np.errstate(under="ignore"):
            total[step:] += np.exp((position[:-step] - position[step:]) / bandwidth) * total[:-step].copy()
        step *= 2
    return total - weight


@dataclass(frozen=True)
class Laplace:
    """A Laplace kernel, and the start of its sums."""

    bandwidth: float = 0.4

    def __call__(self, _: Predictions) -> "LaplaceSums":
        """Start the sums."""
        return LaplaceSums(self.bandwidth)


class LaplaceSums:
    r"""Products of residuals of two different samples, times the kernel, from groups in ascending order.

    They sum to :math:`\sum_g (R_g^2 - Q_g) + 2 \sum_{g<h} R_g R_h k_{gh}`, and :math:`k_{gh} = u_g / u_h` with
    :math:`u = \exp(z / \phi)`: one running sum of :math:`R_g u_g` serves all pairs.
    """

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.grown = self.pairs = 0.0

    def add(self, groups: Block) -> None:
        """Add the next block of groups."""
        residual = groups.residual
        up = np.exp((groups.confidence - 0.5) / self.bandwidth)
        own = residual * up
        reach = own.cumsum()
        end = self.grown + float(reach[-1])
        reach += self.grown
        reach -= own
        reach /= up
        reach *= 2
        reach += residual
        self.pairs += float(np.einsum("i,i->", residual, reach)) - float(groups.squares.sum())
        self.grown = end


def skce(
    data: Predictions | None = None,
    /,
    *,
    bandwidth: float = 1.0,
    estimator: Literal["quadratic", "linear"] = "quadratic",
    **given: Unpack[Given],
) -> float:
    r"""Squared kernel calibration error (SKCE) of whole probability vectors, unbiased.

    .. math:: h_{ij} = (e_{y_i} - p_i)^\top (e_{y_j} - p_j)\, \exp(-\lVert p_i - p_j \rVert / \nu)

    averaged over all pairs of samples (``"quadratic"``: :math:`O(N^2)` time, little memory), or over the disjoint
    pairs (1, 2), (3, 4), ... (``"linear"``). For two classes seen as (top label, other) it is twice the unbiased
    MMCE squared at bandwidth :math:`\nu / \sqrt2`.

    Args:
        data: Checked predictions, in place of the keywords.
        bandwidth: Kernel width :math:`\nu`.
        estimator: Pairs to average over.
        **given: ``logits=`` or ``probabilities=``, ``(N, C)`` or binary, and ``target=``.

    References:
        Widmann, Lindsten, Zachariah, "Calibration tests in multi-class classification", NeurIPS 2019.

    Example:
        >>> from calibrant import metrics
        >>> p = [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]
        >>> round(metrics.skce(probabilities=p, target=[0, 0, 1]), 4)
        -0.1994
    """
    inputs.check_range("bandwidth", bandwidth, low=1e-6)
    inputs.check_choice("estimator", estimator, ("quadratic", "linear"))
    checked = predictions(data, minimum=2, name="SKCE", **given)
    probabilities, target = checked.of_classes("SKCE")
    if checked.task == "multi-label":
        raise ValueError(
            "SKCE needs one class per sample: pass of_class(k) of the predictions to mmce_unbiased instead"
        )
    p = probabilities.astype(np.float64)
    residual = -p
    residual[np.arange(len(p)), target] += 1
    if estimator == "linear":
        if checked.weight is not None:
            raise ValueError("the linear estimator pairs neighbours and takes no sample_weight: use the quadratic one")
        half = len(p) // 2 * 2
        distance = np.linalg.norm(p[:half:2] - p[1:half:2], axis=1)
        agreement = (residual[:half:2] * residual[1:half:2]).sum(1)
        return float((agreement * np.exp(-distance / bandwidth)).mean())
    from scipy.spatial.distance import cdist

    total, own = 0.0, np.square(residual).sum(1)
    weighted = residual if checked.weight is None else residual * checked.weight[:, np.newaxis]
    rows = max(BLOCK // len(p), 1)
    for start in range(0, len(p), rows):
        with np.errstate(under="ignore"):
            kernel = np.exp(-cdist(p[start : start + rows], p) / bandwidth)
        total += float((kernel * (weighted[start : start + rows] @ weighted.T)).sum())
    total -= float(own.sum() if checked.weight is None else own @ checked.weight)
    return total / (checked.total * (checked.total - 1))
