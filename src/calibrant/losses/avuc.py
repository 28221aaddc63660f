"""Accuracy versus uncertainty: certain when right, uncertain when wrong. Hard and soft."""

import math
from typing import Any, Self

import torch
from torch import Tensor

from calibrant import distributed, inputs
from calibrant.losses import checks
from calibrant.losses.base import Objective
from calibrant.losses.checks import Classification, Pairs
from calibrant.numerics import accumulation_dtype


class AvUCLoss(Objective):
    r"""Accuracy-versus-uncertainty calibration loss (AvUC), to be added to the NLL; :doc:`methods/avuc` defines it.

    Args:
        threshold: Entropy in nats up to which a prediction counts as certain. The authors start at 1 and set it from
            data, as :meth:`fit_threshold` does. It is part of the ``state_dict``.

    Example:
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> target = torch.tensor([0, 1, 0, 0])
        >>> loss = AvUCLoss().fit_threshold(logits, target)
        >>> round(loss.threshold, 4), round(loss(logits, target).item(), 4)
        (0.4503, 0.392)
    """

    name = "AvUC"

    def __init__(self, threshold: float = 1.0, *, ignore_index: int | None = -100, sync: bool = True) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)
        self.threshold = self._checked_threshold(threshold)

    @torch.no_grad()
    def fit_threshold(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Self:
        """Set the threshold to the midpoint of the mean entropies of right and of wrong held-out predictions."""
        data = self.checked(logits, target, mask)
        uncertainty = _entropy(data)
        right, wrong = checks.top_label_pairs(data).right_and_wrong()
        sums = torch.stack([(right * uncertainty).sum(), right.sum(), (wrong * uncertainty).sum(), wrong.sum()])
        if self.gathers():
            sums = distributed.sum_across_ranks(sums)
        right_entropy, rights, wrong_entropy, wrongs = sums.tolist()
        if not (rights and wrongs):
            raise ValueError(
                f"the entropy threshold needs right and wrong predictions, got {rights:.0f} right and "
                f"{wrongs:.0f} wrong: use more data, or an earlier epoch"
            )
        midpoint = (right_entropy / rights + wrong_entropy / wrongs) / 2
        self.threshold = self._on_its_scale(midpoint, data.logits.shape[1])
        return self

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        data = self.checked(logits, target, mask)
        pairs, uncertainty = checks.top_label_pairs(data), _entropy(data)
        if self.gathers():
            columns = (uncertainty, pairs.confidence, pairs.correct)
            (uncertainty, confidence, correct), counts = distributed.gather_samples(columns, pairs.mask)
            pairs = Pairs(confidence, correct, counts)
        checks.require_samples(pairs, 1, self.name)
        return self.value(pairs, uncertainty, data.logits.shape[1]).to(data.logits.dtype)

    def value(self, pairs: Pairs, uncertainty: Tensor, classes: int) -> Tensor:  # noqa: ARG002 (S-AvUC needs it)
        """Return the loss of pairs and their entropies."""
        right, wrong = pairs.right_and_wrong()
        confidence = pairs.confidence.to(right.dtype)
        uncertain = (uncertainty.detach() > self.threshold).to(right.dtype)
        return _log_ratio(right * confidence, wrong * (1 - confidence), uncertain, uncertainty)

    def _on_its_scale(self, midpoint: float, classes: int) -> float:  # noqa: ARG002 (S-AvUC's scale needs it)
        return midpoint

    def _checked_threshold(self, threshold: float) -> float:
        return inputs.check_range("threshold", threshold, low=0)

    def get_extra_state(self) -> dict[str, Any]:
        return {"objective": self.name, "threshold": self.threshold}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        if state["objective"] != self.name:
            raise ValueError(f"this is the state of {state['objective']}, whose threshold is not that of {self.name}")
        self.threshold = self._checked_threshold(state["threshold"])


class SoftAvUCLoss(AvUCLoss):
    r"""Soft accuracy-versus-uncertainty loss (S-AvUC), to be added to the NLL; :doc:`methods/soft_avuc` defines it.

    Args:
        threshold: :math:`\kappa` in (0, 1), on the entropy divided by :math:`\ln C`; :meth:`fit_threshold` sets it
            from data. It is part of the ``state_dict``.
        temperature: Softness T, at least 1e-4.

    Example:
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> target = torch.tensor([0, 1, 0, 0])
        >>> round(SoftAvUCLoss()(logits, target).item(), 4)
        0.3827
    """

    name = "S-AvUC"

    def __init__(
        self, threshold: float = 0.5, temperature: float = 0.1, *, ignore_index: int | None = -100, sync: bool = True
    ) -> None:
        super().__init__(threshold, ignore_index=ignore_index, sync=sync)
        self.temperature = inputs.check_range("temperature", temperature, low=1e-4)

    def value(self, pairs: Pairs, uncertainty: Tensor, classes: int) -> Tensor:
        right, wrong = pairs.right_and_wrong()
        edge = torch.finfo(uncertainty.dtype).eps
        normalised = (uncertainty / math.log(classes)).clamp(edge, 1 - edge)
        excess = torch.logit(normalised) - math.log(self.threshold / (1 - self.threshold))
        return _log_ratio(right, wrong, torch.sigmoid(excess / self.temperature), uncertainty)

    def _on_its_scale(self, midpoint: float, classes: int) -> float:
        # Saturated or uniform predictions put the midpoint on the border, where the logit is infinite.
        return min(max(midpoint / math.log(classes), 1e-6), 1 - 1e-6)

    def _checked_threshold(self, threshold: float) -> float:
        return inputs.check_range("threshold", threshold, low=0, high=1, open_low=True, open_high=True)


def _log_ratio(right: Tensor, wrong: Tensor, uncertain: Tensor, uncertainty: Tensor) -> Tensor:
    entropy_weight = torch.tanh(uncertainty)
    certain_part, uncertain_part = (1 - uncertain) * (1 - entropy_weight), uncertain * entropy_weight
    good = (right * certain_part + wrong * uncertain_part).sum(-1)
    bad = (right * uncertain_part + wrong * certain_part).sum(-1)
    # A denominator of 0 would make the loss infinite; the authors' 1e-10 bounds it.
    return torch.log1p(bad / (good + 1e-10))


def _entropy(data: Classification) -> Tensor:
    """Shannon entropy of each prediction in nats, with a finite gradient at probability 0."""
    probabilities = data.logits.softmax(1).to(accumulation_dtype(data.logits))
    return -(probabilities * probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()).sum(1)
