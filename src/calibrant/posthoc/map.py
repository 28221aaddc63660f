"""Maps: what a fit makes. Data of a few kinds, evaluated by one code on NumPy arrays, torch tensors and ONNX graphs.

A map is a dataclass of arrays, numbers and further maps. So it is saved, moved to a device, folded into a layer and
exported by its kind, whatever method made it. ``of`` is the map whose result it takes: the chain ends in ``Logits``.
"""

import functools
import math
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from calibrant.frames import is_tensor

Array = Any  # a NumPy array, a torch tensor, or a node of an ONNX graph
View = Literal["class-wise", "top-label"]
# Float32's smallest normal number, and its logarithm: no log-probability is below it.
TINY = float(np.finfo(np.float32).tiny)
FLOOR = math.log(TINY)
# Logits beyond this overflow in float32 when they are scaled.
HUGE = 1e30
# Log-odds beyond these would give a probability below float32's smallest normal number.
FARTHEST_ODDS = 87.0
# Elements of the rows that NumPy evaluates at a time: they stay in the cache, and need little memory.
PIECE, PIECE_ROWS = 2**17, 512


class NumpyOps:
    """The operations that maps need, on NumPy arrays. Those of torch and of ONNX graphs have the same names."""

    exp: Any = np.exp
    log: Any = np.log
    log1p: Any = np.log1p
    logaddexp: Any = np.logaddexp
    minimum: Any = np.minimum
    maximum: Any = np.maximum
    where: Any = staticmethod(np.where)
    concat: Any = staticmethod(np.concatenate)

    def arange(self, count: int) -> Array:
        return np.arange(count)

    def const(self, values: Any, like: Array) -> Array:
        """An array of a map, in the type and on the device of the rows."""
        return np.asarray(values, like.dtype)

    def wide(self, rows: Array) -> Array:
        """Float64, or float32 on a device without it."""
        return rows.astype(np.float64, copy=False)

    def single(self, rows: Array) -> Array:
        return rows.astype(np.float32, copy=False)

    def like(self, rows: Array, other: Array) -> Array:
        return rows.astype(other.dtype, copy=False)

    def is_double(self, rows: Array) -> bool:
        return bool(rows.dtype == np.float64)

    def has_bits(self) -> bool:
        """Whether the bits of a number can be read."""
        return True

    def largest(self, rows: Array) -> Array:
        return rows.max(1, keepdims=True)

    def total(self, rows: Array) -> Array:
        return rows.sum(1, keepdims=True)

    def argmax(self, rows: Array) -> Array:
        return rows.argmax(1)[:, None]

    def take(self, rows: Array, places: Array) -> Array:
        """Entries of each row at its places."""
        return np.take_along_axis(rows, places, 1)

    def log_softmax(self, rows: Array) -> Array:
        below = rows - rows.max(1, keepdims=True)
        return below - np.log(np.exp(below).sum(1, keepdims=True))

    def softmax(self, rows: Array) -> Array:
        powers = np.exp(rows - rows.max(1, keepdims=True))
        powers /= powers.sum(1, keepdims=True)
        return powers

    def sigmoid(self, odds: Array) -> Array:
        return 1 / (1 + np.exp(-odds))

    def descending(self, rows: Array) -> Array:
        """Order of each row from its largest entry; equal ones stay in order."""
        return (-rows).argsort(axis=1, kind="stable")

    def inverse(self, order: Array) -> Array:
        """The inverse permutation of each row."""
        return order.argsort(axis=1)

    def cumsum(self, rows: Array) -> Array:
        return rows.cumsum(1)

    def search(self, edges: Array, positions: Array, right: bool) -> Array:
        """Where to insert positions in ascending edges, row by row."""
        side: Literal["left", "right"] = "right" if right else "left"
        return np.stack([np.searchsorted(*row, side=side) for row in zip(edges, positions, strict=True)])


