"""What the losses have in common: settings, samples of all ranks, views, and means over samples."""

import math
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from calibrant import distributed, inputs
from calibrant.losses import checks
from calibrant.losses.checks import Classification, Pairs, TopLabel
from calibrant.numerics import (
    SMALLEST_ROOT,
    Values,
    accumulation_dtype,
    at_least_float32,
    log_softmax,
    readable,
    safe_divide,
    safe_root,
    softmax,
    traced,
)
from calibrant.torch_private import is_forward_mode

View = Literal["top-label", "class-wise", "multi-label"]
VIEWS = ("top-label", "class-wise", "multi-label")


class Sums(NamedTuple):
    """Sums over samples: the kernel maps confidences and constants, all of them tensors or arrays, to them.

    It returns them for each row, and their gradient. The value of the loss is the sum times the scale.
    """

    kernel: Callable[..., tuple[Values, Values]]
    constants: tuple[Tensor | None, ...]
    scale: Tensor | float

    def differentiable(self, confidence: Tensor) -> Tensor:
        """The value in plain torch, which ``torch.compile``, ``torch.func`` and second derivatives see through."""
        value: Tensor = self.kernel(confidence, *self.constants)[0] * self.scale
        return value

    def evaluated(self, confidence: Tensor, *, root: bool = False) -> tuple[Tensor, Tensor]:
        """The value, or its root, and its gradient; in arrays where these can be read, which have less overhead."""
        given = (confidence.detach(), *self.constants)
        if confidence.dim() == 1 and all(each is None or readable(each) for each in given):
            with np.errstate(all="ignore"):  # whatever the caller has set
                total, slope = self.kernel(*(None if each is None else each.numpy() for each in given))
            value, factor = float(total) * float(self.scale), float(self.scale)
            if root:
                value = math.sqrt(value) if value > SMALLEST_ROOT**2 else 0.0
                factor *= 0.5 / value if value else 0.0
            return torch.tensor(value, dtype=torch.float64, device="cpu"), torch.from_numpy(slope * factor)
        with torch.no_grad():
            total, slope = self.kernel(*given)
            scale = torch.as_tensor(self.scale, dtype=total.dtype, device=total.device)
            square: Tensor = total * scale
            if not root:
                return square, slope * scale.unsqueeze(-1)
            rooted = safe_root(square)
            scale = scale * 0.5 * safe_divide(torch.ones_like(rooted), rooted)
            return rooted, slope * scale.unsqueeze(-1)


