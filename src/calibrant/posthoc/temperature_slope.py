"""The slope of the NLL in the inverse temperature, and the temperature at which it is 0."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.numerics import accumulation_dtype

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
SMALLEST = torch.finfo(torch.float32).min
# The search for log(1/T) goes no further than this on either side of 0.
FARTHEST = 80.0


class Problem(NamedTuple):
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
        return float(values.sum(dtype=np.float64 if isinstance(values, np.ndarray) else torch.float64))

    def moments(self, beta: float) -> tuple[Any, Any]:
        """Mean of each sample's relative logits under the softmax at beta = 1/T, and mean of their squares."""
        powers = self.below * beta
        if isinstance(powers, np.ndarray):
            np.maximum(powers, LOWEST_EXPONENTS[powers.dtype == np.float64], out=powers)
            # NumPy's exponential of float64 is vectorised only with AVX-512; torch's is with AVX2 too.
            torch.from_numpy(powers).exp_()
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

    def __init__(self, logits: Tensor, target: Tensor, weight: Tensor | None, start: float | None = None) -> None:
        self.logits, self.target, self.weight = logits, target, weight
        self.start = self._estimate() if start is None else start
        self._known: dict[float, tuple[float, float]] = {}
        self._true = self._equal = 0.0
        single = logits.dtype != torch.float64 and logits.numel() > DOUBLE and _range(logits) <= SINGLE_RANGE
        self._prepare(torch.float32 if single else accumulation_dtype(logits))

    def _prepare(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._kept = list(self._prepared()) if self.logits.numel() <= KEPT else None

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
        logits, target, weight = self.logits.detach(), self.target, self.weight
        if logits.device.type != "cpu":
            ones = torch.ones(classes, dtype=self._dtype, device=logits.device)
            for first in range(0, count, rows):
                at = slice(first, first + rows)
                part = logits[at].to(self._dtype)
                below = (part - part.amax(1, keepdim=True)).clamp_(min=SMALLEST)
                true = below.gather(1, target[at].unsqueeze(1)).squeeze(1)
                yield Chunk(below.T, true, None if weight is None else weight[at], ones)
            return
        array, labels, weights = logits.numpy(), target.numpy(), None if weight is None else weight.numpy()
        dtype = np.float32 if self._dtype == torch.float32 else np.float64
        one = np.ones(classes, dtype)
        # One class after the other if there are few: sums over classes are then sums of long vectors.
        narrow = classes <= NARROW
        for first in range(0, count, rows):
            at = slice(first, first + rows)
            columns = np.array(array[at].T, dtype, order="C" if narrow else "F")
            largest = columns.max(0) if narrow else torch.from_numpy(columns).amax(0).numpy()
            np.subtract(columns, largest, out=columns)
            np.maximum(columns, SMALLEST, out=columns)
            which = labels[at]
            true = columns[which, np.arange(len(which))]
            yield Chunk(columns, true, None if weights is None else weights[at], one)

    def slope(self, log_beta: float) -> tuple[float, float]:
        """First and second derivative of the summed NLL in beta = 1/T."""
        if log_beta in self._known:
            return self._known[log_beta]
        found = self._pass(log_beta)
        if self._dtype == torch.float32 and found[1] < 1e-20:  # squares of tiny logits vanish in float32
            self._prepare(accumulation_dtype(self.logits))
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

    def problem(self) -> Problem | None:
        """The slope of the NLL in 1/T must be negative at 0 and positive at infinity."""
        self.slope(self.start)
        at_zero, at_infinity = self.ends
        if at_zero < 0 < at_infinity:
            return None
        if self.spread() == 0:
            return Problem(
                "the logits of every held-out sample are all equal, so no temperature has an effect: "
                "check that the model is trained and that these are its logits", 0.0,
            )  # fmt: skip
        if at_infinity <= 0:
            return Problem(
                "every held-out prediction is right or tied for the top, so the best temperature is 0 and confidences "
                "would all be 1: fit on more data, or on data the model was not trained on", -1.0,
            )  # fmt: skip
        return Problem(
            "the held-out predictions are no better than chance, so the best temperature is infinite: "
            "check that logits and target are in the same order and that the model is trained", 1.0,
        )  # fmt: skip

    def root(self, tolerance: float = 2e-4) -> float | None:
        """The log of 1/T at which the slope is 0, to about the square of the tolerance; None if it is out of reach."""
        self.slope(self.start)
        return _root(self.slope, self.ends, self.start, tolerance)


def _range(logits: Tensor) -> float:
    least, most = logits.detach().aminmax()
    return float(most) - float(least)


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
