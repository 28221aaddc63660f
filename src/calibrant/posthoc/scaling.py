"""Scaling of logits: by one temperature, computed exactly, or by an affine map of all classes."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from calibrant import inputs
from calibrant.frames import Array, as_array
from calibrant.posthoc.fit import Calibrator, HeldOut, fold_of
from calibrant.posthoc.map import Affine, Logits, Map, Mixture, evaluated
from calibrant.posthoc.solvers import (
    SINGLE_PRECISION,
    Correction,
    Penalty,
    fit_affine,
    mixture_weights,
    nll_and_residual,
)

Strength = float | Literal["cv"]
# Samples up to which the interval of the temperature is computed; with more it is hardly ever wide.
FEW = 300
# A bounded temperature, over the largest difference of logits in a row, if the best is 0 or infinite. Beyond, classes
# would tie in float32, and predictions change.
BOUNDS = 1 / 80, 1000.0
# The search for the log of a temperature goes no further than this on either side of 0.
FARTHEST = 80.0
# Elements of a chunk: few enough to fit in a core's cache, enough to keep Python's overhead small.
CHUNK = 2**17
# Elements up to which it is all in float64. With more, rounding of single elements averages out, and logits within
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
# Strength of the pull of every scale towards 1 and every shift towards 0. It is too weak to affect a fit with a
# finite optimum; on separable data, which has none, it keeps the numbers finite.
PULL = 1e-8
# Strongest first: the first fits are nearly diagonal and quick, and the next one starts from each.
GRID = (1e6, 1e5, 1e4, 1000.0, 100.0, 10.0, 1.0, 0.1, 0.01)
FOLDS = 3
# Products of a fit, samples times classes squared, beyond which there is no cross-validation.
CROSS_VALIDATED = 1e9


class Tempered(Calibrator):
    """Base class of the methods that start from the best temperature."""

    reports_order = True
    found: tuple[str, ...] = ("temperature_",)
    temperature_: float

    def fit_temperature(self, data: HeldOut) -> Affine:
        """Return the map of the best temperature, or of a bounded one, of which there is a notice."""
        try:
            self.temperature_ = best_temperature(*data)
        except TemperatureError as problem:
            if self.strict:
                raise
            self.temperature_ = problem.bounded
            self.notice(f"{problem}; T = {self.temperature_:.3g} is used")
        return Affine(np.array(1 / self.temperature_), np.array(0.0))


class TemperatureScaling(Tempered):
    """Divide the logits by one temperature T, the minimiser of the NLL on held-out data: :doc:`/methods/temperature`.

    Where the NLL has no minimum, T is bounded, at 1/80 or 1,000 times the largest difference of logits in a row, or 1,
    and a notice says so.

    Args:
        strict: No mixing, and a ``ValueError`` where there is no minimum.

    Attributes:
        temperature_: T.

    Example:
        >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> scaling = TemperatureScaling(strict=True).fit(logits, np.array([0, 0, 0, 0]))
        >>> round(scaling.temperature_, 4)  # three of four are right: softmax gives 0.75 at 4 / log(3)
        3.641
        >>> scaling.predict_proba(logits[:1]).round(4)
        array([[0.75, 0.25]])
    """

    moves_classes = False

    def fit_map(self, data: HeldOut) -> Map:
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
    """Mix the temperature-scaled, the original and the uniform prediction: :doc:`/methods/ensemble_temperature`.

    Example:
        >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> scaling = EnsembleTemperatureScaling(strict=True).fit(logits, np.array([0, 0, 0, 0]))
        >>> scaling.predict_proba(logits[:1]).round(4)
        array([[0.75, 0.25]])
        >>> round(sum(scaling.weights_), 6)
        1.0
    """

    found = ("temperature_", "weights_")
    weights_: tuple[float, ...]

    def fit_map(self, data: HeldOut) -> Map:
        maps = self.fit_temperature(data), Logits(), Affine(np.array(0.0), np.array(0.0))
        wide = data.logits.astype(np.float64, copy=False)
        of_right = [evaluated(each.probabilities, wide)[data.of_target] for each in maps]
        weights = mixture_weights(np.stack(of_right, axis=1), data.weight)
        self.weights_ = tuple(weights.tolist())
        return self.mixed(Mixture(weights, maps), data)


class TemperatureError(ValueError):
    """Why no temperature is best; ``bounded`` is one to use in its place."""

    def __init__(self, text: str, bounded: float = 1.0) -> None:
        super().__init__(text)
        self.bounded = bounded


def best_temperature(
    logits: Any, target: Any, weight: Any = None, *, start: float | None = None, tolerance: float = 2e-4
) -> float:
    """Return the temperature that minimises the NLL; raises ``TemperatureError`` if there is none.

    Arrays or tensors. ``start`` is the log of a temperature to begin at, by default estimated from some of the samples;
    ``tolerance`` the size of the Newton step at which to stop: the relative error is about its square.
    """
    start = _estimate(logits, target, weight) if start is None else start
    return math.exp(-_TemperatureProblem(logits, target, weight).root(-start, tolerance))


def _estimate(logits: Any, target: Any, weight: Any) -> float:
    """Log of a temperature that is close to the best, at a fraction of the cost of one pass over all samples."""
    count, classes = logits.shape
    stride = count // max(SAMPLE_ROWS, SAMPLE // classes)
    if stride < 4:
        return 0.0
    some = None if weight is None else weight[::stride]
    return math.log(temperature_or_one(logits[::stride], target[::stride], some, start=0.0, tolerance=1e-2))


def temperature_or_one(logits: Any, target: Any, weight: Any = None, **search: float) -> float:
    """Return the best temperature, or 1 if there is none, as a start for other fits."""
    try:
        return best_temperature(logits, target, weight, **search)
    except TemperatureError:
        return 1.0


def standard_error(logits: Any, target: Any, log_temperature: float, *, weight: Any = None) -> float:
    r"""Return the standard error of the log of a fitted temperature, by the sandwich formula in :math:`\beta = 1/T`."""
    beta = math.exp(-log_temperature)
    squares = curvature = 0.0
    for chunk in _TemperatureProblem(logits, target, weight).chunks():
        mean, square = chunk.moments(beta)
        first = mean - chunk.true
        squares += chunk.total(first * first)
        curvature += chunk.total(square - mean * mean)
    return math.sqrt(squares) / (beta * curvature) if curvature > 0 else math.inf


class _Chunk(NamedTuple):
    """Some of the samples, in columns."""

    below: Array  # relative logits, (C, n)
    true: Array  # those of the label, (n,)
    weight: Array | None
    ones: Array  # (C,): a product with ones is the quickest sum over classes

    def total(self, values: Array) -> float:
        """Sum of values of the samples, times their weights, in float64."""
        return float((values if self.weight is None else values * self.weight).sum(dtype=np.float64))

    def moments(self, beta: float) -> tuple[Array, Array]:
        """Mean of each sample's relative logits under the softmax at beta = 1/T, and mean of their squares."""
        powers = self.below * beta
        np.maximum(powers, LOWEST_EXPONENTS[powers.dtype == np.float64], out=powers)
        np.exp(powers, out=powers)
        total = self.ones @ powers
        # Exponentials first, so that a vanishing one is there before a large logit is squared.
        powers *= self.below
        mean = self.ones @ powers
        powers *= self.below
        square = self.ones @ powers
        return mean / total, square / total


