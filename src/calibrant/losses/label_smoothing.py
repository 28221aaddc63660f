"""Label smoothing, and its margin-based form."""

from typing import Literal

import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.losses.base import Objective, log_likelihood, mean_over_samples, of_target
from calibrant.losses.checks import Classification
from calibrant.numerics import accumulation_dtype, log_softmax

Spread = Literal["all", "others"]


def label_smoothing(
    logits: Tensor,
    target: Tensor,
    smoothing: float = 0.05,
    spread: Spread = "all",
    *,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    r"""Cross entropy against smoothed labels, averaged over samples.

    A share :math:`\alpha` of the label is spread evenly: over all C classes, the target included
    (``spread="all"``, as in torch), or over the C - 1 others (``spread="others"``), which smooths more.

    Args:
        logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``.
        target: Integer class indices, ``(N, ...)``.
        smoothing: :math:`\alpha` in [0, 1).
        spread: Which classes share :math:`\alpha`.
        mask: Boolean, same shape as ``target``: True where a sample counts.
        ignore_index: Label of samples to ignore.

    References:
        Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016;
        Müller, Kornblith, Hinton, "When Does Label Smoothing Help?", NeurIPS 2019.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.functional.label_smoothing(logits, torch.tensor([0, 0]), 0.1).item(), 4)
        0.7451
    """
    smoothing = _checked_smoothing(smoothing, spread)
    data = checks.classification(logits, target, mask, ignore_index)
    return _label_smoothing(data, smoothing, spread).to(data.logits.dtype)


def margin_label_smoothing(
    logits: Tensor,
    target: Tensor,
    margin: float = 10.0,
    weight: float = 0.1,
    *,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    r"""Margin-based label smoothing (MbLS): the NLL plus a penalty on logit distances above a margin.

    .. math:: -\ln p_y + \alpha \frac1C \sum_k \max\big(0, \max_j l_j - l_k - m\big), \text{ averaged over samples.}

    Args:
        logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``.
        target: Integer class indices, ``(N, ...)``.
        margin: Margin m; distances up to it are not penalised.
        weight: Weight :math:`\alpha` of the penalty relative to the NLL.
        mask: Boolean, same shape as ``target``: True where a sample counts.
        ignore_index: Label of samples to ignore.

    References:
        Liu, Ben Ayed, Galdran, Dolz, "The Devil is in the Margin: Margin-based Label Smoothing for
        Network Calibration", CVPR 2022.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[12.0, 0.0], [0.0, 1.0]])
        >>> round(cal.functional.margin_label_smoothing(logits, torch.tensor([0, 0])).item(), 4)
        0.7066
    """
    margin, weight = _checked_margin(margin, weight)
    data = checks.classification(logits, target, mask, ignore_index)
    return _margin_label_smoothing(data, margin, weight).to(data.logits.dtype)


def _label_smoothing(data: Classification, smoothing: float, spread: Spread) -> Tensor:
    log_probabilities = log_softmax(data.logits)
    classes = data.logits.shape[1]
    # Moving alpha onto the C - 1 others equals spreading alpha * C / (C - 1) over all C.
    share = smoothing if spread == "all" else smoothing * classes / (classes - 1)
    wide = accumulation_dtype(log_probabilities)
    hit = of_target(log_probabilities, data).to(wide)
    everywhere = log_probabilities.mean(1, dtype=wide)
    return mean_over_samples(-(1 - share) * hit - share * everywhere, data, "label smoothing")


def _margin_label_smoothing(data: Classification, margin: float, weight: float) -> Tensor:
    nll = -log_likelihood(data)
    distance = data.logits.amax(1, keepdim=True) - data.logits
    wide = accumulation_dtype(nll)
    penalty = torch.relu(distance - margin).mean(1, dtype=wide)
    return mean_over_samples(nll.to(wide) + weight * penalty, data, "margin label smoothing")


def _checked_smoothing(smoothing: float, spread: Spread) -> float:
    checks.check_choice("spread", spread, ("all", "others"))
    return checks.check_range("smoothing", smoothing, low=0, high=1, open_high=True)


def _checked_margin(margin: float, weight: float) -> tuple[float, float]:
    return checks.check_range("margin", margin, low=0, high=1e6), checks.check_range("weight", weight, low=0, high=1e6)


class LabelSmoothingLoss(Objective):
    """Cross entropy against smoothed labels, a replacement for the NLL.

    Args:
        smoothing: Share of the label that is spread.
        spread: ``"all"`` classes, as in torch, or the ``"others"``.
        ignore_index: Label of samples to ignore.

    See :func:`calibrant.functional.label_smoothing` for formula, shapes and papers.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> round(cal.LabelSmoothingLoss(0.1)(logits, torch.tensor([0, 0])).item(), 4)
        0.7451
    """

    def __init__(self, smoothing: float = 0.05, spread: Spread = "all", *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.smoothing = _checked_smoothing(smoothing, spread)
        self.spread = spread

    def value(self, data: Classification) -> Tensor:
        """Return the mean smoothed cross entropy."""
        return _label_smoothing(data, self.smoothing, self.spread)


class MarginLabelSmoothingLoss(Objective):
    """Margin-based label smoothing (MbLS), a replacement for the NLL.

    Args:
        margin: Logit distance up to which nothing is penalised.
        weight: Weight of the penalty relative to the NLL.
        ignore_index: Label of samples to ignore.

    See :func:`calibrant.functional.margin_label_smoothing` for formula, shapes and paper.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[12.0, 0.0], [0.0, 1.0]])
        >>> round(cal.MarginLabelSmoothingLoss()(logits, torch.tensor([0, 0])).item(), 4)
        0.7066
    """

    def __init__(self, margin: float = 10.0, weight: float = 0.1, *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.margin, self.weight = _checked_margin(margin, weight)

    def value(self, data: Classification) -> Tensor:
        """Return the mean NLL plus the weighted penalty."""
        return _margin_label_smoothing(data, self.margin, self.weight)
