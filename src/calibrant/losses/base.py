"""What the losses have in common: settings, samples of all ranks, views, and means over samples."""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from calibrant import distributed, inputs
from calibrant.losses import checks
from calibrant.losses.checks import Classification, Pairs
from calibrant.numerics import (
    accumulation_dtype,
    log_softmax,
    readable,
    root_and_slope,
    safe_divide,
    safe_root,
    softmax,
    with_known_gradient,
)

View = Literal["top-label", "class-wise", "multi-label"]


class Objective(nn.Module):
    """Base class of the losses of ``(logits, target, mask=None)``.

    Args:
        ignore_index: Label of samples to ignore, as in ``torch.nn.CrossEntropyLoss``; None to ignore none.
        sync: Use the samples of all ranks under ``torch.distributed``, if the loss is not a mean over samples.
    """

    name = "the loss"
    _has_looked = False

    def __init__(self, *, ignore_index: int | None = -100, sync: bool = False) -> None:
        super().__init__()
        self.ignore_index = inputs.check_ignore_index(ignore_index)
        self.sync = sync

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
        self,
        logits: Tensor,
        target: Tensor | None,
        mask: Tensor | None,
        sample_weight: Tensor | None = None,
        *,
        together: bool = True,
    ) -> Classification:
        """Validate and flatten a batch, of this rank or of all together; warn once of logits like probabilities."""
        with self.failing_together() if together else nullcontext():
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
        data = self.checked(logits, target, mask, together=False)
        checks.require_samples(data, 1, self.name)
        loss = self.losses(data)
        loss = loss.to(accumulation_dtype(loss))
        if data.weight is None:
            return loss.mean().to(data.logits.dtype)
        counts = data.weight.to(loss.dtype)
        return safe_divide((loss * counts).sum(), counts.sum()).to(data.logits.dtype)

    @abstractmethod
    def losses(self, data: Classification) -> Tensor:
        """Return the loss of each sample, ``(N,)``."""


class PairObjective(Objective):
    """Base class of ESD, MMCE, ECE and others: functions of (confidence, correct) pairs.

    A subclass defines :meth:`value`, or, if it is ``closed_form``, :meth:`value_and_slope`.

    Args:
        view: ``"top-label"``; ``"class-wise"``, the mean over classes of each one's probability against its indicator;
            or ``"multi-label"``, the mean over labels, each with its own sigmoid.
        root: Take the root of the mean.
    """

    closed_form = False

    def __init__(
        self, view: View = "top-label", root: bool = False, *, ignore_index: int | None = -100, sync: bool = True
    ) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)
        inputs.check_choice("view", view, get_args(View))
        self.view = view
        self.root = root

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
                pairs = checks.multi_label_pairs(logits, target, mask, self.ignore_index, sample_weight)
            return self._mean_of_rows(pairs)
        data = self.checked(logits, target, mask, sample_weight)
        if self.view == "class-wise":
            return self._mean_of_rows(class_wise_pairs(data))
        if self.closed_form and not self.gathers():
            return self._of_logits(data)
        return self._mean_of_rows(checks.top_label_pairs(data))

    def _of_logits(self, data: Classification) -> Tensor:
        """The top-label view with a known gradient in the logits, in two thirds of the time of autograd."""
        checks.require_samples(data, self.minimum_samples(), self.name)
        # A copy, which nobody changes before the backward pass; and no reference to the logits, which hold the graph.
        target, weight = data.target.clone(), data.weight

        def evaluate(logits: Tensor) -> tuple[Tensor, Tensor]:
            powers, confidence, predicted = checks.top_label(logits)
            value, slope = self.value_and_slope(Pairs(confidence, predicted.squeeze(1) == target, weight))
            if self.root:
                value, slope = root_and_slope(value, slope)
            # d confidence / d logit k = confidence (1[k is predicted] - p_k).
            slope = (slope * confidence).to(logits.dtype).unsqueeze(1)
            gradient = powers * (-slope * confidence.unsqueeze(1))
            return value.to(logits.dtype), gradient.scatter_add_(1, predicted, slope)

        return with_known_gradient(evaluate, data.logits)

    def _mean_of_rows(self, pairs: Pairs) -> Tensor:
        """Mean over classes or labels, except those with too few samples that count."""
        if self.gathers():
            pairs = pairs_of_all_ranks(pairs)
        checks.require_samples(pairs, self.minimum_samples(), self.name)
        value = self.value(pairs)
        if value.dim() > 0:
            mask = pairs.mask
            enough = torch.ones_like(value) if mask is None else mask.sum(-1) >= self.minimum_samples()
            value = (value * enough).sum() / enough.sum().clamp_min(1)
        return (safe_root(value) if self.root else value).to(pairs.confidence.dtype)

    def value(self, pairs: Pairs) -> Tensor:
        """Return the value of each row of pairs, in the accumulation dtype; 0 where too few samples count."""
        return value_of_pairs(self.value_and_slope, pairs)

    def value_and_slope(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return the value of each row, and its derivative in each confidence; a subclass has this or ``value``."""
        raise NotImplementedError


def value_of_pairs(
    value_and_slope: Callable[[Pairs], tuple[Tensor, Tensor]], pairs: Pairs, dtype: torch.dtype | None = None
) -> Tensor:
    """The value of each row of pairs, in the accumulation dtype if none is given, with its known gradient."""
    _, correct, weight = pairs  # no reference to the confidence, which holds the graph

    def evaluate(confidence: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = value_and_slope(Pairs(confidence, correct, weight))
        return (value if dtype is None else value.to(dtype)), slope

    return with_known_gradient(evaluate, pairs.confidence)


def log_likelihood(data: Classification) -> Tensor:
    """Logarithm of the probability of the right class, ``(N,)``."""
    return of_target(log_softmax(data.logits), data)


def of_target(values: Tensor, data: Classification) -> Tensor:
    """The entries of ``(N, C)`` values for the right class, ``(N,)``."""
    return values.gather(1, data.target.unsqueeze(1)).squeeze(1)


def class_wise_pairs(data: Classification) -> Pairs:
    """Every class's probability, and whether that class is the right one: each ``(C, N)``."""
    probabilities = softmax(data.logits).T.contiguous()
    weight = None if data.weight is None else data.weight.expand_as(probabilities)
    return Pairs(probabilities, checks.one_hot(data).T, weight)


def pairs_of_all_ranks(pairs: Pairs) -> Pairs:
    """The pairs of the global batch, without those that only pad it if values can be read."""
    weight = pairs.counts()
    present = torch.ones_like(pairs.confidence)
    columns = (pairs.confidence, pairs.correct, present if weight is None else weight, present)
    confidence, correct, weight, present = distributed.gather_columns(columns)
    correct, weight, present = correct.detach(), weight.detach(), present.detach()
    if not readable(weight):
        return Pairs(confidence, correct, weight)
    given = present.flatten(0, -2)[0] > 0 if present.dim() > 1 else present > 0
    if not given.all():
        confidence, correct, weight = confidence[..., given], correct[..., given], weight[..., given]
    return Pairs(confidence, correct, None if (weight == 1).all() else weight)
