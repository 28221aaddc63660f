"""Several labels for each sample: independent sigmoids, a 0/1 target with the shape of the logits."""

import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.losses.checks import Pairs
from calibrant.numerics import at_least_float32, softmax_parts


def multi_label_pairs(
    logits: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
    sample_weight: Tensor | None = None,
) -> Pairs:
    """Validate and flatten multi-label output; every label's probability and whether it applies: each ``(C, N)``.

    Args:
        logits: ``(N, C)`` or dense ``(N, C, d1, ...)``, one logit per label; ``(N,)`` for a single label.
        target: 0 or 1, same shape as ``logits``, integer or floating point.
        mask: Boolean, same shape as ``target``; True where a label counts.
        ignore_index: Target of labels to ignore; None to ignore none.
        sample_weight: Non-negative weights, one per sample: the shape of the logits without the label dimension.
    """
    checks.check_logits_and_target(logits, target, ignore_index)
    if target.shape != logits.shape:
        raise ValueError(
            f"target must have the shape of the logits, {tuple(logits.shape)}, in the multi-label view, got "
            f'{tuple(target.shape)}: for one class per sample use view="top-label" or "class-wise"'
        )
    checks.check_device("target", target, logits, "logits")
    if logits.dim() == 1:
        logits, target = logits.unsqueeze(1), target.unsqueeze(1)
        mask = mask.unsqueeze(1) if isinstance(mask, Tensor) and mask.dim() == 1 else mask
    if logits.shape[1] == 0:
        raise ValueError(f"logits must have at least one label, got shape {tuple(logits.shape)}")
    target = target.detach()
    valid, weight = checks.valid_samples(target, mask, ignore_index), None
    if sample_weight is not None:
        any_label = None if valid is None else valid.any(1)
        shape = logits.shape[:1] + logits.shape[2:]
        weight, counts = checks.checked_weight(sample_weight, any_label, logits, "the samples of the logits", shape)
        if counts is not None:
            valid = counts.unsqueeze(1).expand_as(target) if valid is None else counts.unsqueeze(1) & valid
        weight = _rows(weight.unsqueeze(1).expand(logits.shape))
    confidence, correct = _rows(at_least_float32(logits)), _rows(target)
    if valid is not None:
        # Ignored labels may hold anything, NaN included; zeros keep their gradient finite.
        valid = _rows(valid)
        confidence = torch.where(valid, confidence, 0.0)
        correct = torch.where(valid, correct, torch.zeros_like(correct))
        weight = None if weight is None else torch.where(valid, weight, 0.0)
    checks.check_finite_logits(confidence.T)
    _check_labels(correct, ignore_index)
    return Pairs(_sigmoid(confidence), correct == 1, valid, weight)


def _rows(values: Tensor) -> Tensor:
    """``(N, C, d1, ...)`` becomes ``(C, N * d1 * ...)``."""
    return values.movedim(1, 0).flatten(1).contiguous()


def _sigmoid(logits: Tensor) -> Tensor:
    """The sigmoid as a softmax over (0, logit): one rounding for all, so that equal logits stay tied."""
    powers, total = softmax_parts(torch.stack((torch.zeros_like(logits), logits), dim=-1).flatten(0, 1))
    return (powers[:, 1:] / total).to(logits.dtype).reshape(logits.shape)


def _check_labels(target: Tensor, ignore_index: int | None) -> None:
    checks.require(
        ((target == 0) | (target == 1)).all(),
        lambda: (
            "target must hold only 0 and 1 in the multi-label view: round soft labels, "
            f"and set ignore_index to leave a value out (now {ignore_index})"
        ),
    )
