"""What the objectives share: options, and the way from a batch of logits to what they are made of."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant import distributed, hints, inputs
from calibrant.inputs import Classification, Pairs
from calibrant.known_gradient import ClosedForm, through_softmax, wants_known_gradient, with_known_gradient
from calibrant.numerics import accumulation_dtype, readable, safe_divide, safe_root

View = Literal["top-label", "class-wise", "multi-label"]


class Objective(nn.Module, ABC):
    """Base of the modules: ``(logits, target, mask=None)`` in, a scalar out.

    Args:
        ignore_index: Label whose samples do not count, as in ``torch.nn.CrossEntropyLoss``; None for none.
    """

    name = "the objective"
    sync = False
    _has_warned = False
    _has_looked = False

    def __init__(self, *, ignore_index: int | None = -100) -> None:
        super().__init__()
        inputs.check_ignore_index(ignore_index)
        self.ignore_index = None if ignore_index is None else int(ignore_index)

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the loss of a batch as a scalar; 0, with zero gradient, if all of its samples are ignored.

        Args:
            logits: ``(N, C)``, dense ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``: the logit of class 1.
            target: Integer class indices, ``(N, ...)``.
            mask: Boolean, the shape of ``target``: True where a sample counts.
        """
        data = self.classification(logits, target, mask)
        return self.value_or_zero(data).to(data.logits.dtype)

    def classification(
        self, logits: Tensor, target: Tensor, mask: Tensor | None, sample_weight: Tensor | None = None
    ) -> Classification:
        """Validate and flatten a batch; where there are other ranks, fail together with them."""
        with self.failing_together():
            data = inputs.classification(logits, target, mask, self.ignore_index, sample_weight)
        if not self._has_looked and logits.dim() > 1 and logits.shape[1] > 1:
            self._look_for_probabilities(data)
        return data

    def _look_for_probabilities(self, data: Classification) -> None:
        """Look at the first batch that is large enough: a softmax at the end of a model shows in every batch."""
        if hints.warn_of_probabilities(data.logits, data.mask):
            self._has_looked = True

    def failing_together(self) -> AbstractContextManager[None]:
        """Return a context in which bad input on one rank is an error on all of them."""
        return distributed.failing_together() if self.gathers() else nullcontext()

    def value_or_zero(self, data: Classification) -> Tensor:
        """Return the loss of validated data, or 0 connected to the logits if too many samples are ignored."""
        counts = Pairs(data.target, data.target, data.mask)
        if data.mask is not None and not self.gathers() and self.lacks_samples(counts):
            return (data.logits * 0).sum()
        return self.value(data)

    def lacks_samples(self, pairs: Pairs) -> bool:
        """Return whether it can be seen that too many samples are ignored; warn of it the first time.

        Where values cannot be read, on an accelerator or in compiled code, the kernels give 0 by themselves.
        """
        enough = inputs.require_samples(pairs, self.minimum_samples(), self.name)
        if enough is None or enough.any():
            return False
        if not self._has_warned:
            self._has_warned = True
            inputs.warn_of_ignored(pairs, self.minimum_samples(), self.name)
        return True

    def minimum_samples(self) -> int:
        """Return the fewest samples the objective is defined for."""
        return 1

    def gathers(self) -> bool:
        """Whether there are other ranks whose samples belong to the batch."""
        return self.sync and distributed.is_distributed()

    @abstractmethod
    def value(self, data: Classification) -> Tensor:
        """Return the loss of validated data, in the accumulation dtype."""

    def extra_repr(self) -> str:
        """Show the options, as torch's own modules do."""
        options = {key: value for key, value in vars(self).items() if not key.startswith("_") and key != "training"}
        return ", ".join(f"{key}={value!r}" for key, value in sorted(options.items()))