class TorchOps(NumpyOps):
    """The same on torch tensors of any device, differentiable."""

    def __init__(self) -> None:
        self.torch = torch = sys.modules["torch"]
        self.exp, self.log, self.log1p, self.where = torch.exp, torch.log, torch.log1p, torch.where
        self.logaddexp = torch.logaddexp
        self.concat = torch.cat

    def minimum(self, rows: Array, bound: Array) -> Array:
        return rows.clamp_max(bound) if isinstance(bound, int | float) else self.torch.minimum(rows, bound)

    def maximum(self, rows: Array, bound: Array) -> Array:
        return rows.clamp_min(bound) if isinstance(bound, int | float) else self.torch.maximum(rows, bound)

    def arange(self, count: int) -> Array:
        return self.torch.arange(count)

    def const(self, values: Any, like: Array) -> Array:
        return self.torch.as_tensor(values, dtype=like.dtype, device=like.device)

    def wide(self, rows: Array) -> Array:
        return rows.float() if rows.device.type == "mps" else rows.double()

    def single(self, rows: Array) -> Array:
        return rows.float()

    def like(self, rows: Array, other: Array) -> Array:
        return rows.to(other.dtype)

    def is_double(self, rows: Array) -> bool:
        return bool(rows.dtype == self.torch.float64)

    def has_bits(self) -> bool:
        from calibrant.torch_private import is_exporting_to_onnx

        return not is_exporting_to_onnx()

    def largest(self, rows: Array) -> Array:
        return rows.amax(1, keepdim=True)

    def argmax(self, rows: Array) -> Array:
        return rows.argmax(1, keepdim=True)

    def take(self, rows: Array, places: Array) -> Array:
        return rows.gather(1, places)

    def log_softmax(self, rows: Array) -> Array:
        return rows.log_softmax(1)

    def softmax(self, rows: Array) -> Array:
        return rows.softmax(1)

    def sigmoid(self, odds: Array) -> Array:
        return odds.sigmoid()

    def descending(self, rows: Array) -> Array:
        from calibrant.torch_private import is_exporting_to_onnx

        if is_exporting_to_onnx():  # it has no stable sort, but its TopK leaves equal values in order
            return rows.topk(rows.shape[1], dim=1).indices
        return rows.argsort(dim=1, descending=True, stable=True)

    def inverse(self, order: Array) -> Array:
        places = self.torch.arange(order.shape[1], device=order.device).expand_as(order)
        return self.torch.zeros_like(order).scatter(1, order, places)

    def search(self, edges: Array, positions: Array, right: bool) -> Array:
        from calibrant.torch_private import is_exporting

        if is_exporting() or not edges.shape[1]:  # ONNX has no searchsorted
            return halving_search(
                self, edges, positions, right, self.torch.zeros_like(positions, dtype=self.torch.long)
            )
        return self.torch.searchsorted(edges.contiguous(), positions.contiguous(), right=right)


def halving_search(xp: Any, edges: Array, positions: Array, right: bool, place: Array) -> Array:
    """Equal to ``search``, by ``log2(m)`` look-ups; ``place`` is 0 in the shape of the positions."""
    length = int(edges.shape[1])
    for power in reversed(range(length.bit_length())):
        further = place + 2**power
        there = xp.take(edges, xp.minimum(further, length) - 1)
        beyond = (there > positions) if right else (there >= positions)
        place = xp.where((further > length) | beyond, place, further)
    return place


class LogScores(NamedTuple):
    """Logarithms of probabilities and of their complements, ``(rows, N)``: both exact where the other is near 1."""

    log_p: Array
    log_not: Array

    def probability(self, xp: Any) -> Array:
        return xp.like(_exp(xp, xp.wide(self.log_p), xp.is_double(self.log_p)), self.log_p)

    def floored(self, xp: Any) -> "LogScores":
        return LogScores(xp.maximum(self.log_p, FLOOR), xp.maximum(self.log_not, FLOOR))

    def log_odds(self, xp: Any) -> Array:
        floored = self.floored(xp)
        return floored.log_p - floored.log_not


def _exp(xp: Any, log_p: Array, double: bool) -> Array:
    """Probabilities that are to be rounded: in float32 those below exp(-104) are 0.

    They are not below the smallest normal number of float64, since operations on smaller ones take 50 times as long.
    """
    return xp.exp(xp.maximum(log_p, -708.0 if double else -104.0))


