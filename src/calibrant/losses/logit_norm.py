"""Cross entropy of logits divided by their norm (LogitNorm)."""

import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.losses.base import Objective, log_likelihood, mean_over_samples
from calibrant.losses.checks import Classification

# Keeps the quotient finite where all logits are 0.
EPSILON = 1e-7


def logit_norm(
    logits: Tensor,
    target: Tensor,
    temperature: float = 0.04,
    *,
    mask: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    r"""Cross entropy of normalised logits, averaged over samples (LogitNorm).

    The softmax is taken of :math:`l / \big(\tau (\lVert l \rVert_2 + 10^{-7})\big)`: the loss sees the direction
    of the logits, not their length. It cannot fall to 0, since the normalised logits span at most
    :math:`\sqrt 2 / \tau`.

    Args:
        logits: ``(N, C)``, ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``. Only the sign of
            a binary logit is left after normalisation, so it has no gradient: use two logits.
        target: Integer class indices, ``(N, ...)``.
        temperature: :math:`\tau`, at least 1e-4.
        mask: Boolean, same shape as ``target``: True where a sample counts.
        ignore_index: Label of samples to ignore.

    References:
        Wei, Xie, Cheng, Feng, An, Li, "Mitigating Neural Network Overconfidence with Logit Normalization",
        ICML 2022.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
        >>> round(cal.functional.logit_norm(logits, torch.tensor([0, 1]), 1.0).item(), 4)
        0.8152
    """
    temperature = _checked_temperature(temperature)
    data = checks.classification(logits, target, mask, ignore_index)
    return _logit_norm(data, temperature).to(data.logits.dtype)


def _logit_norm(data: Classification, temperature: float) -> Tensor:
    # Any common factor cancels; dividing by the largest logit keeps the squares in range.
    scale = data.logits.detach().abs().amax(1, keepdim=True).clamp_min(1.0)
    scaled = data.logits / scale
    length = torch.linalg.vector_norm(scaled, dim=1, keepdim=True) + EPSILON / scale
    log_p = log_likelihood(Classification(scaled / (temperature * length), data.target, data.mask, data.weight))
    return mean_over_samples(-log_p, data, "LogitNorm")


def _checked_temperature(temperature: float) -> float:
    return checks.check_range("temperature", temperature, low=1e-4)


class LogitNormLoss(Objective):
    """Cross entropy of normalised logits (LogitNorm), a replacement for the NLL.

    Args:
        temperature: Divides the normalised logits.
        ignore_index: Label of samples to ignore.

    See :func:`calibrant.functional.logit_norm` for formula, shapes and paper.

    Example:
        >>> import torch
        >>> import calibrant as cal
        >>> logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
        >>> round(cal.LogitNormLoss(1.0)(logits, torch.tensor([0, 1])).item(), 4)
        0.8152
    """

    def __init__(self, temperature: float = 0.04, *, ignore_index: int | None = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        self.temperature = _checked_temperature(temperature)

    def value(self, data: Classification) -> Tensor:
        """Return the mean cross entropy of the normalised logits."""
        return _logit_norm(data, self.temperature)
