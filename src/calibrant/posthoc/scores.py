"""From maps of one score to calibrated rows: one-vs-rest for every class, or only the top label."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from calibrant.losses import checks
from calibrant.numerics import accumulation_dtype, traced
from calibrant.posthoc.base import Calibrator

View = Literal["class-wise", "top-label"]
# Number of scores that are fitted at a time: few enough for the cache, enough to keep the overhead small.
BLOCK = 2**18
# Number of logits whose scores are computed at a time: 256 kB in float64.
PIECE = 2**15
# Log-odds beyond these would give a probability below float32's smallest normal number.
FARTHEST_ODDS = 87.0


class Mapped(NamedTuple):
    """Calibrated probabilities and their complements, ``(rows, N)``: near 1 only the complement is exact."""

    probability: Tensor
    complement: Tensor


class Scores(NamedTuple):
    """Logarithms of probabilities and of their complements, ``(rows, N)``: both exact where the other is near 1."""

    log_p: Tensor
    log_not: Tensor

    @property
    def probability(self) -> Tensor:
        """The probabilities themselves."""
        return _exp(self.log_p.to(accumulation_dtype(self.log_p)), self.log_p.dtype).to(self.log_p.dtype)

    @property
    def log_odds(self) -> Tensor:
        """Log-odds, of floored logarithms."""
        floored = self.floored()
        return floored.log_p - floored.log_not

    def floored(self) -> "Scores":
        """The same with logarithms not below that of float32's smallest normal number."""
        floor = math.log(torch.finfo(torch.float32).tiny)
        return Scores(self.log_p.clamp_min(floor), self.log_not.clamp_min(floor))


def _exp(log_p: Tensor, dtype: torch.dtype) -> Tensor:
    """Probabilities that are to be rounded to a dtype: in float32 those below exp(-104) are 0.

    They are not below the smallest normal number of float64, since operations on smaller ones take 50 times as long.
    """
    return log_p.clamp_min(-104.0 if dtype == torch.float32 else -708.0).exp()


