"""What a trial records while it trains: its cost, its progress, and its scores on the test set."""

import math
import resource
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch.callbacks import Callback

from calibrant.files import FileError, write_json
from calibrant.training.interleave import kept_random_state
from calibrant.training.lightning import InterleavedModule
from calibrant_lab.scores import Predicted, score
from calibrant_lab.trials.fit import Prepared, Trained, predict
from calibrant_lab.trials.store import Cost, Progress

SECONDS_BETWEEN_SIGNS = 5.0
ALL_SCORED = 20  # epochs at the start that the test set is scored after, each


class Meter(Callback):
    """Counts time and samples over all parts of an interrupted run, and scores the test set after some epochs.

    The test scores are only for Figure 1: they select nothing, and their time is not counted. A run with a meter gives
    the same result as one without.
    """

    def __init__(self, prepared: Prepared, progress: Path) -> None:
        self.prepared = prepared
        self.progress = progress
        self._scores: dict[int, dict[str, float]] = {}
        self._before = (0.0, 0.0)  # seconds and processor seconds of earlier parts
        self._began = (0.0, 0.0)
        self._images = 0
        self._peak_memory = 0
        # So that scoring takes no longer than training.
        self._apart = math.ceil(len(prepared.loaders.targets["test"]) / prepared.loaders.description["train"])
        self._signed = -SECONDS_BETWEEN_SIGNS
        _forget_peak_memory()

    def on_train_start(self, *_: Any) -> None:
        """Start the clock."""
        self._began = _clocks()

    def on_train_batch_start(self, trainer: Trainer, module: Any, *_: Any) -> None:
        """Score the previous epoch; here, since it may have ended before the run was resumed."""
        if not module.history or (epoch := int(module.history[-1]["epoch"])) in self._scores:
            return
        if is_scored(epoch + 1, self._apart):
            self._score(epoch, module)
            self._sign(trainer)

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        """Count the samples, and write the progress now and then."""
        del module, outputs
        self._images += sum(len(part[1]) for part in batch if part is not None)
        if time.monotonic() - self._signed >= SECONDS_BETWEEN_SIGNS:
            self._sign(trainer)

    def on_train_end(self, *_: Any) -> None:
        """Stop the clock."""
        self._before = self._elapsed()

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        counted = {"elapsed": self._elapsed(), "images": self._images, "peak_memory": self._peak()}
        return counted | {"scores": self._scores}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue counting from a checkpoint."""
        self._before = state_dict["elapsed"]
        self._images = state_dict["images"]
        self._scores = state_dict["scores"]
        self._peak_memory = state_dict["peak_memory"]

    def cost(self) -> Cost:
        """Cost of the finished run."""
        return Cost(*self._before, self._images, self._peak())

    def history(self, trained: Trained) -> list[dict[str, float]]:
        """Scores of every epoch, including those on the test set.

        Those of the last epoch come from the final network: Lightning calls no callback for a run that was resumed
        after its last step.
        """
        last = int(trained.history[-1]["epoch"])
        scores = self._scores | {last: _scores(trained.test)}
        return [entry | scores.get(int(entry["epoch"]), {}) for entry in trained.history]

    def _peak(self) -> int:
        return max(self._peak_memory, _peak_memory())

    def _elapsed(self) -> tuple[float, float]:
        (seconds, processor), now = self._before, _clocks()
        return seconds + now[0] - self._began[0], processor + now[1] - self._began[1]

    def _score(self, epoch: int, module: InterleavedModule) -> None:
        """Score the test set without counting the time; restores the random state."""
        elapsed = self._elapsed()
        with kept_random_state():
            self._scores[epoch] = _scores(predict(module.model, self.prepared.loaders.test))
        self._before, self._began = elapsed, _clocks()

    def _sign(self, trainer: Trainer) -> None:
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        steps = max(1, int(trainer.num_training_batches))
        settings = self.prepared.configuration.settings
        limit = settings.max_steps or settings.epochs * steps
        epochs = min(settings.epochs, math.ceil(limit / steps))
        progress = Progress(
            trainer.global_step / steps, epochs, self._elapsed()[0],
            logged.get("validation_accuracy", math.nan), logged.get("validation_ece", math.nan),
        )  # fmt: skip
        with suppress(FileError):  # a full disk is reported when results are written
            write_json(self.progress, asdict(progress))
        self._signed = time.monotonic()


def is_scored(epoch: int, apart: int = 1) -> bool:
    """Whether the test set is scored after an epoch: each of the first 20, every 2nd up to 40, every 4th up to 80, ...

    Never more often than every ``apart`` epochs. This does not depend on the number of epochs, so that a run that is
    prolonged has the history of one that is not. The last epoch always is, by :meth:`Meter.history`.

    Example:
        >>> [epoch for epoch in range(1, 61) if is_scored(epoch)][17:]
        [18, 19, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 44, 48, 52, 56, 60]
        >>> [epoch for epoch in range(1, 61) if is_scored(epoch, 10)]
        [10, 20, 30, 40, 50, 60]
    """
    return epoch % max(apart, 1 << max(0, math.ceil(math.log2(epoch / ALL_SCORED)))) == 0


def _scores(predicted: Predicted) -> dict[str, float]:
    return {f"test_{name}": score(name, predicted) for name in ("nll", "accuracy", "ece")}


def _clocks() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def _forget_peak_memory() -> None:
    """Reset the peak memory of the process, which may run several trials in turn."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def _peak_memory() -> int:
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    with suppress(OSError, IndexError, ValueError):
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
