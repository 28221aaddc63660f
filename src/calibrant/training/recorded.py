"""A LightningModule whose record of scores is the same whether or not its run was interrupted."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import lightning
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from calibrant.training import lightning_private
from calibrant.training.calibrated_loss import CalibratedLoss
from calibrant.training.epoch_scores import EpochScores
from calibrant.training.finishing import Finished
from calibrant.training.forward import has_dropout
from calibrant.training.interleave import InterleavedLoader
from calibrant.training.lightning_data import loader_states, of_rank, of_ranks, restore_loader
from calibrant.training.randomness import RandomState, kept_random_state, random_state, set_random_state
from calibrant.training.running_scores import Scores, with_current_names
from calibrant.training.warning import warn

KEY = "calibrant"
PLATEAU = "validation_nll"  # what ReduceLROnPlateau watches
ON_PROGRESS_BAR = {"accuracy", "ece", "objective"}


class RecordedModule(lightning.LightningModule):
    """Keeps, logs and saves the scores of every epoch; subclasses add to ``training_scores`` and ``evaluation_scores``.

    Lightning's own epoch means lose everything before a resume. A checkpoint of
    ``ModelCheckpoint(every_n_train_steps=...)`` is written before the validation and the end of epoch that may be due
    after the same step, and Lightning skips these on resuming. Here the sums are part of the checkpoint, and what was
    due is run on resuming. If the subclass has a ``calibrated_loss``, its held-out scores are logged for every epoch
    and compared with validation, and it is finished at the end of ``fit``.
    """

    model: nn.Module

    def __init__(self, bins: int, loss_name: str) -> None:
        super().__init__()
        self.history: list[dict[str, float]] = []  # per epoch: its number, training scores, last validation scores
        self.calibrated_loss: CalibratedLoss | None = None
        self.finished: Finished | None = None
        self._is_finished = True
        self._of_checkpoint: float | None = None  # best temperature for the held-out data, in an unfinished checkpoint
        self.training_scores = EpochScores(bins)
        self.evaluation_scores = EpochScores(bins)
        self._loss_name = loss_name
        self._epoch = 0
        self._validation: dict[str, float] = {}
        self._has_new_step = False
        self._random_before_validation: RandomState | None = None
        self._resumed: Mapping[str, Any] | None = None

    @property
    def temperature_is_in_the_loop(self) -> bool:
        """Whether a temperature is fitted to held-out data."""
        return self.calibrated_loss is not None and self.calibrated_loss.method == "temperature"

    @property
    def temperature(self) -> float:
        """Current divisor of the logits: 1 without the method ``"temperature"``, and again after ``fit``."""
        if self.calibrated_loss is None:
            return 1.0
        return self._of_checkpoint or self.calibrated_loss.temperature

    def setup(self, stage: str) -> None:
        """Start a run, without the state that an earlier run such as ``Tuner.lr_find`` was to continue from."""
        self._resumed = None

    def on_train_start(self) -> None:
        """Continue from a checkpoint, if there is one, and run what was due when it was written."""
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            return
        restore_loader(self.trainer, resumed["loaders"])
        if self.global_rank == 0:
            self.training_scores.restore(resumed["scores"])
        self._epoch, self._validation = resumed["epoch"], with_current_names(resumed["validation"])
        if resumed["validation_is_due"]:
            lightning_private.validate_now(self.trainer)
        if resumed["epoch_is_over"]:
            known = len(self.history)
            self._close_epoch()
            for entry in self.history[known:]:
                for logger in self.loggers:
                    logger.log_metrics(entry, step=self.global_step - 1)
            lightning_private.begin_next_epoch(self.trainer)
            self._begin_epoch(self._epoch + 1)

    def on_train_epoch_start(self) -> None:
        """Reset the scores."""
        self._begin_epoch(self.current_epoch)

    def _begin_epoch(self, epoch: int) -> None:
        if self.calibrated_loss is not None:
            self.calibrated_loss.guard.close_window()
        self._epoch = epoch
        self._validation = {}
        self.training_scores.reset()
        self._forget_from(epoch)

    def _forget_from(self, epoch: int) -> None:
        """Remove epochs that are trained again from the history."""
        self.history = [entry for entry in self.history if entry["epoch"] < epoch]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Note that there is something new to validate and to finish."""
        self._has_new_step = True
        self._is_finished, self._of_checkpoint = False, None

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the running scores now and then, and save the random state before validation draws from it."""
        # on_validation_start would be too late: by then the loader has drawn the seed of its workers.
        self._random_before_validation = random_state() if self._validation_is_due() else None
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and self.global_step % every == 0:
            self._log("train", self.training_scores.values(across_ranks=False), on_step=True)

    def on_train_epoch_end(self) -> None:
        """Log the epoch and add it to the history."""
        self._log("train", self._close_epoch())

    def _close_epoch(self) -> dict[str, float]:
        values = self.training_scores.values()
        if values:
            if self.calibrated_loss is not None:
                values |= self.calibrated_loss.guard.scores_of_window()
            if self.temperature_is_in_the_loop:
                values["temperature"] = self.temperature
            known = any(entry["epoch"] == self._epoch for entry in self.history)
            self._forget_from(self._epoch)
            self.history.append({"epoch": self._epoch} | self._named("train", values) | self._validation)
            if not known:
                self._step_plateau_schedulers()
        return values

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step a scheduler, unless it watches a score: Lightning would skip a step in a resumed epoch."""
        if not isinstance(scheduler, ReduceLROnPlateau):
            super().lr_scheduler_step(scheduler, metric)

    def _step_plateau_schedulers(self) -> None:
        latest = next((entry[PLATEAU] for entry in reversed(self.history) if PLATEAU in entry), None)
        for config in self.trainer.lr_scheduler_configs:
            if isinstance(config.scheduler, ReduceLROnPlateau):
                if latest is not None:
                    config.scheduler.step(latest)
                elif not self.trainer.num_val_batches:
                    raise ValueError(f"ReduceLROnPlateau watches {PLATEAU}, but there is no validation data: pass some")

    def on_validation_epoch_start(self) -> None:
        """Reset the scores."""
        self.evaluation_scores.reset()

    def on_validation_epoch_end(self) -> None:
        """Log the scores, compare them with held-out ones, and restore the random state of training."""
        values = self.evaluation_scores.values()
        self._log("validation", values)
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            if self.calibrated_loss is not None and values:
                new = Scores(self.evaluation_scores.counted(), values["accuracy"], values["loss"], math.nan)
                loader = getattr(self.trainer.train_dataloader, "calibration_loader", None)
                dropout = not self.temperature_is_in_the_loop and has_dropout(self.model)
                self.calibrated_loss.guard.compare_validation(new, loader, dropout=dropout)
            self._validation = self._named("validation", values)
            self._has_new_step = False
        if self._random_before_validation is not None:
            set_random_state(self._random_before_validation)
            self._random_before_validation = None

    def on_test_epoch_start(self) -> None:
        """Reset the scores."""
        self.evaluation_scores.reset()

    def on_test_epoch_end(self) -> None:
        """Log the scores."""
        self._log("test", self.evaluation_scores.values())

    def _log(self, stage: str, values: Mapping[str, float], *, on_step: bool = False) -> None:
        for name, value in values.items():
            self.log(
                self._name(stage, name), value, on_step=on_step, on_epoch=not on_step, sync_dist=not on_step,
                prog_bar=name in ON_PROGRESS_BAR,
            )  # fmt: skip

    def _named(self, stage: str, values: Mapping[str, float]) -> dict[str, float]:
        return {self._name(stage, name): value for name, value in values.items()}

    def _name(self, stage: str, name: str) -> str:
        loss_name = self._loss_name if stage == "train" else "nll"
        return f"{stage}_{loss_name if name == 'loss' else name}"

    def _validation_is_due(self) -> bool:
        """Whether validation is due after this step and has not run yet."""
        return self._has_new_step and lightning_private.validation_is_due(self.trainer)

    def finish(self, held_out: Iterable[Any], new: Iterable[Any] | None = None) -> Finished:
        """Calibrate the model of an unfinished checkpoint, as ``fit`` does, and compare with ``new`` batches."""
        if self.calibrated_loss is None:
            raise ValueError("there is no method, so there is nothing to finish: pass method= to the classifier")
        self._is_finished, self._of_checkpoint = True, None
        self.finished = self.calibrated_loss.finish(held_out, new)
        return self.finished

    def on_fit_end(self) -> None:
        """Check the last epoch, or fold the temperature; callbacks have restored earlier weights by now."""
        loader = self.trainer.train_dataloader
        if self._is_finished or self.calibrated_loss is None or not isinstance(loader, InterleavedLoader):
            return
        self._is_finished = True
        if not self.temperature_is_in_the_loop:
            self.calibrated_loss.guard.close_window()
            return
        batches = (lightning_private.moved(self.trainer, batch) for batch in loader.calibration_loader or ())
        with kept_random_state(), lightning_private.on_training_device(self.trainer, self):
            self.finished = self.calibrated_loss.finish(batches)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the history, the epoch so far, the position of the loader, and the state of the loss of every rank."""
        checkpoint[KEY] = {
            "history": [dict(entry) for entry in self.history], "epoch": self._epoch,
            "scores": self.training_scores.saved(), "validation": dict(self._validation),
            "validation_is_due": self._validation_is_due(), "epoch_is_over": self.trainer.is_last_batch,
            "loaders": loader_states(self.trainer),
        }  # fmt: skip
        if self.calibrated_loss is not None:
            states = of_ranks(self.trainer, self.calibrated_loss.state_dict())
            checkpoint[KEY]["calibrated_loss"] = {"ranks": states, "is_finished": self._is_finished}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the history, and remember the position in case training continues."""
        saved = checkpoint.get(KEY)
        if saved is None:
            return
        self.history = [with_current_names(entry) for entry in saved["history"]]
        self._resumed = saved if lightning_private.is_fitting(self) else None
        of_loss = saved.get("calibrated_loss")
        if of_loss is None or self.calibrated_loss is None:
            return
        self.calibrated_loss.load_state_dict(of_rank(of_loss["ranks"], self.global_rank))
        self._is_finished = of_loss["is_finished"]
        self._of_checkpoint = None
        if self.temperature_is_in_the_loop and not self._is_finished and not lightning_private.is_fitting(self):
            self._of_checkpoint = self.calibrated_loss.loop.best
            warn(
                "this checkpoint was saved before the end of fit: the classifier divides its logits by the temperature "
                f"that was best then, {self.temperature:.3g}, but classifier.model does not. To calibrate it call "
                "classifier.finish(held_out_loader)"
            )
