"""Accuracy versus uncertainty: certain when right, uncertain when wrong. Hard and soft."""

import math
from typing import Any, Self

import torch
from torch import Tensor

from calibrant import distributed
from calibrant.losses import checks
from calibrant.losses.base import SyncedObjective
from calibrant.losses.checks import Classification, Pairs
from calibrant.numerics import accumulation_dtype, at_least_float32, entropy


def avuc(
    probabilities: Tensor,
    correct: Tensor,
    threshold: float = 1.0,
    *,
    confidence: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Accuracy-versus-uncertainty calibration loss (AvUC).

    With the predictive entropy h in nats, a prediction is *certain* if :math:`h \le` ``threshold``. Four
    sums weight the samples by confidence and by :math:`\tanh h`: over accurate and certain
    :math:`n_{AC} = \sum p (1 - \tanh h)`, accurate and uncertain :math:`n_{AU} = \sum p \tanh h`, inaccurate
    and certain :math:`n_{IC} = \sum (1 - p)(1 - \tanh h)`, inaccurate and uncertain
    :math:`n_{IU} = \sum (1 - p) \tanh h`, and

    .. math:: \mathrm{AvUC} = \log\Big(1 + \frac{n_{AU} + n_{IC}}{n_{AC} + n_{IU}}\Big).

    Args:
        probabilities: Class probabilities, shape ``(..., N, C)``.
        correct: 1 or True where the prediction is right, shape ``(..., N)``.
        threshold: Entropy, in nats, up to which a prediction counts as certain. The authors start at 1
            and set it from data: see :func:`entropy_threshold`.
        confidence: Confidence in the prediction, ``(..., N)``; by default the largest probability.
        mask: Boolean, ``(..., N)``: True where a sample counts.

    Returns:
        Shape ``(...)``, in the dtype of the probabilities.

    References:
        Krishnan, Tickoo, "Improving model calibration with accuracy versus uncertainty optimization",
        NeurIPS 2020.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> probabilities = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.5, 0.5]])
        >>> round(cal.functional.avuc(probabilities, torch.tensor([1, 0, 1, 0]), threshold=0.5).item(), 4)
        0.2785
    """
    checks.check_range("threshold", threshold, low=0)
    data = _uncertain_predictions(probabilities, correct, confidence, mask, "AvUC")
    return _avuc(*data, threshold).to(at_least_float32(probabilities).dtype)


def soft_avuc(
    probabilities: Tensor,
    correct: Tensor,
    threshold: float = 0.5,
    temperature: float = 0.1,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Soft accuracy-versus-uncertainty calibration loss (S-AvUC).

    The hard threshold becomes the soft uncertainty
    :math:`t = \mathrm{sigmoid}\big((\mathrm{logit}(h / \ln C) - \mathrm{logit}(\kappa)) / T\big)` of the
    normalised entropy, and the confidences drop out: :math:`n_{AC} = \sum (1 - t)(1 - \tanh h)` and
    :math:`n_{AU} = \sum t \tanh h` over right predictions, :math:`n_{IC}` and :math:`n_{IU}` likewise over wrong
    ones; :math:`\tanh` still takes h in nats. The loss is that of :func:`avuc`. The authors mix 1e-5 of the
    uniform distribution into the probabilities to keep h above 0; here :math:`h / \ln C` is clamped to (0, 1)
    instead, which does not change any other value.

    Args:
        probabilities: Class probabilities, shape ``(..., N, C)`` with C at least 2.
        correct: 1 or True where the prediction is right, shape ``(..., N)``.
        threshold: :math:`\kappa` in (0, 1), on the entropy divided by :math:`\ln C`.
        temperature: Softness T, at least 1e-4.
        mask: Boolean, ``(..., N)``: True where a sample counts.

    Returns:
        Shape ``(...)``, in the dtype of the probabilities.

    References:
        Karandikar et al., "Soft Calibration Objectives for Neural Networks", NeurIPS 2021.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> probabilities = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.5, 0.5]])
        >>> round(cal.functional.soft_avuc(probabilities, torch.tensor([1, 0, 1, 0])).item(), 4)
        0.27
    """
    threshold, temperature = _checked_soft_threshold(threshold), _checked_soft_temperature(temperature)
    data = _uncertain_predictions(probabilities, correct, None, mask, "S-AvUC")
    classes = probabilities.shape[-1]
    return _soft_avuc(*data, classes, threshold, temperature).to(at_least_float32(probabilities).dtype)


