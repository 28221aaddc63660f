"""A LightningModule that owns a CalibratedLoss: its epochs, its guard, its checkpoint and its end."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from calibrant.training.calibrated_loss import CalibratedLoss
from calibrant.training.finishing import Finished
from calibrant.training.ignored import Loss
from calibrant.training.interleave import InterleavedLoader
from calibrant.training.lightning_device import moved, on_training_device
from calibrant.training.lightning_private import is_fitting
from calibrant.training.methods import BatchNormUse, Method
from calibrant.training.modes import has_dropout
from calibrant.training.randomness import kept_random_state
from calibrant.training.recorded import KEY, RecordedModule, of_rank, of_ranks
from calibrant.training.running_scores import Scores
from calibrant.training.warning import warn


class GuardedModule(RecordedModule):
    """Reports the held-out scores of every epoch, compares them with validation, and finishes at the end of ``fit``.

    Attributes:
        calibrated_loss: Loss of the training step; None to do without.
        finished: Result of the end of ``fit``: the temperature and scores on all held-out data; None before.
    """

    model: nn.Module
    calibrated_loss: CalibratedLoss | None
    objective: Any

    def _calibrate_by(
        self,
        method: Method | None,
        objective: Any,
        *,
        weight: float,
        loss: Loss,
        batchnorm: BatchNormUse | None,
        ignore_index: int,
        guard: bool,
    ) -> None:
        """Make the loss, once ``model`` is set."""
        self.finished: Finished | None = None
        self.calibrated_loss = None
        self.method = method
        self.objective = objective
        self.batchnorm = batchnorm
        self._is_finished = True
        self._of_checkpoint: float | None = None  # best temperature for the held-out data, in an unfinished checkpoint
        if method is None:
            return
        if method == "temperature" and weight != 1:
            raise ValueError("method 'temperature' has no weight: leave it out, or choose 'published' or 'head'")
        self.calibrated_loss = CalibratedLoss(
            self.model, method, objective=objective, weight=None if method == "temperature" else weight, loss=loss,
            batchnorm=batchnorm, ignore_index=ignore_index, guard=guard,
        )  # fmt: skip
        self.calibrated_loss.guard.told_of_epochs = True
        self.calibrated_loss.reminder.on = False  # fit does it
        self.objective = self.calibrated_loss.objective
        self.batchnorm = self.calibrated_loss.batchnorm

    @property
    def temperature_is_in_the_loop(self) -> bool:
        """Whether held-out data set a temperature."""
        return self.calibrated_loss is not None and self.method == "temperature"

    @property
    def temperature(self) -> float:
        """What logits are divided by now: 1 without the method ``"temperature"``, and again after ``fit``."""
        if self.calibrated_loss is None:
            return 1.0
        return self._of_checkpoint or self.calibrated_loss.temperature

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Note that there will be something to finish."""
        self._is_finished, self._of_checkpoint = False, None
        super().on_train_batch_start(batch, batch_idx)

    def _window_scores(self) -> dict[str, float]:
        if self.calibrated_loss is None:
            return {}
        temperature = {"temperature": self.temperature} if self.method == "temperature" else {}
        return self.calibrated_loss.guard.scores_of_window() | temperature

    def _begin_window(self) -> None:
        if self.calibrated_loss is not None:
            self.calibrated_loss.guard.close_window()

    def _judge_validation(self, values: Mapping[str, float], previous: Mapping[str, float]) -> None:
        """Compare held-out with validation accuracy."""
        if self.calibrated_loss is None or not values:
            return
        learns = self.method != "temperature"
        self.calibrated_loss.guard.compare_validation(
            Scores(self.evaluation_scores.counted(), values["accuracy"], values["loss"], math.nan),
            previous.get("accuracy", 0.0), getattr(self.trainer.train_dataloader, "calibration_loader", None),
            learns=learns, dropout=learns and has_dropout(self.model),
        )  # fmt: skip

    def finish(self, held_out: Iterable[Any], new: Iterable[Any] | None = None) -> Finished:
        """Make the model of an unfinished checkpoint return calibrated logits; ``fit`` does so by itself.

        Args:
            held_out: Batches ``(inputs, target)`` of the held-out data.
            new: Batches of data that took no part in the training, to compare with.
        """
        if self.calibrated_loss is None:
            raise ValueError("there is no method, and so nothing to finish: give the classifier one")
        self._is_finished, self._of_checkpoint = True, None
        self.finished = self.calibrated_loss.finish(held_out, new)
        return self.finished

    def on_fit_end(self) -> None:
        """Judge the last epoch; with the method ``"temperature"``, make the model itself return calibrated logits.

        Callbacks that put earlier weights back have done so by now, and all checkpoints of the run are written.
        """
        loader = self.trainer.train_dataloader
        if self._is_finished or self.calibrated_loss is None or not isinstance(loader, InterleavedLoader):
            return
        self._is_finished = True
        if self.method != "temperature":
            self.calibrated_loss.guard.close_window()
            return
        batches = (moved(self.trainer, batch) for batch in loader.calibration_loader or ())
        with kept_random_state(), on_training_device(self.trainer, self):
            self.finished = self.calibrated_loss.finish(batches)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the state of the loss, of every rank."""
        super().on_save_checkpoint(checkpoint)
        if self.calibrated_loss is not None:
            states = of_ranks(self.trainer, self.calibrated_loss.state_dict())
            checkpoint[KEY]["calibrated_loss"] = {"ranks": states, "is_finished": self._is_finished}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the state of the loss."""
        super().on_load_checkpoint(checkpoint)
        saved = checkpoint.get(KEY, {}).get("calibrated_loss")
        if saved is None or self.calibrated_loss is None:
            return
        self.calibrated_loss.load_state_dict(of_rank(saved["ranks"], self.global_rank))
        self._is_finished = saved["is_finished"]
        self._of_checkpoint = None
        if self.temperature_is_in_the_loop and not self._is_finished and not is_fitting(self):
            self._of_checkpoint = self.calibrated_loss.loop.best
            warn(
                "this checkpoint is from before the end of fit: the classifier divides its logits by the temperature "
                f"that was best then, {self.temperature:.3g}, and classifier.model does not. To make it final call "
                "classifier.finish(held_out_loader)"
            )