def class_scores(xp: Any, logits: Array) -> LogScores:
    """Score of every class, ``(N, C)``.

    They are computed in float64 and rounded once: other libraries then find the same bits, and so the same step of a
    step function.
    """
    log_p = xp.log_softmax(xp.wide(logits))
    if logits.shape[1] == 2:
        return LogScores(xp.like(log_p, logits), xp.like(xp.concat((log_p[:, 1:], log_p[:, :1]), 1), logits))
    _, is_top, log_not_top = _top(xp, logits, log_p)
    # All but the top are at most a half; at the top, which is replaced, an unbounded slope would be NaN times 0.
    rest = xp.log1p(-xp.minimum(_exp(xp, log_p, xp.is_double(logits)), 0.5))
    return LogScores(xp.like(log_p, logits), xp.like(xp.where(is_top, log_not_top, rest), logits))


def top_scores(xp: Any, logits: Array) -> tuple[LogScores, Array]:
    """Score of the predicted class, ``(1, N)``, and where that class is, ``(N, C)``."""
    log_p = xp.log_softmax(xp.wide(logits))
    top, is_top, log_not = _top(xp, logits, log_p)
    return LogScores(xp.like(xp.take(log_p, top).T, logits), xp.like(log_not.T, logits)), is_top


def _top(xp: Any, logits: Array, log_p: Array) -> tuple[Array, Array, Array]:
    """The top class, a mask of it, and the logarithm of one minus its probability.

    That is summed over the other classes where a subtraction would cancel.
    """
    top = xp.argmax(logits)
    is_top = top == xp.const(xp.arange(int(logits.shape[1])), top)
    log_top = xp.take(log_p, top)
    others = xp.where(is_top, -math.inf, log_p)
    most = xp.largest(others)
    rest = most + xp.log(xp.total(xp.exp(others - most)))
    subtracted = xp.log1p(-xp.minimum(xp.exp(log_top), 0.5))
    return top, is_top, xp.where(log_top < math.log(0.5), subtracted, rest)


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a map: its fields are arrays, numbers, text, and other parts."""

    kinds: ClassVar[dict[str, type["Part"]]] = {}

    def __init_subclass__(cls) -> None:
        Part.kinds[cls.__name__] = cls

    def parts(self) -> Iterator[tuple[str, "Part"]]:
        """All parts with their dotted names, this one first."""
        yield "", self
        for field in fields(self):
            value = getattr(self, field.name)
            for number, inner in enumerate(value if isinstance(value, tuple) else (value,)):
                if isinstance(inner, Part):
                    name = f"{field.name}.{number}" if isinstance(value, tuple) else field.name
                    yield from ((f"{name}.{rest}".rstrip("."), part) for rest, part in inner.parts())

    def arrays(self) -> dict[str, Array]:
        """All arrays, by their dotted names."""
        return {
            f"{name}.{field.name}".lstrip("."): value
            for name, part in self.parts()
            for field in fields(part)
            if hasattr(value := getattr(part, field.name), "dtype")
        }

    def rebuilt(self, value_of: Callable[[str, Any], Any], prefix: str = "") -> Any:
        """The same map with other arrays: each is what ``value_of`` gives for its name and itself."""

        def new(name: str, value: Any) -> Any:
            if isinstance(value, Part):
                return value.rebuilt(value_of, name)
            if isinstance(value, tuple):
                return tuple(new(f"{name}.{number}", inner) for number, inner in enumerate(value))
            return value_of(name, value) if hasattr(value, "dtype") else value

        names = {field.name: f"{prefix}.{field.name}".lstrip(".") for field in fields(self)}
        return replace(self, **{name: new(path, getattr(self, name)) for name, path in names.items()})

    def described(self) -> dict[str, Any]:
        """The map without its arrays, as JSON."""

        def plain(value: Any) -> Any:
            if isinstance(value, Part):
                return value.described()
            return [plain(each) for each in value] if isinstance(value, tuple) else value

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": type(self).__name__} | {
            name: "array" if hasattr(value, "dtype") else plain(value) for name, value in values.items()
        }


def from_description(description: Any, arrays: dict[str, Array], prefix: str = "") -> Any:
    """The inverse of ``described`` and ``arrays``; raises ``KeyError`` or ``TypeError`` if they do not fit."""
    if isinstance(description, list):
        return tuple(from_description(each, arrays, f"{prefix}.{k}") for k, each in enumerate(description))
    if not isinstance(description, dict):
        return description
    given = {name: value for name, value in description.items() if name != "kind"}
    paths = {name: f"{prefix}.{name}".lstrip(".") for name in given}
    kind = Part.kinds[description["kind"]]
    return kind(**{
        name: arrays[paths[name]] if value == "array" else from_description(value, arrays, paths[name])
        for name, value in given.items()
    })  # fmt: skip


class Map(Part):
    """A map of ``(N, C)`` logits: calibrated logits, whose softmax are the calibrated probabilities.

    Each kind computes one of the two directly, and gets the other from it.
    """

    def logits(self, xp: Any, rows: Array) -> Array:
        """Calibrated logits, ``(N, C)``."""
        return xp.log(xp.maximum(self.probabilities(xp, rows), TINY))

    def probabilities(self, xp: Any, rows: Array) -> Array:
        """Calibrated probabilities, ``(N, C)``."""
        return xp.softmax(self.logits(xp, rows))


@dataclass(frozen=True, eq=False)
class Logits(Map):
    """The logits as they are."""

    def logits(self, xp: Any, rows: Array) -> Array:
        return xp.minimum(xp.maximum(rows, -HUGE), HUGE)


@dataclass(frozen=True, eq=False)
class Affine(Map):
    """Logits, or log-probabilities, times a matrix plus a shift.

    ``matrix`` is one scale, a diagonal ``(C,)`` or ``(C, C)``; ``shift`` is ``(C,)`` or a 0.
    """

    matrix: Array
    shift: Array
    of: Map = Logits()
    of_log_probabilities: bool = False

    def logits(self, xp: Any, rows: Array) -> Array:
        x = self.of.logits(xp, rows)
        if self.of_log_probabilities:
            x = xp.maximum(xp.log_softmax(x), -HUGE)
        matrix, shift = xp.const(self.matrix, x), xp.const(self.shift, x)
        found = x @ matrix.T + shift if self.matrix.ndim == 2 else x * matrix + shift
        return xp.minimum(xp.maximum(found, -HUGE), HUGE)


@dataclass(frozen=True, eq=False)
class Mixed(Map):
    """A mixture with the uniform distribution, whose share this is."""

    share: float
    of: Map

    def logits(self, xp: Any, rows: Array) -> Array:
        kept = xp.log_softmax(self.of.logits(xp, rows)) + math.log1p(-self.share)
        return xp.logaddexp(kept, xp.const(math.log(self.share / int(rows.shape[1])), kept))

    def probabilities(self, xp: Any, rows: Array) -> Array:
        return self.of.probabilities(xp, rows) * (1 - self.share) + self.share / int(rows.shape[1])


def mixed(of: Map, share: float) -> Map:
    """A map mixed with the uniform distribution, if its share is not 0."""
    return Mixed(float(share), of) if share else of


@dataclass(frozen=True, eq=False)
class Mixture(Map):
    """A weighted mean of the probabilities of several maps."""

    weights: Array
    maps: tuple[Map, ...]

    def probabilities(self, xp: Any, rows: Array) -> Array:
        parts = [
            part.probabilities(xp, rows) * xp.const(self.weights[k], rows) for k, part in enumerate(self.maps)
        ]  # fmt: skip
        return functools.reduce(operator.add, parts)


@dataclass(frozen=True, eq=False)
class Uniform(Map):
    """Equal probabilities, as a part of a mixture."""

    def logits(self, xp: Any, rows: Array) -> Array:  # noqa: ARG002
        return rows * 0


@dataclass(frozen=True, eq=False)
class OddsCurve(Map):
    """A line plus a natural cubic spline of the log-odds of two classes.

    Between the ``knots``, ``pieces`` are the linear, quadratic and cubic rise of each interval; ``ends`` are the value
    at the first knot and the slopes below the first and above the last. ``line`` has slope and shift.
    """

    line: Array
    knots: Array
    pieces: Array
    ends: Array
    of: Map

    def logits(self, xp: Any, rows: Array) -> Array:
        log_p = xp.log_softmax(self.of.logits(xp, rows))
        odds = log_p[:, 1:] - log_p[:, :1]
        knots = self.knots
        low, width = xp.const(knots[:-1], odds), xp.const(knots[1:] - knots[:-1], odds)
        slopes = [xp.const(self.pieces[:, k], odds) for k in range(3)]
        start, before, after = (xp.const(self.ends[k], odds) for k in range(3))
        # How far each piece has been crossed, from 0 to 1: the rises of all pieces add up.
        t = xp.minimum(xp.maximum((odds - low) / width, 0.0), 1.0)
        rises = xp.total(t * (slopes[0] + t * (slopes[1] + t * slopes[2])))
        below = xp.minimum(odds - xp.const(knots[0], odds), 0.0)
        above = xp.maximum(odds - xp.const(knots[-1], odds), 0.0)
        curve = start + rises + before * below + after * above
        slope, shift = (xp.const(self.line[k], odds) for k in range(2))
        return xp.concat((odds * 0, slope * odds + shift + curve), 1)


class Curve(Part):
    """A map of scores, one for each row of them."""

    def of(self, xp: Any, scores: LogScores) -> tuple[Array, Array]:
        """Calibrated probabilities and their complements, ``(rows, N)``: near 1 only the complement is exact."""
        probability = self.at(xp, scores.probability(xp))
        return probability, 1 - probability

    def at(self, xp: Any, position: Array) -> Array:
        """Value at positions ``(rows, N)``."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Steps(Curve):
    """Values ``(rows, m + 1)`` of right-closed bins between ascending inner edges ``(rows, m)``."""

    edges: Array
    values: Array

    def at(self, xp: Any, position: Array) -> Array:
        edges, values = xp.const(self.edges, position), xp.const(self.values, position)
        return xp.take(values, xp.search(edges, position, False))


