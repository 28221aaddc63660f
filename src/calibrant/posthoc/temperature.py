"""Temperature scaling: one number that corrects the confidence of a network, computed exactly."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrant.frames import is_tensor, of_tensor
from calibrant.posthoc.cross_validation import HeldOut
from calibrant.posthoc.fit import Calibrator
from calibrant.posthoc.map import Affine, Map, Mixture, Uniform, evaluated
from calibrant.posthoc.solvers import mixture_weights

if TYPE_CHECKING:
    from torch import Tensor

    Values = Tensor | np.ndarray[Any, Any]
else:
    Values = Any
# Samples up to which the interval of the temperature is computed; with more it is hardly ever wide.
FEW = 300
# A bounded temperature, over the largest difference of logits in a row, if the best is 0 or infinite. Beyond, classes
# would tie in float32, and predictions change.
BOUNDS = 1 / 80, 1000.0
# Elements of one chunk: few enough to fit in a core's cache, enough to keep Python's overhead small.
CHUNK = 2**17
# Elements up to which everything is in float64. With more, rounding of single elements averages out, and logits within
# this range are in float32: neither their squares nor their products with exp(FARTHEST) overflow.
DOUBLE = 2**13
SINGLE_RANGE = 1e3
# Exponents below these, in float32 and float64, are raised to them: exponentials that underflow take 50 times as long.
LOWEST_EXPONENTS = -87.0, -700.0
# Elements, and rows, of the sample on which the search starts.
SAMPLE, SAMPLE_ROWS = 2**14, 512
# Classes up to which each of them has its values together.
NARROW = 32
# Up to this many elements, a prepared copy of all chunks is kept between the passes.
KEPT = 2**22
# A difference of logits below this is raised to it, so that squares do not overflow in float64.
SMALLEST = float(np.finfo(np.float32).min)
# The search for log(1/T) goes no further than this on either side of 0.
FARTHEST = 80.0


class Tempered(Calibrator):
    """Base class of the methods that start from the best temperature."""

    reports_order = True
    found: tuple[str, ...] = ("smoothing_", "temperature_")
    temperature_: float

    def fit_temperature(self, data: HeldOut) -> Affine:
        """Return the map of the best temperature, or of a bounded one, of which there is a notice."""
        if self.strict:
            self.temperature_ = best_temperature(*data)
        else:
            self.temperature_, problem = bounded_temperature(*data)
            if problem:
                self.notice(f"{problem}; T = {self.temperature_:.3g} is used")
        return Affine(np.array(1 / self.temperature_), np.array(0.0))


class TemperatureScaling(Tempered):
    r"""Divide the logits by one temperature T, the minimiser of the NLL on held-out data.

    .. math:: \hat p = \mathrm{softmax}(l / T)

    T > 1 makes an over-confident network less confident, T < 1 an under-confident one more; the predicted class
    never changes. The NLL is convex in :math:`1/T`, and its minimum is found by safeguarded Newton and cubic steps.

    There is no minimum if every held-out label has the largest logit, alone or tied (T tends to 0), if predictions are
    no better than chance (T tends to infinity), or if the logits of a sample are all the same. T is then bounded, at
    1/80 or 1,000 times the largest difference of logits in a row, or 1, and a notice says so.

    Args:
        strict: No mixing, and a ``ValueError`` where there is no root.

    References:
        Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import TemperatureScaling
        >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> scaling = TemperatureScaling(strict=True).fit(logits, np.array([0, 0, 0, 0]))
        >>> round(scaling.temperature_, 4)  # three of four are right: softmax gives 0.75 at 4 / log(3)
        3.641
        >>> scaling.predict_proba(logits[:1]).round(4)
        array([[0.75, 0.25]])
    """

    moves_classes = False

    def fit_map(self, data: HeldOut) -> Map:
        """Solve for the temperature."""
        return self.mixed(self.fit_temperature(data), data)

    def examine(self, data: HeldOut) -> None:
        """Add the interval of the temperature where it is wide."""
        super().examine(data)
        if len(data.target) <= FEW:
            place = math.log(self.temperature_)
            spread = 1.96 * standard_error(data.logits, data.target, place, weight=data.weight)
            if 0.5 < spread < 20:  # beyond, T is a bound, of which there is a notice already
                self.notice(
                    f"T = {self.temperature_:.2f} from {len(data.target)} samples is uncertain, 95 % interval "
                    f"{math.exp(place - spread):.2f} to {math.exp(min(place + spread, 700.0)):.3g}: use more data"
                )


class EnsembleTemperatureScaling(Tempered):
    r"""Mix the temperature-scaled, the original and the uniform prediction (ETS).

    .. math:: \hat p = w_1\, \mathrm{softmax}(l / T) + w_2\, \mathrm{softmax}(l) + w_3 / C,
        \qquad w \ge 0,\ w_1 + w_2 + w_3 = 1

    T is the best temperature; given T the NLL is convex in w, and its minimum on the simplex is found. The
    predicted class never changes.

    Args:
        strict: No further mixing with the uniform distribution, and a ``ValueError`` where there is no best
            temperature; see :class:`Calibrator`.

    References:
        Zhang, Kailkhura, Han, "Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration in
        Deep Learning", ICML 2020.

    Example:
        >>> import numpy as np
        >>> from calibrant.posthoc import EnsembleTemperatureScaling
        >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> scaling = EnsembleTemperatureScaling(strict=True).fit(logits, np.array([0, 0, 0, 0]))
        >>> scaling.predict_proba(logits[:1]).round(4)
        array([[0.75, 0.25]])
        >>> round(sum(scaling.weights_), 6)
        1.0
    """

    found = ("smoothing_", "temperature_", "weights_")
    weights_: tuple[float, ...]

    def fit_map(self, data: HeldOut) -> Map:
        """Solve for the temperature, then for the weights."""
        maps = self.fit_temperature(data), Affine(np.array(1.0), np.array(0.0)), Uniform()
        wide = data.logits.astype(np.float64, copy=False)
        of_right = [
            evaluated(lambda xp, rows, of=each: of.probabilities(xp, rows), wide)[np.arange(len(wide)), data.target]
            for each in maps
        ]  # fmt: skip
        weights = mixture_weights(np.stack(of_right, axis=1), data.weight)
        self.weights_ = tuple(weights.tolist())
        return self.mixed(Mixture(weights, maps), data)


def best_temperature(logits: Values, target: Values, weight: Values | None = None) -> float:
    """Return the temperature that minimises the NLL of ``(N, C)`` logits, or raise ``ValueError`` if there is none."""
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


def bounded_temperature(logits: Values, target: Values, weight: Values | None = None) -> tuple[float, str]:
    """Return the best temperature, or a bounded one if there is none, and what is wrong in that case."""
    data = Slopes(logits, target, weight)
    problem = data.problem()
    found = None if problem else data.root()
    if found is not None:
        return math.exp(-found), ""
    if problem is None:
        problem = NoOptimum("the best temperature is beyond all bounds: scale the logits to a sensible range", 0.0)
    if problem.side == 0:
        return 1.0, problem.text
    limit = float(np.finfo(np.float32).max) / 2
    return min(max(data.spread() * BOUNDS[problem.side > 0], 1 / limit), limit), problem.text


def temperature_or_one(logits: Values, target: Values, weight: Values | None = None) -> float:
    """Return the best temperature, or 1 if there is none, as a start for fits with more parameters."""
    try:
        return best_temperature(logits, target, weight)
    except ValueError:
        return 1.0


def solve_from(
    logits: Values, target: Values, start: float, *, weight: Values | None = None, tolerance: float = 1e-4
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


def standard_error(logits: Values, target: Values, log_temperature: float, *, weight: Values | None = None) -> float:
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


class NoOptimum(NamedTuple):
    """Why there is no best temperature, and on which side it would be: -1 for 0, 1 for infinity, 0 for neither."""

    text: str
    side: float


class Chunk(NamedTuple):
    """Relative logits ``(C, n)``, those of the label ``(n,)``, weights ``(n,)`` or None, and ``(C,)`` ones.

    Arrays on the CPU, where NumPy has less overhead, and tensors elsewhere: their operators are the same. A product
    with ones is the quickest sum over classes.
    """

    below: Any
    true: Any
    weight: Any
    ones: Any

    def total(self, values: Any) -> float:
        """Sum of values of the samples, times their weights, in float64."""
        if self.weight is not None:
            values = values * self.weight
        return float(of_wide(values).sum() if is_tensor(values) else values.sum(dtype=np.float64))

    def moments(self, beta: float) -> tuple[Any, Any]:
        """Mean of each sample's relative logits under the softmax at beta = 1/T, and mean of their squares."""
        powers = self.below * beta
        if isinstance(powers, np.ndarray):
            np.maximum(powers, LOWEST_EXPONENTS[powers.dtype == np.float64], out=powers)
            np.exp(powers, out=powers)
        else:
            powers.exp_()
        total = self.ones @ powers
        # Exponentials first, so that a vanishing one is there before a large logit is squared.
        powers *= self.below
        mean = self.ones @ powers
        powers *= self.below
        square = self.ones @ powers
        mean /= total
        square /= total
        return mean, square


