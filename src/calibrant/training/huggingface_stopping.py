"""Early stopping by the validation loss after temperature scaling, for Hugging Face transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import EvalPrediction, TrainerCallback
from transformers import TrainerControl as Control
from transformers import TrainerState as State
from transformers import TrainingArguments as Arguments

from calibrant.files import whole_or_not_at_all
from calibrant.training.forward import logits_of
from calibrant.training.interleave import kept_random_state
from calibrant.training.stopping import StopsByRefinement, refined_nll

WEIGHTS = "best_after_temperature.pt"
PLACE = "calibrant_refinement"  # not the name of the class, or Trainer might make a new callback from it


class StopTrainerAfterTemperature(StopsByRefinement, TrainerCallback):
    """Stop when the evaluation log loss after temperature scaling no longer improves, and keep the best weights.

    The counterpart of :class:`~calibrant.training.StopAfterTemperature` for ``transformers.Trainer``. Every evaluation
    reports ``eval_refined_nll``. The best weights are kept in memory, and with every checkpoint in the file
    ``best_after_temperature.pt`` beside it. At the end of training they are restored, even if
    ``load_best_model_at_end`` has chosen others.

    ``InterleavedTrainer`` needs only ``callbacks=[stopping]``; ``Trainer`` itself gives predictions to
    ``compute_metrics`` only, so pass ``compute_metrics=stopping.compute_metrics`` too.

    Args:
        patience: Evaluations without improvement after which training stops; None to train to the end and only keep
            the best weights.
        fold: Divide the output layer by the temperature at the end, so that the model itself is calibrated.
        compute_metrics: Your own metrics, reported along with ``refined_nll``.

    Attributes:
        temperature_: Temperature of the best evaluation.
        best_score_: Log loss of the best evaluation after its temperature.
        best_epoch_: Epochs trained before the best evaluation, as ``Trainer`` counts them: 0.5 is half of the first.

    References:
        Berta, Holzmüller, Jordan, Bach, "Rethinking Early Stopping: Refine, Then Calibrate", 2025.

    Example:
        >>> stopping = StopTrainerAfterTemperature(patience=2)
        >>> logits, labels = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]), np.zeros(4, dtype=int)
        >>> round(stopping.compute_metrics(EvalPrediction(predictions=logits, label_ids=labels))["refined_nll"], 4)
        0.5623
    """

    def __init__(
        self, patience: int | None = 3, *, fold: bool = False,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(patience, fold)
        self._metrics = compute_metrics
        self._latest: tuple[float, float] | None = None
        self._trains = False

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """Return ``refined_nll``, and your own metrics if there are any."""
        own = {} if self._metrics is None else self._metrics(prediction)
        return own | self.refine(prediction.predictions, prediction.label_ids)

    def refine(self, predictions: Any, labels: Any) -> dict[str, float]:
        """Return ``refined_nll`` of logits and labels, and remember it for the end of the evaluation."""
        logits, labels = arrays(predictions, labels)
        if np.ndim(logits) != 2:
            raise ValueError(
                f"StopTrainerAfterTemperature needs logits (N, C), got shape {np.shape(logits)}: "
                "preprocess_logits_for_metrics must leave the logits as they are"
            )
        self._latest = refined_nll(torch.as_tensor(logits).float(), torch.as_tensor(labels))
        return {"refined_nll": self._latest[0]}

    def on_train_begin(self, args: Arguments, state: State, control: Control, **kwargs: Any) -> None:
        """Start afresh, or continue from a checkpoint."""
        self._forget()
        self._latest, self._trains = None, True
        kept: Any = state.stateful_callbacks
        if PLACE not in kept:
            return
        folder = args.resume_from_checkpoint or Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        path = Path(str(folder)) / WEIGHTS
        if not path.exists():
            raise FileNotFoundError(
                f"the weights of the best evaluation, {path}, are missing: resume from a checkpoint in output_dir, or "
                "set resume_from_checkpoint in TrainingArguments"
            )
        self._go_on_from(kept[PLACE]["attributes"], torch.load(path, map_location="cpu", weights_only=True))
        control.should_training_stop = self._stops

    def on_evaluate(self, args: Arguments, state: State, control: Control, **kwargs: Any) -> None:
        """Keep the weights if the evaluation was the best one, and stop after ``patience``."""
        latest, self._latest = self._latest, None
        if not self._trains:
            return
        if latest is None:
            raise ValueError(
                "StopTrainerAfterTemperature saw no predictions: pass compute_metrics=stopping.compute_metrics to "
                "Trainer, or use InterleavedTrainer"
            )
        self._add(*latest, float(state.epoch or 0), kwargs["model"])
        kept: Any = state.stateful_callbacks  # a dictionary that Trainer saves and loads, despite its annotation
        kept[PLACE] = {"args": {}, "attributes": self._state()}
        control.should_training_stop = control.should_training_stop or self._stops

    def on_predict(self, args: Arguments, state: State, control: Control, metrics: Any, **kwargs: Any) -> None:
        """Ignore predictions, which do not choose weights."""
        self._latest = None

    def on_save(self, args: Arguments, state: State, control: Control, **kwargs: Any) -> None:
        """Write the best weights beside a checkpoint."""
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and self._weights is not None and folder.exists():
            with whole_or_not_at_all(folder / WEIGHTS) as temporary:
                torch.save(self._weights, temporary)

    def on_train_end(self, args: Arguments, state: State, control: Control, **kwargs: Any) -> None:
        """Put the best weights back."""
        self._trains = False
        model, batch = kwargs["model"], {}
        if self.fold and self._weights is not None:  # the batch finds the output layer
            with kept_random_state():
                batch = next(iter(kwargs["train_dataloader"]))
        given = {name: value.to(args.device) for name, value in batch.items() if isinstance(value, torch.Tensor)}
        self._put_best_back(model, lambda: logits_of(model, given))


def arrays(predictions: Any, labels: Any) -> tuple[Any, Any]:
    """Logits and labels as arrays, also of batches that Trainer did not join; of several outputs, logits are first."""
    logits = predictions[0] if isinstance(predictions, tuple) else predictions
    if not isinstance(logits, list):
        return logits, labels
    return np.concatenate([batch[0] if isinstance(batch, tuple) else batch for batch in logits]), np.concatenate(labels)