@dataclass(frozen=True, eq=False)
class Lines(Curve):
    """Straight lines between ascending knots ``(rows, m)``, of which some may be repeated; constant beyond the ends."""

    knots: Array
    values: Array

    def at(self, xp: Any, position: Array) -> Array:
        knots, values = xp.const(self.knots, position), xp.const(self.values, position)
        left = xp.search(xp.const(self.knots[:, 1:-1], position), position, True)
        low, high = xp.take(knots, left), xp.take(knots, left + 1)
        width = high - low
        share = xp.where(width > 0, (position - low) / xp.where(width > 0, width, xp.const(1.0, width)), 0 * width)
        share = xp.minimum(xp.maximum(share, 0.0), 1.0)
        start, end = xp.take(values, left), xp.take(values, left + 1)
        return start + share * (end - start)


@dataclass(frozen=True, eq=False)
class LogOdds(Curve):
    """The sigmoid of a log p - b log(1 - p) + c, with coefficients (a, b, c), ``(rows, 3)``."""

    coefficients: Array

    def of(self, xp: Any, scores: LogScores) -> tuple[Array, Array]:
        floored = scores.floored(xp)
        a, b, c = (xp.const(self.coefficients[:, k : k + 1], scores.log_p) for k in range(3))
        odds = a * floored.log_p - b * floored.log_not + c
        odds = xp.minimum(xp.maximum(odds, -FARTHEST_ODDS), FARTHEST_ODDS)
        return xp.sigmoid(odds), xp.sigmoid(-odds)


