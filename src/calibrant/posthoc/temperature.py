"""Temperature scaling: one number that corrects the confidence of a network, computed exactly."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.folding import check_layer, layer_like
from calibrant.posthoc.likelihood import row_pieces

# Elements of one chunk: few enough to fit in a core's cache, enough to keep Python's overhead small.
CHUNK = 2**16
# Elements of the sample on which the search starts.
SAMPLE = 2**20
# The search for log(1/T) goes no further than this on either side of 0.
FARTHEST = 80.0


class TemperatureScaling(Calibrator):
    r"""Divide the logits by one temperature T, the minimiser of the NLL on held-out data.

    .. math:: \hat p = \mathrm{softmax}(l / T)

    T > 1 makes an over-confident network less confident, T < 1 an under-confident one more; the predicted class
    never changes. The NLL is convex in :math:`\beta = 1/T`, with derivative
    :math:`\mathrm{mean}_i(\sum_k l_{ik} \hat p_{ik} - l_{iy_i})`: its root is found by safeguarded Newton steps
    on :math:`\log\beta`, so T is always positive and needs no learning rate. The last steps are in float64.

    There is no such root if every held-out label has the largest logit, alone or tied (T tends to 0), if
    predictions are no better than chance (T tends to infinity), or if the logits of a sample are all the same;
    ``fit`` then raises a ``ValueError``.

    References:
        Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import TemperatureScaling
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> scaling = TemperatureScaling().fit(logits, torch.tensor([0, 0, 0, 0]))
        >>> round(scaling.temperature_, 4)  # three of four are right: softmax gives 0.75 at 4 / log(3)
        3.641
        >>> scaling.predict_proba(logits[:1])
        tensor([[0.7500, 0.2500]])
    """

    temperature: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("temperature", None)

    @property
    def temperature_(self) -> float:
        """The fitted temperature."""
        self.require_fitted()
        return float(self.temperature)

    def fit_rows(self, logits: Tensor, target: Tensor) -> None:
        """Solve for the temperature."""
        self.temperature = logits.new_tensor(best_temperature(logits, target))

    def calibrated_logits(self, logits: Tensor) -> Tensor:
        """Divide by the temperature."""
        return logits / self.temperature.to(logits.dtype)

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


def best_temperature(logits: Tensor, target: Tensor) -> float:
    """Return the temperature that minimises the NLL, or raise ``ValueError`` if there is none.

    Args:
        logits: ``(N, C)``, finite.
        target: ``(N,)`` class indices.
    """
    _check_solvable(logits, target)
    start = 0.0
    stride = logits.numel() // SAMPLE
    if stride > 1:
        # A close start at a fraction of the cost of one pass over all data.
        some, labels = logits[::stride], target[::stride]
        start = _root(lambda x: _slope(some, labels, x, torch.float32), 0.0, tolerance=1e-2) or 0.0
    near = _root(lambda x: _slope(logits, target, x, torch.float32), start, tolerance=3e-3)
    # A Newton step of size s leaves an error of the order of s squared.
    exact = _root(lambda x: _slope(logits, target, x, torch.float64), start if near is None else near, tolerance=2e-4)
    if exact is None:
        raise ValueError(
            f"the best temperature lies beyond exp({FARTHEST:g}) or below its inverse: "
            "scale the logits to a sensible range, or use more held-out data"
        )
    return math.exp(-exact)


def temperature_or_one(logits: Tensor, target: Tensor) -> float:
    """Return the best temperature, or 1 if there is none, as a start for fits with more parameters."""
    try:
        return best_temperature(logits, target)
    except ValueError:
        return 1.0


def _chunks(logits: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows in pieces, with logits relative to the largest of their row and the labels as a column."""
    for part, labels in row_pieces(logits, target, CHUNK):
        yield part - part.amax(1, keepdim=True), labels.unsqueeze(1)


