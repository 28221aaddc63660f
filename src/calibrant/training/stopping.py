"""Early stopping by the validation loss after temperature scaling, for Lightning."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from calibrant import inputs
from calibrant.distributed import is_distributed
from calibrant.training.forward import evaluating, logits_in, logits_of, pair_of
from calibrant.training.interleave import kept_random_state
from calibrant.training.lightning_data import moved
from calibrant.training.output_layer import divide, find_maker
from calibrant.training.temperature_loop import refined_nll


class StopAfterTemperature(Callback):
    """Stop when the validation log loss after temperature scaling no longer improves, and keep the best weights.

    The validation loss often rises because a network becomes over-confident, while its predictions still get better.
    At every validation this callback logs the log loss after the best temperature, ``validation_refined_nll``, and
    keeps the weights of the best validation in memory and in checkpoints. At the end of ``fit`` it puts them back.

    The logits are those that ``validation_step`` returns in a mapping with ``"logits"`` and ``"target"``, as in
    ``InterleavedModule``. Otherwise they come from a second call ``module(inputs)`` on batches ``(inputs, target)``.
    The first process keeps the logits of all validation samples in memory.

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

    References:
        Berta, Holzmüller, Jordan, Bach, "Rethinking Early Stopping: Refine, Then Calibrate", 2025.

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

    def _add(self, score: float, temperature: float, epoch: float, module: nn.Module) -> None:
        """Take a validation into account, and copy the weights if it is the best one."""
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

    @property
    def _stops(self) -> bool:
        return self.patience is not None and self._waited >= self.patience

    def _put_best_back(self, module: nn.Module, run: Callable[[], Tensor]) -> None:
        """Put the best weights back, and divide the layer that makes the logits, which ``run`` returns, if asked to."""
        if self._weights is None:
            return
        module.load_state_dict(self._weights)
        if self.fold:
            with evaluating(module):
                maker = find_maker(module, run)
            divide(module, maker, self.temperature_, maker)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start afresh, or continue from a checkpoint, which may be that of a stopped run."""
        if self.loader is None and not trainer.num_val_batches:
            raise ValueError("StopAfterTemperature needs validation data, or a loader: pass val_dataloaders or loader=")
        if not self._resumes:
            self._forget()
        self._resumes = False
        trainer.should_stop = trainer.should_stop or self._stops

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start collecting logits."""
        self._collected = []

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any, **__: Any
    ) -> None:
        """Collect the logits of a batch."""
        if self.loader is None and not trainer.sanity_checking:
            self._collect(trainer, pl_module, outputs, batch)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the loss after the temperature, keep the weights if it is the lowest, and stop after ``patience``."""
        if trainer.sanity_checking:
            return
        if self.loader is not None:
            with kept_random_state():  # the loader may draw from that of training
                for batch in self.loader:
                    self._collect(trainer, pl_module, None, trainer.strategy.batch_to_device(batch))
        score, temperature = _on_all_ranks(self._collected)
        self._collected = []
        pl_module.log("validation_refined_nll", score, sync_dist=True)
        if trainer.state.fn == "fit":
            self._add(score, temperature, trainer.current_epoch, pl_module)
            trainer.should_stop = trainer.should_stop or self._stops

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the best weights back, after all checkpoints have been written."""
        if self.fold:
            loader: Any = self.loader
            if loader is None:
                loader = trainer.val_dataloaders
                loader = loader[0] if isinstance(loader, list) else loader
            with kept_random_state():
                first = next(iter(loader))
            x, _ = pair_of(moved(trainer, first))
        with trainer.precision_plugin.forward_context():
            self._put_best_back(pl_module, lambda: logits_of(pl_module, x))

    def state_dict(self) -> dict[str, Any]:
        """The best validation so far, with its weights."""
        return {
            "temperature": self.temperature_, "best_score": self.best_score_, "best_epoch": self.best_epoch_,
            "waited": self._waited, "weights": self._weights,
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.temperature_, self.best_score_ = state_dict["temperature"], state_dict["best_score"]
        self.best_epoch_, self._waited = state_dict["best_epoch"], state_dict["waited"]
        self._weights = state_dict["weights"]
        self._resumes = True

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


def _on_all_ranks(batches: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Score and temperature of the samples of all ranks, computed by the first."""
    if not is_distributed():
        return _judged(batches)
    parts: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(batches, parts)
    found: list[Any] = [None]
    if parts is not None:
        try:
            found = [_judged([batch for part in parts for batch in part])]
        except ValueError as error:
            found = [str(error)]  # so that the other ranks do not wait for an answer
    dist.broadcast_object_list(found)
    if isinstance(found[0], str):
        raise ValueError(found[0])
    return found[0]  # type: ignore[no-any-return]


def _judged(batches: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    logits, target = (torch.cat(column) for column in zip(*batches, strict=True))
    return refined_nll(logits, target)