class Slopes:
    """Logits relative to the largest of their row, in chunks, and the slope of their NLL.

    Args:
        logits: ``(N, C)``, finite.
        target: ``(N,)`` class indices.
        weight: ``(N,)`` non-negative weights, or None.
        start: Log of the inverse temperature at which to begin; by default it is estimated from some of the samples.
    """

    def __init__(self, logits: Values, target: Values, weight: Values | None, start: float | None = None) -> None:
        self.logits, self.target, self.weight = (_read(each) for each in (logits, target, weight))
        self.start = self._estimate() if start is None else start
        self._known: dict[float, tuple[float, float]] = {}
        self._true = self._equal = 0.0
        count, classes = self.logits.shape
        large = str(self.logits.dtype).endswith("float32") and count * classes > DOUBLE
        self._prepare(large and float(self.logits.max()) - float(self.logits.min()) <= SINGLE_RANGE)

    def _prepare(self, single: bool) -> None:
        self._single = single
        self._kept = list(self._prepared()) if math.prod(self.logits.shape) <= KEPT else None

    def _estimate(self) -> float:
        """A close start at a fraction of the cost of one pass over all samples."""
        count, classes = self.logits.shape
        stride = count // max(SAMPLE_ROWS, SAMPLE // classes)
        if stride < 4:
            return 0.0
        weight = None if self.weight is None else self.weight[::stride]
        some = Slopes(self.logits[::stride], self.target[::stride], weight)
        return 0.0 if some.problem() else some.root(1e-2) or 0.0

    def chunks(self) -> Iterable[Chunk]:
        """All samples."""
        return self._prepared() if self._kept is None else self._kept

    def _prepared(self) -> Iterator[Chunk]:
        count, classes = self.logits.shape
        rows = max(1, CHUNK // classes)
        one: Any = None
        for first in range(0, count, rows):
            at = slice(first, first + rows)
            weight = None if self.weight is None else self.weight[at]
            if is_tensor(self.logits):
                part = self.logits[at].float() if self._single else of_wide(self.logits[at])
                below = (part - part.amax(1, keepdim=True)).clamp_(min=SMALLEST)
                one = below.new_ones(classes) if one is None else one
                yield Chunk(below.T, below.gather(1, self.target[at].unsqueeze(1)).squeeze(1), weight, one)
                continue
            # One class after the other if there are few: sums over classes are then sums of long vectors.
            dtype, order = np.float32 if self._single else np.float64, "C" if classes <= NARROW else "F"
            columns = np.array(self.logits[at].T, dtype, order=order)  # type: ignore[call-overload]
            np.subtract(columns, columns.max(0), out=columns)
            np.maximum(columns, SMALLEST, out=columns)
            one = np.ones(classes, dtype) if one is None else one
            yield Chunk(columns, columns[self.target[at], np.arange(columns.shape[1])], weight, one)

    def slope(self, log_beta: float) -> tuple[float, float]:
        """First and second derivative of the summed NLL in beta = 1/T."""
        if log_beta in self._known:
            return self._known[log_beta]
        found = self._pass(log_beta)
        if self._single and found[1] < 1e-20:  # squares of tiny logits vanish in float32
            self._prepare(False)
            found = self._pass(log_beta)
        self._known[log_beta] = found
        return found

    def _pass(self, log_beta: float) -> tuple[float, float]:
        first = second = true = equal = 0.0
        for chunk in self.chunks():
            mean, square = chunk.moments(math.exp(log_beta))
            first += chunk.total(mean)
            square -= mean * mean
            second += chunk.total(square)
            if not self._known:  # in the first pass, while the chunk is in the cache
                true += chunk.total(chunk.true)
                equal += chunk.total(chunk.ones @ chunk.below) / len(chunk.ones)
        if not self._known:
            self._true, self._equal = true, equal
        return first - self._true, second

    @property
    def ends(self) -> tuple[float, float]:
        """Derivative of the summed NLL at beta = 0 and at infinity, once it is known at another place."""
        return self._equal - self._true, -self._true

    def spread(self) -> float:
        """Largest difference of logits in a row."""
        return max(-float(chunk.below.min()) for chunk in self.chunks())

    def problem(self) -> NoOptimum | None:
        """The slope of the NLL in 1/T must be negative at 0 and positive at infinity."""
        self.slope(self.start)
        at_zero, at_infinity = self.ends
        if at_zero < 0 < at_infinity:
            return None
        if self.spread() == 0:
            return NoOptimum(
                "the logits of every held-out sample are all equal, so no temperature has an effect: "
                "check that the model is trained and that these are its logits", 0.0,
            )  # fmt: skip
        if at_infinity <= 0:
            return NoOptimum(
                "every held-out prediction is right or tied for the top, so the best temperature is 0 and confidences "
                "would all be 1: fit on more data, or on data the model was not trained on", -1.0,
            )  # fmt: skip
        return NoOptimum(
            "the held-out predictions are no better than chance, so the best temperature is infinite: "
            "check that logits and target are in the same order and that the model is trained", 1.0,
        )  # fmt: skip

    def root(self, tolerance: float = 2e-4) -> float | None:
        """The log of 1/T at which the slope is 0, to about the square of the tolerance; None if it is out of reach."""
        self.slope(self.start)
        return _root(self.slope, self.ends, self.start, tolerance)


def _read(values: Any) -> Any:
    """Arrays of what is on the CPU, where NumPy has less overhead; tensors elsewhere."""
    if not is_tensor(values):
        return values
    return of_tensor(values) if values.device.type == "cpu" else values.detach()


def of_wide(values: Any) -> Any:
    """A tensor in float64, or in float32 on a device without it."""
    return values.float() if values.device.type == "mps" else values.double()


def _root(
    slope: Callable[[float], tuple[float, float]], ends: tuple[float, float], start: float, tolerance: float
) -> float | None:
    """The log(beta) at which the increasing slope is 0: Newton and cubic steps, kept inside a shrinking bracket.

    The slope f rises from ``ends[0]`` to ``ends[1]`` in the shape of an S. The steps are those of
    log((f - ends[0]) / (ends[1] - f)), which is nearly straight in log(beta): few of them are needed.
    """
    low, high = -FARTHEST, FARTHEST
    here = start
    before: tuple[float, float, float] | None = None
    goal = math.log(-ends[0] / ends[1])
    for _ in range(200):
        first, second = slope(here)
        if first == 0:
            return here
        low, high = (here, high) if first < 0 else (low, here)
        there, done = here + math.copysign(2.0, -first), False
        risen, left = first - ends[0], ends[1] - first
        rate = math.exp(here) * second
        if rate > 0 and risen > 0 and left > 0:
            rate *= 1 / risen + 1 / left
            point = here, math.log(risen / left) - goal, rate
            step = -point[1] / rate
            there = here + min(4.0, max(-4.0, step))
            # A Newton step of size s leaves an error of the order of s squared.
            done = abs(step) < tolerance
            if before is not None and before[1] != point[1]:
                cubic = _cubic(before, point)
                if low < cubic < high and abs(cubic - here) < 4:
                    # A cubic step after one of size r leaves the square of their product, and is close to Newton's.
                    near = abs((here - before[0]) * step) < tolerance and abs(cubic - there) < 50 * tolerance**2
                    there, done = cubic, done or near
            before = point
        if done:
            return there
        here = there if low < there < high else (low + high) / 2
        if high - low < 1e-12 or FARTHEST - abs(here) < 1e-6:
            return None
    return None


def _cubic(one: tuple[float, float, float], two: tuple[float, float, float]) -> float:
    """The place of value 0, from two places with their values and derivatives: inverse Hermite interpolation."""
    (x, f, slope), (y, g, other) = one, two
    t = -f / (g - f)
    rise = (g - f) / slope, (g - f) / other
    return (
        x + (y - x) * t * t * (3 - 2 * t)
        + rise[0] * t * (1 - t) ** 2 + rise[1] * t * t * (t - 1)
    )  # fmt: skip
