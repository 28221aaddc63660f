"""Maps: what a fit makes. Data of a few kinds, evaluated by one code on NumPy arrays, torch tensors and ONNX graphs.

A map is a dataclass of arrays, numbers and maps; ``of`` is the map whose result it takes: the chain ends in ``Logits``.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields
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
NO_BITS = "ONNX cannot hash the bits of logits for randomised sets: fit with randomized=False to export"
# Elements of the rows that NumPy evaluates at a time: they stay in the cache, and need little memory.
PIECE, PIECE_ROWS = 2**17, 512


class NumpyOps:
    """The operations that maps need, on NumPy arrays. Those of torch and of ONNX graphs have the same names."""

    exp: Any = np.exp
    log: Any = np.log
    log1p: Any = np.log1p
    clip: Any = staticmethod(np.clip)
    where: Any = staticmethod(np.where)
    concat: Any = staticmethod(np.concatenate)

    def like(self, values: Any, other: Array) -> Array:
        """Rows, or an array of a map, in the type and on the device of other rows."""
        return np.asarray(values, other.dtype)

    def wide(self, rows: Array) -> Array:
        """Float64, or float32 on a device without it."""
        return rows.astype(np.float64, copy=False)

    def single(self, rows: Array) -> Array:
        return rows.astype(np.float32, copy=False)

    def is_double(self, rows: Array) -> bool:
        return str(rows.dtype).endswith("float64")

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
        below = rows - self.largest(rows)
        return below - self.log(self.total(self.exp(below)))

    def softmax(self, rows: Array) -> Array:
        powers = self.exp(rows - self.largest(rows))
        return powers / self.total(powers)

    def descending(self, rows: Array) -> Array:
        """Order of each row from its largest entry; equal ones stay in order."""
        return (-rows).argsort(axis=1, kind="stable")

    def cumsum(self, rows: Array) -> Array:
        return rows.cumsum(1)

    def bits(self, rows: Array) -> Array:
        """The 32-bit words of each row, as whole numbers."""
        return np.ascontiguousarray(rows).view(np.int32).astype(np.int64)

    def search(self, edges: Array, positions: Array, right: bool) -> Array:
        """Where to insert positions in ascending edges, row by row."""
        side: Literal["left", "right"] = "right" if right else "left"
        return np.stack([np.searchsorted(*row, side=side) for row in zip(edges, positions, strict=True)])


class TorchOps(NumpyOps):
    """The same on torch tensors of any device, differentiable."""

    def __init__(self) -> None:
        self.torch = torch = sys.modules["torch"]
        self.exp, self.log, self.log1p = torch.exp, torch.log, torch.log1p
        self.clip, self.where, self.concat = torch.clamp, torch.where, torch.cat

    def like(self, values: Any, other: Array) -> Array:
        return self.torch.as_tensor(values, dtype=other.dtype, device=other.device)

    def wide(self, rows: Array) -> Array:
        return rows.float() if rows.device.type == "mps" else rows.double()

    def single(self, rows: Array) -> Array:
        return rows.float()

    def largest(self, rows: Array) -> Array:
        return rows.amax(1, keepdim=True)

    def take(self, rows: Array, places: Array) -> Array:
        return rows.gather(1, places)

    def descending(self, rows: Array) -> Array:
        from calibrant.torch_private import is_exporting_to_onnx

        if is_exporting_to_onnx():  # it has no stable sort, but its TopK leaves equal values in order
            return rows.topk(rows.shape[1], dim=1).indices
        return rows.argsort(dim=1, descending=True, stable=True)

    def bits(self, rows: Array) -> Array:
        from calibrant.torch_private import is_exporting_to_onnx

        if is_exporting_to_onnx():
            raise ValueError(NO_BITS)
        return rows.contiguous().view(self.torch.int32).long()

    def search(self, edges: Array, positions: Array, right: bool) -> Array:
        start = self.torch.zeros_like(positions, dtype=self.torch.long)
        return halving_search(self, edges, positions, right, start)  # ONNX has no searchsorted


def halving_search(xp: Any, edges: Array, positions: Array, right: bool, place: Array) -> Array:
    """Equal to ``search``, by ``log2(m)`` look-ups; ``place`` is 0 in the shape of the positions."""
    length = int(edges.shape[1])
    for power in reversed(range(length.bit_length())):
        further = place + 2**power
        there = xp.take(edges, xp.clip(further, None, length) - 1)
        beyond = (there > positions) if right else (there >= positions)
        place = xp.where((further > length) | beyond, place, further)
    return place


class LogScores(NamedTuple):
    """Logarithms of probabilities and of their complements: both exact where the other is near 1."""

    log_p: Array
    log_not: Array

    def probability(self, xp: Any) -> Array:
        return xp.like(_exp(xp, xp.wide(self.log_p), xp.is_double(self.log_p)), self.log_p)

    def floored(self, xp: Any) -> "LogScores":
        return LogScores(xp.clip(self.log_p, FLOOR, None), xp.clip(self.log_not, FLOOR, None))

    def log_odds(self, xp: Any) -> Array:
        floored = self.floored(xp)
        return floored.log_p - floored.log_not


def _exp(xp: Any, log_p: Array, double: bool) -> Array:
    """Probabilities that are to be rounded: in float32 those below exp(-104) are 0."""
    # Operations on numbers below the smallest normal one take 50 times as long.
    return xp.exp(xp.clip(log_p, -708.0 if double else -104.0, None))


def view_scores(xp: Any, logits: Array, view: View) -> tuple[LogScores, Array | None]:
    """Scores of class 1 of two, ``(N, 1)``, or of all classes, ``(N, C)``; or of the top class, with a mask of it."""
    # Rounded once: other libraries then find the same bits, and so the same step of a step function.
    log_p = xp.log_softmax(xp.wide(logits))
    if view == "class-wise" and logits.shape[1] == 2:
        return LogScores(xp.like(log_p[:, 1:], logits), xp.like(log_p[:, :1], logits)), None
    top = xp.argmax(logits)
    is_top = top == xp.like(np.arange(int(logits.shape[1])), top)
    log_top = xp.take(log_p, top)
    # The complement of the top is a sum over the other classes where a subtraction would cancel.
    others = xp.where(is_top, -math.inf, log_p)
    most = xp.largest(others)
    log_rest = most + xp.log(xp.total(xp.exp(others - most)))
    subtracted = xp.log1p(-xp.clip(xp.exp(log_top), None, 0.5))
    log_not_top = xp.where(log_top < math.log(0.5), subtracted, log_rest)
    if view == "top-label":
        return LogScores(xp.like(log_top, logits), xp.like(log_not_top, logits)), is_top
    # Probabilities below the top are at most a half; at the top an unbounded slope would be NaN times 0.
    below_top = xp.log1p(-xp.clip(_exp(xp, log_p, xp.is_double(logits)), None, 0.5))
    return LogScores(xp.like(log_p, logits), xp.like(xp.where(is_top, log_not_top, below_top), logits)), None


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a map: its fields are arrays, numbers, text, and other parts."""

    kinds: ClassVar[dict[str, type["Part"]]] = {}

    def __init_subclass__(cls) -> None:
        Part.kinds[cls.__name__] = cls

    def parts(self) -> Iterator["Part"]:
        """All parts, this one first."""
        yield self
        for field in fields(self):
            value = getattr(self, field.name)
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, Part):
                    yield from each.parts()

    def split(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The map without its arrays, as JSON, and the arrays by their dotted names."""
        arrays: dict[str, Array] = {}
        return _described(self, "", arrays), arrays

    def rebuilt(self, value_of: Callable[[str, Any], Any]) -> Any:
        """The same map with other arrays: each is what ``value_of`` gives for its name and itself."""
        description, arrays = self.split()
        return from_description(description, {name: value_of(name, array) for name, array in arrays.items()})


def _described(value: Any, name: str, arrays: dict[str, Array]) -> Any:
    if isinstance(value, Part):
        found = {"kind": type(value).__name__}
        for field in fields(value):
            dotted = f"{name}.{field.name}".lstrip(".")
            found[field.name] = _described(getattr(value, field.name), dotted, arrays)
        return found
    if isinstance(value, tuple):
        return [_described(each, f"{name}.{number}", arrays) for number, each in enumerate(value)]
    if hasattr(value, "dtype"):
        arrays[name] = value
        return "array"
    return value


def from_description(description: Any, arrays: dict[str, Array], name: str = "") -> Any:
    """The inverse of ``split``; raises ``KeyError`` or ``TypeError`` if they do not fit."""
    if description == "array":
        return arrays[name]
    if isinstance(description, list):
        return tuple(from_description(each, arrays, f"{name}.{number}") for number, each in enumerate(description))
    if not isinstance(description, dict):
        return description
    values = {}
    for field, value in description.items():
        if field != "kind":
            values[field] = from_description(value, arrays, f"{name}.{field}".lstrip("."))
    return Part.kinds[description["kind"]](**values)


class Map(Part):
    """A map of ``(N, C)`` logits: calibrated logits, or their softmax; each kind computes one of the two."""

    def logits(self, xp: Any, rows: Array) -> Array:
        """Calibrated logits, ``(N, C)``."""
        return xp.log(xp.clip(self.probabilities(xp, rows), TINY, None))

    def probabilities(self, xp: Any, rows: Array) -> Array:
        """Calibrated probabilities, ``(N, C)``."""
        return xp.softmax(self.logits(xp, rows))


@dataclass(frozen=True, eq=False)
class Logits(Map):
    """The logits as they are."""

    def logits(self, xp: Any, rows: Array) -> Array:
        return xp.clip(rows, -HUGE, HUGE)


@dataclass(frozen=True, eq=False)
class Affine(Map):
    """Logits, or log-probabilities, times a matrix plus a shift."""

    matrix: Array  # one scale, a diagonal (C,) or (C, C)
    shift: Array  # (C,) or a 0
    of: Map = Logits()
    of_log_probabilities: bool = False

    def logits(self, xp: Any, rows: Array) -> Array:
        x = self.of.logits(xp, rows)
        if self.of_log_probabilities:
            x = xp.clip(xp.log_softmax(x), -HUGE, None)
        matrix, shift = xp.like(self.matrix, x), xp.like(self.shift, x)
        found = x @ matrix.T + shift if self.matrix.ndim == 2 else x * matrix + shift
        return xp.clip(found, -HUGE, HUGE)


@dataclass(frozen=True, eq=False)
class Mixed(Map):
    """A mixture with the uniform distribution, whose share this is."""

    share: float
    of: Map

    def probabilities(self, xp: Any, rows: Array) -> Array:
        return self.of.probabilities(xp, rows) * (1 - self.share) + self.share / int(rows.shape[1])


@dataclass(frozen=True, eq=False)
class Mixture(Map):
    """A weighted mean of the probabilities of several maps."""

    weights: Array
    maps: tuple[Map, ...]

    def probabilities(self, xp: Any, rows: Array) -> Array:
        return sum(part.probabilities(xp, rows) * xp.like(self.weights[k], rows) for k, part in enumerate(self.maps))


@dataclass(frozen=True, eq=False)
class OddsCurve(Map):
    """A line plus a natural cubic spline of the log-odds of two classes."""

    line: Array  # slope and shift
    knots: Array
    pieces: Array  # linear, quadratic and cubic rise of each interval between the knots
    ends: Array  # value at the first knot, and slopes below the first and above the last
    of: Map

    def logits(self, xp: Any, rows: Array) -> Array:
        log_p = xp.log_softmax(self.of.logits(xp, rows))
        odds = log_p[:, 1:] - log_p[:, :1]
        knots = self.knots
        low, width = xp.like(knots[:-1], odds), xp.like(knots[1:] - knots[:-1], odds)
        slopes = [xp.like(self.pieces[:, k], odds) for k in range(3)]
        start, before, after = (xp.like(self.ends[k], odds) for k in range(3))
        # How far each piece has been crossed, from 0 to 1: the rises of all pieces add up.
        t = xp.clip((odds - low) / width, 0.0, 1.0)
        rises = xp.total(t * (slopes[0] + t * (slopes[1] + t * slopes[2])))
        below = xp.clip(odds - xp.like(knots[0], odds), None, 0.0)
        above = xp.clip(odds - xp.like(knots[-1], odds), 0.0, None)
        curve = start + rises + before * below + after * above
        slope, shift = (xp.like(self.line[k], odds) for k in range(2))
        return xp.concat((odds * 0, slope * odds + shift + curve), 1)


class Curve(Part):
    """A map of scores, one for each row of them."""

    def of(self, xp: Any, scores: LogScores) -> tuple[Array, Array]:
        """Calibrated probabilities and their complements, ``(rows, N)``: near 1 only the complement is exact."""
        probability = self.at(xp, scores.probability(xp))
        return probability, 1 - probability

    def at(self, xp: Any, position: Array) -> Array:
        """Value at positions ``(rows, N)``; a kind of curve has this or ``of``."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Steps(Curve):
    """Values ``(rows, m + 1)`` of right-closed bins between ascending inner edges ``(rows, m)``."""

    edges: Array
    values: Array

    def at(self, xp: Any, position: Array) -> Array:
        edges, values = xp.like(self.edges, position), xp.like(self.values, position)
        return xp.take(values, xp.search(edges, position, False))


@dataclass(frozen=True, eq=False)
class Lines(Curve):
    """Straight lines between ascending knots ``(rows, m)``, of which some may be repeated; constant beyond the ends."""

    knots: Array
    values: Array

    def at(self, xp: Any, position: Array) -> Array:
        knots, values = xp.like(self.knots, position), xp.like(self.values, position)
        left = xp.search(xp.like(self.knots[:, 1:-1], position), position, True)
        low, high = xp.take(knots, left), xp.take(knots, left + 1)
        width = high - low
        some = width > 0
        share = xp.where(some, (position - low) / xp.where(some, width, 1.0), 0.0)
        share = xp.clip(share, 0.0, 1.0)
        start, end = xp.take(values, left), xp.take(values, left + 1)
        return start + share * (end - start)


@dataclass(frozen=True, eq=False)
class LogOdds(Curve):
    """The sigmoid of a log p - b log(1 - p) + c, with coefficients (a, b, c), ``(rows, 3)``."""

    coefficients: Array

    def of(self, xp: Any, scores: LogScores) -> tuple[Array, Array]:
        floored = scores.floored(xp)
        a, b, c = (xp.like(self.coefficients[:, k : k + 1], scores.log_p) for k in range(3))
        odds = a * floored.log_p - b * floored.log_not + c
        odds = xp.clip(odds, -FARTHEST_ODDS, FARTHEST_ODDS)
        return 1 / (1 + xp.exp(-odds)), 1 / (1 + xp.exp(odds))


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
    """Scores mapped by a curve: of every class, with rows divided by their sum; or of the predicted class."""

    curve: Curve
    view: View
    single: bool  # fitted on float32 scores: float64 logits are rounded first, to the same side of each step

    def scores(self, xp: Any, rows: Array) -> tuple[LogScores, Array | None]:
        """Scores of the view, one after the other in rows, and the mask of the top class."""
        found, is_top = view_scores(xp, self.rounded(xp, rows), self.view)
        return LogScores(found.log_p.T, found.log_not.T), is_top

    def rounded(self, xp: Any, rows: Array) -> Array:
        return xp.single(xp.clip(rows, -HUGE, HUGE)) if self.single and xp.is_double(rows) else rows

    def probabilities(self, xp: Any, rows: Array) -> Array:
        scores, is_top = self.scores(xp, rows)
        mapped, complement = (part.T for part in self.curve.of(xp, scores))
        if self.view == "top-label":
            shares = xp.softmax(xp.where(is_top, -math.inf, self.rounded(xp, rows)))
            found = xp.where(is_top, mapped, _divided(xp, shares, complement, mapped))
        elif rows.shape[1] == 2:
            found = xp.concat((complement, mapped), 1)
        else:
            total = xp.total(mapped)
            some = total > TINY
            found = xp.where(some, mapped / xp.where(some, total, 1.0), scores.probability(xp).T)
        return xp.like(found, rows)


def _divided(xp: Any, shares: Array, left: Array, confidence: Array) -> Array:
    """What the confidence leaves, divided among the other classes so that none overtakes it, if that is possible."""
    equal = 1 / (int(shares.shape[1]) - 1)
    # Slightly below, so that a tie goes to the top class whatever its index.
    ceiling = confidence * (1 - (4.5e-16 if xp.is_double(confidence) else 2.4e-7))
    kept = confidence >= 1 / int(shares.shape[1])
    largest = xp.largest(shares)
    excess, room = left * largest - ceiling, left * (largest - equal)
    some = room > 0
    level = xp.where(kept & (excess > 0) & some, excess / xp.where(some, room, 1.0), 0.0)
    others = left * (shares + xp.clip(level, 0.0, 1.0) * (equal - shares))
    return xp.where(kept, xp.clip(others, None, ceiling), others)


def evaluated(function: Callable[..., Any], rows: Array, *more: Array) -> Any:
    """Apply a function of operations, rows, and ``more`` of each row: to arrays in pieces, to tensors at once."""
    if is_tensor(rows):
        torch, kind = sys.modules["torch"], rows.device.type
        # The eight bits of precision of autocast's products are too few for a confidence.
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            return function(TorchOps(), rows, *more)
    step = max(PIECE_ROWS, PIECE // max(1, rows.shape[1]))
    with np.errstate(all="ignore"):
        if len(rows) <= step:
            return function(NumpyOps(), rows, *more)
        pieces = []
        for start in range(0, len(rows), step):
            at = slice(start, start + step)
            pieces.append(function(NumpyOps(), rows[at], *(part[at] for part in more)))
    if isinstance(pieces[0], tuple):
        return tuple(np.concatenate(each) for each in zip(*pieces, strict=True))
    return np.concatenate(pieces)
