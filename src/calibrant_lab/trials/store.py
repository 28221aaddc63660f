"""The store of trials: one folder each, named by the hash of its configuration.

Every file is written whole or not at all, and ``result.json`` last: if it exists, so do the others. Any number of
processes may read and write a store at once; a trial is run by the process that holds its lock.
"""

import errno
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from filelock import FileLock, Timeout

from calibrant.files import FileError, read_json, read_predictions, write_json
from calibrant_lab import plugins
from calibrant_lab.scores import ALIASES, Predicted, score, scores_of
from calibrant_lab.trials.configuration import Configuration, from_dict

if TYPE_CHECKING:
    import pandas as pd

CONFIGURATION, DATA, CHECKPOINT, WEIGHTS = "config.json", "data.json", "last.ckpt", "model.pt"
HISTORY, PROGRESS, FAILURE, RESULT = "history.json", "progress.json", "failure.json", "result.json"
WARNINGS = "warnings.json"  # of the guard over training
SCORES = "scores.json"  # computed later from the predictions
FINAL = "final.ckpt"  # checkpoint of a finished trial, to continue it with more epochs
LOCK = ".lock"
FULL = "is on a full disk: free some space, then run the same command again"
DROPOUT_PASSES = 10  # passes averaged in predictions with dropout
Status = Literal["done", "running", "failed", "unfinished"]
Ending = Literal["done", "busy", "failed", "disk full"]  # how an attempt at a trial ended
Part = Literal["validation", "test"]
T = TypeVar("T")

_FOLDER = re.compile(r".+-[0-9a-f]{16}")


@dataclass(frozen=True)
class Cost:
    """Cost of a trial; for an interrupted trial, the sum of its parts up to their last checkpoints.

    Attributes:
        seconds: Wall-clock time from the first step to the last, including validation.
        processor_seconds: Processor time of the training process, which depends less on other load.
        images: Samples in forward and backward passes, including those of calibration batches.
        peak_memory: Peak resident memory of the process, or peak memory allocated on the accelerator, in bytes.
    """

    seconds: float
    processor_seconds: float
    images: int
    peak_memory: int


class UnknownTrialError(FileError):
    """An intact trial of a recipe or a method that this installation does not know."""


@dataclass(frozen=True)
class Progress:
    """Progress of a trial; scores are those of the last validation, NaN before the first."""

    epochs: float  # done so far, including a fraction of the current one
    of: int  # total number of epochs
    seconds: float
    accuracy: float
    ece: float

    @property
    def share(self) -> float:
        """Share done, from 0 to 1."""
        return min(1.0, self.epochs / self.of)

    @property
    def seconds_left(self) -> float:
        """Estimated from the time so far; NaN before the first step."""
        return self.seconds * (1 / self.share - 1) if self.share > 0 else math.nan