class PairObjective(Objective):
    """Base of the objectives that are functions of (confidence, correct) pairs.

    Args:
        ignore_index: Label whose samples do not count.
        sync: Under an initialised ``torch.distributed`` group, compute the objective on the global batch.
    """

    root = False
    view: View = "top-label"

    def __init__(self, *, ignore_index: int | None = -100, sync: bool = True) -> None:
        super().__init__(ignore_index=ignore_index)
        self.sync = sync

    def value(self, data: Classification) -> Tensor:
        """Return the objective of the pairs of this batch, or of the global batch when ``sync`` is on."""
        closed_form = self.closed_form()
        # A small batch is worth the shortest way; in a large one torch's threads outweigh its bookkeeping.
        plain = data.mask is None and data.weight is None and self.view == "top-label" and not self.gathers()
        if closed_form and plain and data.logits.numel() <= 2**16 and wants_known_gradient(data.logits):
            return self._value_of_small_batch(data, closed_form)
        pairs = inputs.top_label_pairs(data) if self.view == "top-label" else inputs.class_wise_pairs(data)
        return self.value_of_batch(pairs)

    def value_of_batch(self, pairs: Pairs) -> Tensor:
        """Return the objective of pairs, of those of all ranks when ``sync`` is on; 0 if too many are ignored."""
        if self.gathers():
            pairs = _pairs_of_all_ranks(pairs)
        if self.lacks_samples(pairs):
            return (pairs.confidence * 0).sum()
        value = self.value_of_pairs(pairs)
        return safe_root(value) if self.root else value

    def _value_of_small_batch(self, data: Classification, closed_form: ClosedForm) -> Tensor:
        inputs.require_samples(Pairs(data.target, data.target), self.minimum_samples(), self.name)
        target = data.target.clone()  # the gradient may be differentiated after the caller's changes
        return with_known_gradient(
            data.logits,
            lambda logits: through_softmax(logits, target.numpy(), closed_form),
            lambda logits: self.value_of_pairs(inputs.top_label_pairs(Classification(logits, target))),
            root=self.root,
        )

    @abstractmethod
    def value_of_pairs(self, pairs: Pairs) -> Tensor:
        """Return the objective of the pairs before any root, in the accumulation dtype."""

    def closed_form(self) -> ClosedForm | None:
        """Return a function that gives value, before any root, and gradient of one row, if there is one."""
        return None


def _pairs_of_all_ranks(pairs: Pairs) -> Pairs:
    """The pairs of the global batch. One column brings weights and masks: 0 where padded, negative where ignored."""
    weight = torch.ones_like(pairs.confidence) if pairs.weight is None else pairs.weight
    if pairs.mask is not None:
        weight = torch.where(pairs.mask, weight, -1.0)
    confidence, correct, weight = distributed.gather_columns((pairs.confidence, pairs.correct, weight.detach()))
    correct, weight = correct.detach(), weight.detach()
    if not readable(weight):
        if pairs.weight is None:
            inputs.require(
                ((weight == 1) | (weight <= 0)).all(),
                lambda: "sample_weight was given on another rank, but not on this one: give it on all ranks or on none",
            )
        return Pairs(confidence, correct, weight > 0, None if pairs.weight is None else weight.clamp_min(0))
    given = (weight != 0).flatten(0, -2)[0] if weight.dim() > 1 else weight != 0
    if not given.all():
        confidence, correct, weight = confidence[..., given], correct[..., given], weight[..., given]
    mask = None if (weight > 0).all() else weight > 0
    return Pairs(confidence, correct, mask, inputs.without_equal_weights(weight.clamp_min(0), mask))


def mean_over_rows(values: Tensor, pairs: Pairs, minimum: int) -> Tensor:
    """Mean over classes or labels, without those of which fewer than ``minimum`` samples count."""
    if values.dim() == 0:
        return values
    if pairs.mask is None:
        return values.mean()
    enough = (pairs.mask.sum(-1) >= minimum).to(values.dtype)
    return (values * enough).sum() / enough.sum().clamp_min(1)


class HeldOutObjective(Objective):
    """Base of the losses with state that held-out data update.

    Args:
        ignore_index: Label whose samples do not count.
        sync: Under an initialised ``torch.distributed`` group, update from the samples of all ranks.
    """

    def __init__(self, *, ignore_index: int | None = -100, sync: bool = True) -> None:
        super().__init__(ignore_index=ignore_index)
        self.sync = sync

    def gathers(self) -> bool:
        """No: the loss is a mean over samples, which data-parallel training averages over ranks by itself."""
        return False

    def updates_together(self) -> bool:
        """Whether there are other ranks whose samples belong to the update."""
        return self.sync and distributed.is_distributed()

    def held_out(self, logits: Tensor, target: Tensor | None, mask: Tensor | None) -> Classification:
        """Validate and flatten held-out data; where there are other ranks, fail together with them."""
        with distributed.failing_together() if self.updates_together() else nullcontext():
            if target is None:
                return unlabelled(logits, mask)
            return inputs.classification(logits, target, mask, self.ignore_index)


def unlabelled(logits: Tensor, mask: Tensor | None) -> Classification:
    """Validate and flatten logits whose labels do not matter: every target is class 0."""
    inputs.check_float("logits", logits)
    shape = logits.shape[:1] + logits.shape[2:]
    return inputs.classification(logits, torch.zeros(shape, dtype=torch.long, device=logits.device), mask, None)


def mean_over_samples(loss: Tensor, data: Classification, name: str) -> Tensor:
    """Mean of a per-sample loss over the samples that count, accumulated in float64; 0 if none does."""
    inputs.require_or_warn(Pairs(loss, loss, data.mask), 1, name)
    loss = loss.to(accumulation_dtype(loss))
    if data.mask is None:
        return loss.mean()
    weight = data.mask.to(loss.dtype)
    return safe_divide((loss * weight).sum(), weight.sum())
