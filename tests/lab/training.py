"""Trials that train, to their end or until they are killed."""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback

from calibrant_lab.trials import watching
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.run import run_trial
from calibrant_lab.trials.store import Store, Trial


def trained(store: Store, configuration: Configuration, data: Path | None = None, **options: Any) -> Trial:
    """Train a trial on the CPU to its end."""
    trial = store.trial(configuration)
    assert run_trial(store, configuration, data, "cpu", **options) == "done", trial.failure()
    return trial


class KilledError(BaseException):
    """As sudden as a signal: nothing in the code under test catches it."""


class Kill(Callback):
    """End a run after one of its steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *_: object) -> None:
        if trainer.global_step == self.step:
            raise KilledError


def killed_at(step: int, store: Store, configuration: Configuration, data: Path | None = None) -> Trial:
    """A trial that was killed after a step; each epoch that ended before it left a checkpoint."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watching, "SECONDS_BETWEEN_EPOCHS", 0.0)
        with pytest.raises(KilledError):
            run_trial(store, configuration, data, "cpu", callbacks=[Kill(step)])
    trial = store.trial(configuration)
    assert trial.status == "unfinished"
    return trial