@dataclass(frozen=True)
class Result:
    """Result of a finished trial, without its curves and predictions.

    Attributes:
        configuration: Configuration of the trial.
        validation: Scores on the validation set, as shares, and the best ``temperature``.
        test: Scores on the test set by column, as shares.
        cost: Time, samples and memory used.
        environment: Package versions, machine, and digests of the source of user-defined recipes and methods.
    """

    configuration: Configuration
    validation: dict[str, float]
    test: dict[str, float]
    cost: Cost
    environment: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the configuration."""
        scores = {"validation": self.validation, "test": self.test}
        return scores | {"cost": asdict(self.cost), "environment": self.environment}


@dataclass(frozen=True)
class Trial:
    """One folder of a store."""

    folder: Path

    @property
    def identity(self) -> str:
        """The hash in the name of its folder."""
        return self.folder.name.rpartition("-")[2]

    @cached_property
    def configuration(self) -> Configuration:
        """The configuration of the trial."""
        path = self.folder / CONFIGURATION
        with _explained(path) as found:
            try:
                configuration = from_dict(found)
                if configuration.identity != self.identity:
                    raise ValueError(
                        "its settings do not match the name of its folder, as in earlier trials with held-out data, "
                        "which had other batches"
                    )
            except plugins.UnknownNameError as error:
                raise UnknownTrialError(path, str(error)) from error
            except ValueError as error:
                own = next((one for key in ("recipe", "method") if ":" in (one := str(found.get(key)))), None)
                if own is None:
                    raise
                raise UnknownTrialError(path, f"{own} has other settings now ({error})") from error
            return configuration

    def found_again(self, configuration: Configuration) -> None:
        """Update paths of a user's files that have moved; refuse a different file that has the same name."""
        try:
            run = self.configuration
        except UnknownTrialError:
            write_json(self.folder / CONFIGURATION, configuration.to_dict())
            return
        for ours, given in ((run.recipe, configuration.recipe), (run.method, configuration.method)):
            if ours != given:
                digest = self.result().environment.get("sources", {}).get(plugins.short(given))
                if digest != plugins.source_digest(given):
                    raise FileError(
                        self.folder, f"was run with {ours}, and {given} is different: rename it, or give another --runs"
                    )

    @property
    def status(self) -> Status:
        """Status of the trial."""
        if (self.folder / RESULT).exists():
            return "done"
        if self.is_locked():
            return "running"
        return "failed" if (self.folder / FAILURE).exists() else "unfinished"

    @contextmanager
    def claimed(self, seconds: float = 0.0) -> Iterator[bool]:
        """Hold the lock of the trial; yields False if another process still holds it after ``seconds``."""
        try:
            lock = FileLock(self.folder / LOCK, timeout=seconds).acquire(poll_interval=0.02)
        except Timeout:
            yield False
            return
        with lock:
            yield True

    def is_locked(self) -> bool:
        """Whether a process is running the trial; False if the folder is not writable, since we cannot know."""
        if (self.folder / LOCK).exists():
            with suppress(OSError), self.claimed() as free:
                return not free
        return False

    def result(self) -> Result:
        """The scores and the cost of a finished trial."""
        with _explained(self.folder / RESULT) as found:
            return Result(
                self.configuration, _numbers(found["validation"]), _numbers(found["test"]),
                _typed(Cost, found["cost"]), dict(found["environment"]),
            )  # fmt: skip

    def history(self) -> list[dict[str, float]]:
        """Scores of every epoch: ``train_...``, ``validation_...`` and ``test_...``."""
        with _explained(self.folder / HISTORY) as found:
            return [_numbers(row) for row in found]

    def warnings(self) -> dict[str, str]:
        """Warnings of the guard over training, by kind."""
        path = self.folder / WARNINGS
        if not path.exists():
            return {}
        with suppress(FileError), _explained(path) as found:
            return {str(kind): str(text) for kind, text in found.items()}
        return {"unknown": f"the trial gave warnings, but {path.name} cannot be read"}

    def predicted(self, part: Part, *, sampled: bool = False) -> Predicted:
        """Logits and targets; with ``sampled``, mean log-probabilities of passes with dropout on."""
        found = read_predictions(self.folder / f"{part}{'-dropout' if sampled else ''}.npz")
        return Predicted(torch.as_tensor(found.logits), torch.as_tensor(found.target))

    def score(self, part: Part, column: str) -> float:
        """A score of a finished trial, as stored; if it is not, it is computed from the predictions and stored."""
        result = self.result()
        kept = result.validation if part == "validation" else result.test
        metric, plus, repair = column.partition("+")
        column = ALIASES.get(metric, metric) + plus + repair
        if column in kept:
            return kept[column]
        path = self.folder / SCORES
        more: dict[str, Any] = read_json(path) if path.exists() else {}
        key = f"{part} {column}"
        if key not in more:
            validation = self.predicted("validation")
            if part == "validation":
                more[key] = score(column, validation)
            else:
                more[key] = scores_of(validation, self.predicted("test"), [column])[column]
            if ":" not in column:  # the source of a user's metric may change
                with suppress(OSError, FileError):
                    write_json(path, more)
        return math.nan if more[key] is None else float(more[key])

    def has_dropout(self) -> bool:
        """Whether predictions with dropout were stored: not all networks have dropout."""
        return (self.folder / "test-dropout.npz").exists()

    def failure(self) -> str | None:
        """The traceback of the last attempt, if it failed."""
        path = self.folder / FAILURE
        if not path.exists():
            return None
        with suppress(FileError), _explained(path) as found:
            return str(found["traceback"])
        return f"failed, and {path.name} cannot be read"

    def progress(self) -> Progress | None:
        """The last recorded progress; None before the first step and after the last."""
        with suppress(FileError), _explained(self.folder / PROGRESS) as found:
            return _typed(Progress, found)
        return None

    def size(self) -> int:
        """Bytes on disk."""
        total = 0
        for path in self.folder.glob("*"):
            with suppress(FileNotFoundError):  # a temporary file that has been renamed
                total += path.stat().st_size
        return total

    def remove(self) -> None:
        """Delete the folder, result first, so that an interruption leaves an unfinished trial, not a damaged one."""
        (self.folder / RESULT).unlink(missing_ok=True)
        shutil.rmtree(self.folder)