class _TemperatureProblem:
    """Logits relative to the largest of their row, in chunks, and the slope of their NLL in beta = 1/T."""

    def __init__(self, logits: Any, target: Any, weight: Any) -> None:
        self.logits, self.target = as_array(logits), as_array(target)
        self.weight = None if weight is None else as_array(weight)
        # Derivative of the summed NLL at beta = 0 and at infinity, once it is known at another place.
        self.ends: tuple[float, float] | None = None
        large = self.logits.dtype == np.float32 and self.logits.size > DOUBLE
        self._prepare(large and float(self.logits.max()) - float(self.logits.min()) <= SINGLE_RANGE)

    def _prepare(self, single: bool) -> None:
        self.single = single
        self.kept = list(self._prepared()) if self.logits.size <= KEPT else None

    def chunks(self) -> Iterable[_Chunk]:
        return self._prepared() if self.kept is None else self.kept

    def _prepared(self) -> Iterator[_Chunk]:
        count, classes = self.logits.shape
        rows = max(1, CHUNK // classes)
        # One class after the other if there are few: sums over classes are then sums of long vectors.
        dtype, order = np.float32 if self.single else np.float64, "C" if classes <= NARROW else "F"
        one: Array = np.ones(classes, dtype)
        for first in range(0, count, rows):
            at = slice(first, first + rows)
            below: Array = np.array(self.logits[at].T, dtype, order=order)  # type: ignore[call-overload]
            np.subtract(below, below.max(0), out=below)
            np.maximum(below, SMALLEST, out=below)
            true = below[self.target[at], np.arange(below.shape[1])]
            yield _Chunk(below, true, None if self.weight is None else self.weight[at], one)

    def slope(self, log_beta: float) -> tuple[float, float]:
        """First and second derivative of the summed NLL in beta."""
        first = second = true = equal = 0.0
        for chunk in self.chunks():
            mean, square = chunk.moments(math.exp(log_beta))
            first += chunk.total(mean)
            square -= mean * mean
            second += chunk.total(square)
            true += chunk.total(chunk.true)
            if self.ends is None:  # in the first pass, while the chunk is in the cache
                equal += chunk.total(chunk.ones @ chunk.below) / len(chunk.ones)
        if self.single and second < 1e-20:  # squares of tiny logits vanish in float32
            self._prepare(False)
            return self.slope(log_beta)
        if self.ends is None:
            self.ends = equal - true, -true
        return first - true, second

    def check(self) -> tuple[float, float]:
        """The slopes at both ends; an error unless it is negative at 0 and positive at infinity."""
        at_zero, at_infinity = self.ends or (0.0, 0.0)
        if at_zero < 0 < at_infinity:
            return at_zero, at_infinity
        spread = max(-float(chunk.below.min()) for chunk in self.chunks())
        limit = float(np.finfo(np.float32).max) / 2
        low, high = (min(max(spread * bound, 1 / limit), limit) for bound in BOUNDS)
        if spread == 0:
            raise TemperatureError(
                "the logits of every held-out sample are all equal, so no temperature has an effect: "
                "check that the model is trained and that these are its logits"
            )
        if at_infinity <= 0:
            raise TemperatureError(
                "every held-out prediction is right or tied for the top, so the best temperature is 0 and confidences "
                "would all be 1: fit on more data, or on data the model was not trained on", low,
            )  # fmt: skip
        raise TemperatureError(
            "the held-out predictions are no better than chance, so the best temperature is infinite: "
            "check that logits and target are in the same order and that the model is trained", high,
        )  # fmt: skip

    def root(self, here: float, tolerance: float) -> float:
        """The log of beta at which the increasing slope is 0: Newton and cubic steps, kept inside a shrinking bracket.

        The slope f rises from one end to the other in the shape of an S. The steps are those of
        log((f - ends[0]) / (ends[1] - f)), which is nearly straight in log(beta): few of them are needed.
        """
        first, second = self.slope(here)
        at_zero, at_infinity = self.check()
        low, high = -FARTHEST, FARTHEST
        before: tuple[float, float, float] | None = None
        goal = math.log(-at_zero / at_infinity)
        for _ in range(200):
            if first == 0:
                return here
            low, high = (here, high) if first < 0 else (low, here)
            there, done = here + math.copysign(2.0, -first), False
            risen, left = first - at_zero, at_infinity - first
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
                break
            first, second = self.slope(here)
        raise TemperatureError(
            f"the best temperature lies beyond exp({FARTHEST:g}) or below its inverse: "
            "scale the logits to a sensible range, or use more held-out data"
        )


def _cubic(one: tuple[float, float, float], two: tuple[float, float, float]) -> float:
    """The place of value 0, from two places with their values and derivatives: inverse Hermite interpolation."""
    (x, f, slope), (y, g, other) = one, two
    t = -f / (g - f)
    rise = (g - f) / slope, (g - f) / other
    return (
        x + (y - x) * t * t * (3 - 2 * t)
        + rise[0] * t * (1 - t) ** 2 + rise[1] * t * t * (t - 1)
    )  # fmt: skip


class VectorScaling(Calibrator):
    """Scale and shift the logit of every class, by the minimiser of the NLL: :doc:`/methods/vector`.

    The map depends on the constant that is added to all logits of a row, which a softmax does not see: use it on the
    logits of the model it was fitted for.

    Example:
        >>> logits = np.array([2.0, 2.0, 2.0, 2.0, -2.0, -2.0, -2.0, -2.0])  # binary: the logit of class 1
        >>> scaling = VectorScaling(strict=True).fit(logits, np.array([1, 1, 1, 0, 1, 0, 1, 0]))
        >>> scaling.predict_proba(np.array([2.0, -2.0]))[:, 1].round(4)
        array([0.75, 0.5 ])
    """

    def rows_needed(self, classes: int) -> int:
        """Five rows for each of the 2 C parameters."""
        return 10 * classes

    def fit_map(self, data: HeldOut) -> Map:
        classes = data.logits.shape[1]
        start = Correction(np.full(classes, 1 / temperature_or_one(*data) - 1), np.zeros(classes))
        pull = PULL / (2 * classes)
        found = fit_affine(data, Penalty(0.0, pull, pull), start)
        return self.mixed(Affine(1 + found.matrix, found.shift), data)


class MatrixScaling(Calibrator):
    r"""Map the logits by a full matrix and a shift, kept near diagonal by the ODIR penalty: :doc:`/methods/matrix`.

    Args:
        off_diagonal_penalty: :math:`\lambda`, or ``"cv"``: the power of ten with the lowest NLL in cross-validation.
        bias_penalty: :math:`\mu`, or ``"cv"``. If both are, :math:`\lambda` is chosen first, with :math:`\mu = 1`.
        strict: See :class:`Calibrator`.

    Example:
        >>> logits = np.random.default_rng(0).normal(size=(200, 3))
        >>> swapped = np.array([1, 0, 2])[logits.argmax(1)]  # the model mistakes class 0 for class 1
        >>> scaling = MatrixScaling(0.001, 0.001).fit(logits, swapped)
        >>> bool((scaling(logits).argmax(1) == swapped).mean() > 0.95)
        True
    """

    found = ("chosen_penalties_",)
    chosen_penalties_: tuple[float, float]
    on_log_probabilities = False

    def __init__(
        self, off_diagonal_penalty: Strength = "cv", bias_penalty: Strength = "cv", *, strict: bool = False
    ) -> None:
        super().__init__(strict=strict)
        for name, value in (("off_diagonal_penalty", off_diagonal_penalty), ("bias_penalty", bias_penalty)):
            if isinstance(value, str):
                inputs.check_choice(name, value, ("cv",))
            else:
                inputs.check_range(name, value, low=0.0)
        self.off_diagonal_penalty = off_diagonal_penalty
        self.bias_penalty = bias_penalty

    def rows_needed(self, classes: int) -> int:
        """Ten rows for each class."""
        return 10 * classes

    def fit_map(self, data: HeldOut) -> Map:
        samples, classes = data.logits.shape
        start = Correction((1 / temperature_or_one(*data) - 1) * np.eye(classes), np.zeros(classes))
        features = data
        if self.on_log_probabilities:
            features = data._replace(logits=evaluated(lambda xp, rows: xp.log_softmax(rows), data.logits))
        self.chosen_penalties_ = self._penalties(features, start)
        # In single precision, in which large problems are solved, no more can be reached.
        tolerance = 1e-6 if samples * classes**2 > CROSS_VALIDATED else 1e-8
        found = fit_affine(features, _penalty(classes, *self.chosen_penalties_), start, tolerance=tolerance)
        affine = Affine(found.matrix + np.eye(classes), found.shift, of_log_probabilities=self.on_log_probabilities)
        return self.mixed(affine, data)

    def _penalties(self, data: HeldOut, start: Correction) -> tuple[float, float]:
        off_diagonal, bias = self.off_diagonal_penalty, self.bias_penalty
        samples, classes = data.logits.shape
        if data.count < FOLDS or samples * classes**2 > CROSS_VALIDATED:
            # As strong as the prior of structured matrix scaling.
            off_diagonal = (classes * (classes - 1)) ** 2 / data.count if off_diagonal == "cv" else off_diagonal
            bias = classes**2 / data.count if bias == "cv" else bias
        if off_diagonal == "cv":
            grid = [(strength, 1.0 if bias == "cv" else bias) for strength in GRID]
            off_diagonal = self._cross_validated(data, start, grid)[0]
        if bias == "cv":
            bias = self._cross_validated(data, start, [(off_diagonal, strength) for strength in GRID])[1]
        return float(off_diagonal), float(bias)

    def _cross_validated(
        self, data: HeldOut, start: Correction, grid: list[tuple[float, float]]
    ) -> tuple[float, float]:
        """The penalties with the lowest held-out NLL; the search stops once two in a row have not lowered it."""
        number = fold_of(data, FOLDS)
        parts = [(data.take(number != fold), data.take(number == fold)) for fold in range(FOLDS)]
        fits = [start] * FOLDS
        totals: list[float] = []
        for penalties in grid:
            total = 0.0
            penalty = _penalty(data.logits.shape[1], *penalties)
            for fold, (kept, out) in enumerate(parts):
                fits[fold] = fit_affine(kept, penalty, fits[fold], tolerance=1e-5)
                logits = fits[fold].apply(out.logits.astype(np.float64))
                total += nll_and_residual(logits, out.target, out.weight)[0]
            totals.append(total)
            if len(totals) - 1 - totals.index(min(totals)) == 2:
                break
        return grid[totals.index(min(totals))]


class DirichletCalibration(MatrixScaling):
    """Matrix scaling of log-probabilities: arguments are those of :class:`MatrixScaling`, :doc:`/methods/dirichlet`.

    Example:
        >>> logits = np.tile(4 * np.eye(3), (4, 1))
        >>> target = np.array([0, 1, 2] * 3 + [1, 2, 0])  # sure of all, right in three of four
        >>> bool(DirichletCalibration(0.01, 0.01).fit(logits, target).predict_proba(logits[:1])[0, 0] < 0.8)
        True
    """

    on_log_probabilities = True


def _penalty(classes: int, off_diagonal: float, bias: float) -> Penalty:
    """ODIR's means as factors of squares, with the weak pull that bounds the diagonal on separable data."""
    between = classes * (classes - 1)
    return Penalty(off_diagonal / between, PULL / (2 * classes), (bias + PULL) / classes)


class StructuredMatrixScaling(Tempered):
    """Correct temperature-scaled log-probabilities by a matrix and a shift, with a prior (SMS): :doc:`/methods/sms`.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> logits = draw.normal(size=(2000, 3))
        >>> target = (2 * logits + draw.gumbel(size=(2000, 3))).argmax(1)  # of a softmax of twice the logits
        >>> two = target == 2  # half of these become class 1
        >>> target[two] = draw.integers(1, 3, two.sum())
        >>> scaling = StructuredMatrixScaling().fit(logits, target)
        >>> scaling.predict_proba(np.array([[0.0, 0.0, 3.0]])).round(1)
        array([[0. , 0.4, 0.6]])
    """

    least_rows = 30
    full = True
    # Factor of the penalties, and distance to the minimum at which the search ends.
    strength, tolerance = 1.0, 2e-9

    def __init__(self) -> None:
        super().__init__()

    def features(self, data: HeldOut) -> tuple[Map, Array]:
        """Map of the temperature-scaled probabilities, mixed with the uniform distribution; and their logarithms."""
        scaled = self.mixed(self.fit_temperature(data), data)
        small = data.logits.size <= SINGLE_PRECISION
        logits = data.logits.astype(np.float64, copy=False) if small else data.logits
        return scaled, evaluated(scaled.logits, logits)

    def fit_map(self, data: HeldOut) -> Map:
        scaled, features = self.features(data)
        classes = data.logits.shape[1]
        own = self.strength * classes / data.count
        start = Correction(np.zeros((classes, classes) if self.full else classes), np.zeros(classes))
        penalty = Penalty(own * (classes - 1), own, own)
        found = fit_affine(data._replace(logits=features), penalty, start, tolerance=self.tolerance)
        whole = found.matrix + (np.eye(classes) if self.full else 1.0)
        return Affine(whole, found.shift, scaled)


class StructuredVectorScaling(StructuredMatrixScaling):
    """Structured matrix scaling with a diagonal matrix: a scale and a shift for every class: :doc:`/methods/svs`.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> logits = draw.normal(size=(2000, 3))
        >>> target = (2 * logits + [0.0, 0.0, 1.0] + draw.gumbel(size=(2000, 3))).argmax(1)
        >>> scaling = StructuredVectorScaling().fit(logits, target)
        >>> int(scaling.map_.shift.argmax())  # the model thinks too little of class 2
        2
    """

    full, tolerance = False, 1e-8
