"""Temperature scaling: one number that corrects the confidence of a network, computed exactly."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.numerics import accumulation_dtype
from calibrant.posthoc.base import HUGE, Calibrator
from calibrant.posthoc.folding import check_layer, layer_like
from calibrant.posthoc.folds import fold_numbers
from calibrant.posthoc.temperature_slope import FARTHEST, Problem, Slopes

# Samples up to which the interval of the temperature is computed; with more it is hardly ever wide.
FEW = 300
# A bounded temperature, over the largest difference of logits in a row, if the best is 0 or infinite. Beyond, classes
# would tie in float32, and predictions change.
BOUNDS = 1 / 80, 1000.0


class TemperatureScaling(Calibrator):
    r"""Divide the logits by one temperature T, the minimiser of the NLL on held-out data.

    .. math:: \hat p = \mathrm{softmax}(l / T)

    T > 1 makes an over-confident network less confident, T < 1 an under-confident one more; the predicted class
    never changes. The NLL is convex in :math:`\beta = 1/T`, with derivative
    :math:`\mathrm{mean}_i(\sum_k l_{ik} \hat p_{ik} - l_{iy_i})`: its root is found by safeguarded Newton and cubic
    steps on :math:`\log\beta`, so T is always positive and needs no learning rate. Sums over samples are in float64.

    There is no such root if every held-out label has the largest logit, alone or tied (T tends to 0), if
    predictions are no better than chance (T tends to infinity), or if the logits of a sample are all the same. T is
    then bounded, at 1/80 or 1,000 times the largest difference of logits in a row, or 1; mixing with the uniform
    distribution (see :class:`Calibrator`) keeps the confidence below 1. A notice says so.

    Args:
        strict: No mixing, and a ``ValueError`` where there is no root.

    References:
        Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import TemperatureScaling
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> scaling = TemperatureScaling(strict=True).fit(logits, torch.tensor([0, 0, 0, 0]))
        >>> round(scaling.temperature_, 4)  # three of four are right: softmax gives 0.75 at 4 / log(3)
        3.641
        >>> scaling.predict_proba(logits[:1])
        tensor([[0.7500, 0.2500]])
    """

    temperature: Tensor

    def __init__(self, *, strict: bool = False) -> None:
        super().__init__(strict=strict)
        self._buffers["temperature"] = None

    @property
    def temperature_(self) -> float:
        """The fitted temperature."""
        self.require_fitted()
        return float(self.temperature)

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Solve for the temperature."""
        found, problem = self._best(logits, target, weight)
        if problem:
            self.notice(f"{problem}; T = {found:.3g} is used")
        # From NumPy, which takes half the time of torch.tensor.
        value = np.array(found, np.float64 if logits.dtype == torch.float64 else np.float32)
        self._buffers["temperature"] = torch.from_numpy(value).to(logits.device)

    def _best(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> tuple[float, str]:
        if self.strict:
            return best_temperature(logits, target, weight), ""
        return bounded_temperature(logits, target, weight)

    def cross_fitted(self, rows: Tensor, target: Tensor, weight: Tensor | None, folds: int = 5) -> Tensor:
        """Probabilities of each row by a fit without its fold; its temperature and mixing are all that a fold needs."""
        number = fold_numbers(rows, target, folds)
        temperature, smoothing = torch.ones_like(rows[:, :1]), torch.zeros_like(rows[:, :1])
        for fold in range(folds):
            out = number == fold
            kept = ~out
            if not (kept.any() and out.any()):
                continue
            part = rows[kept], target[kept], None if weight is None else weight[kept]
            try:
                temperature[out] = self._best(*part)[0]
            except ValueError:
                continue
            smoothing[out] = self.smoothing_for(part[0], part[2])
        calibrated = (rows / temperature).clamp_(-HUGE, HUGE).softmax(1)
        return (calibrated * (1 - smoothing) + smoothing / rows.shape[1]).to(accumulation_dtype(rows))

    def examine(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Add the interval of the temperature where it is wide."""
        super().examine(rows, target, weight)
        if rows.shape[0] <= FEW:
            place = math.log(self.temperature_)
            spread = 1.96 * standard_error(rows, target, place, weight=weight)
            if 0.5 < spread < 20:  # beyond, T is a bound, of which there is a notice already
                self.notice(
                    f"T = {self.temperature_:.2f} from {len(rows)} samples is uncertain, 95 % interval "
                    f"{math.exp(place - spread):.2f} to {math.exp(min(place + spread, 700.0)):.3g}: use more data"
                )

    def absent_classes(self, target: Tensor) -> None:
        """Add nothing: a temperature makes no class unlikely."""

    def check_order(self, rows: Tensor, target: Tensor) -> None:
        """Add nothing: the search for the temperature has a notice of the same."""

    def calibrated_logits(self, logits: Tensor) -> Tensor:
        """Divide by the temperature."""
        return (logits / self.temperature.to(logits.dtype)).clamp(-HUGE, HUGE)

    def fold_into(self, linear: nn.Linear) -> nn.Linear:
        """Return a new last layer that returns calibrated logits.

        Args:
            linear: The classifier's last layer, with one output per class (or one, if binary). It is not changed. The
                new layer has its dtype: in float16 the outputs agree only to about 5e-4, relative to their size.
        """
        check_layer(linear, self)
        scale = 1 / self.temperature.double()
        return layer_like(
            linear, linear.weight.double() * scale, None if linear.bias is None else linear.bias.double() * scale
        )


def best_temperature(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> float:
    """Return the temperature that minimises the NLL, or raise ``ValueError`` if there is none.

    Args:
        logits: ``(N, C)``, finite.
        target: ``(N,)`` class indices.
        weight: ``(N,)`` positive weights, or None.
    """
    data = Slopes(logits, target, weight)
    if problem := data.problem():
        raise ValueError(problem.text)
    found = data.root()
    if found is None:
        raise ValueError(
            f"the best temperature lies beyond exp({FARTHEST:g}) or below its inverse: "
            "scale the logits to a sensible range, or use more held-out data"
        )
    return math.exp(-found)


def bounded_temperature(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> tuple[float, str]:
    """Return the best temperature, or a bounded one if there is none, and what is wrong in that case.

    Args:
        logits: ``(N, C)``, finite.
        target: ``(N,)`` class indices.
        weight: ``(N,)`` positive weights, or None.
    """
    data = Slopes(logits, target, weight)
    problem = data.problem()
    found = None if problem else data.root()
    if found is not None:
        return math.exp(-found), ""
    if problem is None:
        problem = Problem("the best temperature is beyond all bounds: scale the logits to a sensible range", 0.0)
    if problem.side == 0:
        return 1.0, problem.text
    limit = torch.finfo(torch.float32).max / 2
    return min(max(data.spread() * BOUNDS[problem.side > 0], 1 / limit), limit), problem.text


def temperature_or_one(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> float:
    """Return the best temperature, or 1 if there is none, as a start for fits with more parameters."""
    try:
        return best_temperature(logits, target, weight)
    except ValueError:
        return 1.0


def solve_from(
    logits: Tensor,
    target: Tensor,
    start: float,
    *,
    weight: Tensor | None = None,
    tolerance: float = 1e-4,
) -> float | None:
    """Return the log of the best temperature, searched from a nearby start, or None if there is none.

    Like :func:`best_temperature`, for callers who solve repeatedly for logits that change slowly, and for whom it is no
    error if there is no solution. The error is about the square of the tolerance.

    Args:
        logits: ``(N, C)``, finite.
        target: ``(N,)`` class indices.
        start: Initial guess of the log of the temperature.
        weight: ``(N,)`` non-negative weights of the samples.
        tolerance: Size of the Newton step at which to stop.
    """
    data = Slopes(logits, target, weight, -start)
    if data.problem() is not None:
        return None
    found = data.root(tolerance)
    return None if found is None else -found


def standard_error(logits: Tensor, target: Tensor, log_temperature: float, *, weight: Tensor | None = None) -> float:
    r"""Return the standard error of the log of a fitted temperature, by the sandwich formula.

    With :math:`g_i` the derivative of the NLL of sample i in :math:`\beta = 1/T` and :math:`h` the sum of its second
    derivatives, that of :math:`\log T` is :math:`\sqrt{\sum_i g_i^2} / (\beta h)`.

    Args:
        logits: ``(N, C)``, finite.
        target: ``(N,)`` class indices.
        log_temperature: Log of the fitted temperature.
        weight: ``(N,)`` non-negative weights of the samples.
    """
    beta = math.exp(-log_temperature)
    squares = curvature = 0.0
    for chunk in Slopes(logits, target, weight, -log_temperature).chunks():
        mean, square = chunk.moments(beta)
        first = mean - chunk.true
        weighted = first if chunk.weight is None else first * chunk.weight
        squares += chunk.total(first * weighted)
        curvature += chunk.total(square - mean * mean)
    return math.sqrt(squares) / (beta * curvature) if curvature > 0 else math.inf
