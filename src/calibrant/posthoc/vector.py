"""Vector scaling: a scale and a shift for every class."""

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.folding import check_layer, layer_like
from calibrant.posthoc.likelihood import PULL, Vector, chunks, minimise, nll_and_residual
from calibrant.posthoc.temperature import temperature_or_one


class VectorScaling(Calibrator):
    r"""Scale and shift the logit of every class, by the minimiser of the NLL on held-out data.

    .. math:: \hat p = \mathrm{softmax}(w \odot l + b)

    With 2C parameters it can correct a bias towards some classes, which a temperature cannot. It can change the
    predicted class, and needs some dozens of held-out samples per class. The problem is convex, and solved by
    L-BFGS from the best temperature with exact gradients in float64.

    On separable data the likelihood has no maximum. A pull of :math:`10^{-8}` times the mean of
    :math:`(w_k - 1)^2 + b_k^2`, halved, bounds the solution there, and is too weak to matter elsewhere.

    References:
        Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import VectorScaling
        >>> logits = torch.tensor([2.0, 2.0, 2.0, 2.0, -2.0, -2.0, -2.0, -2.0])  # binary: the logit of class 1
        >>> scaling = VectorScaling().fit(logits, torch.tensor([1, 1, 1, 0, 1, 0, 1, 0]))
        >>> scaling.predict_proba(torch.tensor([2.0, -2.0]))[:, 1]
        tensor([0.7500, 0.5000])
    """

    scale: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", None)
        self.register_buffer("shift", None)

    def fit_rows(self, logits: Tensor, target: Tensor) -> None:
        """Minimise the NLL."""
        scale, shift = fit_vector(logits, target)
        self.scale, self.shift = logits.new_tensor(scale), logits.new_tensor(shift)

    def calibrated_logits(self, logits: Tensor) -> Tensor:
        """Scale and shift."""
        return logits * self.scale.to(logits.dtype) + self.shift.to(logits.dtype)

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


def fit_vector(logits: Tensor, target: Tensor) -> tuple[Vector, Vector]:
    """Return the scales and shifts that minimise the NLL, each ``(C,)``."""
    samples, classes = logits.shape
    beta = 1 / temperature_or_one(logits, target)
    start = np.concatenate((np.full(classes, beta), np.zeros(classes)))

    def objective(position: Vector) -> tuple[float, Vector]:
        parameters = torch.from_numpy(position).to(logits.device)
        scale, shift = parameters[:classes], parameters[classes:]
        value, gradient = 0.0, torch.zeros_like(parameters)
        for part, labels in chunks(logits, target):
            nll, residual = nll_and_residual(torch.addcmul(shift, part, scale), labels)
            value += nll
            gradient[classes:] += residual.sum(0)
            gradient[:classes] += residual.mul_(part).sum(0)
        away = torch.cat((scale - 1, shift))
        value = value / samples + PULL / (2 * classes) * float(away @ away)
        return value, (gradient / samples + away * (PULL / classes)).cpu().numpy()

    best = minimise(objective, start, _step_sizes(logits, target, beta))
    return best[:classes], best[classes:]


def _step_sizes(logits: Tensor, target: Tensor, beta: float) -> Vector:
    """The inverse root of the likelihood's curvature in each variable at the start."""
    curvature = torch.zeros(2, logits.shape[1], dtype=torch.float64, device=logits.device)
    for part, _ in chunks(logits, target):
        probability = (part * beta).softmax(1)
        spread = probability * (1 - probability)
        curvature += torch.stack(((spread * part.square()).sum(0), spread.sum(0)))
    curvature = curvature / len(logits)
    # A class that is hardly ever likely has almost no curvature: limit its first step.
    return curvature.clamp_min(1e-6 * float(curvature.max())).clamp_min(1e-12).rsqrt().flatten().cpu().numpy()
