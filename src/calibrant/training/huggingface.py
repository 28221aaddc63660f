"""Calibrated training with the ``Trainer`` of Hugging Face transformers."""

import math
from collections.abc import Iterable, Sized
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from calibrant.losses.checks import check_count
from calibrant.training.calibrated_loss import CalibratedLoss
from calibrant.training.finishing import Finished
from calibrant.training.forward import logits_in
from calibrant.training.ignored import Loss, minimum_samples, zero_of
from calibrant.training.methods import BatchNormUse, Method, checked_settings
from calibrant.training.randomness import kept_random_state
from calibrant.training.split import even_size
from calibrant.training.stopping_huggingface import StopTrainerAfterTemperature
from calibrant.training.stream import Stream
from calibrant.training.trainer_loop import TrainerLoop, counted, scores_of_predictions
from calibrant.training.transformers_private import OpenTrainer
from calibrant.training.warning import warn_of_data

PLACE = "CalibratedTrainer"  # key for the calibration batches in the state that Trainer saves


class CalibratedTrainer(OpenTrainer):
    """A ``transformers.Trainer`` that calibrates a classifier on held-out data while it trains.

    By default, with the method ``"temperature"``, ``Trainer`` computes its loss on logits divided by a temperature T,
    which is fitted to held-out batches by forward passes alone, see :class:`calibrant.training.CalibratedLoss`.
    Evaluation during training uses divided logits too. At the end of ``train()``, T is fitted to the whole calibration
    set and folded into the layer that makes the logits, so ``save_model`` writes a calibrated model. Checkpoints hold
    the weights before the division, and T in ``calibrated_loss.pt``.

    With an objective the method is ``"published"``: one optimizer step descends along the gradient of
    ``NLL(train batch) + weight * objective(calibration batch)``, both means over the micro-batches of gradient
    accumulation. The NLL is whatever ``Trainer`` computes, label smoothing and ``compute_loss_func`` included. With the
    method ``"head"`` the gradient of the held-out loss, the cross entropy or an objective, reaches the last layer only.

    ``evaluate()`` and ``predict()`` report accuracy and ECE beside the loss. ``train(resume_from_checkpoint=...)``
    resumes the calibration batches as exactly as ``Trainer`` resumes the training batches. Models with one label for
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
        guard: Warn when training goes wrong, see :class:`calibrant.training.CalibrationWarning`.
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
        ...     trainer = CalibratedTrainer(model, args, train_dataset=samples[:12], calibration_dataset=samples[12:])
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
        guard: bool = True,
        **kwargs: Any,
    ) -> None:
        if calibration_dataset is None:
            raise ValueError("calibration_dataset is None: hold out training data with interleaved_split")
        if weight is not None and not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight must be finite and not negative, got {weight}")
        if calibration_every is not None:
            check_count("calibration_every", calibration_every)
        if method is None:
            method = "temperature" if objective is None and weight is None else "published"
        settings = checked_settings(method, objective, weight, calibration_every, batchnorm)
        if objective is not None and not callable(objective):
            raise TypeError(f"objective must take (logits, labels), got {type(objective).__name__}")
        super().__init__(*args, **kwargs)
        self.calibration_dataset = calibration_dataset
        self.guard = guard
        self.method, objective, self.weight, self.calibration_every, self.batchnorm = self._settings = settings
        self.calibration_objective = objective  # Trainer uses self.objective for hyperparameter search
        self.calibrated_loss: CalibratedLoss | None = None
        self.finished: Finished | None = None
        self._loop: TrainerLoop | None = None
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
        batch = self.prepared(self._next_calibration_batch())
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

    def _started_loop(self, model: nn.Module, batch: dict[str, Any]) -> TrainerLoop:
        if self._loop is None:
            assert self.model is not None  # noqa: S101 (it trains)
            with kept_random_state(), self.compute_loss_context_manager():
                prepared, label = self.prepared(batch), self.label_names[0]
                self._loop = TrainerLoop(self.model, model, prepared, label, self._settings, self.guard)
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
            batches = (self.prepared(batch) for batch in self._current_stream().whole_pass())
            with self.compute_loss_context_manager():
                self.finished = loop.finish(batches)

    def on_checkpoint_saved(self, folder: Path) -> None:
        """Write the state of the loss beside the weights."""
        if self._loop is not None:
            self._loop.save(folder)

    def on_checkpoint_loaded(self, folder: Path) -> None:
        """Remember where the state of the loss is."""
        self._resumed_from = folder

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

    def _calibration_step(self, model: nn.Module, loop: TrainerLoop, batch: Any) -> None:
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
        return self.loader_like_training(
            held_out, even_size(len(held_out), most) if hasattr(held_out, "__len__") else most
        )

    def _samples_of_a_batch(self) -> int:
        return self.training_batch_size if self.calibration_batch_size is None else self.calibration_batch_size

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate as ``Trainer`` does, and add accuracy and ECE; your own metrics of these names take precedence."""
        output = super().evaluation_loop(*args, **kwargs)
        if output.predictions is not None and output.label_ids is not None and output.metrics is not None:
            prefix = kwargs.get("metric_key_prefix", args[4] if len(args) > 4 else "eval")
            found = output.predictions, output.label_ids
            scores = scores_of_predictions(*found)
            # Callbacks that need the predictions.
            stops = [each for each in self.callback_handler.callbacks if isinstance(each, StopTrainerAfterTemperature)]
            refined = [callback.refine(*found) for callback in stops]
            for name, value in (scores | (refined[0] if refined else {})).items():
                output.metrics.setdefault(f"{prefix}_{name}", value)
            if self._loop is not None and self.is_in_train and prefix == "eval" and scores:
                held_out = self.calibration_dataset
                distinct = len(held_out) if isinstance(held_out, Sized) else math.inf
                samples, dropout = counted(output.label_ids), self._loop.has_dropout
                self._loop.guard.compare_evaluation(scores["accuracy"], samples, distinct, dropout=dropout)
        return output

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as ``Trainer`` does, with the scores of the calibration batches beside the training loss."""
        of_loop = self._loop.log() if self._loop is not None and "loss" in logs else {}
        super().log(logs | of_loop, *args, **kwargs)
