"""Stores filled by hand: what a trial leaves, without the training."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.files import write_json, write_predictions
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.configuration import Configuration, configure
from calibrant_lab.trials.store import Cost, Progress, Result, Store, Trial, write_result

ENVIRONMENT = {"calibrant": "0.1.0", "torch": "2.13.0", "device": "cpu: Processor", "threads": 1, "cores": 2}


def of(method: str, **changes: Any) -> Configuration:
    """A configuration of the recipe digits."""
    return configure("digits", method).replaced({"epochs": 12, **changes})


def begun(store: Store, configuration: Configuration) -> Trial:
    """A trial with its configuration, and nothing else."""
    trial = store.trial(configuration)
    write_json(trial.folder / kept.CONFIGURATION, configuration.to_dict())
    write_json(trial.folder / kept.DATA, {"train": 80, "fingerprint": "0123456789abcdef"})
    return trial


def finished(
    store: Store, configuration: Configuration, accuracy: float = 0.9, ece: float = 0.05, seconds: float = 60.0
) -> Trial:
    """A finished trial: its test scores are one point below those of validation."""
    trial = begun(store, configuration)
    write_json(trial.folder / kept.HISTORY, [{"epoch": 0, "validation_accuracy": accuracy, "test_ece": None}])
    for part in ("validation", "test"):
        write_predictions(trial.folder / f"{part}.npz", np.eye(3), np.arange(3), kind="logits")
    (trial.folder / kept.WEIGHTS).write_bytes(b"w" * 2000)
    validation = {"accuracy": accuracy, "ece": ece, "nll": 0.25, "temperature": 1.2}
    test = {
        "accuracy": accuracy - 0.01, "ece": ece + 0.01, "nll": 0.3, "ece+temperature": 0.02,
        "accuracy+vector": accuracy - 0.01, "ece+vector": 0.03,
    }  # fmt: skip
    cost = Cost(seconds, seconds, 12000, 300_000_000)
    write_result(trial.folder, Result(configuration, validation, test, cost, ENVIRONMENT))
    return trial


def failed(store: Store, configuration: Configuration, traceback: str) -> Trial:
    """A trial that went wrong."""
    trial = begun(store, configuration)
    write_json(trial.folder / kept.FAILURE, {"traceback": traceback})
    return trial


def halfway(store: Store, configuration: Configuration, epochs: float, accuracy: float, ece: float) -> Trial:
    """A trial that has come so far, ten seconds an epoch; running only while someone holds its lock."""
    trial = begun(store, configuration)
    (trial.folder / kept.CHECKPOINT).write_bytes(b"c" * 5000)
    progress = Progress(epochs, configuration.settings.epochs, 10 * epochs, accuracy, ece)
    write_json(trial.folder / kept.PROGRESS, asdict(progress))
    return trial


@contextmanager
def held_by_another_process(trial: Trial) -> Iterator[None]:
    """Keep a trial's lock in a process of its own for a while."""
    code = (
        "import filelock as f, sys\nwith f.FileLock(sys.argv[1]):\n    print('held', flush=True)\n    sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(trial.folder / kept.LOCK)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    try:
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.communicate("")


def files_of(folder: Path) -> set[str]:
    """Names of all files, without the lock."""
    return {path.name for path in folder.iterdir()} - {kept.LOCK}
