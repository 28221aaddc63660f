"""Run one trial of a store, or go on with it."""

import errno
import io
import json
import os
import platform
import traceback
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from torch import nn

import calibrant as cal
from calibrant.files import FileError, whole_or_not_at_all, write_predictions
from calibrant_lab import plugins
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.fit import Prepared, Trained, fit, predict, prepare
from calibrant_lab.trials.json_files import read_json, write_json
from calibrant_lab.trials.metering import Meter
from calibrant_lab.trials.scores import Predicted, best_temperature, score, scores_of
from calibrant_lab.trials.store import Result, Store, write_result
from calibrant_lab.trials.watching import KeepLast

SECONDS_TO_CLAIM = 1.0  # more than it takes someone to look whether a trial is running
Ending = Literal["done", "busy", "failed", "disk full"]


def run_trial(
    store: Store,
    configuration: Configuration,
    data: Path | None,
    accelerator: str = "auto",
    *,
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[Callback] = (),
    raises: bool = False,
) -> Ending:
    """Train, from the last checkpoint if there is one, and keep what is left of it.

    What goes wrong is kept with the trial: the others go on. A trial that another process is at is left to it.

    Args:
        store: Where to keep it.
        configuration: The trial.
        data: Folder of the data.
        accelerator: As Lightning names them.
        loggers: Loggers of Lightning.
        callbacks: Callbacks of Lightning.
        raises: Raise what goes wrong too, for someone who has asked for this trial alone.
    """
    trial = store.trial(configuration)
    trial.folder.mkdir(parents=True, exist_ok=True)
    with trial.claimed(SECONDS_TO_CLAIM) as ours:
        if not ours:
            return "busy"
        try:
            if (trial.folder / kept.RESULT).exists():
                trial.result()  # complains if it is damaged
                return "done"
            _clear(trial.folder)
            write_json(trial.folder / kept.CONFIGURATION, configuration.to_dict())
            _run(trial.folder, configuration, data, accelerator, loggers, callbacks)
        except Exception as error:  # reported by the caller that asked for the trial
            if is_full(error):
                raise
            write_json(trial.folder / kept.FAILURE, {"traceback": traceback.format_exc()})
            if raises:
                raise
            return "failed"
        return "done"


def is_full(error: BaseException | None) -> bool:
    """Whether something failed because the disk is full, which the next trial would, too."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def _clear(folder: Path) -> None:
    """Remove what an earlier attempt left behind: its failure, files it was killed while writing, half a checkpoint."""
    checkpoint = folder / kept.CHECKPOINT
    if checkpoint.exists() and not zipfile.is_zipfile(checkpoint):  # power was cut before it reached the disk
        checkpoint.unlink()
    (folder / kept.FAILURE).unlink(missing_ok=True)
    for path in (*folder.glob(".*"), *folder.glob("*.partial")):
        if path.name != kept.LOCK and path.is_file():
            path.unlink()


def _run(
    folder: Path,
    configuration: Configuration,
    data: Path | None,
    accelerator: str,
    loggers: Sequence[Logger],
    callbacks: Sequence[Callback],
) -> None:
    checkpoint = folder / kept.CHECKPOINT
    prepared = prepare(configuration, data)
    resumes = checkpoint.exists()
    _check_data(folder, prepared, resumes=resumes)
    meter = Meter(prepared, folder / kept.PROGRESS)
    trained = fit(
        prepared, loggers=loggers, callbacks=[meter, KeepLast(checkpoint), *callbacks],
        resume_from=checkpoint if resumes else None, accelerator=accelerator,
    )  # fmt: skip
    write_json(folder / kept.HISTORY, meter.history(trained))
    _write_predictions(folder, prepared, trained)
    write_weights(folder / kept.WEIGHTS, trained.model)
    validation = {name: score(name, trained.validation) for name in ("accuracy", "ece", "nll")}
    validation["temperature"] = best_temperature(trained.validation)
    found = scores_of(trained.validation, trained.test)
    environment = _environment(trained.model) | {"sources": _sources(configuration)}
    write_result(folder, Result(configuration, validation, found, meter.cost(), environment))
    checkpoint.unlink(missing_ok=True)
    (folder / kept.PROGRESS).unlink(missing_ok=True)


def write_weights(path: Path, model: nn.Module) -> None:
    """Write the weights of a network; equal weights give equal bytes."""
    content = io.BytesIO()  # into a file torch would write the name of that file too
    torch.save({key: value.cpu() for key, value in model.state_dict().items()}, content)
    with whole_or_not_at_all(path) as temporary:
        temporary.write_bytes(content.getvalue())


def _sources(configuration: Configuration) -> dict[str, str]:
    """Digests of the files that a recipe and a method from outside are in."""
    found = {plugins.short(name): plugins.source_digest(name) for name in (configuration.recipe, configuration.method)}
    return {name: digest for name, digest in found.items() if digest is not None}


def _check_data(folder: Path, prepared: Prepared, *, resumes: bool) -> None:
    found, path = prepared.loaders.description, folder / kept.DATA
    if resumes and path.exists() and (earlier := read_json(path)) != found:
        raise FileError(
            folder,
            f"was begun with other data ({json.dumps(earlier)}, now {json.dumps(found)}): give the --data-dir it was "
            "begun with, or other --runs",
        )
    write_json(path, found)


def _write_predictions(folder: Path, prepared: Prepared, trained: Trained) -> None:
    parts = {"validation": trained.validation, "test": trained.test}
    if any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in trained.model.modules()):
        torch.manual_seed(prepared.configuration.seed)
        for part, loader in (("validation", prepared.loaders.validation), ("test", prepared.loaders.test)):
            parts[f"{part}-dropout"] = _sampled(trained.model, loader)
    for name, predicted in parts.items():
        write_predictions(folder / f"{name}.npz", predicted.logits.numpy(), predicted.target.numpy(), kind="logits")


def _sampled(model: nn.Module, loader: Any) -> Predicted:
    """The mean of several passes with dropout on, as log-probabilities, which are logits too."""
    passes = [predict(model, loader, dropout=True) for _ in range(kept.DROPOUT_PASSES)]
    mean = torch.stack([one.logits.double().softmax(1) for one in passes]).mean(0)
    return Predicted(mean.log().clamp(min=-700).float(), passes[0].target)


def _environment(model: nn.Module) -> dict[str, Any]:
    device = next(model.parameters()).device
    return {
        "calibrant": cal.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type}: {_processor()}",
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
        return text.partition("model name")[2].partition(":")[2].partition("\n")[0].strip() or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()
