"""Calibrated training under Lightning of any network that returns logits."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, Self

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from calibrant.losses import checks
from calibrant.losses.checks import Classification
from calibrant.training.calibrated_loss import CalibratedLoss, Step
from calibrant.training.checkpoint import Trusted, WholeCheckpointIO, arguments_in, arguments_of, read_without_tensors
from calibrant.training.forward import logits_of, pair_of
from calibrant.training.ignored import cross_entropy, loss_or_zero
from calibrant.training.interleave import InterleavedBatch, InterleavedLoader, require_parts_for_ranks
from calibrant.training.lightning_data import InterleavedDataModule
from calibrant.training.methods import BatchNormUse, Method
from calibrant.training.recorded import KEY, RecordedModule
from calibrant.training.warning import warn

LEARNING_RATE = 1e-3  # as in the paper

__all__ = ["CalibratedClassifier", "InterleavedDataModule", "WholeCheckpointIO"]


class CalibratedClassifier(RecordedModule):
    r"""A classifier that is calibrated while it trains, by held-out batches beside the training batches.

    Its batches are those of :func:`calibrant.training.interleave`, whose parts are ``(inputs, target)``: inputs a
    tensor, or a mapping of keyword arguments of the model. Without method and objective plain ``(inputs, target)`` is
    enough. ``docs/lightning.md`` lists what is logged. ``predict`` returns logits.

    With the method ``"temperature"`` logits are divided by the current temperature T, in training and evaluation. At
    the end of ``fit``, T is fitted to all held-out data, and ``model`` itself then returns calibrated logits.

    Args:
        model: Any module that returns logits, or an object with ``.logits``.
        objective: A calibration objective such as :class:`calibrant.ESDLoss` for the methods that have one.
        weight: Weight of the objective relative to the loss.
        method: ``"temperature"``, ``"head"`` or ``"published"``, see :class:`calibrant.training.CalibratedLoss`. By
            default ``"published"`` if there is an objective; otherwise the loss alone is minimised.
        loss: Loss of the training batch in place of the NLL, such as :class:`calibrant.FocalLoss`.
        learning_rate: Learning rate of the default optimizer. ``Tuner.lr_find`` of Lightning sets it. It cannot be
            combined with ``optimizer``.
        optimizer: Function that makes the optimizer from the parameters; by default AdamW with weight decay 1e-2, as in
            the paper.
        scheduler: Function that makes a learning-rate scheduler from the optimizer. A ``ReduceLROnPlateau`` watches
            ``validation_nll``, after every epoch.
        scheduler_interval: Whether the scheduler steps after every ``"epoch"`` or every ``"step"``.
        batchnorm: ``"update"`` lets held-out batches enter BatchNorm's running statistics, the default of
            ``"published"``; ``"freeze"`` does not, see :func:`calibrant.training.freeze_batchnorm_statistics`.
        bins: Number of bins of the logged ECE, which follows the paper's convention.
        guard: Warn when training goes wrong, see :class:`calibrant.training.CalibrationWarning`.

    Attributes:
        calibrated_loss: The :class:`calibrant.training.CalibratedLoss` of the method; None without one.

    References:
        Yoon, Tee, Yoon, Yoon, Kim, Li, Yoo, "ESD: Expected Squared Difference as a Tuning-Free Trainable
        Calibration Measure", ICLR 2023.

    Example:
        >>> import calibrant as cal
        >>> classifier = CalibratedClassifier(nn.Linear(4, 3), method="temperature")  # nothing to tune
        >>> published = CalibratedClassifier(nn.Linear(4, 3), cal.ESDLoss(), weight=1.0)
        >>> classifier(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        objective: nn.Module | None = None,
        weight: float = 1.0,
        *,
        method: Method | None = None,
        loss: nn.Module | None = None,
        learning_rate: float = LEARNING_RATE,
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        scheduler_interval: Literal["epoch", "step"] = "epoch",
        batchnorm: BatchNormUse | None = None,
        bins: int = 20,
        guard: bool = True,
    ) -> None:
        checks.check_objective(objective)
        checks.check_objective(loss, "loss")
        checks.check_range("weight", weight, low=0)
        checks.check_choice("scheduler_interval", scheduler_interval, ("epoch", "step"))
        if batchnorm is not None:
            checks.check_choice("batchnorm", batchnorm, ("update", "freeze"))
        checks.check_range("learning_rate", learning_rate, low=0)
        if optimizer is not None and learning_rate != LEARNING_RATE:
            raise ValueError(
                f"learning_rate={learning_rate:g} applies to the default optimizer only: set the learning rate in "
                "optimizer= instead"
            )
        super().__init__(bins, "nll" if loss is None else "loss")
        self.model = model
        self.loss = loss
        self.weight = weight
        self.guard = guard
        self.objective: Any = objective
        self.batchnorm = batchnorm
        self._given_method = method
        self.method: Method | None = "published" if method is None and objective is not None else method
        if self.method == "temperature" and weight != 1:
            raise ValueError("method 'temperature' has no weight: leave it out, or choose 'published' or 'head'")
        if self.method is not None:
            self.calibrated_loss = CalibratedLoss(
                model, self.method, objective=objective, weight=None if method == "temperature" else weight,
                loss=self._training_loss, batchnorm=batchnorm, ignore_index=getattr(loss, "ignore_index", -100),
                guard=guard,
            )  # fmt: skip
            self.calibrated_loss.guard.told_of_epochs = True
            self.calibrated_loss.reminder.on = False  # fit calls finish()
            self.objective, self.batchnorm = self.calibrated_loss.objective, self.calibrated_loss.batchnorm
        self._make_optimizer = optimizer
        if optimizer is None:  # without this attribute Tuner.lr_find says that there is no learning rate to set
            self.learning_rate = learning_rate
        self._make_scheduler = scheduler
        self._scheduler_interval = scheduler_interval
        self._bins = bins
        self._not_saved: tuple[str, ...] = ()

    def forward(self, inputs: Any) -> Tensor:
        """The logits of a batch of inputs, divided by the temperature while the method has one."""
        logits = logits_of(self.model, inputs)
        return logits if self.temperature == 1 else logits / self.temperature

    def on_train_start(self) -> None:
        """Check that there are held-out data for the method, then continue from a checkpoint, if there is one."""
        loader = self.trainer.train_dataloader
        if isinstance(loader, InterleavedLoader):
            loader.ask(self.objective, self.trainer.world_size)
            if self.calibrated_loss is not None and loader.calibration_loader is None:
                what = "the method" if self.objective is None else "the objective"
                has = f"a method, {self.method!r}," if self.objective is None else "an objective"
                raise ValueError(
                    f"there is {has} but no calibration data: raise calibration_fraction, or leave out {what}"
                )
            if self.calibrated_loss is None and loader.calibration_loader is not None:
                warn(
                    "there are held-out batches but no method to use them, and training is plain: pass "
                    "method='temperature', or leave the held-out data out"
                )
            if self.trainer.world_size > 1:
                require_parts_for_ranks(loader)
        super().on_train_start()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of the training batch, plus the weighted objective of the held-out batch where there is one."""
        batch, held_out = self._parts(batch)
        x, y = pair_of(batch)
        if self.calibrated_loss is None:
            logits = self(x)
            step = Step(self._training_loss(logits, y), logits, None)
        else:
            step = self.calibrated_loss.step(x, y, *((None, None) if held_out is None else pair_of(held_out)))
        self.training_scores.add(self._checked(step.logits, y), step.loss)
        if step.objective is None:
            return step.loss
        self.training_scores.add_objective(step.objective)
        return step.loss + self.weight * step.objective

    def _training_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.loss is None:
            return cross_entropy(self._checked(logits, target))
        return loss_or_zero(self.loss, logits, target)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        """Score a batch of any loader, and return its logits and target (or -100) for callbacks."""
        data = self._evaluate(batch)
        target = data.target if data.mask is None else torch.where(data.mask, data.target, -100)
        return {"logits": data.logits, "target": target}

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add a batch to the scores of the test; several loaders are scored as one set."""
        self._evaluate(batch)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """The logits of inputs, which may come with their target."""
        return self(batch[0] if isinstance(batch, list | tuple) else batch)  # type: ignore[no-any-return]

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The optimizer over all parameters that require a gradient, and the scheduler if there is one."""
        if self._not_saved:
            name = self._not_saved[0]
            raise ValueError(
                f"this classifier was trained with {name}=, a function, which a checkpoint does not hold: pass {name}= "
                "to load_from_checkpoint again, or None for the default"
            )
        parameters = [weights for weights in self.parameters() if weights.requires_grad]
        if self._make_optimizer is None:
            optimizer: Optimizer = torch.optim.AdamW(parameters, lr=self.learning_rate, weight_decay=1e-2)
        else:
            optimizer = self._make_optimizer(parameters)
        if self._make_scheduler is None:
            return optimizer
        scheduler: Any = {"scheduler": self._make_scheduler(optimizer), "interval": self._scheduler_interval}
        scheduler["reduce_on_plateau"] = False  # RecordedModule steps it
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the arguments that :meth:`load_from_checkpoint` builds the classifier from."""
        super().on_save_checkpoint(checkpoint)
        functions = {"optimizer": self._make_optimizer, "scheduler": self._make_scheduler}
        plain = {
            "weight": self.weight, "scheduler_interval": self._scheduler_interval, "batchnorm": self.batchnorm,
            "bins": self._bins, "method": self._given_method, "guard": self.guard,
        }  # fmt: skip
        if self._make_optimizer is None:
            plain["learning_rate"] = self.learning_rate
        checkpoint[KEY]["classifier"] = arguments_of(
            plain, {"model": self.model, "objective": self.objective, "loss": self.loss},
            [name for name, given in functions.items() if given is not None or name in self._not_saved],
        )  # fmt: skip

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: Any, map_location: Any = None, hparams_file: Any = None, strict: bool | None = None,
        weights_only: bool | None = True, *, trusted: Trusted = (), **kwargs: Any,
    ) -> Self:  # fmt: skip
        """Load a classifier from a checkpoint, without unpickling anything that may run code.

        The checkpoint holds the arguments of the classifier, including the structure of model, objective and loss, but
        not ``optimizer`` and ``scheduler``, which are functions: pass those to train further.

        Args:
            checkpoint_path: Path of the checkpoint, a URL, or an open file.
            map_location: As in ``torch.load``.
            hparams_file: As in Lightning; not used here.
            strict: Whether the names of all weights must agree.
            weights_only: As in ``torch.load``; leave it True.
            trusted: Other classes and functions that the model consists of. Classes of ``torch.nn``, objectives of
                Calibrant, and subclasses of ``torch.nn.Module`` that your program has already imported need not be
                named, unless they define their own pickling. Alternatively pass ``model=``, built as before; its
                weights are loaded.
            **kwargs: Arguments of the classifier that replace the saved ones.
        """
        saved = read_without_tensors(checkpoint_path).get(KEY, {}).get("classifier")
        arguments = arguments_in(saved, kwargs, trusted)
        loaded = super().load_from_checkpoint(
            checkpoint_path, map_location, hparams_file, strict, weights_only, **arguments
        )
        loaded._not_saved = tuple(name for name in (saved or {}).get("not_saved", ()) if name not in kwargs)
        return loaded

    def _parts(self, batch: Any) -> tuple[Any, Any]:
        if isinstance(batch, InterleavedBatch):
            return batch.train, batch.calibration
        if self.calibrated_loss is not None:
            what = f"method {self.method!r}" if self.objective is None else "an objective"
            raise TypeError(
                f"{what} needs calibration batches along with the training batches, got a plain "
                f"{type(batch).__name__}: make the loader with calibrant.training.interleave(), or use "
                "InterleavedDataModule"
            )
        return batch, None

    def _checked(self, logits: Tensor, target: Tensor) -> Classification:
        return checks.classification(logits, target, None, getattr(self.loss, "ignore_index", -100))

    def _evaluate(self, batch: Any) -> Classification:
        x, y = pair_of(batch)
        data = self._checked(self(x), y)
        self.evaluation_scores.add(data, cross_entropy(data))
        return data
