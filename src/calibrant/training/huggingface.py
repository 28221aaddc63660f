"""Calibrated training with the ``Trainer`` of Hugging Face transformers.

Private names of transformers that this package depends on are in this file. Tested with transformers 4.46.1 and 5.22.2.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import RandomSampler, Sampler
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from calibrant.training.calibrated_loss import BatchNormUse, CalibratedLoss, Finished, Method
from calibrant.training.forward import Loss, minimum_samples, scores_of
from calibrant.training.held_out import even_size, warn_of_data
from calibrant.training.interleave import Passes, kept_random_state, seed_all
from calibrant.training.temperature_loop import refined_nll

FILE = "calibrated_loss.pt"  # in a checkpoint: the state of the loss, and the position in the calibration set


class InterleavedTrainer(Trainer):
    """A ``transformers.Trainer`` that calibrates a classifier on held-out data while it trains.

    It takes the arguments of ``Trainer``, those of :class:`calibrant.training.CalibratedLoss`, and what follows;
    ``docs/huggingface.md`` has more. Models need one label for each sample: logits ``(N, C)``, labels ``(N,)``.

    Args:
        calibration_dataset: Held-out part of the training data, of the same kind as ``train_dataset``; see
            :func:`~calibrant.training.interleaved_split`.
        method: By default ``"published"`` if an objective or a weight is given, else ``"temperature"``.
        calibration_batch_size: Most samples of a calibration batch on each process; by default of a training batch.
        calibration_every: Use a calibration batch every k-th optimizer step only.

    Attributes:
        calibrated_loss: The :class:`calibrant.training.CalibratedLoss` of the latest training; None before.
        finished: Final temperature and scores of the latest training with ``"temperature"``; None otherwise.

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
        self.method: Method = method
        # Each training has a loss of its own; its settings are checked now.
        self._new_loss = partial(CalibratedLoss, method=method, objective=objective, weight=weight)
        given = self._new_loss(nn.Identity(), every=calibration_every)
        if batchnorm is not None:
            given.batchnorm = batchnorm
        self.weight, self.calibration_every, self.batchnorm = given.weight, given.every, given.batchnorm
        self.calibration_objective = given.objective  # Trainer uses self.objective for hyperparameter search
        super().__init__(*args, **kwargs)
        self.calibration_dataset = calibration_dataset
        self.calibration_batch_size = calibration_batch_size
        self.calibrated_loss: CalibratedLoss | None = None
        self.finished: Finished | None = None
        self._stream: Passes | None = None
        self._draws_held_out = False
        self._check()
        # Many heads accept num_items_in_batch and ignore it. Their loss then grows with the accumulation steps, out of
        # proportion to the objective (huggingface/transformers#47688). The mean over samples does not need it.
        self.model_accepts_loss_kwargs = False
        if self.compute_metrics is None:
            self.compute_metrics = lambda _: {}  # with None, Trainer would keep the loss and drop the logits

    def _check(self) -> None:
        """Reject settings that would fail or mislead hours later."""
        warn_of_data(self.calibration_dataset, self.train_dataset)
        config = getattr(self.model, "config", None)
        problem, labels = getattr(config, "problem_type", None), getattr(config, "num_labels", None)
        if problem in ("regression", "multi_label_classification") or labels == 1:
            raise ValueError(
                f"calibration needs single-label classification, got a model with problem_type={problem!r} and "
                f"num_labels={labels}: use a classification head with 2 labels or more"
            )
        if len(self.label_names) != 1:
            raise ValueError(
                f"expected a model with one column of labels, got label_names={self.label_names}: "
                "name it with label_names in TrainingArguments"
            )
        if self.is_deepspeed_enabled:
            raise ValueError("DeepSpeed allows one backward pass per step, and this needs two: use DDP or FSDP")
        best = self.args.metric_for_best_model or ""
        if best.endswith(("ece", "refined_nll")) and self.args.greater_is_better:
            raise ValueError(f"a lower {best} is better: set greater_is_better=False in TrainingArguments")
        if self.args.batch_eval_metrics:
            raise ValueError("ECE is computed on all predictions at once: set batch_eval_metrics=False")

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as ``Trainer`` does; with the method ``"temperature"`` the model itself is calibrated afterwards."""
        self.calibrated_loss = self._stream = None
        self._saved: dict[str, Any] = {}
        self._seen_step = -1
        try:
            output = super().train(*args, **kwargs)
            if self.state.global_step:
                self._finish()
        finally:
            if self.calibrated_loss is not None:
                self.calibrated_loss.detach()
        return output

    def _started(self, model: nn.Module, batch: dict[str, Any]) -> CalibratedLoss:
        """The loss of this training; a batch finds the layer that makes the logits. ``model`` may be wrapped."""
        if self.calibrated_loss is not None:
            return self.calibrated_loss
        plain: Any = self.model
        # The gradient of "published" takes the path of the training loss; that of "head" only one layer.
        trained = model if self.method == "published" else plain
        every = self.calibration_every if self.method == "temperature" else 1
        self.calibrated_loss = loss = self._new_loss(trained, every=every)
        loss.batchnorm = self.batchnorm
        with self.compute_loss_context_manager():
            loss.attach(self._inputs(self._prepare_inputs(batch)))
        if self._saved:
            loss.load_state_dict(self._saved)
        return loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        if not self._is_due(model, inputs):
            return super().training_step(model, inputs, *args, **kwargs)
        loss = self._started(model, inputs)
        assert loss.divided is not None  # noqa: S101 (attached)
        batch = self._prepare_inputs(self._drawn().next_batch())
        if loss.method == "temperature":
            with self.compute_loss_context_manager():
                loss.observe(*self._pair(batch))
        else:
            # A separate backward pass frees this graph before the next, and lets DDP's forward pass overwrite
            # buffers; gradients are reduced once, with those of the NLL.
            with self.accelerator.no_sync(model):
                self._calibration_step(model, loss, batch)
        if loss.objective is not None:
            # At the layer that makes the logits: a wrapped model may return a copy that the loss does not depend on.
            loss.divided.sees = lambda logits: loss.guard.watch(logits, "loss")
        try:
            value = super().training_step(model, inputs, *args, **kwargs)
        finally:
            loss.divided.sees = None
        if (seen := loss.divided.take(inputs.get(self.label_names[0]))) is not None:
            loss.watch_training(*seen)
        return value

    def _is_due(self, model: nn.Module, inputs: dict[str, Any]) -> bool:
        step = self.state.global_step
        if self.method == "temperature":  # one batch for all micro-batches of an optimizer step
            is_new, self._seen_step = step != self._seen_step, step
            return is_new and bool(self._started(model, inputs).is_due())
        has_use = self.weight > 0 and step % self.calibration_every == 0
        return has_use and bool(self._started(model, inputs).is_due())

    def _calibration_step(self, model: nn.Module, loss: CalibratedLoss, batch: Any) -> None:
        model.train()
        if callable(train := getattr(self.optimizer, "train", None)):
            train()
        with self.compute_loss_context_manager():
            value = loss.held_out_objective(*self._pair(batch))
        # accelerate divides by its number of accumulation steps, which is 1 where Trainer itself divides.
        steps = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
        self.accelerator.backward(value * (loss.weight * self.accelerator.gradient_accumulation_steps / steps))

    def _inputs(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Everything but the labels, so that the model does not compute its own loss."""
        return {name: value for name, value in batch.items() if name != self.label_names[0]}

    def _pair(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
        label = self.label_names[0]
        if batch.get(label) is None:
            raise ValueError(f"the batch has no {label!r}, only {', '.join(batch)}: give calibration_dataset labels")
        return self._inputs(batch), batch[label]

    def _finish(self) -> None:
        if self.method != "temperature":
            if self.calibrated_loss is not None:
                self.calibrated_loss.guard.close_window()
            return
        plain: Any = self.model
        with kept_random_state():
            # No step was taken if training resumed from a checkpoint of the last one.
            loss = self.calibrated_loss or self._started(plain, self._drawn().next_batch())
            batches = (self._pair(self._prepare_inputs(batch)) for batch in self._drawn().whole_pass())
            with self.compute_loss_context_manager():
                self.finished = loss.finish(batches)

    def _save_checkpoint(self, model: nn.Module, trial: Any, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(model, trial, *args, **kwargs)
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        if self.calibrated_loss is not None and self.args.should_save and folder.exists():
            more = {"temperature": self.calibrated_loss.temperature, "stream": self._drawn().state_dict()}
            torch.save(self.calibrated_loss.state_dict() | more, folder / FILE)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)
        path = Path(resume_from_checkpoint) / FILE
        self._saved = torch.load(path, weights_only=True) if path.exists() else {}

    def _drawn(self) -> Passes:
        """The calibration batches of this training."""
        if self._stream is None:
            seed = int(self.args.seed if self.args.data_seed is None else self.args.data_seed)
            with kept_random_state():
                seed_all(seed)  # accelerate's sampler keeps this seed and adds the number of the pass
                loader = self.get_calibration_dataloader()
            self._stream = Passes(loader, minimum_samples(self.calibration_objective), seed)
            if self._saved:
                self._stream.load_state_dict(self._saved["stream"])
        return self._stream

    def get_calibration_dataloader(self) -> Iterable[Any]:
        """Make the loader of the calibration set as ``get_train_dataloader`` makes that of the training set."""
        held_out, train = self.calibration_dataset, (self.train_dataset, self._train_batch_size)
        size = self.calibration_batch_size or self._train_batch_size
        size = even_size(len(held_out), size) if hasattr(held_out, "__len__") else size
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

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate as ``Trainer`` does, and add scores; your own metrics of these names take precedence."""
        output = super().evaluation_loop(*args, **kwargs)
        if output.predictions is not None and output.label_ids is not None and output.metrics is not None:
            prefix = kwargs.get("metric_key_prefix", args[4] if len(args) > 4 else "eval")
            logits, labels = _labelled(output.predictions, output.label_ids)
            if not len(labels):
                return output
            scores = scores_of(logits, labels)
            refined, _ = refined_nll(logits, labels)
            output.metrics.setdefault(f"{prefix}_accuracy", scores.accuracy)
            output.metrics.setdefault(f"{prefix}_ece", scores.ece)
            output.metrics.setdefault(f"{prefix}_refined_nll", refined)
            if self.calibrated_loss is not None and self.is_in_train and prefix == "eval":
                self.calibrated_loss.compare_evaluation(scores, self._drawn().loader)
        return output

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        loss = self.calibrated_loss
        if loss is not None and loss.divided is not None and "loss" in logs:
            logs = logs | loss.guard.since_log()
            if loss.method == "temperature":
                logs["temperature"] = loss.temperature
        super().log(logs, *args, **kwargs)


def _labelled(predictions: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Logits and labels of the samples of predictions of ``Trainer`` that have a label."""
    logits = predictions[0] if isinstance(predictions, tuple) else predictions
    if isinstance(logits, list):  # batches that Trainer did not join; if a model returns more, logits come first
        logits = np.concatenate([batch[0] if isinstance(batch, tuple) else batch for batch in logits])
        labels = np.concatenate(labels)
    if np.ndim(logits) != 2 or np.shape(labels) != np.shape(logits)[:1]:
        raise ValueError(
            f"ECE needs logits (N, C) and labels (N,), got {np.shape(logits)} and {np.shape(labels)}: "
            "preprocess_logits_for_metrics must leave the logits as they are"
        )
    counts = labels != -100  # as everywhere in transformers
    return torch.as_tensor(logits[counts]).float(), torch.as_tensor(labels[counts]).long()