def entropy_threshold(
    probabilities: Tensor, correct: Tensor, *, normalised: bool = False, mask: Tensor | None = None
) -> float:
    r"""Return the midpoint between the mean entropy of right and of wrong predictions.

    This is how the authors of AvUC set its threshold: on held-out data, in the first epochs, and
    frozen from then on. It needs at least one right and one wrong prediction.

    Args:
        probabilities: Class probabilities, shape ``(N, C)``.
        correct: 1 or True where the prediction is right, shape ``(N,)``.
        normalised: Divide by :math:`\ln C`, the scale of S-AvUC's threshold.
        mask: Boolean, ``(N,)``: True where a sample counts.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> probabilities = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.5, 0.5]])
        >>> round(cal.functional.entropy_threshold(probabilities, torch.tensor([1, 0, 1, 0])), 4)
        0.5479
    """
    with torch.no_grad():
        data = _uncertain_predictions(probabilities, correct, None, mask, "the entropy threshold", minimum=0)
        midpoint = _midpoint(_entropy_sums(*data))
    return midpoint / math.log(probabilities.shape[-1]) if normalised else midpoint


def _entropy_sums(pairs: Pairs, uncertainty: Tensor) -> Tensor:
    """Sum of entropies and number of right predictions, then of wrong ones."""
    right, wrong = _right_and_wrong(pairs)
    return torch.stack([(right * uncertainty).sum(), right.sum(), (wrong * uncertainty).sum(), wrong.sum()])


def _midpoint(sums: Tensor) -> float:
    right_entropy, right, wrong_entropy, wrong = sums.tolist()
    if not (right and wrong):
        raise ValueError(
            f"the entropy threshold needs right and wrong predictions, got {right:.0f} right and "
            f"{wrong:.0f} wrong: use more data, or an earlier epoch"
        )
    return float(right_entropy / right + wrong_entropy / wrong) / 2


def _uncertain_predictions(
    probabilities: Tensor, correct: Tensor, confidence: Tensor | None, mask: Tensor | None, name: str, minimum: int = 1
) -> tuple[Pairs, Tensor]:
    checks.check_probabilities(probabilities, mask)
    if mask is not None:
        uniform = torch.full_like(probabilities, 1 / probabilities.shape[-1])
        probabilities = torch.where(mask.unsqueeze(-1), probabilities, uniform)
    probabilities = at_least_float32(probabilities)
    if confidence is None:
        confidence = probabilities.amax(-1)
    checks.check_shape("confidence", confidence, probabilities.shape[:-1], "probabilities without the last dimension")
    pairs = checks.pairs(confidence, correct, mask, name=name, minimum=minimum)
    return pairs, entropy(probabilities.to(accumulation_dtype(probabilities)))


def _entropy_of_logits(data: Classification) -> Tensor:
    return entropy(data.logits.softmax(1).to(accumulation_dtype(data.logits)))


def _right_and_wrong(pairs: Pairs) -> tuple[Tensor, Tensor]:
    _, correct, _, weight, _ = checks.residuals(pairs)
    return (correct, 1 - correct) if weight is None else (correct * weight, (1 - correct) * weight)


def _avuc(pairs: Pairs, uncertainty: Tensor, threshold: float) -> Tensor:
    right, wrong = _right_and_wrong(pairs)
    confidence = pairs.confidence.to(right.dtype)
    uncertain = (uncertainty.detach() > threshold).to(right.dtype)
    return _log_ratio(right * confidence, wrong * (1 - confidence), uncertain, uncertainty)


def _soft_avuc(pairs: Pairs, uncertainty: Tensor, classes: int, threshold: float, temperature: float) -> Tensor:
    right, wrong = _right_and_wrong(pairs)
    edge = torch.finfo(uncertainty.dtype).eps
    normalised = (uncertainty / math.log(classes)).clamp(edge, 1 - edge)
    uncertain = torch.sigmoid((torch.logit(normalised) - math.log(threshold / (1 - threshold))) / temperature)
    return _log_ratio(right, wrong, uncertain, uncertainty)


def _log_ratio(right: Tensor, wrong: Tensor, uncertain: Tensor, uncertainty: Tensor) -> Tensor:
    doubt = torch.tanh(uncertainty)
    certain_part, uncertain_part = (1 - uncertain) * (1 - doubt), uncertain * doubt
    good = (right * certain_part + wrong * uncertain_part).sum(-1)
    bad = (right * uncertain_part + wrong * certain_part).sum(-1)
    # A denominator of 0 would make the loss infinite; the authors' 1e-10 bounds it.
    return torch.log1p(bad / (good + 1e-10))


def _checked_soft_threshold(threshold: float) -> float:
    return checks.check_range("threshold", threshold, low=0, high=1, open_low=True, open_high=True)


def _checked_soft_temperature(temperature: float) -> float:
    return checks.check_range("temperature", temperature, low=1e-4)


