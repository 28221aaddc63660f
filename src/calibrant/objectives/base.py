"""What the objectives share: options, and the way from a batch of logits to what they are made of."""

from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant import distributed, inputs
from calibrant.inputs import Classification, Pairs
from calibrant.known_gradient import ClosedForm, through_softmax, wants_known_gradient, with_known_gradient
from calibrant.numerics import accumulation_dtype, safe_root

View = Literal["top-label", "class-wise"]


class Objective(nn.Module, ABC):
    """Base of the modules: ``(logits, target, mask=None)`` in, a scalar out.

    Args:
        ignore_index: Label whose samples do not count, as in ``torch.nn.CrossEntropyLoss``; None for none.
    """

    sync = False

    def __init__(self, *, ignore_index: int | None = -100) -> None:
        super().__init__()
        inputs.check_ignore_index(ignore_index)
        self.ignore_index = None if ignore_index is None else int(ignore_index)

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the loss of a batch as a scalar.

        Args:
            logits: ``(N, C)``, dense ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``: the logit of class 1.
            target: Integer class indices, ``(N, ...)``.
            mask: Boolean, the shape of ``target``: True where a sample counts.
        """
        data = self.classification(logits, target, mask)
        return self.value(data).to(data.logits.dtype)

    def classification(self, logits: Tensor, target: Tensor, mask: Tensor | None) -> Classification:
        """Validate and flatten a batch; where there are other ranks, fail together with them."""
        if not self.gathers():
            return inputs.classification(logits, target, mask, self.ignore_index)
        with distributed.failing_together():
            return inputs.classification(logits, target, mask, self.ignore_index)

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

    name: str
    root = False
    view: View = "top-label"

    def __init__(self, *, ignore_index: int | None = -100, sync: bool = True) -> None:
        super().__init__(ignore_index=ignore_index)
        self.sync = sync

    def value(self, data: Classification) -> Tensor:
        """Return the objective of the pairs of this batch, or of the global batch when ``sync`` is on."""
        gathers = self.gathers()
        closed_form = self.closed_form()
        # A small batch is worth the shortest way; in a large one torch's threads outweigh its bookkeeping.
        small = data.mask is None and data.logits.numel() <= 2**16
        if closed_form and small and not gathers and self.view == "top-label" and wants_known_gradient(data.logits):
            return self._value_of_small_batch(data, closed_form)
        pairs = inputs.top_label_pairs(data) if self.view == "top-label" else inputs.class_wise_pairs(data)
        if gathers:
            (confidence, correct), mask = distributed.gather_samples((pairs.confidence, pairs.correct), pairs.mask)
            pairs = Pairs(confidence, correct, mask)
        inputs.require_samples(pairs, self.minimum_samples(), self.name)
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

    def minimum_samples(self) -> int:
        """Return the fewest samples the objective is defined for."""
        return 1


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
    """Mean of a per-sample loss over the samples that count, accumulated in float64."""
    inputs.require_samples(Pairs(loss, loss, data.mask), 1, name)
    loss = loss.to(accumulation_dtype(loss))
    if data.mask is None:
        return loss.mean()
    weight = data.mask.to(loss.dtype)
    return (loss * weight).sum() / weight.sum()
