"""A LightningModule whose record of scores is the same whether or not its run was interrupted."""

from collections.abc import Mapping, Sequence
from typing import Any

import lightning
import torch.distributed as dist
from torch.optim.lr_scheduler import ReduceLROnPlateau

from calibrant.training.epoch_scores import EpochScores
from calibrant.training.interleave import InterleavedLoader
from calibrant.training.lightning_private import begin_next_epoch, is_fitting, validate_now, validation_is_due
from calibrant.training.randomness import RandomState, random_state, set_random_state
from calibrant.training.running_scores import with_current_names

KEY = "calibrant"
PLATEAU = "validation_nll"  # what ReduceLROnPlateau watches
ON_PROGRESS_BAR = {"accuracy", "ece", "objective"}


class RecordedModule(lightning.LightningModule):
    """Keeps, logs and saves the scores of every epoch; subclasses add to ``training_scores`` and ``evaluation_scores``.

    Lightning's own means over an epoch forget what came before a resume, and a checkpoint written by
    ``ModelCheckpoint(every_n_train_steps=...)`` precedes the validation and the end of epoch that may be due after
    the same step, which Lightning then leaves out on resuming. Here the sums are part of the checkpoint, and what
    was due is made up for.

    Args:
        bins: Number of bins of ECE.
        loss_name: What the training loss is called in the logs.

    Attributes:
        history: One entry an epoch: its number, training scores, and those of the last validation in it.
    """

    def __init__(self, bins: int, loss_name: str) -> None:
        super().__init__()
        self.history: list[dict[str, float]] = []
        self.training_scores = EpochScores(bins)
        self.evaluation_scores = EpochScores(bins)
        self._loss_name = loss_name
        self._epoch = 0
        self._validation: dict[str, float] = {}
        self._latest_validation: dict[str, float] = {}
        self._has_new_step = False
        self._random_before_validation: RandomState | None = None
        self._resumed: Mapping[str, Any] | None = None

    def setup(self, stage: str) -> None:
        """Begin a run: what another run was to go on from, such as that of ``Tuner.lr_find``, is not for this one."""
        self._resumed = None

    def on_train_start(self) -> None:
        """Go on from a checkpoint, if there is one, and make up for what was due when it was written."""
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            return
        restore_loader(self.trainer, resumed["loaders"])
        if self.global_rank == 0:
            self.training_scores.restore(resumed["scores"])
        self._epoch, self._validation = resumed["epoch"], with_current_names(resumed["validation"])
        self._latest_validation = dict(resumed.get("latest_validation", {}))
        if resumed["validation_is_due"]:
            validate_now(self.trainer)
        if resumed["epoch_is_over"]:
            known = len(self.history)
            self._close_epoch()
            for entry in self.history[known:]:
                for logger in self.loggers:
                    logger.log_metrics(entry, step=self.global_step - 1)
            begin_next_epoch(self.trainer)
            self._begin_epoch(self._epoch + 1)

    def on_train_epoch_start(self) -> None:
        """Begin to count."""
        self._begin_epoch(self.current_epoch)

    def _begin_epoch(self, epoch: int) -> None:
        self._begin_window()
        self._epoch = epoch
        self._validation = {}
        self.training_scores.reset()
        self._forget_from(epoch)

    def _forget_from(self, epoch: int) -> None:
        """What is trained again is no longer history."""
        self.history = [entry for entry in self.history if entry["epoch"] < epoch]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Note that there will be something new to validate."""
        self._has_new_step = True

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the running scores now and then, and keep the random numbers from what validation draws."""
        # on_validation_start would be too late: by then the loader has drawn the seed of its workers.
        self._random_before_validation = random_state() if self._validation_is_due() else None
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and self.global_step % every == 0:
            self._log("train", self.training_scores.values(across_ranks=False), on_step=True)

    def on_train_epoch_end(self) -> None:
        """Log the epoch and enter it into the history."""
        self._log("train", self._close_epoch())

    def _close_epoch(self) -> dict[str, float]:
        values = self.training_scores.values()
        if values:
            values |= self._window_scores()
            known = any(entry["epoch"] == self._epoch for entry in self.history)
            self._forget_from(self._epoch)
            self.history.append({"epoch": self._epoch} | self._named("train", values) | self._validation)
            if not known:
                self._step_plateau_schedulers()
        return values

    def _window_scores(self) -> dict[str, float]:
        """Further training scores of the epoch so far; may be asked for more than once."""
        return {}

    def _begin_window(self) -> None:
        """Begin to count what ``_window_scores`` is about."""

    def _judge_validation(self, values: Mapping[str, float], previous: Mapping[str, float]) -> None:
        """Look at the scores of a validation, and at those of the one before."""

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step a scheduler, unless it watches a score: Lightning would leave out a step in a resumed epoch."""
        if not isinstance(scheduler, ReduceLROnPlateau):
            super().lr_scheduler_step(scheduler, metric)

    def _step_plateau_schedulers(self) -> None:
        latest = next((entry[PLATEAU] for entry in reversed(self.history) if PLATEAU in entry), None)
        for config in self.trainer.lr_scheduler_configs:
            if isinstance(config.scheduler, ReduceLROnPlateau):
                if latest is not None:
                    config.scheduler.step(latest)
                elif not self.trainer.num_val_batches:
                    raise ValueError(f"ReduceLROnPlateau watches {PLATEAU}, and there is no validation data: give some")

    def on_validation_epoch_start(self) -> None:
        """Begin to count."""
        self.evaluation_scores.reset()

    def on_validation_epoch_end(self) -> None:
        """Log the scores, and put the random numbers back to where training left them."""
        values = self.evaluation_scores.values()
        self._log("validation", values)
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self._judge_validation(values, self._latest_validation)
            self._latest_validation = dict(values)
            self._validation = self._named("validation", values)
            self._has_new_step = False
        if self._random_before_validation is not None:
            set_random_state(self._random_before_validation)
            self._random_before_validation = None

    def on_test_epoch_start(self) -> None:
        """Begin to count."""
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
        """Whether validation follows this step and has not been yet."""
        return self._has_new_step and validation_is_due(self.trainer)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the history, the epoch so far, and where the loader is."""
        checkpoint[KEY] = {
            "history": [dict(entry) for entry in self.history],
            "epoch": self._epoch,
            "scores": self.training_scores.saved(),
            "validation": dict(self._validation),
            "latest_validation": dict(self._latest_validation),
            "validation_is_due": self._validation_is_due(),
            "epoch_is_over": self.trainer.is_last_batch,
            "loaders": loader_states(self.trainer),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the history, and remember where to go on if this is to be trained further."""
        saved = checkpoint.get(KEY)
        if saved is None:
            return
        self.history = [with_current_names(entry) for entry in saved["history"]]
        self._resumed = saved if is_fitting(self) else None


def loader_states(trainer: Any) -> list[dict[str, Any]]:
    """Where the train loader of each rank is, if it can be picked up again: their random numbers differ."""
    loader = trainer.train_dataloader
    if not isinstance(loader, InterleavedLoader):
        return []
    state = loader.state_dict()
    # Lightning may end an epoch before the loader does, and never asks a loader for one batch too many.
    state["train"]["ended"] |= trainer.is_last_batch
    return of_ranks(trainer, state)


def restore_loader(trainer: Any, states: Sequence[Mapping[str, Any]]) -> None:
    """Go on where a loader was: Lightning does so itself, but not after a checkpoint from the end of an epoch."""
    loader = trainer.train_dataloader
    if not isinstance(loader, InterleavedLoader) or not states:
        return
    if trainer.num_training_batches == float("inf"):
        raise ValueError(
            "a train loader without a length cannot be picked up again, since Lightning reads it a batch "
            "ahead: give it a length"
        )
    loader.load_state_dict(of_rank(states, trainer.global_rank))


def of_ranks(trainer: Any, state: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of all ranks."""
    if trainer.world_size == 1:
        return [state]
    states: list[Any] = [None] * trainer.world_size
    dist.all_gather_object(states, state)
    return states


def of_rank(states: Sequence[Mapping[str, Any]], rank: int) -> Mapping[str, Any]:
    """The state of one rank, where there may have been another number of them."""
    return states[rank % len(states)]