class AvUCLoss(SyncedObjective):
    """Accuracy-versus-uncertainty calibration loss (AvUC) of a batch of logits, to be added to the NLL.

    Args:
        threshold: Entropy in nats up to which a prediction counts as certain; :meth:`fit_threshold`
            sets it from data. It is part of the ``state_dict``.
        ignore_index: Label of samples to ignore.
        sync: Compute on the global batch under ``torch.distributed``.

    Shapes:
        As in :class:`calibrant.ESDLoss`. See :func:`calibrant.functional.avuc` for the formula. The
        authors train with a weight of 3.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> target = torch.tensor([0, 1, 0, 0])
        >>> loss = cal.AvUCLoss().fit_threshold(logits, target)
        >>> round(loss.threshold, 4), round(loss(logits, target).item(), 4)
        (0.4503, 0.392)
    """

    name = "AvUC"

    def __init__(self, threshold: float = 1.0, *, ignore_index: int | None = -100, sync: bool = True) -> None:
        super().__init__(ignore_index=ignore_index, sync=sync)
        self.threshold = self._checked_threshold(threshold)

    @torch.no_grad()
    def fit_threshold(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Self:
        """Set the threshold to the midpoint of the mean entropies of right and of wrong predictions.

        With ``sync``, the predictions of all ranks are used.
        """
        data = self.classification(logits, target, mask)
        sums = _entropy_sums(checks.top_label_pairs(data), _entropy_of_logits(data))
        if self.gathers():
            sums = distributed.sum_across_ranks(sums)
        self.threshold = self._on_its_scale(_midpoint(sums), data.logits.shape[1])
        return self

    def value(self, data: Classification) -> Tensor:
        """Return the loss, of the global batch when ``sync`` is on."""
        pairs = checks.top_label_pairs(data)
        uncertainty = _entropy_of_logits(data)
        if self.gathers():
            columns = (uncertainty, pairs.confidence, pairs.correct)
            (uncertainty, confidence, correct), mask = distributed.gather_samples(columns, pairs.mask)
            pairs = Pairs(confidence, correct, mask)
        self.lacks_samples(pairs)
        return self._loss(pairs, uncertainty, data.logits.shape[1])

    def _loss(self, pairs: Pairs, uncertainty: Tensor, classes: int) -> Tensor:  # noqa: ARG002 (S-AvUC needs it)
        return _avuc(pairs, uncertainty, self.threshold)

    def _on_its_scale(self, midpoint: float, classes: int) -> float:  # noqa: ARG002 (S-AvUC's scale needs it)
        return midpoint

    def _checked_threshold(self, threshold: float) -> float:
        return checks.check_range("threshold", threshold, low=0)

    def get_extra_state(self) -> dict[str, Any]:
        """Keep the threshold, which may come from data, in the ``state_dict``."""
        return {"objective": self.name, "threshold": self.threshold}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take the threshold from a ``state_dict`` of the same objective."""
        if state["objective"] != self.name:
            raise ValueError(f"this is the state of {state['objective']}, whose threshold is not that of {self.name}")
        self.threshold = self._checked_threshold(state["threshold"])


class SoftAvUCLoss(AvUCLoss):
    """Soft accuracy-versus-uncertainty calibration loss (S-AvUC) of a batch of logits.

    Args:
        threshold: Between 0 and 1, on the entropy divided by the logarithm of the number of classes;
            :meth:`fit_threshold` sets it from data. It is part of the ``state_dict``.
        temperature: Softness of the threshold.
        ignore_index: Label of samples to ignore.
        sync: Compute on the global batch under ``torch.distributed``.

    Shapes:
        As in :class:`calibrant.ESDLoss`. See :func:`calibrant.functional.soft_avuc` for the formula.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
        >>> target = torch.tensor([0, 1, 0, 0])
        >>> round(cal.SoftAvUCLoss()(logits, target).item(), 4)
        0.3827
    """

    name = "S-AvUC"

    def __init__(
        self, threshold: float = 0.5, temperature: float = 0.1, *, ignore_index: int | None = -100, sync: bool = True
    ) -> None:
        super().__init__(threshold, ignore_index=ignore_index, sync=sync)
        self.temperature = _checked_soft_temperature(temperature)

    def _on_its_scale(self, midpoint: float, classes: int) -> float:
        # Saturated or uniform predictions put the midpoint on the border, where the logit is infinite.
        return min(max(midpoint / math.log(classes), 1e-6), 1 - 1e-6)

    def _checked_threshold(self, threshold: float) -> float:
        return _checked_soft_threshold(threshold)

    def _loss(self, pairs: Pairs, uncertainty: Tensor, classes: int) -> Tensor:
        return _soft_avuc(pairs, uncertainty, classes, self.threshold, self.temperature)
