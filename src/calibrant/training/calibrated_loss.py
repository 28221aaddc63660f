"""One line for a training loop: a loss that leaves the network calibrated."""

import math
import weakref
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from calibrant import distributed, inputs
from calibrant.losses import checks
from calibrant.losses.checks import Classification
from calibrant.losses.esd import ESDLoss
from calibrant.torch_private import unwrapped
from calibrant.training import forward
from calibrant.training.guard import GO_BACK, NOTICED, PROBABILITIES, Guard, Reminder, look_like_probabilities
from calibrant.training.output_layer import DividedLogits, Layer, divide, find_output, through_layer
from calibrant.training.temperature_loop import (
    FEWEST,
    TemperatureLoop,
    final_temperature,
    gathered,
    looks_trained_on,
)

Method = Literal["temperature", "head", "published"]
BatchNormUse = Literal["freeze", "update"]

# Held-out batches are used at every k-th step on average. The part of a step that is left out walks through the order
# of a loader that does not shuffle, so that each of its batches has its turn whatever their number.
WALK = 0.382


class Step(NamedTuple):
    """Training loss; training logits, divided by the temperature; and the unweighted objective, None without one."""

    loss: Tensor
    logits: Tensor
    objective: Tensor | None


class Finished(NamedTuple):
    """What :meth:`CalibratedLoss.finish` did.

    Attributes:
        temperature: What the logits of the model are divided by now, relative to the network as trained.
        error: Standard error of its logarithm.
        held_out: Samples, accuracy, log loss and gap on the held-out data, with that temperature.
        new: The same on the new data, if they were given.
    """

    temperature: float
    error: float
    held_out: forward.BatchScores
    new: forward.BatchScores | None


