"""Kernel calibration errors: MMCE of the pairs, and SKCE of whole probability vectors."""

from typing import Literal, Unpack

import numpy as np
import torch

from calibrant import inputs
from calibrant.arrays import laplace_sums_of_array
from calibrant.metrics.predictions import Given, Predictions, Values, predictions
from calibrant.numerics import exponential_is_safe, laplace_quadratic_form

# Number of elements of the kernel matrix in memory at a time.
BLOCK = 1 << 22


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
    position, samples, right = data.groups
    weight = right - samples * position
    if exponential_is_safe(bandwidth, torch.float64):
        with np.errstate(under="ignore"):
            below, tied, above = laplace_sums_of_array(position, weight, bandwidth)
            total = float(weight @ (below + tied + above))
    else:
        total = float(laplace_quadratic_form(torch.from_numpy(position), torch.from_numpy(weight), bandwidth))
    n = len(data)
    own = float((right * (1 - position) ** 2 + (samples - right) * position**2).sum())
    return (total - own) / (n * (n - 1))


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
        half = len(p) // 2 * 2
        distance = np.linalg.norm(p[:half:2] - p[1:half:2], axis=1)
        agreement = (residual[:half:2] * residual[1:half:2]).sum(1)
        return float((agreement * np.exp(-distance / bandwidth)).mean())
    from scipy.spatial.distance import cdist

    total = 0.0
    rows = max(BLOCK // len(p), 1)
    for start in range(0, len(p), rows):
        with np.errstate(under="ignore"):
            kernel = np.exp(-cdist(p[start : start + rows], p) / bandwidth)
        total += float((kernel * (residual[start : start + rows] @ residual.T)).sum())
    total -= float((residual**2).sum())
    return total / (len(p) * (len(p) - 1))
