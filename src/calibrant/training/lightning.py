"""Calibrated training under Lightning of any network that returns logits."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from calibrant import inputs
from calibrant.losses import checks
from calibrant.losses.checks import Classification
from calibrant.training.calibrated_loss import BatchNormUse, CalibratedLoss, Finished, Method, Step
from calibrant.training.forward import (
    BatchScores,
    ScoreSums,
    logits_of,
    loss_or_zero,
    marked_target,
    nll,
    pair_of,
)
from calibrant.training.guard import warn
from calibrant.training.interleave import (
    InterleavedBatch,
    InterleavedLoader,
    RandomState,
    kept_random_state,
    random_state,
    require_parts_for_ranks,
    set_random_state,
)
from calibrant.training.lightning_data import (
    loader_states,
    moved,
    of_ranks,
    on_training_device,
    restore_loader,
)

LEARNING_RATE = 1e-3  # as in the paper
KEY = "calibrant"  # in checkpoints
ON_PROGRESS_BAR = {"accuracy", "ece", "objective"}


class InterleavedModule(lightning.LightningModule):
    r"""A classifier that is calibrated while it trains, by held-out batches beside the training batches.

    Its batches are those of :func:`calibrant.training.interleave`, whose parts are ``(inputs, target)``; without a
    method plain ``(inputs, target)`` is enough. ``docs/lightning.md`` has more. ``predict`` returns logits. Other
    arguments are those of :class:`calibrant.training.CalibratedLoss`.

    Args:
        method: By default ``"published"`` if there is an objective; otherwise the loss alone is minimised.
        learning_rate: Learning rate of the default optimizer, which ``Tuner.lr_find`` of Lightning can set.
        optimizer: Function that makes the optimizer from the parameters; by default AdamW with weight decay 1e-2.
        scheduler: Function that makes a learning-rate scheduler from the optimizer, to step after every epoch, or
            Lightning's configuration of one. A ``ReduceLROnPlateau`` watches ``validation_nll``.

    Attributes:
        calibrated_loss: The :class:`calibrant.training.CalibratedLoss` of the method; None without one.
        history: For each epoch its number, training scores and last validation scores.
        finished: Final temperature and scores of the latest ``fit`` with ``"temperature"``; None before.

    Example:
        >>> import calibrant as cal
        >>> classifier = InterleavedModule(nn.Linear(4, 3), method="temperature")  # nothing to tune
        >>> published = InterleavedModule(nn.Linear(4, 3), cal.ESDLoss(), weight=1.0)
        >>> classifier(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        objective: nn.Module | None = None,
        weight: float | None = None,
        *,
        method: Method | None = None,
        loss: nn.Module | None = None,
        learning_rate: float = LEARNING_RATE,
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
        scheduler: Callable[[Optimizer], LRScheduler | dict[str, Any]] | None = None,
        batchnorm: BatchNormUse | None = None,
    ) -> None:
        checks.check_objective(loss, "loss")
        inputs.check_range("learning_rate", learning_rate, low=0)
        if optimizer is not None and learning_rate != LEARNING_RATE:
            raise ValueError(
                f"learning_rate={learning_rate:g} applies to the default optimizer only: set the learning rate in "
                "optimizer= instead"
            )
        super().__init__()
        self.model = model
        self.loss = loss
        self.method: Method | None = "published" if method is None and objective is not None else method
        self.calibrated_loss: CalibratedLoss | None = None
        if self.method is not None:
            self.calibrated_loss = CalibratedLoss(
                model, self.method, objective=objective, weight=weight, loss=self._training_loss,
                ignore_index=getattr(loss, "ignore_index", -100),
            )  # fmt: skip
            if batchnorm is not None:
                self.calibrated_loss.batchnorm = batchnorm
            self.calibrated_loss.reminder.on = False  # fit calls finish()
        self.objective: Any = getattr(self.calibrated_loss, "objective", None)
        self._make_optimizer = optimizer
        if optimizer is None:  # without this attribute Tuner.lr_find says that there is no learning rate to set
            self.learning_rate = learning_rate
        self._make_scheduler = scheduler
        self.history: list[dict[str, float]] = []
        self.finished: Finished | None = None
        self.training_scores, self.evaluation_scores = ScoreSums(), ScoreSums()
        self._validation: dict[str, float] = {}
        self._loaders: list[dict[str, Any]] = []
        self._random_before_validation: RandomState | None = None

    @property
    def temperature(self) -> float:
        """Current divisor of the logits: 1 without the method ``"temperature"``, and again after ``fit``."""
        return 1.0 if self.calibrated_loss is None else self.calibrated_loss.temperature

    def forward(self, inputs: Any) -> Tensor:
        """The logits of a batch of inputs, divided by the temperature while the method has one."""
        logits = logits_of(self.model, inputs)
        return logits if self.temperature == 1 else logits / self.temperature

    def on_train_start(self) -> None:
        loader = self.trainer.train_dataloader
        if isinstance(loader, InterleavedLoader):
            loader.ask(self.objective, self.trainer.world_size)
            if self.calibrated_loss is not None and loader.calibration_loader is None:
                raise ValueError(
                    f"there is a method, {self.method!r}, but no calibration data: raise calibration_fraction, or "
                    "leave out method and objective"
                )
            if self.calibrated_loss is None and loader.calibration_loader is not None:
                warn(
                    "there are held-out batches but no method to use them, and training is plain: pass "
                    "method='temperature', or leave the held-out data out"
                )
            if self.trainer.world_size > 1:
                require_parts_for_ranks(loader)
        loaders, self._loaders = self._loaders, []
        restore_loader(self.trainer, loaders)

    def on_train_epoch_start(self) -> None:
        self._validation = {}
        self.training_scores = ScoreSums()
        self.history = [entry for entry in self.history if entry["epoch"] < self.current_epoch]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        batch, held_out = self._parts(batch)
        x, y = pair_of(batch)
        if self.calibrated_loss is None:
            logits = self(x)
            step, weight = Step(self._training_loss(logits, y), logits, None), 0.0
        else:
            step = self.calibrated_loss.step(x, y, *((None, None) if held_out is None else pair_of(held_out)))
            weight = self.calibrated_loss.weight
        data = self._checked(step.logits, y)
        self.training_scores.add(data)
        if self.loss is not None:
            self.training_scores.add_value(step.loss, len(data.target) if data.mask is None else data.mask.sum())
        return step.loss if step.objective is None else step.loss + weight * step.objective

    def _parts(self, batch: Any) -> tuple[Any, Any]:
        if isinstance(batch, InterleavedBatch):
            return batch.train, batch.calibration
        if self.calibrated_loss is not None:
            raise TypeError(
                f"method {self.method!r} needs calibration batches beside the training batches, got a plain "
                f"{type(batch).__name__}: make the loader with calibrant.training.interleave(), or use "
                "InterleavedDataModule"
            )
        return batch, None

    def _training_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.loss is None:
            return nll(self._checked(logits, target))
        return loss_or_zero(self.loss, logits, target)

    def _checked(self, logits: Tensor, target: Tensor) -> Classification:
        return checks.classification(logits, target, None, getattr(self.loss, "ignore_index", -100))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        # on_validation_start would be too late: by then the loader has drawn the seed of its workers.
        apart = self.trainer.val_check_batch  # None if it is a time
        may_validate = self.trainer.is_last_batch or not apart or (batch_idx + 1) % apart == 0
        self._random_before_validation = random_state() if may_validate else None
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and self.global_step % every == 0:
            values = self._values(self.training_scores.running())
            if self.calibrated_loss is not None:
                held_out = self.calibrated_loss.guard.held_out.running("log")
                values |= {"objective": held_out.value, "silent": held_out.silent} if held_out.values else {}
            self._log("train", values, on_step=True)

    def on_train_epoch_end(self) -> None:
        self._random_before_validation = None
        values = self._values(self.training_scores.since())
        if not values:
            return
        if self.calibrated_loss is not None:
            values |= self.calibrated_loss.guard.since_log()
        if self.method == "temperature":
            values["temperature"] = self.temperature
        self.history.append({"epoch": self.current_epoch} | self._log("train", values) | self._validation)

    def on_validation_epoch_start(self) -> None:
        self.evaluation_scores = ScoreSums()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        """Score a batch of any loader, and return its logits and target (or -100) for callbacks."""
        data = self._evaluate(batch)
        return {"logits": data.logits, "target": marked_target(data)}

    def _evaluate(self, batch: Any) -> Classification:
        x, y = pair_of(batch)
        data = self._checked(self(x), y)
        self.evaluation_scores.add(data)
        return data

    def on_validation_epoch_end(self) -> None:
        scores = self.evaluation_scores.since()
        values = self._values(scores)
        logged = self._log("validation", values)
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            if self.calibrated_loss is not None and values:
                loader = getattr(self.trainer.train_dataloader, "calibration_loader", None)
                self.calibrated_loss.compare_evaluation(scores, loader)
            self._validation = logged
        if self._random_before_validation is not None:
            set_random_state(self._random_before_validation)
            self._random_before_validation = None

    on_test_epoch_start = on_validation_epoch_start

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add a batch to the scores of the test; several loaders are scored as one set."""
        self._evaluate(batch)

    def on_test_epoch_end(self) -> None:
        self._log("test", self._values(self.evaluation_scores.since()))

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """The logits of inputs, which may come with their target."""
        return self(batch[0] if isinstance(batch, list | tuple) else batch)  # type: ignore[no-any-return]

    def configure_optimizers(self) -> OptimizerLRScheduler:
        parameters = [weights for weights in self.parameters() if weights.requires_grad]
        if self._make_optimizer is None:
            optimizer: Optimizer = torch.optim.AdamW(parameters, lr=self.learning_rate, weight_decay=1e-2)
        else:
            optimizer = self._make_optimizer(parameters)
        if self._make_scheduler is None:
            return optimizer
        made = self._make_scheduler(optimizer)
        scheduler: Any = {"monitor": "validation_nll"} | (made if isinstance(made, dict) else {"scheduler": made})
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def _values(self, scores: BatchScores) -> dict[str, float]:
        if not scores.samples:
            return {}
        return {"loss": scores.value if scores.values else scores.nll, "accuracy": scores.accuracy, "ece": scores.ece}

    def _log(self, stage: str, values: Mapping[str, float], *, on_step: bool = False) -> dict[str, float]:
        """Log values, and return them with their names in the log."""
        logged = {}
        for name, value in values.items():
            is_nll = name == "loss" and (stage != "train" or self.loss is None)
            full_name = f"{stage}_nll" if is_nll else f"{stage}_{name}"
            logged[full_name] = value
            self.log(
                full_name, value, on_step=on_step, on_epoch=not on_step, sync_dist=not on_step,
                prog_bar=name in ON_PROGRESS_BAR,
            )  # fmt: skip
        return logged

    def finish(self, held_out: Iterable[Any], new: Iterable[Any] | None = None) -> Finished:
        """Calibrate the model of an unfinished checkpoint, as ``fit`` does, and compare with ``new`` batches."""
        if self.calibrated_loss is None:
            raise ValueError("there is no method, so there is nothing to finish: pass method= to the classifier")
        self.finished = self.calibrated_loss.finish(held_out, new)
        return self.finished

    def on_fit_end(self) -> None:
        """Judge the last steps, and fold the temperature; callbacks have restored earlier weights by now."""
        held_out, loss = getattr(self.trainer.train_dataloader, "calibration_loader", None), self.calibrated_loss
        if held_out is None or loss is None or not loss.is_unfinished:
            return
        if self.method != "temperature":
            loss.guard.close_window()
            return
        with kept_random_state(), on_training_device(self.trainer, self):
            self.finish(moved(self.trainer, batch) for batch in held_out)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[KEY] = {"history": [dict(row) for row in self.history], "loaders": loader_states(self.trainer)}
        if self.calibrated_loss is not None:
            checkpoint[KEY]["losses"] = of_ranks(self.trainer, self.calibrated_loss.state_dict())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint.get(KEY)
        if saved is None:
            return
        self.history = [dict(row) for row in saved["history"]]
        is_fitting = self._trainer is not None and self.trainer.state.fn == "fit"
        self._loaders = saved["loaders"] if is_fitting else []
        if self.calibrated_loss is None or "losses" not in saved:
            return
        self.calibrated_loss.load_state_dict(saved["losses"][self.global_rank % len(saved["losses"])])
        if self.method == "temperature" and self.calibrated_loss.is_unfinished and not is_fitting:
            loop = self.calibrated_loss.loop
            loop.log_temperature = math.log(loop.best)
            warn(
                "this checkpoint was saved before the end of fit: the classifier divides its logits by the temperature "
                f"that was best then, {self.temperature:.3g}, but classifier.model does not. To calibrate it call "
                "classifier.finish(held_out_loader)"
            )
