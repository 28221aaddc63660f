"""Objectives with a choice of view, top-label, class-wise or multi-label, and with sample weights."""

from torch import Tensor

from calibrant import inputs
from calibrant.inputs import Pairs
from calibrant.multi_label import multi_label_pairs
from calibrant.objectives.base import PairObjective, View


class ViewedObjective(PairObjective):
    """Base of ESD, MMCE and ECE.

    Args:
        view: ``"top-label"``, ``"class-wise"`` or ``"multi-label"``.
        ignore_index: Label whose samples do not count.
        sync: Under an initialised ``torch.distributed`` group, compute the objective on the global batch.
    """

    def __init__(self, view: View, *, ignore_index: int | None, sync: bool) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)
        inputs.check_choice("view", view, ("top-label", "class-wise", "multi-label"))
        self.view = view

    def forward(
        self, logits: Tensor, target: Tensor, mask: Tensor | None = None, sample_weight: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch as a scalar; 0, with zero gradient, if all of its samples are ignored.

        Args:
            logits: ``(N, C)``, dense ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``: the logit of class 1.
            target: Integer class indices, ``(N, ...)``. In the multi-label view 0 or 1, integer or floating point,
                of the shape of the logits.
            mask: Boolean, the shape of ``target``: True where a sample (in the multi-label view, a label) counts.
            sample_weight: Non-negative weights, one a sample, ``(N, ...)``. Their scale does not matter; a sample of
                weight 0 does not count.
        """
        if self.view == "multi-label":
            with self.failing_together():
                pairs = multi_label_pairs(logits, target, mask, self.ignore_index, sample_weight)
            return self.value_of_batch(self._without_equal_weights(pairs)).to(pairs.confidence.dtype)
        data = self.classification(logits, target, mask, sample_weight)
        if data.weight is not None and not self.gathers():
            data = data._replace(weight=inputs.without_equal_weights(data.weight, data.mask))
        return self.value_or_zero(data).to(data.logits.dtype)

    def _without_equal_weights(self, pairs: Pairs) -> Pairs:
        if pairs.weight is None or self.gathers():
            return pairs
        return pairs._replace(weight=inputs.without_equal_weights(pairs.weight, pairs.mask))
