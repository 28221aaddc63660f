"""Where trials are kept: one folder each, named by the hash of its configuration.

A folder is filled file by file, each written whole or not at all, and ``result.json`` last: where it is, all of the
rest is. Any number of processes may read and write a store at once; a trial is run by whoever holds its lock.
"""

import hashlib
import json
import math
import shutil
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from filelock import FileLock, Timeout

from calibrant.experiments.configuration import Configuration, read_settings
from calibrant.experiments.json_files import write_json
from calibrant.experiments.outcome import Outcome, Predicted
from calibrant.experiments.recipes import RECIPES
from calibrant.files import FileError, naming, read_predictions

CONFIGURATION, DATA, CHECKPOINT, WEIGHTS = "config.json", "data.json", "last.ckpt", "model.pt"
HISTORY, PROGRESS, FAILURE, RESULT = "history.json", "progress.json", "failure.json", "result.json"
Status = Literal["done", "running", "failed", "unfinished"]
Part = Literal["validation", "test"]
T = TypeVar("T")


@dataclass(frozen=True)
class Cost:
    """What a trial took, all its interrupted parts together up to their last checkpoints.

    Attributes:
        seconds: From the first step to the last, with validation.
        processor_seconds: Of the process that trained; on a busy machine the fairer number.
        images: Samples that went forward and backward, those of the calibration batches included.
        peak_memory: Bytes: the largest resident set of the process, or what was allocated on its accelerator.
    """

    seconds: float
    processor_seconds: float
    images: int
    peak_memory: int


@dataclass(frozen=True)
class Validated:
    """Scores on the validation set, which trials are chosen by."""

    accuracy: float
    ece: float


@dataclass(frozen=True)
class Result:
    """What is left of a finished trial, besides its curves and predictions."""

    configuration: Configuration
    validation: Validated
    outcome: Outcome
    cost: Cost
    environment: dict[str, Any]


def identity(configuration: Configuration) -> str:
    """Sixteen hexadecimal digits, the same for equal configurations everywhere."""
    canonical = json.dumps(configuration.to_dict(), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Trial:
    """One folder of a store."""

    folder: Path

    @property
    def identity(self) -> str:
        """The hash its folder is named by."""
        return self.folder.name.rpartition("-")[2]

    @cached_property
    def configuration(self) -> Configuration:
        """What was, or is to be, run."""
        return _configuration(self.folder / CONFIGURATION)

    @property
    def status(self) -> Status:
        """Whether it is done; if not, whether someone is at it."""
        if (self.folder / RESULT).exists():
            return "done"
        if self.is_locked():
            return "running"
        return "failed" if (self.folder / FAILURE).exists() else "unfinished"

    def is_locked(self) -> bool:
        """Whether a process is at work on it."""
        lock = self.folder / ".lock"
        if not lock.exists():
            return False
        try:
            with FileLock(lock, timeout=0):
                return False
        except Timeout:
            return True

    def result(self) -> Result:
        """The scores and the cost of a finished trial."""
        path = self.folder / RESULT
        with naming(path):
            found = read_settings(path)
            try:
                return Result(
                    self.configuration, _typed(Validated, found["validation"]), _typed(Outcome, found["outcome"]),
                    _typed(Cost, found["cost"]), dict(found["environment"]),
                )  # fmt: skip
            except (KeyError, TypeError) as error:
                raise ValueError(
                    "is not the result of a trial: delete it, and the same command runs it anew"
                ) from error

    def history(self) -> list[dict[str, float]]:
        """Scores an epoch: ``train/...``, ``validation/...`` and ``test/...``."""
        path = self.folder / HISTORY
        with naming(path):
            found = json.loads(path.read_text(encoding="utf-8"))
            return [{name: math.nan if value is None else value for name, value in row.items()} for row in found]

    def predicted(self, part: Part, *, sampled: bool = False) -> Predicted:
        """Logits and targets; ``sampled`` are the mean of passes with dropout on, as log-probabilities."""
        found = read_predictions(self.folder / f"{part}{'-dropout' if sampled else ''}.npz")
        return Predicted(torch.as_tensor(found.logits), torch.as_tensor(found.target))

    def has_dropout(self) -> bool:
        """Whether predictions with dropout were kept: not all networks have any."""
        return (self.folder / "test-dropout.npz").exists()

    def failure(self) -> str | None:
        """The traceback of the last attempt, if it failed."""
        path = self.folder / FAILURE
        return str(read_settings(path)["traceback"]) if path.exists() else None

    def progress(self) -> dict[str, float]:
        """How far a running trial was when it last said so; empty before its first epoch ends."""
        path = self.folder / PROGRESS
        return read_settings(path) if path.exists() else {}

    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())

    def remove(self) -> None:
        """Delete the folder, result first, so that an interruption leaves an unfinished trial, not a false one."""
        (self.folder / RESULT).unlink(missing_ok=True)
        shutil.rmtree(self.folder)


class Store:
    """A folder of trials.

    Args:
        folder: Made when first written to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._results: dict[Configuration, Result] = {}  # a finished trial does not change

    def trial(self, configuration: Configuration) -> Trial:
        """The folder of a configuration, which need not exist yet."""
        return Trial(self.folder / f"{configuration.recipe}-{configuration.objective}-{identity(configuration)}")

    def result(self, configuration: Configuration) -> Result | None:
        """The result of a configuration, None if it is not finished."""
        if configuration not in self._results:
            trial = self.trial(configuration)
            if not (trial.folder / RESULT).exists():
                return None
            self._results[configuration] = trial.result()
        return self._results[configuration]

    def trials(self) -> list[Trial]:
        """All that the folder holds, by name."""
        if not self.folder.is_dir():
            raise FileError(self.folder, "is not a folder: give the --runs of an earlier command")
        return [Trial(path.parent) for path in sorted(self.folder.glob(f"*/{CONFIGURATION}")) if _is_trial(path)]

    def results(self) -> dict[Configuration, Result]:
        """Of all finished trials."""
        found = ((trial, self.result(trial.configuration)) for trial in self.trials())
        return {trial.configuration: result for trial, result in found if result is not None}


def write_result(folder: Path, result: Result) -> None:
    """Finish a trial: the last of its files."""
    content = {
        "validation": asdict(result.validation), "outcome": asdict(result.outcome), "cost": asdict(result.cost),
        "environment": result.environment,
    }  # fmt: skip
    write_json(folder / RESULT, content)


def _is_trial(path: Path) -> bool:
    """Folders of ``calibrant train`` hold a configuration too, but are not named by it."""
    name, _, digits = path.parent.name.rpartition("-")
    return bool(name) and len(digits) == 16 and all(digit in "0123456789abcdef" for digit in digits)


def _configuration(path: Path) -> Configuration:
    with naming(path):
        found = read_settings(path)
        recipe = found.pop("recipe", None)
        if recipe not in RECIPES:
            raise ValueError(f"must name one of the recipes {', '.join(RECIPES)}, got {recipe!r}")
        return RECIPES[recipe].replaced(found)


def _typed(kind: type[T], found: dict[str, Any]) -> T:
    return kind(**{field.name: math.nan if found[field.name] is None else found[field.name] for field in fields(kind)})  # type: ignore[arg-type]