def class_scores(logits: Tensor) -> Scores:
    """Score of every class, ``(N, C)``.

    They are computed in float64 and rounded once: other libraries then find the same bits, and so the same step of a
    step function. Rows come in pieces that a core's cache holds, which takes a quarter of the time.
    """
    # Asked first: an exported graph must not depend on the number of rows.
    if traced() or logits.device.type != "cpu" or logits.numel() <= PIECE:
        return _class_scores(logits)
    pieces = [_class_scores(part) for part in logits.split(max(1, PIECE // logits.shape[1]))]
    return Scores(*(torch.cat(parts) for parts in zip(*pieces, strict=True)))


def _class_scores(logits: Tensor) -> Scores:
    wide = logits.to(accumulation_dtype(logits))
    log_p = wide.log_softmax(1)
    if logits.shape[1] == 2:
        return Scores(log_p.to(logits.dtype), log_p.flip(1).to(logits.dtype))
    top = logits.argmax(1, keepdim=True)
    # All but the top are at most a half; at the top, which is replaced, an unbounded slope would be NaN times 0.
    log_not = torch.log1p(-_exp(log_p, logits.dtype).clamp_max(0.5)).scatter(1, top, _log_not_top(log_p, top))
    return Scores(log_p.to(logits.dtype), log_not.to(logits.dtype))


def top_scores(logits: Tensor) -> tuple[Scores, Tensor]:
    """Score of the predicted class, ``(1, N)``, and that class, ``(N, 1)``."""
    top = logits.argmax(1, keepdim=True)
    log_p = logits.to(accumulation_dtype(logits)).log_softmax(1)
    log_not = _log_not_top(log_p, top)
    return Scores(log_p.gather(1, top).T.to(logits.dtype), log_not.T.to(logits.dtype)), top


def _log_not_top(log_p: Tensor, top: Tensor) -> Tensor:
    """Logarithm of one minus the top probability, from the other classes if the subtraction would cancel."""
    log_top = log_p.gather(1, top)
    rest = log_p.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    return torch.where(log_top < math.log(0.5), torch.log1p(-log_top.exp().clamp_max(0.5)), rest)


class ScoreCalibrator(Calibrator):
    """Base class of methods that map one score, a probability, to another.

    With ``view="class-wise"`` every class has its own map, fitted one-vs-rest; the mapped probabilities of a row
    are divided by their sum, and a row in which all are 0 keeps its original probabilities. Two classes need only
    one map, that of class 1.

    With ``view="top-label"`` one map recalibrates the confidence in the predicted class, and the other classes
    share the rest in their original proportions. If one of them would then overtake the predicted class, the shares
    are mixed with equal ones, just enough that none does: the prediction does not change, and its confidence is the
    fitted one. It only changes if the confidence is below 1/C, with which no class can be the predicted one.

    Args:
        view: ``"class-wise"`` or ``"top-label"``.
        strict: No mixing with the uniform distribution; see :class:`Calibrator`.
    """

    decisive = ("view",)
    state: tuple[str, ...]

    def __init__(self, view: View, *, strict: bool = False) -> None:
        super().__init__(strict=strict)
        checks.check_choice("view", view, ("class-wise", "top-label"))
        self.view = view
        for name in self.state:
            self.register_buffer(name, None)

    def rows_needed(self, classes: int) -> int:
        """Twenty rows for the map of each class."""
        return self.least_rows if self.view == "top-label" or classes == 2 else max(self.least_rows, 20 * classes)

    @abstractmethod
    def fit_scores(self, scores: Scores, hits: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
        """Fit one map per row, and return the tensors named in ``state``, each ``(rows, ...)``.

        Args:
            scores: ``(rows, N)``.
            hits: ``(rows, N)``, 1 where the event happened: float64.
            weight: ``(N,)`` in float64, or None.
        """

    @abstractmethod
    def map_scores(self, scores: Scores) -> Mapped:
        """Return the calibrated probabilities of ``(rows, N)`` scores, and their complements."""

    def fit_rows(self, logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
        """Fit the maps, one block of classes at a time."""
        fitted = [self.fit_scores(scores, hits, weight) for scores, hits in self._blocks(logits, target)]
        for name, pieces in zip(self.state, zip(*fitted, strict=True), strict=True):
            setattr(self, name, _stack(list(pieces)).to(logits.dtype))

    def _blocks(self, logits: Tensor, target: Tensor) -> Iterator[tuple[Scores, Tensor]]:
        if self.view == "top-label":
            scores, top = top_scores(logits)
            yield scores, (target == top.T).double()
            return
        everything = class_scores(logits)
        classes = torch.arange(logits.shape[1], device=logits.device)
        first, step = int(len(classes) == 2), max(1, BLOCK // len(logits))
        for start in range(first, len(classes), step):
            block = slice(start, start + step)
            scores = Scores(*(part[:, block].T.contiguous() for part in everything))
            yield scores, (target == classes[block].unsqueeze(1)).double()

    def as_fitted(self, logits: Tensor) -> Tensor:
        """Round float64 logits to float32 if the maps were fitted in it.

        A table has its steps at the scores of the fit. The same score in another precision may lie on the other side.
        """
        if logits.dtype != torch.float64:
            return logits
        largest = torch.finfo(torch.float32).max
        single = _are_single([getattr(self, name) for name in self.state])
        return logits.clamp(-largest, largest).float() if single else logits

    def probabilities(self, logits: Tensor) -> Tensor:
        """Map the scores and combine them into rows."""
        return self._mapped(self.as_fitted(logits)).to(logits.dtype)

    def _mapped(self, logits: Tensor) -> Tensor:
        if self.view == "top-label":
            scores, top = top_scores(logits)
            confidence, left = (part.T for part in self.map_scores(scores))
            shares = logits.scatter(1, top, -torch.inf).softmax(1)
            return _divided(shares, left, confidence).scatter(1, top, confidence)
        everything = class_scores(logits)
        if logits.shape[1] == 2:
            one = self.map_scores(Scores(everything.log_p[:, 1:].T, everything.log_not[:, 1:].T))
            return torch.cat((one.complement.T, one.probability.T), dim=1)
        mapped = self.map_scores(Scores(everything.log_p.T, everything.log_not.T)).probability.T
        total = mapped.sum(1, keepdim=True)
        some = total > torch.finfo(total.dtype).tiny
        return torch.where(some, mapped / torch.where(some, total, 1.0), everything.probability)


def _are_single(tables: list[Tensor]) -> bool:
    """Whether tables were fitted in float32; they may have been widened since, by ``.double()``."""
    if any(table.dtype != torch.float64 for table in tables):
        return True
    # Round numbers, such as whole ones, tell nothing: those of a fit in float64 have no more digits.
    return not traced() and _in(torch.float32, tables) and not _in(torch.float16, tables)


def _in(dtype: torch.dtype, tables: list[Tensor]) -> bool:
    return all(torch.equal(table, table.to(dtype).to(table.dtype)) for table in tables)


def with_complement(probability: Tensor) -> Mapped:
    """Probabilities from a table, with complements by subtraction from 1."""
    return Mapped(probability, 1 - probability)


def from_log_odds(odds: Tensor) -> Mapped:
    """Probabilities and complements of log-odds, neither of them 0 in float32."""
    odds = odds.clamp(-FARTHEST_ODDS, FARTHEST_ODDS)
    return Mapped(odds.sigmoid(), (-odds).sigmoid())


def _divided(shares: Tensor, left: Tensor, confidence: Tensor) -> Tensor:
    """Divide the rest among the other classes, so that none overtakes the top class if that is possible.

    Args:
        shares: Proportions of the others, ``(N, C)`` with rows that sum to one.
        left: Probability to divide, ``(N, 1)``.
        confidence: Probability of the top class, ``(N, 1)``.
    """
    classes = shares.shape[1]
    # Slightly below, so that a tie goes to the top class whatever its index.
    ceiling = confidence * (1 - 2 * torch.finfo(confidence.dtype).eps)
    kept = confidence >= 1 / classes
    largest = shares.amax(1, keepdim=True)
    excess, room = left * largest - ceiling, left * (largest - 1 / (classes - 1))
    mixed = kept & (excess > 0) & (room > 0)
    level = torch.where(mixed, excess / torch.where(mixed, room, 1.0), 0.0).clamp(0, 1)
    others = left * torch.lerp(shares, torch.full_like(shares, 1 / (classes - 1)), level.expand_as(shares))
    return torch.where(kept, torch.minimum(others, ceiling), others)


def _stack(pieces: list[Tensor]) -> Tensor:
    """Concatenate the rows of all pieces; shorter tables are padded with their last entry."""
    if pieces[0].dim() == 1:
        return torch.cat(pieces)
    width = max(piece.shape[1] for piece in pieces)
    return torch.cat([
        torch.cat((piece, piece[:, -1:].expand(-1, width - piece.shape[1])), dim=1) for piece in pieces
    ])  # fmt: skip
