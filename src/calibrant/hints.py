"""Hints about common mistakes, recognised by the input: parts of error messages, and warnings."""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.numerics import readable

Array = np.ndarray[tuple[int, ...], np.dtype[np.floating[Any]]]
_warned_of_probabilities = False


class InputWarning(UserWarning):
    """Input that is probably not what it was passed as, such as probabilities passed as logits."""


def warn(text: str) -> None:
    """Issue an ``InputWarning`` at the first line outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("calibrant."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, InputWarning, stacklevel=level)


def of_logits(logits: object) -> str:
    """How to get the logits of a model's output, such as the ``ModelOutput`` of transformers."""
    if isinstance(logits, Tensor):
        return ""
    if hasattr(logits, "logits"):
        return "pass outputs.logits"
    return 'pass outputs.logits, or outputs["logits"] of a dict' if isinstance(logits, Mapping) else ""


def of_target(target: Tensor, logits: Tensor, ignore_index: int | None) -> str:
    """What a target of another shape probably is: a column, multi-label or one-hot; empty if it cannot be read."""
    if target.numel() == len(logits) and target.dim() == 2:
        return "pass target.squeeze(1)"
    if target.shape != logits.shape or logits.dim() < 2 or logits.shape[1] < 2 or not readable(target):
        return ""
    labels = target if ignore_index is None else torch.where(target == ignore_index, 0, target)
    if not ((labels == 0) | (labels == 1)).all():
        return ""
    if (labels.sum(1) != 1).any():
        return (
            'it looks multi-label, which view="multi-label" of ESDLoss, MMCELoss and ECELoss handles, and '
            "multi_label=True of CalibratedLoss; posthoc.MultiLabelCalibration for calibrators"
        )
    return "" if target.is_floating_point() else "it looks one-hot, pass target.argmax(dim=1)"


def of_range(values: Tensor) -> str:
    """What values outside [0, 1] probably are, and what to do."""
    if bool((values >= 0).all()):
        if values.dim() > 1 and bool(((values.flatten(0, -2).sum(-1) - 100).abs() < 0.5).all()):
            return "these look like percentages: divide them by 100"
        if values.dim() == 1 and bool((values <= 100).all()):
            return "divide by 100 if they are percentages, or pass logits= if they are logits"
    return "these look like logits: pass logits="


def warn_of_given(name: str, values: Tensor, independent: bool) -> None:
    """Warn about logits that look like probabilities, and a column of ones.

    Args:
        name: ``"logits"`` or ``"probabilities"``.
        values: ``(N, C)``, or ``(N,)`` of class 1 of two.
        independent: Whether each column is a label of its own.
    """
    if name == "probabilities":
        if values.dim() == 1 and len(values) > 2 and bool((values == 1).all()):
            warn(
                "every probability of class 1 is 1, probably by a softmax over one class: pass the sigmoid of the "
                "logit, or logits="
            )
        return
    some = values[:: max(1, len(values) // 1000)].numpy()
    if len(values) < 8 or some.min() < 0 or some.max() > 1 or not some.any():
        return
    if some.ndim == 1 or independent:
        warn("these logits all lie in [0, 1], as probabilities do: pass probabilities= if they are")
    elif _is_distribution(some):
        warn("these logits look like probabilities (rows sum to 1): pass probabilities=")


def _is_distribution(rows: Array) -> bool:
    inside = rows.max() <= 1 and rows.min() >= 0  # first, because the sum of large logits may overflow
    return bool(inside and (np.abs(rows.sum(-1) - 1) <= 1e-3).all())


def warn_of_probabilities(logits: Tensor, mask: Tensor | None) -> bool:
    """Warn, once per process, about ``(N, C)`` logits that look like the output of a softmax.

    Returns:
        Whether the values could be read and at least 8 samples count, which the check needs.
    """
    global _warned_of_probabilities
    if not readable(logits):
        return False
    rows = logits.detach().numpy() if mask is None else logits.detach().numpy()[mask.numpy()]
    if len(rows) < 8:
        return False
    if not _warned_of_probabilities and _is_distribution(rows):
        _warned_of_probabilities = True
        warnings.warn(
            "these logits look like probabilities (rows sum to 1): remove the softmax at the end of the model, "
            "or pass probabilities.log()",
            UserWarning,
            stacklevel=6,  # the line that calls the module
        )
    return True