class Store:
    """A folder of trials.

    Args:
        folder: Folder of the store, created on the first write.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._results: dict[Configuration, Result] = {}  # a finished trial does not change

    def trial(self, configuration: Configuration) -> Trial:
        """The folder of a configuration, which need not exist yet."""
        names = (plugins.short(name).rpartition(":")[2] for name in (configuration.recipe, configuration.method))
        return Trial(self.folder / f"{'-'.join(names)}-{configuration.identity}")

    def result(self, configuration: Configuration) -> Result | None:
        """The result of a configuration; None if it is unfinished or damaged (:meth:`Trial.result` raises)."""
        if configuration not in self._results:
            trial = self.trial(configuration)
            if (trial.folder / RESULT).exists():
                with suppress(FileError):
                    self._results[configuration] = trial.result()
        return self._results.get(configuration)

    def trials(self) -> list[Trial]:
        """All trials in the folder, sorted by name."""
        if not self.folder.is_dir():
            raise FileError(self.folder, "is not a folder: give the --runs of an earlier command")
        found = sorted(path.parent for path in self.folder.glob(f"*/{CONFIGURATION}"))
        return [Trial(folder) for folder in found if _FOLDER.fullmatch(folder.name)]

    def results(self) -> dict[Configuration, Result]:
        """Results of all finished trials."""
        found = {}
        for trial in self.trials():
            with suppress(FileError):  # reported by ``calibrant runs list``
                if (result := self.result(trial.configuration)) is not None:
                    found[trial.configuration] = result
        return found

    def to_frame(self) -> "pd.DataFrame":
        """The finished trials as a pandas data frame: one row each, with columns for settings, options and scores.

        Trials of recipes and methods that this installation does not know are left out.
        """
        try:
            import pandas as pd
        except ImportError:
            raise ImportError("a data frame of trials needs pandas: install it") from None
        rows = []
        for trial in self.trials():
            with suppress(UnknownTrialError):
                if trial.status == "done":
                    rows.append(_row(trial.identity, trial.result()))
        return pd.DataFrame(rows)


def _row(identity: str, result: Result) -> dict[str, Any]:
    configuration = result.configuration
    return {
        "recipe": plugins.short(configuration.recipe), "method": plugins.short(configuration.method),
        "seed": configuration.seed, **configuration.settings.to_dict(), **dict(configuration.options),
        **{f"validation_{name}": value for name, value in result.validation.items()},
        **{f"test_{name}": value for name, value in result.test.items()},
        **{"samples" if name == "images" else name: value for name, value in asdict(result.cost).items()},
        "trial": identity,
    }  # fmt: skip


def is_full(error: BaseException | None) -> bool:
    """Whether an error was caused by a full disk, on which the next trial would fail too."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def write_result(folder: Path, result: Result) -> None:
    """Write the result, which marks a trial as finished."""
    write_json(folder / RESULT, result.to_dict())


@contextmanager
def _explained(path: Path) -> Iterator[Any]:
    """Read a file of a trial; errors name the file and a remedy."""
    try:
        yield read_json(path)
    except UnknownTrialError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, FileError) and not str(error).startswith(f"{path}: "):
            raise
        reason = f"missing {error}" if isinstance(error, KeyError) else str(error).removeprefix(f"{path}: ")
        raise FileError(
            path, f"is not a valid file of a trial ({reason}): delete its folder, then run the same command again"
        ) from error


def _numbers(found: dict[str, Any]) -> dict[str, float]:
    values = {name: math.nan if value is None else value for name, value in found.items()}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, float | int):
            raise ValueError(f"{name} must be a number, got {value!r}")
    return values


def _typed(kind: type[T], found: dict[str, Any]) -> T:
    return kind(**_numbers({field.name: found[field.name] for field in fields(kind)}))  # type: ignore[arg-type]
