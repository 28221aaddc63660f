"""Calibrated training with the ``Trainer`` of Hugging Face transformers, and early stopping after temperature scaling.

Private names of transformers that this package depends on are in this file. Tested with transformers 4.46.1 and 5.22.2.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import RandomSampler, Sampler
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from calibrant import metrics
from calibrant.losses.checks import Classification
from calibrant.training.calibrated_loss import (
    BatchNormUse,
    CalibratedLoss,
    Finished,
    Method,
    Settings,
    checked_settings,
)
from calibrant.training.forward import Loss, evaluating, has_dropout, logits_in, logits_of, minimum_samples, zero_of
from calibrant.training.guard import Guard, Scores, Sums
from calibrant.training.held_out import even_size, warn_of_data
from calibrant.training.huggingface_stopping import StopTrainerAfterTemperature, arrays
from calibrant.training.interleave import Stream, kept_random_state
from calibrant.training.output_layer import DividedLogits, find_maker

__all__ = ["InterleavedTrainer", "StopTrainerAfterTemperature"]

PLACE = "InterleavedTrainer"  # key for the calibration batches in the state that Trainer saves
FILE = "calibrated_loss.pt"  # in a checkpoint


class _TrainerGuard(Guard):
    """Also scores held-out batches per evaluation and per log entry, which may be too few for a warning."""

    def __init__(self, *, has_objective: bool) -> None:
        super().__init__(has_objective=has_objective)
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


class _Loop:
    """Gives held-out batches to a :class:`CalibratedLoss`, and lets its guard see the training batches.

    With the method ``"temperature"`` it divides the logits of the model by the temperature until :meth:`finish`. The
    layer that makes them is found by a batch. ``wrapped`` is the model as it is trained, in
    ``DistributedDataParallel`` for example.
    """

    def __init__(
        self, model: nn.Module, wrapped: nn.Module, batch: Mapping[str, Any], label: str, settings: Settings
    ) -> None:
        self._label = label
        self._every = settings.every
        self._learns = settings.method != "temperature"
        with evaluating(model):
            maker = find_maker(model, lambda: _classifying(model, self._inputs(batch)))
        self.loss = CalibratedLoss(
            # The gradient of "published" takes the path of the training loss; that of "head" only one layer.
            wrapped if settings.method == "published" else model, settings.method,
            objective=settings.objective, weight=settings.weight if self._learns else None,
            every=1 if self._learns else self._every,
        )  # fmt: skip
        self.loss.batchnorm = settings.batchnorm
        self.loss.output = maker
        self.loss.guard = self.guard = _TrainerGuard(has_objective=self._learns)
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


class InterleavedTrainer(Trainer):
    """A ``transformers.Trainer`` that calibrates a classifier on held-out data while it trains.

    By default, with the method ``"temperature"``, ``Trainer`` computes its loss on logits divided by a temperature T,
    which is fitted to held-out batches by forward passes alone, see :class:`calibrant.training.CalibratedLoss`.
    Evaluation during training uses divided logits too. At the end of ``train()``, T is fitted to the whole calibration
    set and folded into the output layer, so ``save_model`` writes a calibrated model. Checkpoints hold
    the weights before the division, and T in ``calibrated_loss.pt``.

    With an objective the method is ``"published"``: one optimizer step descends along the gradient of
    ``NLL(train batch) + weight * objective(calibration batch)``, both means over the micro-batches of gradient
    accumulation. The NLL is whatever ``Trainer`` computes, label smoothing and ``compute_loss_func`` included. With the
    method ``"head"`` the gradient of the held-out loss, the cross entropy or an objective, reaches only the output
    layer.

    ``evaluate()`` and ``predict()`` report accuracy and ECE beside the loss. ``train(resume_from_checkpoint=...)``
    resumes the calibration batches too. Models with one label for
    each sample are supported: logits ``(N, C)``, labels ``(N,)``. See ``docs/huggingface.md`` for what is logged,
    compared and accumulated.

    Args:
        *args: Positional arguments of ``Trainer``.
        calibration_dataset: Held-out part of the training data, of the same kind as ``train_dataset``; see
            :func:`~calibrant.training.interleaved_split`.
        objective: Function of ``(logits, labels)`` of a calibration batch. If not given, ``ESDLoss()`` for the method
            ``"published"`` and the cross entropy for ``"head"``.
        weight: Weight of the objective relative to the NLL; 1 if not given. With 0 the objective is not computed.
        method: ``"temperature"``, ``"head"`` or ``"published"``, see :class:`calibrant.training.CalibratedLoss`. By
            default ``"published"`` if an objective or a weight is given, else ``"temperature"``.
        calibration_batch_size: Most samples of a calibration batch on each process; by default those of a training
            batch. Batches are smaller, by less than half, where the last one would be small.
        calibration_every: Use a calibration batch every k-th optimizer step only; by default every fourth step for
            ``"temperature"``, every step for the others.
        batchnorm: Whether calibration batches ``"update"`` the running statistics, the default of ``"published"``, or
            ``"freeze"`` them. No effect on models without BatchNorm, or with ``"temperature"``.
        **kwargs: Keyword arguments of ``Trainer``.

    Attributes:
        calibrated_loss: The :class:`calibrant.training.CalibratedLoss` of the latest training, with its guard; None
            before.
        finished: Final temperature and scores of the latest training with ``"temperature"``; None before, and for other
            methods.

    Example:
        >>> import tempfile
        >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
        >>> samples = [{"input_ids": [n % 7, n % 5], "labels": n % 2} for n in range(20)]
        >>> small = {"vocab_size": 7, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
        >>> model = BertForSequenceClassification(BertConfig(intermediate_size=4, **small))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     args = TrainingArguments(folder, report_to="none", use_cpu=True)
        ...     trainer = InterleavedTrainer(model, args, train_dataset=samples[:12], calibration_dataset=samples[12:])
        ...     metrics = trainer.predict(samples).metrics  # and trainer.train(), as usual
        >>> "test_accuracy" in metrics and "test_ece" in metrics
        True
    """

    def __init__(
        self,
        *args: Any,
        calibration_dataset: Any,
        objective: Loss | None = None,
        weight: float | None = None,
        method: Method | None = None,
        calibration_batch_size: int | None = None,
        calibration_every: int | None = None,
        batchnorm: BatchNormUse | None = None,
        **kwargs: Any,
    ) -> None:
        if calibration_dataset is None:
            raise ValueError("calibration_dataset is None: hold out training data with interleaved_split")
        if method is None:
            method = "temperature" if objective is None and weight is None else "published"
        settings = checked_settings(method, objective, weight, calibration_every, batchnorm)
        if objective is not None and not callable(objective):
            raise TypeError(f"objective must take (logits, labels), got {type(objective).__name__}")
        super().__init__(*args, **kwargs)
        self.calibration_dataset = calibration_dataset
        self.method, self.weight, self._settings = method, settings.weight, settings
        self.calibration_objective = settings.objective  # Trainer uses self.objective for hyperparameter search
        self.calibrated_loss: CalibratedLoss | None = None
        self.finished: Finished | None = None
        self._loop: _Loop | None = None
        self._draws_held_out = False
        self._resumed_from: Path | None = None
        self.calibration_batch_size = calibration_batch_size
        self._stream: Stream | None = None
        self._stream_state: Any = None
        self._check()
        # Many heads accept num_items_in_batch and ignore it. Their loss then grows with the accumulation steps, out of
        # proportion to the objective (huggingface/transformers#47688). The mean over samples does not need it.
        self.model_accepts_loss_kwargs = False
        if self.compute_metrics is None:
            self.compute_metrics = lambda _: {}  # with None, Trainer would keep the loss and drop the logits

    def _check(self) -> None:
        """Reject settings that would fail or mislead hours later."""
        minimum = minimum_samples(self.calibration_objective)
        if isinstance(self.calibration_dataset, Sized) and len(self.calibration_dataset) < minimum:
            raise ValueError(
                f"calibration_dataset has {len(self.calibration_dataset)} samples, but at least {minimum} are "
                "needed: hold out more data"
            )
        warn_of_data(self.calibration_dataset, self.train_dataset)
        if self._samples_of_a_batch() < minimum:
            raise ValueError(
                f"a calibration batch has {self._samples_of_a_batch()} samples, but at least {minimum} are needed: "
                "raise calibration_batch_size"
            )
        config = getattr(self.model, "config", None)
        problem = getattr(config, "problem_type", None)
        if problem in ("regression", "multi_label_classification") or getattr(config, "num_labels", None) == 1:
            raise ValueError(
                f"calibration needs single-label classification, got a model with problem_type={problem!r} and "
                f"num_labels={getattr(config, 'num_labels', None)}: use a classification head with 2 labels or more"
            )
        if len(self.label_names) != 1:
            raise ValueError(
                f"expected a model with one column of labels, got label_names={self.label_names}: "
                "name it with label_names in TrainingArguments"
            )
        if self.is_deepspeed_enabled:
            raise ValueError("DeepSpeed allows one backward pass per step, and this needs two: use DDP or FSDP")
        best = self.args.metric_for_best_model or ""
        if best.endswith("ece") and self.args.greater_is_better:
            raise ValueError(f"a lower {best} is better: set greater_is_better=False in TrainingArguments")
        if self.args.batch_eval_metrics:
            raise ValueError("ECE is computed on all predictions at once: set batch_eval_metrics=False")

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Use a calibration batch if one is due, then accumulate the gradients of the NLL."""
        has_use = self.method == "temperature" or self.weight > 0
        loop = self._started_loop(model, inputs) if has_use else None
        if loop is None or not loop.is_due(self.state.global_step):
            return super().training_step(model, inputs, *args, **kwargs)
        batch = self._prepare_inputs(self._next_calibration_batch())
        if self.method == "temperature":
            with self.compute_loss_context_manager():
                loop.observe(batch)
        else:
            # A separate backward pass frees this graph before the next, and lets DDP's forward pass overwrite
            # buffers; gradients are reduced once, with those of the NLL.
            with self.accelerator.no_sync(model):
                self._calibration_step(model, loop, batch)
        with loop.watching(inputs.get(self.label_names[0])):
            return super().training_step(model, inputs, *args, **kwargs)

    def _started_loop(self, model: nn.Module, batch: dict[str, Any]) -> _Loop:
        if self._loop is None:
            assert self.model is not None  # noqa: S101 (it trains)
            with kept_random_state(), self.compute_loss_context_manager():
                prepared, label = self._prepare_inputs(batch), self.label_names[0]
                self._loop = _Loop(self.model, model, prepared, label, self._settings)
            self.calibrated_loss = self._loop.loss
            if self._resumed_from is not None:
                self._loop.load(self._resumed_from)
        return self._loop

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as ``Trainer`` does; with the method ``"temperature"`` the model itself is calibrated afterwards."""
        self._loop = self._resumed_from = None
        try:
            output = super().train(*args, **kwargs)
            if self.state.global_step:
                self._finish()
        finally:
            if self._loop is not None:
                self._loop.remove()
            self._loop = None
        return output

    def _finish(self) -> None:
        if self.method != "temperature":
            if self._loop is not None:
                self._loop.guard.close_window()
            return
        with kept_random_state():
            assert self.model is not None  # noqa: S101 (it was trained)
            # There is no loop if training resumed from a checkpoint of the last step: nothing was left to train.
            loop = self._loop or self._started_loop(self.model, self._next_calibration_batch())
            batches = (self._prepare_inputs(batch) for batch in self._current_stream().whole_pass())
            with self.compute_loss_context_manager():
                self.finished = loop.finish(batches)

    def _save_checkpoint(self, model: nn.Module, trial: Any, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(model, trial, *args, **kwargs)
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        if self._loop is not None and self.args.should_save and folder.exists():
            self._loop.save(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)
        self._resumed_from = Path(resume_from_checkpoint)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        """Compute the loss as ``Trainer`` does, and 0 for a training batch whose labels are all -100."""
        labels = inputs.get(self.label_names[0])
        if not model.training or not isinstance(labels, Tensor) or bool((labels != -100).any()):
            return super().compute_loss(model, inputs, return_outputs, *args, **kwargs)
        outputs = model(**{key: value for key, value in inputs.items() if key != self.label_names[0]})
        loss = zero_of(logits_in(outputs))
        return (loss, outputs) if return_outputs else loss

    def _calibration_step(self, model: nn.Module, loop: _Loop, batch: Any) -> None:
        model.train()
        if callable(train := getattr(self.optimizer, "train", None)):
            train()
        with self.compute_loss_context_manager():
            value = loop.objective(batch)
        # accelerate divides by its number of accumulation steps, which is 1 where Trainer itself divides.
        steps = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
        self.accelerator.backward(value * (self.weight * self.accelerator.gradient_accumulation_steps / steps))

    def _current_stream(self) -> Stream:
        # Every training run has its own state, and a resumed one that of its checkpoint.
        if self._stream is None or self._stream_state is not self.state:
            kept: Any = self.state.stateful_callbacks
            place = kept.get(PLACE, {}).get("attributes", {})
            seed = int(self.args.seed if self.args.data_seed is None else self.args.data_seed)
            minimum = minimum_samples(self.calibration_objective)
            self._stream = Stream(self.get_calibration_dataloader, seed, minimum, **place)
            self._stream_state = self.state
        return self._stream

    def _next_calibration_batch(self) -> Any:
        stream = self._current_stream()
        kept: Any = self.state.stateful_callbacks  # a dictionary that Trainer saves and loads, despite its annotation
        batch = stream.next_batch()
        kept[PLACE] = {"args": {}, "attributes": stream.place}
        return batch

    def get_calibration_dataloader(self) -> Iterable[Any]:
        """Make the loader of the calibration set as ``get_train_dataloader`` makes that of the training set."""
        held_out, most = self.calibration_dataset, self._samples_of_a_batch()
        size = even_size(len(held_out), most) if hasattr(held_out, "__len__") else most
        train = self.train_dataset, self._train_batch_size
        self.train_dataset, self._train_batch_size, self._draws_held_out = held_out, size, True
        try:
            return self.get_train_dataloader()
        finally:
            self._draws_held_out = False
            self.train_dataset, self._train_batch_size = train

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Sampler[int] | None:
        if not self._draws_held_out:
            return super()._get_train_sampler(*args, **kwargs)
        # Grouping by length speeds training up, but a statistic of a batch needs a random sample of the whole.
        held_out = self.calibration_dataset
        return RandomSampler(held_out) if hasattr(held_out, "__len__") else None

    def _samples_of_a_batch(self) -> int:
        return self._train_batch_size if self.calibration_batch_size is None else self.calibration_batch_size

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate as ``Trainer`` does, and add accuracy and ECE; your own metrics of these names take precedence."""
        output = super().evaluation_loop(*args, **kwargs)
        if output.predictions is not None and output.label_ids is not None and output.metrics is not None:
            prefix = kwargs.get("metric_key_prefix", args[4] if len(args) > 4 else "eval")
            logits, labels = arrays(output.predictions, output.label_ids)
            scores = _scores_of(logits, labels)
            # Callbacks that need the predictions.
            stops = [each for each in self.callback_handler.callbacks if isinstance(each, StopTrainerAfterTemperature)]
            refined = [callback.refine(logits, labels) for callback in stops]
            for name, value in (scores | (refined[0] if refined else {})).items():
                output.metrics.setdefault(f"{prefix}_{name}", value)
            if self._loop is not None and self.is_in_train and prefix == "eval" and scores:
                held_out, samples = self.calibration_dataset, int((labels != -100).sum())
                distinct = len(held_out) if isinstance(held_out, Sized) else math.inf
                dropout = self._loop.has_dropout
                self._loop.guard.compare_evaluation(scores["accuracy"], samples, distinct, dropout=dropout)
        return output

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as ``Trainer`` does, with the scores of the calibration batches beside the training loss."""
        of_loop = self._loop.log() if self._loop is not None and "loss" in logs else {}
        super().log(logs | of_loop, *args, **kwargs)


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


def _scores_of(logits: Any, labels: Any) -> dict[str, float]:
    """Accuracy and ECE of predictions, where they are not labelled -100."""
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
