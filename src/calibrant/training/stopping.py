"""Early stopping by the log loss after temperature scaling: the best validation so far, and its weights."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.losses import checks
from calibrant.posthoc.temperature import best_temperature
from calibrant.training.forward import evaluating
from calibrant.training.output_layer import divide, find_maker

ROWS = 2**14  # per piece, so that double precision does not take twice the memory of all logits


def refined_nll(logits: Tensor, target: Tensor) -> tuple[float, float]:
    """Return the mean log loss after the best temperature, and that temperature.

    If there is no best temperature, as for a model no better than chance, this is the plain log loss and 1. Logits that
    are not finite have an infinite loss. Samples labelled -100 are ignored.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> score, temperature = refined_nll(logits, torch.tensor([0, 0, 0, 0]))
        >>> round(score, 4), round(temperature, 4)
        (0.5623, 3.641)
    """
    finite = logits.isfinite()
    if not finite.all():
        # Ignored samples may hold anything: classification() sets their logits to 0.
        if checks.classification((~finite).float(), target).logits.any():
            return math.inf, 1.0
        logits = torch.where(finite, logits, 0.0)
    data = checks.classification(logits, target)
    rows, labels = (data.logits, data.target) if data.mask is None else (data.logits[data.mask], data.target[data.mask])
    if not len(rows):
        raise ValueError("the validation data has no labels: every target is -100")
    try:
        temperature = best_temperature(rows, labels)
    except ValueError:
        temperature = 1.0
    pieces = zip(rows.split(ROWS), labels.split(ROWS), strict=True)
    total = sum(float(F.cross_entropy(piece.double() / temperature, part, reduction="sum")) for piece, part in pieces)
    return total / len(rows), temperature


class StopsByRefinement:
    """The best validation so far and its weights: what the callbacks of Lightning and transformers have in common."""

    def __init__(self, patience: int | None, fold: bool) -> None:
        if patience is not None:
            checks.check_count("patience", patience)
        self.patience = patience
        self.fold = fold
        self._forget()

    def _forget(self) -> None:
        self.temperature_ = math.nan
        self.best_score_ = math.inf
        self.best_epoch_: float | None = None
        self._weights: dict[str, Any] | None = None  # on the CPU
        self._waited = 0

    def _add(self, score: float, temperature: float, epoch: float, module: nn.Module) -> None:
        """Take a validation into account, and copy the weights if it is the best one."""
        if self._stops:  # for example when a stopped run is resumed
            return
        if self._weights is not None and not score < self.best_score_:
            self._waited += 1
            return
        self.best_score_, self.temperature_, self.best_epoch_, self._waited = score, temperature, epoch, 0
        self._weights = {
            name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
            for name, value in module.state_dict().items()
        }

    @property
    def _stops(self) -> bool:
        return self.patience is not None and self._waited >= self.patience

    def _put_best_back(self, module: nn.Module, run: Callable[[], Tensor]) -> None:
        """Put the best weights back, and divide the layer that makes the logits, which ``run`` returns, if asked to."""
        if self._weights is None:
            return
        module.load_state_dict(self._weights)
        if self.fold:
            with evaluating(module):
                maker = find_maker(module, run)
            divide(module, maker, self.temperature_, maker)

    def _state(self) -> dict[str, Any]:
        """Everything but the weights, in plain values."""
        return {
            "temperature": self.temperature_, "best_score": self.best_score_, "best_epoch": self.best_epoch_,
            "waited": self._waited,
        }  # fmt: skip

    def _go_on_from(self, state: Mapping[str, Any], weights: dict[str, Any] | None) -> None:
        self.temperature_, self.best_score_ = state["temperature"], state["best_score"]
        self.best_epoch_, self._waited, self._weights = state["best_epoch"], state["waited"], weights
