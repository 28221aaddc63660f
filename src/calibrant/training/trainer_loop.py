"""A ``CalibratedLoss`` beside a Hugging Face ``Trainer``, which computes the training loss itself."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant import metrics
from calibrant.losses.checks import Classification
from calibrant.training.calibrated_loss import CalibratedLoss
from calibrant.training.finishing import Finished
from calibrant.training.forward import evaluating, has_dropout, logits_in, logits_of
from calibrant.training.guard import Guard
from calibrant.training.last_layer import DividedLogits, Layer, find_maker
from calibrant.training.methods import Settings
from calibrant.training.running_scores import Scores, Sums

FILE = "calibrated_loss.pt"


class TrainerGuard(Guard):
    """Also scores held-out batches per evaluation and per log entry, which may be too few for a warning."""

    def __init__(self, on: bool = True, *, has_objective: bool = True) -> None:
        super().__init__(on, has_objective=has_objective)
        self._logged, self._compared = Sums(), Sums()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def add_held_out(self, data: Classification) -> None:
        """Add a held-out batch, before the network has learned anything from it."""
        data = data._replace(logits=data.logits.detach())
        super().add_held_out(data)
        self._logged.add(data)
        self._compared.add(data)

    def log(self) -> dict[str, float]:
        """Scores of the held-out batches since the last entry, and the number of warnings so far."""
        scores, self._logged = self._logged.scores(across_ranks=True), Sums()
        return ({} if scores is None else scores.named()) | {"warnings": float(len(self.warnings_))}

    def compare_evaluation(self, accuracy: float, samples: int, distinct: float, *, dropout: bool) -> None:
        """Compare the held-out batches since the previous evaluation with this one."""
        held_out, self._compared = self._compared.scores(across_ranks=True), Sums()
        self.compare_between(Scores(samples, accuracy, math.nan, math.nan), held_out, distinct, dropout=dropout)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue."""
        return super().state_dict() | {"logged": self._logged.state_dict(), "compared": self._compared.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        super().load_state_dict(state)
        self._logged.load_state_dict(state["logged"])
        self._compared.load_state_dict(state["compared"])


class TrainerLoop:
    """Gives held-out batches to a :class:`CalibratedLoss`, and lets its guard see the training batches.

    With the method ``"temperature"`` it divides the logits of the model by the temperature until :meth:`finish`. The
    layer that makes them is found by a batch. ``wrapped`` is the model as it is trained, in
    ``DistributedDataParallel`` for example.
    """

    def __init__(
        self, model: nn.Module, wrapped: nn.Module, batch: Mapping[str, Any], label: str, settings: Settings,
        guard: bool,
    ) -> None:  # fmt: skip
        self._label = label
        self._every = settings.every
        self._learns = settings.method != "temperature"
        with evaluating(model):
            maker = find_maker(model, lambda: _classifying(model, self._inputs(batch)))
        self.loss = CalibratedLoss(
            # The gradient of "published" takes the path of the training loss; that of "head" only one layer.
            wrapped if settings.method == "published" else model,
            settings.method,
            objective=settings.objective, weight=settings.weight if self._learns else None,
            every=1 if self._learns else self._every, batchnorm=settings.batchnorm,
            layer=maker if not self._learns or (settings.method == "head" and isinstance(maker, Layer)) else None,
        )  # fmt: skip
        self.loss.output = maker
        self.loss.guard = self.guard = TrainerGuard(guard, has_objective=self._learns)
        self.has_dropout = self._learns and _has_dropout(model)
        self._divided = None if self._learns else DividedLogits(maker)
        self._handle = maker.register_forward_hook(self._note)
        self._is_watching = False
        self._latest: Tensor | None = None
        # Sums since the last log, kept on the device so that no step waits for it: values, silent ones, batches.
        self._objectives: Tensor | float = 0.0
        self._seen_step = -1

    def is_due(self, step: int) -> bool:
        """Whether a held-out batch is due at an optimizer step, asked at each of its micro-batches."""
        if self._learns:  # an objective needs a batch with every micro-batch, the temperature only one
            return step % self._every == 0 and bool(self.loss.is_due())
        is_new, self._seen_step = step != self._seen_step, step
        return is_new and bool(self.loss.is_due())

    def observe(self, batch: Mapping[str, Any]) -> None:
        """Run a held-out batch forward and move the temperature."""
        assert self._divided is not None  # noqa: S101 (the method is "temperature")
        with self._divided.raw():
            self.loss.observe(*self._pair(batch))
        self._divided.set(self.loss.temperature)

    def objective(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the objective of a held-out batch."""
        value = self.loss.held_out_objective(*self._pair(batch))
        found = value.detach()
        entry = torch.stack((found.float(), (found == 0).float(), torch.ones_like(found).float()))
        self._objectives = self._objectives + entry
        return value

    @contextmanager
    def watching(self, labels: Any) -> Iterator[None]:
        """Let the guard see the training batch that the model runs on inside this context."""
        self._is_watching = True
        try:
            yield
        finally:
            self._is_watching = False
        logits, self._latest = self._latest, None
        if logits is not None and isinstance(labels, Tensor) and logits.shape[:1] == labels.shape:
            self.loss.watch_training(logits, labels)

    def _note(self, module: nn.Module, given: Any, output: Any) -> None:
        # At the layer that makes the logits: a wrapped model may return a copy that the loss does not depend on.
        if self._is_watching:
            logits = logits_in(output)
            if self.loss.objective is not None:
                self.guard.watch(logits, "loss")
            self._latest = logits.detach()

    def finish(self, batches: Iterable[Mapping[str, Any]]) -> Finished:
        """Fold the last temperature into the model."""
        self.remove()
        return self.loss.finish(self._pair(batch) for batch in batches)

    def remove(self) -> None:
        """Stop dividing and watching."""
        self._handle.remove()
        if self._divided is not None:
            self._divided.remove()

    def log(self) -> dict[str, float]:
        """Values since the last entry of the log."""
        values = {} if self._divided is None else {"temperature": self.loss.temperature}
        if isinstance(self._objectives, Tensor):
            objective, silent, batches = self._objectives.tolist()
            values |= {"objective": objective / batches, "silent": silent / batches}
            self._objectives = 0.0
        return values | self.guard.log()

    def save(self, folder: Path) -> None:
        """Write the state beside the weights."""
        torch.save(self.loss.state_dict() | {"temperature": self.loss.temperature}, folder / FILE)

    def load(self, folder: Path) -> None:
        """Continue from a state, if there is one."""
        if (folder / FILE).exists():
            self.loss.load_state_dict(torch.load(folder / FILE, weights_only=True))
            if self._divided is not None:
                self._divided.set(self.loss.temperature)

    def _inputs(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Everything but the labels, so that the model does not compute its own loss."""
        return {name: value for name, value in batch.items() if name != self._label}

    def _pair(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
        if batch.get(self._label) is None:
            found = ", ".join(batch)
            raise ValueError(f"the batch has no {self._label!r}, only {found}: give calibration_dataset labels")
        return self._inputs(batch), batch[self._label]


def _classifying(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Logits of a model, or an error if they are not those of a classifier."""
    logits = logits_of(model, inputs)
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise ValueError(
            f"expected logits (N, C) of at least 2 classes for labels (N,), got {tuple(logits.shape)}: use a model "
            "with a classification head"
        )
    return logits


def _has_dropout(model: nn.Module) -> bool:
    """Whether a model has dropout: as modules, or, if it calls a function instead, by its configuration."""
    to_dict = getattr(getattr(model, "config", None), "to_dict", None)
    settings = to_dict() if callable(to_dict) else {}
    rates = (value for name, value in settings.items() if "dropout" in name and isinstance(value, float))
    return has_dropout(model) or any(rate > 0 for rate in rates)


def scores_of_predictions(predictions: Any, labels: Any) -> dict[str, float]:
    """Accuracy and ECE of predictions of Trainer: arrays, or lists of arrays of batches it did not join."""
    logits, labels = joined(predictions, labels)
    if np.ndim(logits) != 2 or np.shape(labels) != np.shape(logits)[:1]:
        raise ValueError(
            f"ECE needs logits (N, C) and labels (N,), got {np.shape(logits)} and {np.shape(labels)}: "
            "preprocess_logits_for_metrics must leave the logits as they are"
        )
    counts = labels != -100  # as everywhere in transformers
    if not counts.any():
        return {}
    given = metrics.predictions(logits=logits[counts], target=labels[counts])
    return {"accuracy": metrics.accuracy(given), "ece": metrics.ece(given, bins=20, convention="paper")}


def joined(predictions: Any, labels: Any) -> tuple[Any, Any]:
    """Logits and labels as arrays; if a model returns more, logits come first."""
    logits = predictions[0] if isinstance(predictions, tuple) else predictions
    if not isinstance(logits, list):
        return logits, labels
    return np.concatenate([batch[0] if isinstance(batch, tuple) else batch for batch in logits]), np.concatenate(labels)


def counted(labels: Any) -> int:
    """Number of labels that count, in an array or a list of them."""
    parts = labels if isinstance(labels, list) else [labels]
    return sum(int((np.asarray(part) != -100).sum()) for part in parts)