class CalibratedLoss:
    r"""The training loss of a network that is to be calibrated, with held-out data beside it.

    With the default method, the **temperature in the loop**, held-out batches only run forward. Once their log loss at
    the best temperature has stopped falling, the training loss is computed on logits divided by a temperature T, which
    follows the latest held-out logits. :meth:`finish` fits T once more and divides the output layer by it.
    ``docs/science.md`` derives the method.

    Args:
        model: Returns logits, or an object with ``.logits``.
        method: ``"temperature"``; ``"head"``, where the gradient of ``weight`` times the held-out loss reaches the
            output layer only; or ``"published"``, the ESD paper's interleaved training, where the gradient of
            ``weight`` times the objective reaches all weights.
        objective: Of ``(logits, target)`` of a held-out batch; :class:`calibrant.ESDLoss` for ``"published"`` and the
            cross entropy for ``"head"`` when not given.
        weight: Weight of the objective relative to the training loss; 1 when not given.
        loss: Training loss of ``(logits, target)`` in place of the cross entropy, such as
            :class:`calibrant.FocalLoss`, or ``torch.nn.CrossEntropyLoss(weight=...)``.
        every: Use a held-out batch at every k-th step at most; the others are passed over. 4 for ``"temperature"`` when
            not given, and 1 for the others.
        multi_label: Targets have the shape of the logits, each label an independent sigmoid.
        ignore_index: Label whose samples do not count.

    Attributes:
        guard: Scores of the batches that passed, and in ``guard.warnings_`` the warnings given, see
            :class:`calibrant.training.CalibrationWarning`.
        batchnorm: ``"freeze"`` leaves BatchNorm's running statistics to the training batches; ``"update"`` lets
            held-out batches enter them, as published, and is that of ``"published"`` until it is set.

    Example:
        >>> import calibrant as cal
        >>> model = nn.Linear(2, 3)
        >>> calibrated = cal.training.CalibratedLoss(model)
        >>> x, y = torch.randn(128, 2), torch.randint(3, (128,))
        >>> loss = calibrated(x[:64], y[:64], x[64:], y[64:])
        >>> loss.backward()
        >>> 0 < calibrated.temperature
        True
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method = "temperature",
        *,
        objective: forward.Loss | None = None,
        weight: float | None = None,
        loss: forward.Loss | None = None,
        every: int | None = None,
        multi_label: bool = False,
        ignore_index: int = -100,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        checks.check_objective(loss, "loss")
        inputs.check_choice("method", method, ("temperature", "head", "published"))
        if method == "temperature" and (objective is not None or weight is not None):
            text = "method 'temperature' has no objective and no weight: choose 'published' or 'head' for one"
            raise ValueError(text)
        checks.check_objective(objective)
        if objective is None and method == "published":
            objective = ESDLoss(view="multi-label" if multi_label else "top-label", ignore_index=ignore_index)
        self.method: Method = method
        self.objective = objective
        self.weight = 1.0 if weight is None else float(weight)
        inputs.check_range("weight", self.weight, low=0)
        self.every = (4 if method == "temperature" else 1) if every is None else every
        inputs.check_count("every", self.every)
        self.batchnorm = "update" if method == "published" else "freeze"
        self.loss = loss
        self.multi_label = multi_label
        self.ignore_index = ignore_index
        self.loop = TemperatureLoop()
        self.guard = Guard(has_objective=method != "temperature")
        self.output: nn.Module | None = None  # of attach()
        self.divided: DividedLogits | None = None
        self.steps = 0
        self.next_due = 0.0  # step from which on the next held-out batch is used; 0 before the first
        self.reminder = Reminder(self.loop)
        weakref.finalize(self, self.reminder.tell)
        self._model = model
        self._layer: nn.Module | None = None
        self._finished = False  # and not trained since

    @property
    def batchnorm(self) -> BatchNormUse:
        """Whether held-out batches enter BatchNorm's running statistics."""
        return self._batchnorm

    @batchnorm.setter
    def batchnorm(self, use: BatchNormUse) -> None:
        inputs.check_choice("batchnorm", use, ("update", "freeze"))
        self._batchnorm: BatchNormUse = use

    @property
    def temperature(self) -> float:
        """What the training loss divides the logits by now; 1 for methods without one."""
        return self.loop.temperature

    @property
    def is_unfinished(self) -> bool:
        """Whether there were steps since the last ``finish``."""
        return self.steps > 0 and not self._finished

    @property
    def largest_logit(self) -> float:
        """Largest absolute held-out logit so far: raw logits grow against T, and float16 ends at 65,504."""
        return self.loop.largest_logit

    def __call__(
        self, x: Any, y: Tensor, x_held_out: Any = None, y_held_out: Tensor | None = None, *,
        sample_weight: Tensor | None = None, held_out_weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the loss of a training step; call ``backward`` on it and step the optimizer as ever.

        Args:
            x: Training inputs: a tensor, or a mapping of keyword arguments of the model.
            y: Their target.
            x_held_out: Held-out inputs; None at a step without.
            y_held_out: Their target.
            sample_weight: ``(N,)`` weights of the training samples, for the default loss.
            held_out_weight: ``(N,)`` weights of the held-out samples, where T is solved for and in the objective.
        """
        step = self.step(x, y, x_held_out, y_held_out, sample_weight=sample_weight, held_out_weight=held_out_weight)
        return step.loss if step.objective is None else step.loss + self.weight * step.objective

    def step(
        self, x: Any, y: Tensor, x_held_out: Any = None, y_held_out: Tensor | None = None, *,
        sample_weight: Tensor | None = None, held_out_weight: Tensor | None = None,
    ) -> Step:  # fmt: skip
        """Return the parts of the loss; for arguments see :meth:`__call__`."""
        if x_held_out is not None and y_held_out is None:
            raise ValueError("x_held_out came without y_held_out: pass both")
        held_out = None if x_held_out is None or y_held_out is None else (x_held_out, y_held_out, held_out_weight)
        due = self.is_due(held_out is not None)
        if due and held_out is not None and self.method == "temperature":
            self.observe(*held_out)
        logits = forward.logits_of(self._model, x)
        scaled = self._scaled(logits) if self.method == "temperature" else logits
        loss = self._training_loss(scaled, y, sample_weight)
        objective = None
        if due and held_out is not None:
            self._warn_of_same(x, y, *held_out[:2])
            self.watch_training(scaled, y)
            if self.method != "temperature":
                if self.objective is not None:  # a held-out NLL through the head does not work against the training
                    self.guard.watch(logits, "loss")
                objective = self.held_out_objective(*held_out)
        return Step(loss, scaled, objective)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _scaled(self, logits: Tensor) -> Tensor:
        self.reminder.steps = self.steps
        return logits / self.temperature

    def _training_loss(self, logits: Tensor, y: Tensor, sample_weight: Tensor | None) -> Tensor:
        if self.loss is not None:
            if sample_weight is not None:
                raise ValueError("sample_weight is for the default loss: weight the samples in your own loss")
            return forward.loss_or_zero(self.loss, logits, y)
        if sample_weight is None and not self.multi_label and logits.dim() > 1 and logits.shape[1] > 1:
            return forward.cross_entropy(logits, y, ignore_index=self.ignore_index)
        return forward.nll(self._flattened(logits, y, sample_weight))

    def attach(self, x: Any) -> None:
        """Divide the logits by T in the layer that makes them, until ``finish``: the model computes its own loss."""
        self.output = self._layer = find_output(unwrapped(self._model), x)
        self.divided = DividedLogits(self.output)
        self.reminder.on = False  # an integration finishes by itself
        self.divided.set(self.temperature)

    def detach(self) -> None:
        """Divide no longer."""
        if self.divided is not None:
            self.divided.remove()
        self.divided = None

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # compiled, counters are a reason to compile again
    def is_due(self, given: bool = True) -> bool:
        """Count a step, and return whether its held-out batch, if one is given, is used."""
        self._check_state()
        if self._finished and self.reminder.on:
            self.guard.warn(
                "finished",
                "training goes on after finish(), from a temperature of 1, since logits are divided already: call "
                "finish(held_out_loader) again at the end, or only once, after the last step",
            )
        if self._finished:
            self._finished = False
            self.reminder.keep(None)
        has_use = self.method == "temperature" or self.weight > 0
        due = given and has_use and self.steps >= self.next_due
        if due:
            self.next_due = self.next_due + self.every - WALK if self.every > 1 else self.steps + 1
        self.steps += 1
        if has_use and self.steps == 200 and self.next_due == 0:
            self.guard.warn("none", "no held-out batch in 200 steps: pass x_held_out and y_held_out, see interleave()")
        return due

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def observe(self, x: Any, y: Tensor, weight: Tensor | None = None) -> None:
        """Run a held-out batch forward in evaluation mode, and move the temperature."""
        if self.divided is not None:
            self.divided.set(1.0)
        with forward.evaluating(self._model):
            logits = forward.logits_of(self._model, x)
        data = self.cleaned(logits, y, weight, known=self.steps > self.every)
        self._check_logits(data)
        self.guard.add_held_out(data._replace(logits=data.logits / self.temperature))
        self.loop.observe(data, self.steps)
        if self.divided is not None:
            self.divided.set(self.temperature)

    def held_out_objective(self, x: Any, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the objective of a held-out batch, not yet weighted."""
        with forward.freeze_batchnorm_statistics(self._model) if self.batchnorm == "freeze" else nullcontext():
            logits = forward.logits_of(self._model, x) if self.method == "published" else self._through_head(x)
        data = self._flattened(logits, y, weight, getattr(self.objective, "ignore_index", None))
        self._check_logits(data)
        self.guard.add_held_out(data)
        if self.objective is None:
            value = forward.nll(data)
        else:
            self.guard.watch(logits, "objective")
            value = forward.objective_of(self.objective, logits, y, weight)
        self.guard.held_out.add_value(value)
        return value

    def _through_head(self, x: Any) -> Tensor:
        if self._layer is None:
            self._layer = find_output(unwrapped(self._model), x)
        if not isinstance(self._layer, Layer):
            raise ValueError(
                "method 'head' needs the layer that makes the logits, and no linear layer of this model does: use "
                "method='temperature'"
            )
        return through_layer(self._layer, self._model, x)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def watch_training(self, logits: Tensor, y: Tensor) -> None:
        """Let the guard see a training batch, the logits as the loss sees them."""
        self.guard.add_training(self.cleaned(logits.detach(), y, known=self.steps > 1))

    def cleaned(
        self, logits: Tensor, target: Tensor, weight: Tensor | None = None, *, known: bool = False
    ) -> Classification:
        """Bring a batch to ``(N, C)``, without samples whose logits overflowed; some are no reason to stop.

        Plain batches of a kind that is known from earlier ones are not checked again.
        """
        logits, target, count = forward.finite(logits, target, self.ignore_index, self.multi_label)
        if count:
            self.guard.warn(
                "not finite",
                f"{count} samples of a batch have infinite or NaN logits in {logits.dtype} (largest before: "
                f"{self.largest_logit:.3g}), and are left out: use bfloat16 or float32 for the last layer, since raw "
                f"logits grow against the temperature, or, if training has diverged, {GO_BACK}",
            )
        is_plain = logits.dim() == 2 and logits.shape[1] > 1 and weight is None and not self.multi_label
        if known and is_plain and logits.device.type == "cpu" and bool((target != self.ignore_index).all()):
            return Classification(logits if logits.dtype == torch.float64 else logits.float(), target.long())
        return self._flattened(logits, target, weight)

    def _flattened(
        self, logits: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int | None = None
    ) -> Classification:
        ignored = self.ignore_index if ignore_index is None else ignore_index
        return forward.flattened(logits, target, weight, multi_label=self.multi_label, ignore_index=ignored)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _warn_of_same(self, x: Any, y: Tensor, x_held_out: Any, y_held_out: Tensor) -> None:
        is_same = x is x_held_out
        if not is_same and isinstance(x, Tensor) and isinstance(x_held_out, Tensor) and self.steps <= 2 * self.every:
            is_same = torch.equal(x, x_held_out) and torch.equal(y, y_held_out)
        if is_same:
            self.guard.warn(
                "same",
                "the held-out batch is the training batch, and says nothing about new data: hold out other samples, "
                "see interleaved_split()",
            )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _check_logits(self, data: Classification) -> None:
        if self.next_due <= self.every and look_like_probabilities(data.logits, of_one=False):
            self.guard.warn("softmax", PROBABILITIES)

    def compare_evaluation(self, scores: forward.BatchScores, loader: Any) -> None:
        """Compare scores of an evaluation with the held-out batches since the last one, which a loader gave."""
        dropout = self.method != "temperature" and forward.has_dropout(self._model)
        self.guard.compare_evaluation(scores, loader, dropout=dropout)

    def log(self) -> dict[str, float]:
        """Values for a log: the temperature, and scores of the held-out batches of the last window of steps."""
        return {"temperature": self.temperature} | self.guard.latest | {"warnings": float(len(self.guard.warnings_))}

    @torch.no_grad()
    def compare(self, held_out: Iterable[Any], new: Iterable[Any]) -> tuple[forward.BatchScores, forward.BatchScores]:
        """Score batches of held-out and of new data, such as validation data after an epoch, and warn if they differ.

        ``finish(held_out, new)`` does the same at the end of training.
        """
        self._check_state()
        found = [self._predicted(batches) for batches in (held_out, new)]
        on_held_out, on_new = (forward.scores_of(data.logits / self.temperature, data.target) for data, _ in found)
        self.guard.compare(on_new, on_held_out)
        return on_held_out, on_new

    @torch.no_grad()
    def finish(
        self, held_out: Iterable[Any], new: Iterable[Any] | None = None, *, fold: bool | None = None
    ) -> Finished:
        """Solve for T on the final network and let the model itself return calibrated logits.

        A second call with the same data divides by 1. Training may go on, from T = 1; call ``finish`` again at its end.

        Args:
            held_out: Batches ``(x, y)``, or ``(x, y, weight)``, of the held-out data, all of them.
            new: Batches of data that took no part in the training, such as validation data: the guard then warns if
                held-out data have become special.
            fold: Divide the output layer by T, or the model's output where no layer makes the logits. By default only
                for the method ``"temperature"``.
        """
        self._check_state()
        self.detach()
        self.guard.close_window()
        folds = (self.method == "temperature") if fold is None else fold
        data, layer = self._predicted(held_out)
        logits, target, _ = data
        self.guard.judge_final(forward.scores_of(logits, target))
        log_t = error = 0.0
        trained_at = self.loop.trained_at(logits)
        if folds:
            log_t, error = final_temperature(data, self.loop, self.guard)
        elif len(target) < FEWEST:
            few = f"{len(target)} held-out samples are too few to measure calibration: hold out more data"
            self.guard.warn("few", few)
        temperature = math.exp(log_t)
        on_held_out = forward.scores_of(logits / temperature, target)
        on_new = None
        if new is not None:
            new_data, _ = self._predicted(new)
            on_new = forward.scores_of(new_data.logits / temperature, new_data.target)
            self.guard.compare(on_new, on_held_out)
        elif folds and self.loss is None and looks_trained_on(log_t, error, on_held_out.accuracy):
            self.guard.warn_of_training_samples(temperature, on_held_out)
        if folds:
            weights = divide(unwrapped(self._model), layer, temperature, self.output)
            self._finished = True
            if abs(log_t) > 2 * NOTICED:  # a second call changes nothing
                self.reminder.keep(weights)
            self.loop.restart(trained_at - log_t)
            self.reminder.steps = 0
        return Finished(temperature, error, on_held_out, on_new)

    def _predicted(self, batches: Iterable[Any]) -> tuple[Classification, nn.Module | None]:
        """Samples of all ranks with finite logits, on the CPU, and the layer that makes the logits."""
        model, layer = unwrapped(self._model), self._layer
        parts: list[Classification] = []
        left_out = weighted = 0
        with forward.evaluating(model):
            for x, y, weight in forward.batches_for(model, batches, "finish"):
                if layer is None:
                    layer = find_output(model, x)
                logits, y, count = forward.finite(forward.logits_of(model, x), y, self.ignore_index, self.multi_label)
                parts.append(self._flattened(logits, y, weight))
                left_out += count
                weighted += weight is not None
        if 0 < weighted < len(parts):
            raise ValueError(f"{weighted} of {len(parts)} batches have weights: give all of them or none")
        data = gathered(forward.joined(parts))
        samples = len(data.target)
        if distributed.is_distributed():
            left_out = int(distributed.sum_across_ranks(torch.tensor(left_out, device=parts[0].logits.device)))
        if weighted and not samples and not left_out:
            raise ValueError("every weight is 0, so there is nothing to calibrate on: give some sample a weight")
        if left_out and not samples:
            raise ValueError(
                f"the final network's logits are infinite or NaN on all {left_out} samples, so there is nothing to "
                f"calibrate: {GO_BACK}"
            )
        if left_out:
            self.guard.warn(
                "final not finite",
                f"the final network's logits are infinite or NaN on {left_out} of {left_out + samples} samples, "
                "which are left out: run finish() in float32 or bfloat16 if they overflow in float16, check the inputs "
                f"of these samples, or, if training has diverged, {GO_BACK}",
            )
        return data, layer

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next, in values that load with ``weights_only``."""
        states = {"loop": self.loop.state_dict(), "guard": self.guard.state_dict()}
        return {"step": self.steps, "due": self.next_due, "finished": self._finished} | states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, to the bit."""
        self.steps, self.next_due, self._finished = state["step"], state["due"], state["finished"]
        self.loop.load_state_dict(state["loop"])
        self.guard.load_state_dict(state["guard"])
        if self.divided is not None:
            self.divided.set(self.temperature)

    def _check_state(self) -> None:
        """Raise if a state from before ``finish`` was loaded, but not the weights of the model from before it."""
        if self._finished or (changed := self.reminder.have_changed()) is None:
            return
        if not changed:
            raise ValueError(
                "the state of this loss was saved before finish(), and the model has its weights from after it, which "
                "the temperature would divide twice: load the weights of the same checkpoint into the model too"
            )
        self.reminder.keep(None)