@dataclass(frozen=True, eq=False)
class TwoSteps(Curve):
    """The two values of Venn-Abers prediction, step functions of the log-odds; that of a miss by its mirror."""

    lower: Steps
    upper: Steps

    def bounds(self, xp: Any, scores: LogScores) -> tuple[Array, Array]:
        """Value as a miss and as a hit."""
        odds = scores.log_odds(xp)
        return 1 - self.lower.at(xp, -odds), self.upper.at(xp, odds)

    def of(self, xp: Any, scores: LogScores) -> tuple[Array, Array]:
        below, above = self.bounds(xp, scores)
        both = 1 - below + above
        return above / both, (1 - below) / both


@dataclass(frozen=True, eq=False)
class Curves(Map):
    """Scores mapped by a curve: of every class, with rows divided by their sum; or of the predicted class.

    ``single`` says that the curve was fitted on float32 scores. A table has its steps at the scores of the fit, and the
    same score in another precision may lie on the other side: so float64 logits are rounded first.
    """

    curve: Curve
    view: View
    single: bool

    def scores(self, xp: Any, rows: Array) -> tuple[LogScores, Array]:
        """Scores ``(rows, N)``: of the top class; of class 1 of two; or of all. And the mask of the top class."""
        rounded = self.rounded(xp, rows)
        if self.view == "top-label":
            return top_scores(xp, rounded)
        found, first = class_scores(xp, rounded), int(rounded.shape[1] == 2)
        return LogScores(found.log_p[:, first:].T, found.log_not[:, first:].T), None

    def rounded(self, xp: Any, rows: Array) -> Array:
        if not (self.single and xp.is_double(rows)):
            return rows
        return xp.single(xp.minimum(xp.maximum(rows, -HUGE), HUGE))

    def probabilities(self, xp: Any, rows: Array) -> Array:
        scores, is_top = self.scores(xp, rows)
        mapped, complement = (part.T for part in self.curve.of(xp, scores))
        if self.view == "top-label":
            rounded = self.rounded(xp, rows)
            others = _divided(xp, xp.softmax(xp.where(is_top, -math.inf, rounded)), complement, mapped)
            found = xp.where(is_top, mapped, others)
        elif rows.shape[1] == 2:
            found = xp.concat((complement, mapped), 1)
        else:
            total = xp.total(mapped)
            some = total > TINY
            divided = mapped / xp.where(some, total, xp.const(1.0, total))
            found = xp.where(some, divided, scores.probability(xp).T)
        return xp.like(found, rows)


