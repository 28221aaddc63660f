"""Objectives of (confidence, correct) pairs: their view, the samples of all ranks, and sample weights."""

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from calibrant import distributed
from calibrant.losses import checks
from calibrant.losses.base import SyncedObjective
from calibrant.losses.checks import Classification, Pairs
from calibrant.losses.known_gradient import ClosedForm, known_gradient_pays, value_of_logits
from calibrant.losses.multi_label import multi_label_pairs
from calibrant.numerics import readable, safe_root

View = Literal["top-label", "class-wise", "multi-label"]


class PairObjective(SyncedObjective):
    """Base class of objectives that are functions of (confidence, correct) pairs."""

    root = False
    view: View = "top-label"

    def value(self, data: Classification) -> Tensor:
        """Return the objective of the pairs of this batch, or of the global batch when ``sync`` is on."""
        if self.view == "class-wise":
            return self.value_of_batch(checks.class_wise_pairs(data))
        closed_form = self.closed_form()
        if closed_form is not None and not self.gathers() and known_gradient_pays(data):
            checks.require_samples(Pairs(data.target, data.target), self.minimum_samples(), self.name)
            return value_of_logits(data, closed_form, self.value_of_pairs, root=self.root)
        return self.value_of_batch(checks.top_label_pairs(data))

    def value_of_batch(self, pairs: Pairs) -> Tensor:
        """Return the objective of pairs, those of all ranks when ``sync`` is on; 0 if too many are ignored."""
        if self.gathers():
            pairs = _pairs_of_all_ranks(pairs)
        if self.lacks_samples(pairs):
            return (pairs.confidence * 0).sum()
        value = self.value_of_pairs(pairs)
        return safe_root(value) if self.root else value

    @abstractmethod
    def value_of_pairs(self, pairs: Pairs) -> Tensor:
        """Return the objective of the pairs before any root, in the accumulation dtype."""

    def closed_form(self) -> ClosedForm | None:
        """Return a function that computes value, before any root, and gradient of one row, if there is one."""
        return None


class ViewedObjective(PairObjective):
    """Base class of ESD, MMCE and ECE, which have views and sample weights.

    Args:
        view: ``"top-label"``, ``"class-wise"`` or ``"multi-label"``.
        ignore_index: Label of samples to ignore.
        sync: Under an initialised ``torch.distributed`` group, compute the objective on the global batch.
    """

    def __init__(self, view: View, *, ignore_index: int | None, sync: bool) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)
        checks.check_choice("view", view, ("top-label", "class-wise", "multi-label"))
        self.view = view

    def forward(
        self, logits: Tensor, target: Tensor, mask: Tensor | None = None, sample_weight: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch as a scalar; 0, with zero gradient, if all of its samples are ignored.

        Args:
            logits: ``(N, C)``, dense ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``: the logit of class 1.
            target: Integer class indices, ``(N, ...)``. In the multi-label view 0 or 1, integer or floating point,
                in the shape of the logits.
            mask: Boolean, same shape as ``target``: True where a sample (in the multi-label view, a label) counts.
            sample_weight: Non-negative weights, one per sample, ``(N, ...)``. Their scale does not matter; a sample
                with weight 0 does not count.
        """
        if self.view == "multi-label":
            with self.failing_together():
                pairs = multi_label_pairs(logits, target, mask, self.ignore_index, sample_weight)
            pairs = Pairs(pairs.confidence, pairs.correct, pairs.mask, self._uneven(pairs))
            return self.value_of_batch(pairs).to(pairs.confidence.dtype)
        data = self.classification(logits, target, mask, sample_weight)
        # torch 2.6 cannot compile _replace.
        data = Classification(data.logits, data.target, data.mask, self._uneven(data))
        return self.value_or_zero(data).to(data.logits.dtype)

    def _uneven(self, data: Pairs | Classification) -> Tensor | None:
        """Weights, or None if they are equal, which changes nothing on one rank."""
        return data.weight if self.gathers() else checks.without_equal_weights(data.weight, data.mask)

    def value_of_pairs(self, pairs: Pairs) -> Tensor:
        """Mean over classes or labels, except those with too few samples that count."""
        values = self.value_of_rows(pairs)
        if values.dim() == 0:
            return values
        if pairs.mask is None:
            return values.mean()
        enough = (pairs.mask.sum(-1) >= self.minimum_samples()).to(values.dtype)
        return (values * enough).sum() / enough.sum().clamp_min(1)

    @abstractmethod
    def value_of_rows(self, pairs: Pairs) -> Tensor:
        """Return the objective of each row of pairs before any root, in the accumulation dtype."""


def _pairs_of_all_ranks(pairs: Pairs) -> Pairs:
    """The pairs of the global batch. One column holds weights and masks: 0 where padded, negative where ignored."""
    weight = torch.ones_like(pairs.confidence) if pairs.weight is None else pairs.weight
    if pairs.mask is not None:
        weight = torch.where(pairs.mask, weight, -1.0)
    confidence, correct, weight = distributed.gather_columns((pairs.confidence, pairs.correct, weight.detach()))
    correct, weight = correct.detach(), weight.detach()
    if not readable(weight):
        if pairs.weight is None:
            checks.require(
                ((weight == 1) | (weight <= 0)).all(),
                lambda: "sample_weight was given on another rank, but not on this one: give it on all ranks or on none",
            )
        return Pairs(confidence, correct, weight > 0, None if pairs.weight is None else weight.clamp_min(0))
    given = (weight != 0).flatten(0, -2)[0] if weight.dim() > 1 else weight != 0
    if not given.all():
        confidence, correct, weight = confidence[..., given], correct[..., given], weight[..., given]
    mask = None if (weight > 0).all() else weight > 0
    return Pairs(confidence, correct, mask, checks.without_equal_weights(weight.clamp_min(0), mask))
