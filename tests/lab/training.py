"""Trials that train, to their end or until they are killed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from calibrant_lab.trials import watching
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.run import run_trial
from calibrant_lab.trials.store import Result, Store, Trial
from tests.lab.stores import PARTS, files_of


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


def reproducible(result: Result) -> Result:
    """Without what is measured with a clock."""
    return replace(result, cost=replace(result.cost, seconds=0, processor_seconds=0, peak_memory=0))


def assert_same(one: Trial, other: Trial) -> None:
    """Both left the same files, with the same in them but for the clock."""
    assert files_of(one) == files_of(other)
    assert reproducible(one.result()) == reproducible(other.result())
    for name in ("config.json", "data.json", "history.json", "model.pt"):
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()
    for part in PARTS:
        for ours, theirs in zip(one.predicted(part), other.predicted(part), strict=True):
            assert torch.equal(ours, theirs)