def _divided(xp: Any, shares: Array, left: Array, confidence: Array) -> Array:
    """Divide the rest among the other classes, so that none overtakes the top class if that is possible.

    Args:
        xp: Operations.
        shares: Proportions of the others, ``(N, C)`` with rows that sum to one.
        left: Probability to divide, ``(N, 1)``.
        confidence: Probability of the top class, ``(N, 1)``.
    """
    equal = 1 / (int(shares.shape[1]) - 1)
    # Slightly below, so that a tie goes to the top class whatever its index.
    ceiling = confidence * (1 - (4.5e-16 if xp.is_double(confidence) else 2.4e-7))
    kept = confidence >= 1 / int(shares.shape[1])
    largest = xp.largest(shares)
    excess, room = left * largest - ceiling, left * (largest - equal)
    level = xp.where(kept & (excess > 0) & (room > 0), excess / xp.where(room > 0, room, xp.const(1.0, room)), 0 * room)
    level = xp.minimum(xp.maximum(level, 0.0), 1.0)
    others = left * (shares + level * (equal - shares))
    return xp.where(kept, xp.minimum(others, ceiling), others)


def operations(rows: Array) -> NumpyOps:
    """The operations for these rows."""
    return TorchOps() if is_tensor(rows) else NumpyOps()


def evaluated(function: Callable[..., Any], rows: Array, *more: Array) -> Any:
    """Apply a function of operations and rows, such as ``map.probabilities``: to arrays in pieces, to tensors at once.

    ``more`` are further arguments with one entry for each row.
    """
    if is_tensor(rows):
        torch, kind = sys.modules["torch"], rows.device.type
        # The eight bits of precision of autocast's products are too few for a confidence.
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            return function(TorchOps(), rows, *more)
    step = max(PIECE_ROWS, PIECE // max(1, rows.shape[1]))
    with np.errstate(all="ignore"):
        if len(rows) <= step:
            return function(NumpyOps(), rows, *more)
        starts = range(0, len(rows), step)
        pieces = [function(NumpyOps(), *(part[start : start + step] for part in (rows, *more))) for start in starts]
    if isinstance(pieces[0], tuple):
        return tuple(np.concatenate(each) for each in zip(*pieces, strict=True))
    return np.concatenate(pieces)
