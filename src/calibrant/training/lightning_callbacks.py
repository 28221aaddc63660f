"""Lightning callbacks for any LightningModule: the temperature in the loop, and early stopping after a temperature."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from calibrant import inputs
from calibrant.training.calibrated_loss import CalibratedLoss, Finished
from calibrant.training.forward import ScoreSums, logits_in, pair_of
from calibrant.training.guard import warn
from calibrant.training.held_out import warn_of_loaders
from calibrant.training.interleave import SAME, Passes, gives_ranks_the_same, kept_random_state
from calibrant.training.lightning_data import loader_states, moved, of_ranks, on_training_device, restore_loader
from calibrant.training.output_layer import divide, find_output
from calibrant.training.temperature_loop import refined_nll

# What StopAfterTemperature keeps in checkpoints.
SAVED = ("temperature_", "best_score_", "best_epoch_", "_waited", "_weights")


class TemperatureInTheLoop(Callback):
    """Train any LightningModule on logits divided by a temperature that is fitted to held-out data.

    The module computes its own loss from its own logits, which :class:`calibrant.training.CalibratedLoss` divides while
    it trains. After ``fit`` the module itself is calibrated. See ``docs/lightning.md``.

    Args:
        held_out: Batches ``(inputs, target)`` of data that are not trained on; iterated more than once. If the loader
            shuffles, it must draw from torch's global generator; the random state of training is not affected.
        every: Use a held-out batch every k-th training batch.
        ignore_index: Label of samples to ignore.

    Attributes:
        finished: Temperature, its standard error and scores on the held-out data, at the end of ``fit``; None before.

    Example:
        >>> from lightning import Trainer
        >>> import torch
        >>> held_out = [(torch.randn(64, 2), torch.randint(3, (64,)))]
        >>> trainer = Trainer(callbacks=[TemperatureInTheLoop(held_out)], accelerator="cpu", logger=False)
    """

    def __init__(self, held_out: Iterable[Any], *, every: int = 4, ignore_index: int = -100) -> None:
        if isinstance(held_out, Iterator) or not isinstance(held_out, Iterable):
            raise TypeError(f"the held-out loader must be iterable more than once, got {type(held_out).__name__}")
        inputs.check_count("every", every)
        self.held_out = held_out
        self.every = every
        self.ignore_index = ignore_index
        self.finished: Finished | None = None
        self._loss: CalibratedLoss | None = None
        self._stream = Passes(held_out, seed=0)
        self._saved: dict[str, Any] | None = None
        self._is_due = False
        self._trainer: Trainer | None = None
        self._validation = ScoreSums()

    @property
    def temperature(self) -> float:
        """Current divisor of the logits; 1 before and after ``fit``."""
        return 1.0 if self._loss is None else self._loss.temperature

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size > 1 and gives_ranks_the_same(self.held_out):
            raise ValueError(SAME.format("held-out"))
        if getattr(pl_module, "method", None) == "temperature":
            raise ValueError("the module already has a temperature, method='temperature': remove this callback")
        warn_of_loaders(self.held_out, getattr(trainer.train_dataloader, "train_loader", trainer.train_dataloader))
        if self._saved is not None:
            restore_loader(trainer, self._saved["loaders"])
        self._begin(trainer, pl_module)

    def _begin(self, trainer: Trainer, module: LightningModule) -> None:
        if self._loss is not None:
            self._loss.detach()
        self._trainer = trainer
        self._stream = Passes(self.held_out, seed=0)
        with kept_random_state():
            first = next(iter(self._stream.whole_pass()), None)
        if first is None:
            raise ValueError("the held-out loader gave no batch: give it more data or set drop_last=False")
        self._loss = CalibratedLoss(module, every=self.every, ignore_index=self.ignore_index)
        if self._saved is not None:
            self._loss.load_state_dict(self._saved["loss"])
            self._stream.load_state_dict(self._saved["stream"])
        self._saved = None
        x, _ = pair_of(moved(trainer, first), "a held-out batch")
        with trainer.precision_plugin.forward_context():
            self._loss.attach(x)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        assert self._loss is not None  # noqa: S101 (set when training started)
        self._is_due = self._loss.is_due()
        if self._is_due:
            x, y = pair_of(moved(trainer, self._stream.next_batch()), "a held-out batch")
            with trainer.precision_plugin.forward_context():
                self._loss.observe(x, y)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        seen = self._seen(getattr(batch, "train", batch))  # the training part of an InterleavedBatch
        if self._is_due and seen is not None and self._loss is not None:
            self._loss.watch_training(*seen)

    def _seen(self, batch: Any) -> tuple[Tensor, Tensor] | None:
        """Take the logits that the module has just made, and their target, if the batch is ``(inputs, target)``."""
        if self._loss is None or self._loss.divided is None:
            return None
        return self._loss.divided.take(batch[1] if isinstance(batch, list | tuple) and len(batch) == 2 else None)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation = ScoreSums()

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Score a batch of the first loader; others may hold data that differ on purpose."""
        seen = self._seen(batch)
        if seen is not None and dataloader_idx == 0 and self._loss is not None:
            self._validation.add(self._loss.cleaned(*seen))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare with held-out data; there are none yet in Lightning's sanity check before training."""
        if self._loss is None or self._loss.divided is None or trainer.sanity_checking:
            return
        new = self._validation.since()
        if new.samples:
            self._loss.compare_evaluation(new, self.held_out)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._loss is None:
            return
        for name, value in (self._loss.guard.since_log() | {"temperature": self.temperature}).items():
            pl_module.log(f"train_{name}", value, sync_dist=True)  # the same on all ranks, which Lightning cannot know

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make the module itself return calibrated logits, after callbacks have restored their weights."""
        if stage == "fit" and self._loss is None and self._saved is not None and not self._saved["loss"]["finished"]:
            self._begin(trainer, pl_module)  # resumed from the last step: nothing was left to train
        if stage != "fit" or self._loss is None or self._loss.divided is None:
            return
        with on_training_device(trainer, pl_module):
            self.finished = self._loss.finish(moved(trainer, batch) for batch in self._stream.whole_pass())

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._loss is not None:
            self._loss.detach()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn about weights saved before the end of ``fit``, which are not divided by T."""
        if (path := trainer.ckpt_path) is None:
            return
        saved = torch.load(path, map_location="cpu", weights_only=True).get("callbacks", {}).get(self.state_key, {})
        if saved and not saved["loss"]["finished"]:
            warn(
                f"the weights of {path} were saved before the end of fit and are not divided by the temperature: for "
                "calibrated ones call calibrant.training.CalibratedLoss(module).finish(held_out_loader) after loading"
            )

    def state_dict(self) -> dict[str, Any]:
        if self._loss is None:
            return {}
        return {
            "loss": self._loss.state_dict(), "stream": self._stream.state_dict(),
            "loaders": loader_states(self._trainer), "temperature": self._loss.loop.best,
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:
            self._saved = state_dict


class StopAfterTemperature(Callback):
    """Stop when the validation log loss after temperature scaling no longer improves, and keep the best weights.

    At every validation it logs ``validation_refined_nll``, and keeps the weights of the best one in memory and in
    checkpoints; at the end of ``fit`` it puts them back. The logits are those that ``validation_step`` returns in a
    mapping with ``"logits"`` and ``"target"``, or else of a second call ``module(inputs)``. ``docs/lightning.md`` has
    more.

    Args:
        patience: Validations without improvement after which training stops; None to train to the end and only keep
            the best weights.
        loader: Batches to use in place of the validation data.
        fold: Divide the output layer by the temperature at the end, so that the model itself is calibrated.
            Batches must be ``(inputs, target)``.

    Attributes:
        temperature_: Temperature of the best validation.
        best_score_: Log loss of the best validation after its temperature.
        best_epoch_: Epoch of the best validation, counted from 0.

    Example:
        >>> from lightning import Trainer
        >>> stopping = StopAfterTemperature(patience=5, fold=True)
        >>> trainer = Trainer(callbacks=[stopping], accelerator="cpu", logger=False)
    """

    def __init__(self, patience: int | None = 3, *, loader: Iterable[Any] | None = None, fold: bool = False) -> None:
        if patience is not None:
            inputs.check_count("patience", patience)
        self.patience = patience
        self.fold = fold
        self.loader = loader
        self._collected: list[tuple[Tensor, Tensor]] = []
        self._resumes = False
        self._forget()

    def _forget(self) -> None:
        self.temperature_ = math.nan
        self.best_score_ = math.inf
        self.best_epoch_: float | None = None
        self._weights: dict[str, Any] | None = None  # on the CPU
        self._waited = 0

    @property
    def _stops(self) -> bool:
        return self.patience is not None and self._waited >= self.patience

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.loader is None and not trainer.num_val_batches:
            raise ValueError("StopAfterTemperature needs validation data, or a loader: pass val_dataloaders or loader=")
        if not self._resumes:
            self._forget()
        self._resumes = False
        trainer.should_stop = trainer.should_stop or self._stops

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._collected = []

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any, **__: Any
    ) -> None:
        if self.loader is None and not trainer.sanity_checking:
            self._collect(trainer, pl_module, outputs, batch)

    def _collect(self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any) -> None:
        if self.fold:  # they find the output layer at the end
            pair_of(batch, "with fold=True a validation batch")
        if isinstance(outputs, Mapping) and "logits" in outputs and "target" in outputs:
            logits, target = outputs["logits"], outputs["target"]
        elif isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(batch[1], Tensor):
            with trainer.precision_plugin.forward_context():
                logits, target = logits_in(module(batch[0])), batch[1]
        else:
            raise TypeError(
                "StopAfterTemperature needs logits: let validation_step return a dict with 'logits' and 'target', or "
                f"give batches (inputs, target); got a {type(batch).__name__}"
            )
        self._collected.append((logits.detach().float().cpu(), target.detach().cpu()))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the loss after the temperature, keep the weights if it is the lowest, and stop after ``patience``."""
        if trainer.sanity_checking:
            return
        if self.loader is not None:
            with kept_random_state():  # the loader may draw from that of training
                for batch in self.loader:
                    self._collect(trainer, pl_module, None, trainer.strategy.batch_to_device(batch))
        batches = [batch for of_rank in of_ranks(trainer, self._collected) for batch in of_rank]
        self._collected = []
        logits, target = (torch.cat(column) for column in zip(*batches, strict=True))
        # Ranks on other processors may differ in the last bit: they follow the first.
        score, temperature = trainer.strategy.broadcast(refined_nll(logits, target))
        pl_module.log("validation_refined_nll", score, sync_dist=True)
        if trainer.state.fn == "fit":
            self._compare(score, temperature, trainer.current_epoch, pl_module)
            trainer.should_stop = trainer.should_stop or self._stops

    def _compare(self, score: float, temperature: float, epoch: float, module: nn.Module) -> None:
        """Copy the weights if this validation is the best one."""
        if self._stops:  # for example when a stopped run is resumed
            return
        if self._weights is not None and not score < self.best_score_:
            self._waited += 1
            return
        self.best_score_, self.temperature_, self.best_epoch_, self._waited = score, temperature, epoch, 0
        self._weights = {
            name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
            for name, value in module.state_dict().items()
        }

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the best weights back, after all checkpoints have been written, and divide them if asked to."""
        if self._weights is None:
            return
        pl_module.load_state_dict(self._weights)
        if self.fold:
            loader: Any = trainer.val_dataloaders if self.loader is None else self.loader
            with kept_random_state():
                first = next(iter(loader[0] if self.loader is None and isinstance(loader, list) else loader))
            x, _ = pair_of(moved(trainer, first), "a validation batch")
            with trainer.precision_plugin.forward_context():
                output = find_output(pl_module, x)
            divide(pl_module, output, self.temperature_, output)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SAVED}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)
        self._resumes = True
