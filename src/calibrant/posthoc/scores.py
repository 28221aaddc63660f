"""From maps of one score to calibrated rows: one-vs-rest for every class, or the top label alone."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from calibrant import inputs
from calibrant.posthoc.base import Calibrator

View = Literal["class-wise", "top-label"]
# Scores that are fitted at one time: what one method needs for them stays in the tens of megabytes.
BLOCK = 2**21


class Scores(NamedTuple):
    """Logarithms of probabilities and of their complements, ``(rows, N)``: both exact where the other is near 1."""

    log_p: Tensor
    log_not: Tensor

    @property
    def probability(self) -> Tensor:
        """The probabilities themselves."""
        return self.log_p.exp()

    def floored(self) -> "Scores":
        """The same with logarithms that go no lower than those of float32's smallest normal number."""
        floor = math.log(torch.finfo(torch.float32).tiny)
        return Scores(self.log_p.clamp_min(floor), self.log_not.clamp_min(floor))


def class_scores(logits: Tensor) -> Scores:
    """Score of every class, ``(N, C)``."""
    log_p = logits.log_softmax(1)
    if logits.shape[1] == 2:
        return Scores(log_p, log_p.flip(1))
    top = logits.argmax(1, keepdim=True)
    log_not = torch.log1p(-log_p.exp())
    return Scores(log_p, log_not.scatter(1, top, _log_not_top(logits, log_p, top)))


def top_scores(logits: Tensor) -> tuple[Scores, Tensor]:
    """Score of the predicted class, ``(1, N)``, and that class, ``(N, 1)``."""
    top = logits.argmax(1, keepdim=True)
    log_p = logits.log_softmax(1)
    return Scores(log_p.gather(1, top).T, _log_not_top(logits, log_p, top).T), top


def _log_not_top(logits: Tensor, log_p: Tensor, top: Tensor) -> Tensor:
    """Logarithm of one minus the top probability, from the other classes where the subtraction would cancel."""
    log_top = log_p.gather(1, top)
    rest = logits.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True) - logits.logsumexp(1, keepdim=True)
    return torch.where(log_top < math.log(0.5), torch.log1p(-log_top.exp().clamp_max(0.5)), rest)


class ScoreCalibrator(Calibrator):
    """Base of the methods that map one score, a probability, to another.

    With ``view="class-wise"`` every class has its own map, fitted one-vs-rest; the mapped probabilities of a row
    are divided by their sum, and a row in which all are 0 keeps the probabilities it had. Two classes need one
    map only, that of class 1. With ``view="top-label"`` one map recalibrates the confidence in the predicted
    class, and the other classes share what is left in their old proportions.

    Args:
        view: ``"class-wise"`` or ``"top-label"``.
    """

    state: tuple[str, ...]

    def __init__(self, view: View) -> None:
        super().__init__()
        inputs.check_choice("view", view, ("class-wise", "top-label"))
        self.view = view
        for name in self.state:
            self.register_buffer(name, None)

    @abstractmethod
    def fit_scores(self, scores: Scores, hits: Tensor) -> tuple[Tensor, ...]:
        """Fit one map a row, and return the tensors named in ``state``, each ``(rows, ...)``.

        Args:
            scores: ``(rows, N)``.
            hits: ``(rows, N)``, 1 where the event happened: float64.
        """

    @abstractmethod
    def map_scores(self, scores: Scores) -> Tensor:
        """Return the calibrated probabilities of ``(rows, N)`` scores."""

    def fit_rows(self, logits: Tensor, target: Tensor) -> None:
        """Fit the maps, a block of classes at a time."""
        fitted = [self.fit_scores(scores, hits) for scores, hits in self._blocks(logits, target)]
        for name, pieces in zip(self.state, zip(*fitted, strict=True), strict=True):
            setattr(self, name, _stack(list(pieces)).to(logits.dtype))

    def _blocks(self, logits: Tensor, target: Tensor) -> Iterator[tuple[Scores, Tensor]]:
        if self.view == "top-label":
            scores, top = top_scores(logits)
            yield scores, (target == top.T).double()
            return
        everything = class_scores(logits)
        classes = torch.arange(logits.shape[1], device=logits.device)
        if len(classes) == 2:
            classes = classes[1:]
        for block in classes.split(max(1, BLOCK // len(logits))):
            scores = Scores(*(part[:, block].T.contiguous() for part in everything))
            yield scores, (target == block.unsqueeze(1)).double()

    def probabilities(self, logits: Tensor) -> Tensor:
        """Map the scores and make rows of them again."""
        maps = 1 if self.view == "top-label" or logits.shape[1] == 2 else logits.shape[1]
        if len(getattr(self, self.state[0])) != maps:
            raise ValueError(
                f"{type(self).__name__} was fitted with another view than {self.view!r}: "
                "load the state_dict into a calibrator made with the same options"
            )
        if self.view == "top-label":
            scores, top = top_scores(logits)
            confidence = self.map_scores(scores).T
            others = logits.scatter(1, top, -torch.inf).softmax(1) * (1 - confidence)
            return others.scatter(1, top, confidence)
        everything = class_scores(logits)
        if logits.shape[1] == 2:
            one = self.map_scores(Scores(everything.log_p[:, 1:].T, everything.log_not[:, 1:].T)).T
            return torch.cat((1 - one, one), dim=1)
        mapped = self.map_scores(Scores(everything.log_p.T, everything.log_not.T)).T
        total = mapped.sum(1, keepdim=True)
        some = total > torch.finfo(total.dtype).tiny
        return torch.where(some, mapped / torch.where(some, total, 1.0), everything.probability)


def _stack(pieces: list[Tensor]) -> Tensor:
    """Rows of all pieces under one another; shorter tables go on with their last entry."""
    if pieces[0].dim() == 1:
        return torch.cat(pieces)
    width = max(piece.shape[1] for piece in pieces)
    return torch.cat([
        torch.cat((piece, piece[:, -1:].expand(-1, width - piece.shape[1])), dim=1) for piece in pieces
    ])  # fmt: skip
