"""Temperature scaling: one number that corrects the confidence of a network, computed exactly."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from calibrant.posthoc.base import HUGE, Calibrator
from calibrant.posthoc.folding import check_layer, layer_like

# Elements of one chunk: few enough to fit in a core's cache, enough to keep Python's overhead small.
CHUNK = 2**17
# Elements of the sample on which the search starts.
SAMPLE = 2**14
# Up to this many elements, a prepared copy of all chunks is kept between the passes.
KEPT = 2**22
# The search for log(1/T) goes no further than this on either side of 0.
FARTHEST = 80.0
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
    :math:`\mathrm{mean}_i(\sum_k l_{ik} \hat p_{ik} - l_{iy_i})`: its root is found by safeguarded Newton steps
    on :math:`\log\beta`, so T is always positive and needs no learning rate. The last steps are in float64.

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
        self.register_buffer("temperature", None)

    @property
    def temperature_(self) -> float:
        """The fitted temperature."""
        self.require_fitted()
        return float(self.temperature)

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Solve for the temperature."""
        if self.strict:
            found = best_temperature(logits, target, weight)
        else:
            found, problem = bounded_temperature(logits, target, weight)
            if problem:
                self.notice(f"{problem}; T = {found:.3g} is used")
        self.temperature = logits.new_tensor(found)

    def examine(self, rows: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Add the interval of the temperature where it is wide."""
        super().examine(rows, target, weight)
        if len(rows) <= FEW:
            place = math.log(self.temperature_)
            spread = 1.96 * standard_error(rows, target, place, weight=weight)
            if 0.5 < spread < 20:  # beyond, T is a bound, of which there is a notice already
                self.notice(
                    f"T = {self.temperature_:.2f} from {len(rows)} samples is uncertain, 95 % interval "
                    f"{math.exp(place - spread):.2f} to {math.exp(min(place + spread, 700.0)):.3g}: use more data"
                )

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
    data = _Data(logits, target, weight)
    if problem := data.problem():
        raise ValueError(problem.text)
    found = data.solve()
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
    data = _Data(logits, target, weight)
    problem = data.problem()
    found = None if problem else data.solve()
    if found is not None:
        return math.exp(-found), ""
    if problem is None:
        problem = _Problem("the best temperature is beyond all bounds: scale the logits to a sensible range", 0.0)
    if problem.side == 0:
        return 1.0, problem.text
    limit = torch.finfo(torch.float32).max / 2
    return min(max(data.spread * BOUNDS[problem.side > 0], 1 / limit), limit), problem.text


def temperature_or_one(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> float:
    """Return the best temperature, or 1 if there is none, as a start for fits with more parameters."""
    try:
        return best_temperature(logits, target, weight)
    except ValueError:
        return 1.0


class _Problem(NamedTuple):
    """Why there is no best temperature, and on which side it would be: -1 for 0, 1 for infinity, 0 for neither."""

    text: str
    side: float


class _Data:
    """Logits relative to the largest of their row, class by class, in chunks.

    With classes as rows, sums over classes are sums of whole rows, which a processor does many samples at a time.
    """

    def __init__(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        self.logits, self.target, self.weight = logits, target, weight
        self.spread = 0.0
        self._kept: list[tuple[Tensor, Tensor, Tensor | None]] | None = None
        if logits.numel() <= KEPT:
            self._kept = list(self._prepared(self.logits, self.target, self.weight))

    def chunks(self) -> Iterable[tuple[Tensor, Tensor, Tensor | None]]:
        """Relative logits ``(C, n)``, those of the label ``(n,)``, and weights ``(n,)``."""
        return self._kept or self._prepared(self.logits, self.target, self.weight)

    def _prepared(
        self, logits: Tensor, target: Tensor, weight: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        rows = max(1, CHUNK // logits.shape[1])
        smallest = torch.finfo(torch.float32).min
        weights = [None] * math.ceil(len(logits) / rows) if weight is None else weight.split(rows)
        for part, labels, of_rows in zip(logits.split(rows), target.split(rows), weights, strict=True):
            below = part.T.contiguous()
            below -= below.amax(0)
            below.clamp_(min=smallest)
            yield below, below.gather(0, labels.unsqueeze(0)).squeeze(0), of_rows

    def problem(self) -> _Problem | None:
        """The slope of the NLL in 1/T must be negative at 0 and positive at infinity."""
        at_zero = at_infinity = 0.0
        for below, true, weight in self.chunks():
            mean = below.mean(0, dtype=torch.float64) - true
            if weight is not None:
                mean, true = mean * weight, true * weight
            at_zero += float(mean.sum(dtype=torch.float64))
            at_infinity -= float(true.sum(dtype=torch.float64))
            self.spread = max(self.spread, -float(below.amin()))
        if self.spread == 0:
            return _Problem(
                "the logits of every held-out sample are all equal, so no temperature has an effect: "
                "check that the model is trained and that these are its logits", 0.0,
            )  # fmt: skip
        if at_infinity <= 0:
            return _Problem(
                "every held-out prediction is right or tied for the top, so the best temperature is 0 and confidences "
                "would all be 1: fit on more data, or on data the model was not trained on", -1.0,
            )  # fmt: skip
        if at_zero >= 0:
            return _Problem(
                "the held-out predictions are no better than chance, so the best temperature is infinite: "
                "check that logits and target are in the same order and that the model is trained", 1.0,
            )  # fmt: skip
        return None

    def solve(self) -> float | None:
        """The log of 1/T at the optimum, or None if it is out of reach."""
        start = 0.0
        stride = self.logits.numel() // SAMPLE
        if stride > 1:
            # A close start at a fraction of the cost of one pass over all data.
            weight = None if self.weight is None else self.weight[::stride]
            some = _Data(self.logits[::stride], self.target[::stride], weight)
            start = _root(lambda x: some.slope(x, torch.float32), 0.0, tolerance=1e-2) or 0.0
        near = _root(lambda x: self.slope(x, torch.float32), start, tolerance=3e-3)
        # A Newton step of size s leaves an error of the order of s squared.
        return _root(lambda x: self.slope(x, torch.float64), start if near is None else near, tolerance=2e-4)

    def slope(self, log_beta: float, dtype: torch.dtype) -> tuple[float, float]:
        """First and second derivative of the summed NLL in beta = 1/T."""
        first = second = 0.0
        for slopes, curvatures in self.derivatives(log_beta, dtype):
            first += float(slopes.sum(dtype=torch.float64))
            second += float(curvatures.sum(dtype=torch.float64))
        return first, second

    def derivatives(self, log_beta: float, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        """First and second derivative of the NLL of each sample in beta = 1/T, chunk by chunk."""
        beta = math.exp(log_beta)
        for given, true, weight in self.chunks():
            below = given.to(dtype)
            powers = (below * beta).exp_()
            total = powers.sum(0)
            # Exponentials first, so that a vanishing one is there before a large logit is squared.
            mean = powers.mul_(below).sum(0) / total
            square = powers.mul_(below).sum(0) / total
            slopes, curvatures = mean - true, square - mean.square()
            if weight is None:
                yield slopes, curvatures
            else:
                of_rows = weight.to(dtype)
                yield slopes * of_rows, curvatures * of_rows


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
    data = _Data(logits, target, weight)
    if data.problem() is not None:
        return None
    found = _root(lambda x: data.slope(x, dtype), -start, tolerance=tolerance)
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
    parts = list(_Data(logits, target, weight).derivatives(-log_temperature, torch.float64))
    squares = sum(float(first.square().sum()) for first, _ in parts)
    curvature = math.exp(-log_temperature) * sum(float(second.sum()) for _, second in parts)
    return math.sqrt(squares) / curvature if curvature > 0 else math.inf


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
