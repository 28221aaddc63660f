"""The best validation so far, judged by the log loss after temperature scaling, and its weights."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.losses import checks
from calibrant.posthoc.temperature import best_temperature
from calibrant.training.last_layer import divide_layer

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

    def __init__(self, patience: int | None, fold: bool, layer: str | nn.Linear | None) -> None:
        if patience is not None:
            checks.check_count("patience", patience)
        self.patience = patience
        self.fold = fold
        self.layer = layer
        self._classes = 0
        self._forget()

    def _forget(self) -> None:
        self.temperature_ = math.nan
        self.best_score_ = math.inf
        self.best_epoch_: float | None = None
        self._weights: dict[str, Any] | None = None  # on the CPU
        self._waited = 0

    def _add(self, score: float, temperature: float, classes: int, epoch: float, module: nn.Module) -> None:
        """Take a validation into account, and copy the weights if it is the best one."""
        self._classes = classes
        if self.fold:
            last_layer(module, classes, self.layer)  # fails now rather than at the end
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

    def _put_best_back(self, module: nn.Module) -> None:
        if self._weights is None:
            return
        module.load_state_dict(self._weights)
        if self.fold:
            divide_layer(last_layer(module, self._classes, self.layer), self.temperature_)

    def _state(self) -> dict[str, Any]:
        """Everything but the weights, in plain values."""
        return {
            "temperature": self.temperature_, "best_score": self.best_score_, "best_epoch": self.best_epoch_,
            "waited": self._waited, "classes": self._classes,
        }  # fmt: skip

    def _go_on_from(self, state: Mapping[str, Any], weights: dict[str, Any] | None) -> None:
        self.temperature_, self.best_score_ = state["temperature"], state["best_score"]
        self.best_epoch_, self._waited, self._weights = state["best_epoch"], state["waited"], weights
        self._classes = state["classes"]


def classes_of(logits: Tensor) -> int:
    """Number of classes: 2 if there is one logit, that of class 1."""
    return max(logits.shape[1], 2) if logits.dim() > 1 else 2


def last_layer(module: nn.Module, classes: int, layer: str | nn.Linear | None) -> nn.Linear:
    """Return the layer that makes the logits: the given one, or the last ``nn.Linear`` with an output per class."""
    found: Any = layer
    if isinstance(layer, str):
        found = module.get_submodule(layer)
    elif layer is None:
        outputs = (classes, 1) if classes == 2 else (classes,)
        linear = [each for each in module.modules() if isinstance(each, nn.Linear) and each.out_features in outputs]
        found = linear[-1] if linear else None
    if not isinstance(found, nn.Linear):
        what = "none was found" if layer is None else f"layer is a {type(found).__name__}"
        raise ValueError(
            f"folding the temperature needs a torch.nn.Linear with {classes} outputs, but {what}: name the layer "
            "that makes the logits with layer=, or set fold=False"
        )
    owned = (each.named_parameters(recurse=False, remove_duplicate=False) for each in module.modules())
    if sum(found.weight is weight for each in owned for _, weight in each) > 1:
        raise ValueError("the weights of the last layer are shared with another layer, which folding would change too")
    return found
