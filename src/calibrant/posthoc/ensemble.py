"""Ensemble temperature scaling: a mixture of the scaled, the original and the uniform prediction."""

import torch
from torch import Tensor

from calibrant.posthoc.base import Calibrator, relative
from calibrant.posthoc.mixture import mixture_weights
from calibrant.posthoc.temperature import best_temperature, bounded_temperature


class EnsembleTemperatureScaling(Calibrator):
    r"""Mix the temperature-scaled, the original and the uniform prediction (ETS).

    .. math:: \hat p = w_1\, \mathrm{softmax}(l / T) + w_2\, \mathrm{softmax}(l) + w_3 / C,
        \qquad w \ge 0,\ w_1 + w_2 + w_3 = 1

    T is the best temperature; given T the NLL is convex in w, and its minimum on the simplex is found. The
    predicted class never changes. It has probabilities only, no logits.

    Args:
        strict: No further mixing with the uniform distribution, and a ``ValueError`` where there is no best
            temperature; see :class:`Calibrator`.

    References:
        Zhang, Kailkhura, Han, "Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration in
        Deep Learning", ICML 2020.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import EnsembleTemperatureScaling
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> scaling = EnsembleTemperatureScaling(strict=True).fit(logits, torch.tensor([0, 0, 0, 0]))
        >>> scaling.predict_proba(logits[:1])
        tensor([[0.7500, 0.2500]])
        >>> round(sum(scaling.weights_), 6)
        1.0
    """

    temperature: Tensor
    weights: Tensor

    def __init__(self, *, strict: bool = False) -> None:
        super().__init__(strict=strict)
        self.register_buffer("temperature", None)
        self.register_buffer("weights", None)

    @property
    def temperature_(self) -> float:
        """The fitted temperature."""
        self.require_fitted()
        return float(self.temperature)

    @property
    def weights_(self) -> tuple[float, ...]:
        """The fitted weights of the scaled, the original and the uniform prediction."""
        self.require_fitted()
        return tuple(self.weights.tolist())

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Solve for the temperature, then for the weights."""
        if self.strict:
            temperature = best_temperature(logits, target, weight)
        else:
            temperature, problem = bounded_temperature(logits, target, weight)
            if problem:
                self.notice(f"{problem}; T = {temperature:.3g} is used")
        column = target.unsqueeze(1)
        parts = [
            torch.cat([
                (rows.double() / divisor).log_softmax(1).gather(1, labels).exp()
                for rows, labels in zip(logits.split(1024), column.split(1024), strict=True)
            ])
            for divisor in (temperature, 1.0)
        ]  # fmt: skip
        uniform = torch.full_like(parts[0], 1 / logits.shape[1])
        likelihood = torch.cat((*parts, uniform), dim=1).cpu().numpy()
        self.temperature = logits.new_tensor(temperature)
        of_samples = None if weight is None else weight.cpu().numpy()
        self.weights = logits.new_tensor(mixture_weights(likelihood, of_samples))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Mix the three predictions."""
        weights = self.weights.to(logits.dtype)
        scaled = (relative(logits) / self.temperature.to(logits.dtype)).softmax(1)
        return weights[0] * scaled + weights[1] * logits.softmax(1) + weights[2] / logits.shape[1]
