"""What held-out batches do in a training: move the temperature or make an objective, and inform the guard."""

import weakref
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.inputs import Classification
from calibrant.numerics import at_least_float32
from calibrant.torch_private import unwrapped
from calibrant.training.guard import GO_BACK, Guard
from calibrant.training.ignored import cross_entropy, objective_or_zero
from calibrant.training.last_layer import find_layer, named_layer
from calibrant.training.methods import Settings
from calibrant.training.modes import evaluating, freeze_batchnorm_statistics
from calibrant.training.outputs import (
    PROBABILITIES,
    binary_labels,
    finite,
    flattened,
    logits_of,
    looks_like_probabilities,
    spread,
)
from calibrant.training.temperature_loop import TemperatureLoop
from calibrant.training.turns import Turns
from calibrant.training.warning import Reminder


class HeldOutUse:
    """The held-out side of a training; what :class:`CalibratedLoss` and the integrations have in common.

    Args:
        model: Returns logits, or an object with ``.logits``.
        settings: Method and its settings.
        loop: The temperature, for the method that has one.
        layer: The layer that makes the logits; found when not given.
        dropout: Whether dropout is on where the temperature is solved for.
        multi_label: Each label is an independent sigmoid.
        ignore_index: Label whose samples do not count.
        guard: Whether to warn.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        loop: TemperatureLoop,
        *,
        layer: str | nn.Module | None,
        dropout: bool,
        multi_label: bool,
        ignore_index: int,
        guard: bool,
    ) -> None:
        self.method, self.objective, self.weight, self.every, self.batchnorm = settings
        self.loop = loop
        self.dropout = dropout
        self.multi_label = multi_label
        self.ignore_index = ignore_index
        self.guard = Guard(guard, has_objective=settings.learns)
        self.output: nn.Module | None = None  # where an integration divides the logits, if not at the model's output
        self.reminder = Reminder(guard)
        self.turns = Turns(self.every)
        self._model = model
        self._layer = None if layer is None else named_layer(unwrapped(model), layer)
        weakref.finalize(self, self.reminder.tell)

    @property
    def temperature(self) -> float:
        """What the training loss divides the logits by now; 1 for methods without one."""
        return self.loop.temperature

    @property
    def largest_logit(self) -> float:
        """Largest absolute held-out logit so far: raw logits grow against T, and float16 ends at 65,504."""
        return self.loop.largest_logit

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # compiled, counters are a reason to compile again
    def is_due(self, given: bool = True) -> bool:
        """Count a step, and return whether its held-out batch, if one is given, is used."""
        has_use = self.method == "temperature" or self.weight > 0
        due = self.turns.take(given and has_use)
        if has_use and self.turns.step == 200 and self.turns.due == 0:
            self.guard.warn("none", "no held-out batch in 200 steps: pass x_held_out and y_held_out, see interleave()")
        return due

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def observe(self, x: Any, y: Tensor, weight: Tensor | None = None) -> None:
        """Run a held-out batch forward in evaluation mode, and move the temperature."""
        with evaluating(self._model, dropout=self.dropout):
            logits = logits_of(self._model, x)
        data = self.samples(*self.finite(logits, y), checked=self.turns.step > self.every)
        self._check_logits(data)
        self.guard.add_held_out(data._replace(logits=data.logits / self.temperature))
        self.loop.observe(data, self.turns.step, spread(weight, len(data.target)))

    def held_out_objective(self, x: Any, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the objective of a held-out batch, not yet weighted."""
        frozen = freeze_batchnorm_statistics(self._model) if self.batchnorm == "freeze" else nullcontext()
        with frozen:
            logits = logits_of(self._model, x) if self.method == "published" else self._through_head(x)
        data = self.samples(logits, y, getattr(self.objective, "ignore_index", None))
        self._check_logits(data)
        self.guard.add_held_out(data)
        if self.objective is None:
            return cross_entropy(data, spread(weight, len(data.target)))
        self.guard.watch(logits, "objective")
        weighted = {} if weight is None else {"sample_weight": weight}
        value = self.objective(logits, y, **weighted) if weighted else objective_or_zero(self.objective, logits, y)
        self.guard.add_objective(value)
        return value

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def watch_training(self, logits: Tensor, y: Tensor) -> None:
        """Let the guard see a training batch."""
        self.guard.add_training(self.samples(*self.finite(logits.detach(), y), checked=self.turns.step > 1))

    def samples(
        self, logits: Tensor, target: Tensor, ignore_index: int | None = None, *, checked: bool = False
    ) -> Classification:
        """Bring a batch to ``(N, C)``. Batches like those that were checked before take a shorter way."""
        if not self.multi_label and target.is_floating_point() and target.numel() == logits.numel() == len(logits):
            target = binary_labels(target)  # as torch.nn.BCEWithLogitsLoss takes them
        plain = logits.dim() == 2 and logits.shape[1] > 1 and not self.multi_label
        if checked and plain and logits.device.type == "cpu" and bool((target != self.ignore_index).all()):
            return Classification(at_least_float32(logits), target.long())
        ignored = self.ignore_index if ignore_index is None else ignore_index
        return flattened(logits, target, multi_label=self.multi_label, ignore_index=ignored)

    def finite(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Leave out samples whose logits overflowed; a batch with some is no reason to stop."""
        cleaned, target, count = finite(logits, target, self.ignore_index, multi_label=self.multi_label)
        if count and not (
            (logits.dtype == torch.float16 and logits.isinf().any()) or (target != self.ignore_index).any()
        ):
            self.guard.warn(
                "diverged", f"the logits of a whole batch are infinite or NaN, training has diverged: {GO_BACK}"
            )
        elif count:
            self.guard.warn(
                "overflow",
                f"some logits are infinite or NaN in {logits.dtype} (largest before: {self.largest_logit:.3g}), and "
                "their samples are left out: use bfloat16 or float32 for the last layer, since raw logits grow against "
                "the temperature, let the learning rate fall, or check that training has not diverged",
            )
        return cleaned, target

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _check_logits(self, data: Classification) -> None:
        if self.turns.due <= self.every and looks_like_probabilities(data.logits):
            self.guard.warn("softmax", PROBABILITIES)

    def _through_head(self, x: Any) -> Tensor:
        """Logits whose gradient reaches the last layer and stops there."""
        if self._layer is None:
            model = unwrapped(self._model)
            with evaluating(model):
                self._layer = find_layer(model, lambda: logits_of(model, x))
        if self._layer is None:
            raise ValueError(
                "method 'head' needs the layer that makes the logits, and no linear layer of this model does: pass "
                "layer='name', or use method='temperature'"
            )
        seen: list[Tensor] = []
        hook = self._layer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        try:
            with torch.no_grad():
                logits = logits_of(self._model, x)
        finally:
            hook.remove()
        made: Tensor = self._layer(seen[-1].detach())
        return made.reshape(logits.shape)
