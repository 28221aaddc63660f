"""Ensemble temperature scaling: a mixture of the scaled, the original and the uniform prediction."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.temperature import best_temperature


class EnsembleTemperatureScaling(Calibrator):
    r"""Mix the temperature-scaled, the original and the uniform prediction (ETS).

    .. math:: \hat p = w_1\, \mathrm{softmax}(l / T) + w_2\, \mathrm{softmax}(l) + w_3 / C,
        \qquad w \ge 0,\ w_1 + w_2 + w_3 = 1

    T is the best temperature; given T the NLL is convex in w, and its minimum on the simplex is found. The
    predicted class never changes. It has probabilities only, no logits.

    References:
        Zhang, Kailkhura, Han, "Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration in
        Deep Learning", ICML 2020.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import EnsembleTemperatureScaling
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> scaling = EnsembleTemperatureScaling().fit(logits, torch.tensor([0, 0, 0, 0]))
        >>> scaling.predict_proba(logits[:1])
        tensor([[0.7500, 0.2500]])
        >>> round(sum(scaling.weights_), 6)
        1.0
    """

    temperature: Tensor
    weights: Tensor

    def __init__(self) -> None:
        super().__init__()
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

    def fit_rows(self, logits: Tensor, target: Tensor) -> None:
        """Solve for the temperature, then for the weights."""
        temperature = best_temperature(logits, target)
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
        self.weights = logits.new_tensor(mixture_weights(likelihood))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Mix the three predictions."""
        weights = self.weights.to(logits.dtype)
        scaled = (logits / self.temperature.to(logits.dtype)).softmax(1)
        return weights[0] * scaled + weights[1] * logits.softmax(1) + weights[2] / logits.shape[1]


def mixture_weights(likelihood: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The weights on the simplex that maximise the mean log of a mixture.

    A weighted sum of ``m`` components is optimal exactly when ``mean(component / mixture)`` is 1 for every
    component with weight and at most 1 for the others. Newton's method on the components with weight, which drops
    one at the edge of the simplex and adds one that would help, reaches that in a few steps.

    Args:
        likelihood: ``(N, m)``, each component's probability of the right class; no row may be all zeros.
    """
    count = likelihood.shape[1]
    weights = np.full(count, 1 / count)
    active = np.ones(count, dtype=bool)
    for _ in range(200):
        ratio = likelihood / (likelihood @ weights)[:, None]
        gradient = ratio.mean(0)
        ascent = _newton_direction(ratio[:, active], gradient[active])
        if np.abs(ascent).max() < 1e-10:
            better = np.where(active, 0.0, gradient - 1)
            if better.max() < 1e-9:
                break
            active[better.argmax()] = True
            continue
        direction = np.zeros(count)
        direction[active] = ascent
        weights = _line_search(likelihood, weights, direction)
        active = weights > 0
    return np.asarray(weights / weights.sum())


def _newton_direction(ratio: npt.NDArray[np.float64], gradient: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Newton's step of the mean log mixture among weights whose sum stays the same."""
    count = len(gradient)
    if count == 1:
        return np.zeros(1)
    # Move weight from the last component to each of the others, which keeps the constraint.
    moves = np.vstack((np.eye(count - 1), -np.ones(count - 1)))
    change = ratio @ moves
    curvature = change.T @ change / len(ratio)
    ridge = 1e-12 * np.trace(curvature) + 1e-300
    return np.asarray(moves @ np.linalg.solve(curvature + ridge * np.eye(count - 1), moves.T @ gradient))


def _line_search(
    likelihood: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], direction: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """A step along ``direction`` that raises the likelihood and stays in the simplex."""
    falling = direction < 0
    room = np.where(falling, -weights / np.where(falling, direction, -1.0), np.inf)
    step = min(1.0, float(room.min()))
    edge = int(room.argmin()) if step == room.min() else None
    with np.errstate(divide="ignore"):
        before = np.log(likelihood @ weights).mean()
        for _ in range(60):
            moved = np.maximum(weights + step * direction, 0.0)
            if edge is not None:
                moved[edge] = 0.0
            if np.log(likelihood @ moved).mean() >= before:
                return moved
            step, edge = step / 2, None
    return weights
