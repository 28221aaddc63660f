"""Run or continue one trial of a store."""

import io
import json
import shutil
import traceback
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from torch import nn

from calibrant.files import FileError, read_json, write_json, write_predictions, write_whole
from calibrant.training.forward import has_dropout
from calibrant_lab.scores import Predicted, best_temperature, score, scores_of
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.fit import Prepared, Trained, fit, predict, prepare
from calibrant_lab.trials.metering import Meter
from calibrant_lab.trials.provenance import check_files, environment_of, made_with
from calibrant_lab.trials.store import Ending, Result, Store, Trial, is_full, write_result
from calibrant_lab.trials.watching import KeepLast

SECONDS_TO_CLAIM = 1.0  # longer than another process needs to check whether a trial is running


def run_trial(
    store: Store,
    configuration: Configuration,
    data: Path | None,
    accelerator: str = "auto",
    *,
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[Callback] = (),
    raises: bool = False,
    keeps_checkpoint: bool = False,
) -> Ending:
    """Train, from the last checkpoint if there is one, and store the result.

    Errors are stored with the trial, so that other trials continue. A trial that another process runs is left alone. A
    trial starts from the kept checkpoint of a trial with fewer epochs, if there is one: the learning rate does not
    depend on the number of epochs, so the result is the same. With ``raises``, errors are raised too.
    """
    trial = store.trial(configuration)
    trial.folder.mkdir(parents=True, exist_ok=True)
    with trial.claimed(SECONDS_TO_CLAIM) as ours:
        if not ours:
            return "busy"
        try:
            if (trial.folder / kept.RESULT).exists():
                trial.found_again(configuration)
                trial.result()  # raises if it is damaged
                return "done"
            _clear(trial.folder)
            write_json(trial.folder / kept.CONFIGURATION, configuration.to_dict())
            _begin_where_another_ended(store, configuration)
            _run(trial.folder, configuration, data, accelerator, loggers, callbacks)
            checkpoint = trial.folder / kept.CHECKPOINT
            if keeps_checkpoint and checkpoint.exists():
                checkpoint.replace(trial.folder / kept.FINAL)
            checkpoint.unlink(missing_ok=True)
        except Exception as error:  # reported by the caller that asked for the trial
            if is_full(error):
                raise
            write_json(trial.folder / kept.FAILURE, {"traceback": traceback.format_exc()})
            if raises and ":" in configuration.recipe and isinstance(error, ValueError):
                command = f"calibrant runs show {configuration.identity[:8]} --runs {store.folder}"
                raise ValueError(f"{error}; for the traceback: {command}") from error
            if raises:
                raise
            return "failed"
        return "done"


def _clear(folder: Path) -> None:
    """Remove the failure, partial files and a damaged checkpoint of an earlier attempt."""
    checkpoint = folder / kept.CHECKPOINT
    if checkpoint.exists() and not zipfile.is_zipfile(checkpoint):  # as after a power failure
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
    check_files(configuration)
    prepared = prepare(configuration, data)
    earlier = checkpoint if checkpoint.exists() else None
    _check_data(folder, prepared, data, resumes=earlier is not None)
    meter = Meter(prepared, folder / kept.PROGRESS)
    watching = [meter, KeepLast(checkpoint), *callbacks]
    trained = fit(prepared, loggers=loggers, callbacks=watching, resume_from=earlier, accelerator=accelerator)
    write_json(folder / kept.HISTORY, meter.history(trained))
    loss = prepared.classifier.calibrated_loss
    if loss is not None and loss.guard.warnings_:
        write_json(folder / kept.WARNINGS, loss.guard.warnings_)
    _write_predictions(folder, prepared, trained)
    write_weights(folder / kept.WEIGHTS, trained.model)
    validation = {name: score(name, trained.validation) for name in ("accuracy", "ece", "nll")}
    validation["temperature"] = best_temperature(trained.validation)
    found = scores_of(trained.validation, trained.test)
    environment = environment_of(trained.model) | made_with(configuration)
    write_result(folder, Result(configuration, validation, found, meter.cost(), environment))
    (folder / kept.PROGRESS).unlink(missing_ok=True)


def _begin_where_another_ended(store: Store, configuration: Configuration) -> None:
    """Copy the checkpoint of the longest trial that has fewer epochs and is otherwise the same.

    Trials with a step limit are excluded: they may have stopped within an epoch.
    """
    folder, settings = store.trial(configuration).folder, configuration.settings
    if (folder / kept.CHECKPOINT).exists() or settings.max_steps is not None:
        return
    found = []
    for path in store.folder.glob(f"*/{kept.FINAL}"):
        with suppress(FileError):
            shorter = Trial(path.parent).configuration
            same = shorter.replaced({"epochs": settings.epochs}) == configuration
            made = read_json(path.with_name(kept.DATA)).items() >= made_with(configuration).items()
            if same and made and shorter.settings.epochs < settings.epochs:
                found.append((shorter.settings.epochs, path))
    if found:
        _, path = max(found)
        shutil.copyfile(path.with_name(kept.DATA), folder / kept.DATA)
        shutil.copyfile(path, folder / f"{kept.CHECKPOINT}.partial")
        (folder / f"{kept.CHECKPOINT}.partial").replace(folder / kept.CHECKPOINT)


def write_weights(path: Path, model: nn.Module) -> None:
    """Write the weights of a network; equal weights give equal bytes."""
    content = io.BytesIO()  # torch.save to a file would include the name of the file
    torch.save({key: value.cpu() for key, value in model.state_dict().items()}, content)
    write_whole(path, content.getvalue())


def _check_data(folder: Path, prepared: Prepared, data: Path | None, *, resumes: bool) -> None:
    """Refuse to continue a trial with different data, another version or changed source; record these."""
    found, path = prepared.loaders.description | made_with(prepared.configuration), folder / kept.DATA
    earlier = read_json(path) if resumes and path.exists() else found
    if differs := [name for name in earlier | found if earlier.get(name) != found.get(name) and name != "folder"]:
        what, remedy = "different data", "give the --data-dir it was started with, or another --runs"
        if {"calibrant", "sources"} & set(differs):
            what, remedy = "a different version", f"restore it, or delete {kept.CHECKPOINT} to start again"
        shown = (json.dumps({name: one.get(name) for name in differs}) for one in (earlier, found))
        raise FileError(folder, f"was started with {what} ({', now '.join(shown)}): {remedy}")
    write_json(path, found | {"folder": data and str(data.resolve())})


def _write_predictions(folder: Path, prepared: Prepared, trained: Trained) -> None:
    parts = {"validation": trained.validation, "test": trained.test}
    if has_dropout(trained.model):
        torch.manual_seed(prepared.configuration.seed)
        for part, loader in (("validation", prepared.loaders.validation), ("test", prepared.loaders.test)):
            # Mean probabilities of several passes, as log-probabilities, which are valid logits.
            passes = [predict(trained.model, loader, dropout=True) for _ in range(kept.DROPOUT_PASSES)]
            mean = torch.stack([one.logits.double().softmax(1) for one in passes]).mean(0)
            parts[f"{part}-dropout"] = Predicted(mean.log().clamp(min=-700).float(), passes[0].target)
    for name, predicted in parts.items():
        write_predictions(folder / f"{name}.npz", predicted.logits.numpy(), predicted.target.numpy(), kind="logits")
