"""Vector scaling: a scale and a shift for every class."""

import torch
from torch import Tensor, nn

from calibrant.posthoc.affine import Affine, Penalty, fit_affine
from calibrant.posthoc.base import HUGE, Calibrator
from calibrant.posthoc.folding import check_layer, layer_like
from calibrant.posthoc.likelihood import PULL
from calibrant.posthoc.temperature import temperature_or_one


class VectorScaling(Calibrator):
    r"""Scale and shift the logit of every class, by the minimiser of the NLL on held-out data.

    .. math:: \hat p = \mathrm{softmax}(w \odot l + b)

    With 2C parameters it can correct a bias towards some classes, which a temperature cannot. It can change the
    predicted class, and needs some dozens of held-out samples per class. The problem is convex, and solved by
    Newton's method or L-BFGS from the best temperature. It depends on the constant that is added to all logits of a
    row, which a softmax does not see: use it on the logits of the model it was fitted for.

    On separable data the likelihood has no maximum. A pull of :math:`10^{-8}` times the mean of
    :math:`(w_k - 1)^2 + b_k^2`, halved, bounds the solution there, and is too weak to matter elsewhere.

    Args:
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.

    References:
        Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import VectorScaling
        >>> logits = torch.tensor([2.0, 2.0, 2.0, 2.0, -2.0, -2.0, -2.0, -2.0])  # binary: the logit of class 1
        >>> scaling = VectorScaling(strict=True).fit(logits, torch.tensor([1, 1, 1, 0, 1, 0, 1, 0]))
        >>> scaling.predict_proba(torch.tensor([2.0, -2.0]))[:, 1]
        tensor([0.7500, 0.5000])
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, *, strict: bool = False) -> None:
        super().__init__(strict=strict)
        self.register_buffer("scale", None)
        self.register_buffer("shift", None)

    def rows_needed(self, classes: int) -> int:
        """Five rows for each of the 2 C parameters."""
        return 10 * classes

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Minimise the NLL."""
        start = torch.zeros(2, logits.shape[1], dtype=torch.float64, device=logits.device)
        start[0] = 1 / temperature_or_one(logits, target, weight) - 1
        pull = PULL / (2 * logits.shape[1])
        found = fit_affine(logits, target, weight, Penalty(0.0, pull, pull), Affine(start[0], start[1]))
        self.scale, self.shift = (1 + found.matrix).to(logits.dtype), found.shift.to(logits.dtype)

    def calibrated_logits(self, logits: Tensor) -> Tensor:
        """Scale and shift."""
        return logits.clamp(-HUGE, HUGE) * self.scale.to(logits.dtype) + self.shift.to(logits.dtype)

    def fold_into(self, linear: nn.Linear) -> nn.Linear:
        """Return a new last layer, always with a bias, that returns calibrated logits.

        Args:
            linear: The classifier's last layer, with one output per class (or one, if binary). It is not changed. The
                new layer has its dtype: in float16 the outputs agree only to about 5e-4, relative to their size.
        """
        check_layer(linear, self)
        scale, shift = self.scale.double(), self.shift.double()
        if linear.out_features == 1:  # the logit of class 0 is 0 before, and its shift is subtracted after
            scale, shift = scale[1:], shift[1:] - shift[:1]
        bias = shift if linear.bias is None else linear.bias.double() * scale + shift
        return layer_like(linear, linear.weight.double() * scale.unsqueeze(1), bias)