def value_of_pairs(sums: Sums, confidence: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The value of each row, in the accumulation dtype if none is given, with its known gradient."""
    dtype = accumulation_dtype(confidence) if dtype is None else dtype
    if traced() or is_forward_mode():
        return sums.differentiable(confidence).to(dtype)
    value, gradient = sums.evaluated(confidence)
    return _with_gradient(value.to(dtype), gradient, confidence, lambda z: sums.differentiable(z).to(dtype))


def value_of_logits(sums: Sums, data: Classification, top: TopLabel, *, root: bool) -> Tensor:
    """The value of top-label pairs, or its :func:`safe_root`, with its known gradient in the logits."""
    value, slope = sums.evaluated(top.confidence, root=root)
    # d confidence / d logit k = confidence (1[k is predicted] - p_k).
    slope = (slope * top.confidence).to(top.powers.dtype).unsqueeze(1)
    gradient = (top.powers * (-slope * top.confidence.unsqueeze(1))).scatter_add_(1, top.predicted, slope)

    def differentiable(logits: Tensor) -> Tensor:
        value = sums.differentiable(checks.top_label(logits).confidence)
        return (safe_root(value) if root else value).to(logits.dtype)

    return _with_gradient(value.to(data.logits.dtype), gradient, data.logits, differentiable)


def _with_gradient(
    value: Tensor, gradient: Tensor, variable: Tensor, differentiable: Callable[[Tensor], Tensor]
) -> Tensor:
    if not variable.requires_grad:
        return value
    known: Tensor = _KnownGradient.apply(variable, (value, gradient.to(variable.dtype), differentiable))  # type: ignore[no-untyped-call]
    return known


class _KnownGradient(torch.autograd.Function):
    """A value whose gradient was computed beside it, and that is differentiable again."""

    @staticmethod
    def forward(ctx: Any, variable: Tensor, known: tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]) -> Tensor:
        value, gradient, ctx.differentiable = known
        ctx.save_for_backward(variable, gradient)
        return value

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        variable, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # as in backward(create_graph=True)
            alias = variable.view_as(variable)  # so that hooks on the variable run once, outside
            (gradient,) = torch.autograd.grad(ctx.differentiable(alias).sum(), alias, create_graph=True)
        return upstream[0].to(gradient.dtype).unsqueeze(-1) * gradient, None


class Objective(nn.Module):
    """Base class of the losses of ``(logits, target, mask=None)``.

    Args:
        ignore_index: Label of samples to ignore, as in ``torch.nn.CrossEntropyLoss``; None to ignore none.
    """

    name = "the loss"
    sync = False
    _has_looked = False

    def __init__(self, *, ignore_index: int | None = -100) -> None:
        super().__init__()
        self.ignore_index = inputs.check_ignore_index(ignore_index)

    def minimum_samples(self) -> int:
        """Return the fewest samples the loss is defined for."""
        return 1

    def gathers(self) -> bool:
        """Whether there may be other ranks whose samples belong to the batch."""
        return self.sync and dist.is_available() and dist.is_initialized()

    def failing_together(self) -> AbstractContextManager[None]:
        """Return a context in which bad input on one rank is an error on all of them."""
        return distributed.failing_together() if self.gathers() else nullcontext()

    def checked(
        self, logits: Tensor, target: Tensor, mask: Tensor | None, sample_weight: Tensor | None = None
    ) -> Classification:
        """Validate and flatten a batch; with several ranks, an error on one is raised on all."""
        with self.failing_together():
            data = checks.classification(logits, target, mask, self.ignore_index, sample_weight)
        if not self._has_looked and logits.dim() > 1 and logits.shape[1] > 1:
            self._has_looked = checks.warn_of_probabilities(data)
        return data

    def extra_repr(self) -> str:
        """Show the options, as torch's modules do."""
        options = {key: value for key, value in vars(self).items() if not key.startswith("_") and key != "training"}
        return ", ".join(f"{key}={value!r}" for key, value in sorted(options.items()))


class MeanLoss(Objective):
    """Base class of losses that are means over samples, which data-parallel training averages over ranks."""

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the loss of a batch as a scalar; 0, with zero gradient, if all of its samples are ignored.

        Args:
            logits: ``(N, C)``, dense ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``: the logit of class 1.
            target: Integer class indices, ``(N, ...)``.
            mask: Boolean, same shape as ``target``: True where a sample counts.
        """
        data = self.checked(logits, target, mask)
        checks.require_samples(data, 1, self.name)
        loss = self.losses(data)
        loss = loss.to(accumulation_dtype(loss))
        if data.mask is None:
            return loss.mean().to(data.logits.dtype)
        counts = data.mask.to(loss.dtype)
        return safe_divide((loss * counts).sum(), counts.sum()).to(data.logits.dtype)

    @abstractmethod
    def losses(self, data: Classification) -> Tensor:
        """Return the loss of each sample, ``(N,)``."""


class HeldOutLoss(MeanLoss):
    """Base class of means over samples whose state is updated from held-out data, with ``sync`` of all ranks."""

    def __init__(self, *, ignore_index: int | None = -100, sync: bool = True) -> None:
        super().__init__(ignore_index=ignore_index)
        self.sync = sync

    def gathers(self) -> bool:
        """False: only the update needs the samples of other ranks."""
        return False

    def updates_together(self) -> bool:
        """Whether there may be other ranks whose samples belong to the update."""
        return super().gathers()

    def held_out(self, logits: Tensor, target: Tensor | None, mask: Tensor | None) -> Classification:
        """Validate and flatten held-out data; with several ranks, an error on one is raised on all."""
        with distributed.failing_together() if self.updates_together() else nullcontext():
            if target is None:
                return checks.unlabelled(logits, mask)
            return checks.classification(logits, target, mask, self.ignore_index)


class PairObjective(Objective):
    """Base class of ESD, MMCE, ECE and others: functions of (confidence, correct) pairs.

    Args:
        view: ``"top-label"``; ``"class-wise"``, the mean over classes of each one's probability against its indicator;
            or ``"multi-label"``, the mean over labels, each with its own sigmoid.
        root: Take the root of the mean.
        ignore_index: Label of samples to ignore.
        sync: Under an initialised ``torch.distributed`` group, compute on the samples of all ranks.
    """

    has_sums = False

    def __init__(
        self, view: View = "top-label", root: bool = False, *, ignore_index: int | None = -100, sync: bool = True
    ) -> None:
        super().__init__(ignore_index=ignore_index)
        inputs.check_choice("view", view, VIEWS)
        self.view = view
        self.root = root
        self.sync = sync

    def forward(
        self, logits: Tensor, target: Tensor, mask: Tensor | None = None, sample_weight: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch as a scalar; 0, with zero gradient, if too many of its samples are ignored.

        Args:
            logits: ``(N, C)``, dense ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``: the logit of class 1.
            target: Integer class indices, ``(N, ...)``. In the multi-label view 0 or 1, integer or floating point,
                in the shape of the logits.
            mask: Boolean, same shape as ``target``: True where a sample (in the multi-label view, a label) counts.
            sample_weight: Non-negative weights, one per sample, ``(N, ...)``. A sample of weight 2 counts as two.
        """
        if self.view == "multi-label":
            with self.failing_together():
                pairs = multi_label_pairs(logits, target, mask, self.ignore_index, sample_weight)
            return self._mean_of_rows(pairs)
        data = self.checked(logits, target, mask, sample_weight)
        if self.view == "class-wise":
            return self._mean_of_rows(class_wise_pairs(data))
        if self.has_sums and not self.gathers() and not traced() and not is_forward_mode():
            top = checks.top_label(data.logits.detach())
            pairs = Pairs(top.confidence, top.predicted.squeeze(1) == data.target, data.mask, data.weight)
            checks.require_samples(pairs, self.minimum_samples(), self.name)
            return value_of_logits(self.sums(pairs), data, top, root=self.root)
        return self._mean_of_rows(checks.top_label_pairs(data))

    def _mean_of_rows(self, pairs: Pairs) -> Tensor:
        """Mean over classes or labels, except those with too few samples that count."""
        if self.gathers():
            pairs = pairs_of_all_ranks(pairs)
        checks.require_samples(pairs, self.minimum_samples(), self.name)
        value = self.value(pairs)
        if value.dim() > 0 and pairs.mask is None:
            value = value.mean()
        elif value.dim() > 0 and pairs.mask is not None:
            enough = (pairs.mask.sum(-1) >= self.minimum_samples()).to(value.dtype)
            value = (value * enough).sum() / enough.sum().clamp_min(1)
        return (safe_root(value) if self.root else value).to(pairs.confidence.dtype)

    def value(self, pairs: Pairs) -> Tensor:
        """Return the value of each row of pairs, in the accumulation dtype; 0 where too few samples count."""
        return value_of_pairs(self.sums(pairs), pairs.confidence)

    def sums(self, pairs: Pairs) -> Sums:
        """Return the value as sums over samples; only if ``has_sums``."""
        raise NotImplementedError


def log_likelihood(data: Classification) -> Tensor:
    """Logarithm of the probability of the right class, ``(N,)``."""
    return of_target(log_softmax(data.logits), data)


def of_target(values: Tensor, data: Classification) -> Tensor:
    """The entries of ``(N, C)`` values for the right class, ``(N,)``."""
    return values.gather(1, data.target.unsqueeze(1)).squeeze(1)


def class_wise_pairs(data: Classification) -> Pairs:
    """Every class's probability, and whether that class is the right one: each ``(C, N)``."""
    probabilities = softmax(data.logits).T.contiguous()
    mask = None if data.mask is None else data.mask.expand_as(probabilities)
    weight = None if data.weight is None else data.weight.expand_as(probabilities)
    return Pairs(probabilities, checks.one_hot(data).T, mask, weight)


def multi_label_pairs(
    logits: Tensor,
    target: Tensor,
    mask: Tensor | None,
    ignore_index: int | None,
    sample_weight: Tensor | None,
) -> Pairs:
    """Validate and flatten multi-label output; every label's probability and whether it applies: each ``(C, N)``.

    Args:
        logits: ``(N, C)`` or dense ``(N, C, d1, ...)``, one logit per label; ``(N,)`` for a single label.
        target: 0 or 1, same shape as ``logits``, integer or floating point.
        mask: Boolean, same shape as ``target``; True where a label counts.
        ignore_index: Target of labels to ignore; None to ignore none.
        sample_weight: Non-negative weights, one per sample: the shape of the logits without the label dimension.
    """
    checks.check_logits_and_target(logits, target)
    if target.shape != logits.shape:
        raise ValueError(
            f"target must have the shape of the logits, {tuple(logits.shape)}, in the multi-label view, got "
            f'{tuple(target.shape)}: for one class per sample use view="top-label" or "class-wise"'
        )
    checks.check_device("target", target, logits, "logits")
    if logits.dim() == 1:
        logits, target = logits.unsqueeze(1), target.unsqueeze(1)
        mask = mask.unsqueeze(1) if isinstance(mask, Tensor) and mask.dim() == 1 else mask
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
    advice = f"round soft labels, and set ignore_index to leave a value out (now {ignore_index})"
    checks.check_zero_one(correct, lambda: f"target must hold only 0 and 1 in the multi-label view: {advice}")
    # The sigmoid is a softmax over (0, logit): one rounding for all, so that equal logits stay tied.
    two = torch.stack((torch.zeros_like(confidence), confidence), dim=-1).flatten(0, 1)
    return Pairs(softmax(two)[:, 1].reshape(confidence.shape), correct == 1, valid, weight)


def _rows(values: Tensor) -> Tensor:
    """``(N, C, d1, ...)`` becomes ``(C, N * d1 * ...)``."""
    return values.movedim(1, 0).flatten(1).contiguous()


def pairs_of_all_ranks(pairs: Pairs) -> Pairs:
    """The pairs of the global batch, without those that only pad it if values can be read."""
    counts = counts_of(pairs)
    present = torch.ones_like(pairs.confidence)
    columns = (pairs.confidence, pairs.correct, present if counts is None else counts, present)
    confidence, correct, weight, present = distributed.gather_columns(columns)
    correct, weight, present = correct.detach(), weight.detach(), present.detach()
    if not readable(weight):
        return Pairs(confidence, correct, weight > 0, weight)
    given = present.flatten(0, -2)[0] > 0 if present.dim() > 1 else present > 0
    if not given.all():
        confidence, correct, weight = confidence[..., given], correct[..., given], weight[..., given]
    mask = None if (weight > 0).all() else weight > 0
    return Pairs(confidence, correct, mask, None if (weight == 1).all() else weight)


class Residuals(NamedTuple):
    """Pairs for accumulation: in float64, residuals times weights, weight 0 for samples that do not count."""

    confidence: Tensor
    correct: Tensor
    residual: Tensor
    weight: Tensor | None
    samples: Tensor


def counts_of(pairs: Pairs) -> Tensor | None:
    """How often each sample counts, in the accumulation dtype; None if each counts once."""
    counts = pairs.mask if pairs.weight is None else pairs.weight
    return None if counts is None else counts.to(accumulation_dtype(pairs.confidence))


def residuals(pairs: Pairs) -> Residuals:
    """Return the residuals ``correct - confidence`` times the weights in the accumulation dtype, zero where masked."""
    dtype = accumulation_dtype(pairs.confidence)
    confidence, correct, weight = pairs.confidence.to(dtype), pairs.correct.to(dtype), counts_of(pairs)
    if weight is None:
        samples = confidence.new_tensor(confidence.shape[-1])
        return Residuals(confidence, correct, correct - confidence, None, samples)
    return Residuals(confidence, correct, (correct - confidence) * weight, weight, weight.sum(-1))