def _check_solvable(logits: Tensor, target: Tensor) -> None:
    """The slope of the NLL in 1/T must be negative at 0 and positive at infinity."""
    at_zero = at_infinity = spread = 0.0
    for below, labels in _chunks(logits, target):
        true = below.gather(1, labels).sum(dtype=torch.float64)
        at_zero += float(below.mean(1).sum(dtype=torch.float64) - true)
        at_infinity -= float(true)
        spread = max(spread, -float(below.amin()))
    if spread == 0:
        raise ValueError(
            "the logits of every held-out sample are all equal, so no temperature has an effect: "
            "check that the model is trained and that these are its logits"
        )
    if at_infinity <= 0:
        raise ValueError(
            "every held-out prediction is right or tied for the top, so the best temperature is 0 and confidences "
            "would all be 1: fit on more data, or on data the model was not trained on"
        )
    if at_zero >= 0:
        raise ValueError(
            "the held-out predictions are no better than chance, so the best temperature is infinite: "
            "check that logits and target are in the same order and that the model is trained"
        )


def solve_from(
    logits: Tensor,
    target: Tensor,
    start: float,
    *,
    weight: Tensor | None = None,
    tolerance: float = 1e-4,
    dtype: torch.dtype = torch.float64,
) -> float | None:
    """Return the log of the best temperature, searched from a nearby start, or None if there is none.

    Like :func:`best_temperature`, for callers who solve repeatedly for logits that change slowly, and for whom it is no
    error if there is no solution. The search ends at a Newton step below the tolerance; the error is about its square.

    Args:
        logits: ``(N, C)``, finite.
        target: ``(N,)`` class indices.
        start: Initial guess of the log of the temperature.
        weight: ``(N,)`` non-negative weights of the samples.
        tolerance: Size of the Newton step at which to stop.
        dtype: Dtype of the computation.
    """
    try:
        _check_solvable(logits, target)
    except ValueError:
        return None
    found = _root(lambda x: _slope(logits, target, x, dtype, weight), -start, tolerance=tolerance)
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
    parts = list(_derivatives(logits, target, -log_temperature, torch.float64, weight))
    squares = sum(float(first.square().sum()) for first, _ in parts)
    curvature = math.exp(-log_temperature) * sum(float(second.sum()) for _, second in parts)
    return math.sqrt(squares) / curvature if curvature > 0 else math.inf


def _slope(
    logits: Tensor, target: Tensor, log_beta: float, dtype: torch.dtype, weight: Tensor | None = None
) -> tuple[float, float]:
    """First and second derivative of the summed NLL in beta = 1/T."""
    first = second = 0.0
    for slopes, curvatures in _derivatives(logits, target, log_beta, dtype, weight):
        first += float(slopes.sum(dtype=torch.float64))
        second += float(curvatures.sum(dtype=torch.float64))
    return first, second


def _derivatives(
    logits: Tensor, target: Tensor, log_beta: float, dtype: torch.dtype, weight: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """First and second derivative of the NLL of each sample in beta = 1/T, chunk by chunk."""
    beta = math.exp(log_beta)
    smallest = torch.finfo(torch.float32).min
    row = 0
    for below, labels in _chunks(logits, target):
        below = below.to(dtype).clamp_(min=smallest)
        powers = torch.exp(below * beta)
        total = powers.sum(1)
        # Exponentials first, so that a vanishing one is there before a large logit is squared.
        mean = powers.mul_(below).sum(1) / total
        square = powers.mul_(below).sum(1) / total
        slopes, curvatures = mean - below.gather(1, labels).squeeze(1), square - mean.square()
        if weight is None:
            yield slopes, curvatures
        else:
            of_rows = weight[row : row + len(below)].to(dtype)
            row += len(below)
            yield slopes * of_rows, curvatures * of_rows


def _root(slope: Callable[[float], tuple[float, float]], start: float, *, tolerance: float) -> float | None:
    """The log(beta) at which the increasing slope crosses 0: Newton, kept inside a shrinking bracket."""
    low, high = -FARTHEST, FARTHEST
    here = start
    for _ in range(200):
        first, second = slope(here)
        if first == 0:
            return here
        low, high = (here, high) if first < 0 else (low, here)
        curvature = math.exp(here) * second
        step = -first / curvature if curvature > 0 else math.copysign(2.0, -first)
        if abs(step) < tolerance:
            return here + step
        there = here + max(-2.0, min(2.0, step))
        here = there if low < there < high else (low + high) / 2
        if high - low < 1e-12 or FARTHEST - abs(here) < 1e-6:
            return None
    return None
