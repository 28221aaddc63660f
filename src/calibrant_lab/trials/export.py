"""Finished trials as one file."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.files import FileError, read_json, whole_or_not_at_all, write_json
from calibrant.report.formats import counted
from calibrant_lab import plugins
from calibrant_lab.trials.listing import look, order
from calibrant_lab.trials.store import DATA, Result, Store, Trial


def export(store: Store, path: Path, *, predictions: bool = False) -> int:
    """Write the finished trials to one JSON file, without networks and local paths; return their number.

    A damaged trial is an error, since an incomplete file would look complete. Trials of recipes and methods that this
    installation does not know are left out, and counted on stderr. Predictions go to an .npz file beside it.
    """
    runs = [look(trial) for trial in store.trials()]
    if damaged := next((run for run in runs if run.status == "damaged"), None):
        raise FileError(damaged.trial.folder, f"cannot be exported: {damaged.problem}")
    found = [(run.trial, run.result) for run in runs if run.result is not None]
    found.sort(key=lambda pair: order(pair[1].configuration))
    write_json(path, {"trials": [_exported(trial, result) for trial, result in found]})
    if predictions:
        _write_predictions(path.with_suffix(".npz"), [trial for trial, _ in found])
    if unknown := sum(run.status == "unknown" for run in runs):
        were = "was" if unknown == 1 else "were"
        sys.stderr.write(f"calibrant: {counted(unknown, 'trial')} unknown to this installation {were} skipped\n")
    return len(found)


def _exported(trial: Trial, result: Result) -> dict[str, Any]:
    configuration = result.configuration.to_dict()
    for name in ("recipe", "method"):
        configuration[name] = plugins.short(configuration[name])
    settings = configuration["settings"]
    for name in (*configuration["files"], "model"):
        if isinstance(settings.get(name), str) and Path(settings[name]).is_absolute():
            settings[name] = Path(settings[name]).name
    path = trial.folder / DATA
    data = read_json(path) if path.exists() else {}
    data.pop("folder", None)
    return {"trial": trial.identity, "configuration": configuration, **result.to_dict(), "data": data or None}


def _write_predictions(path: Path, trials: list[Trial]) -> None:
    """Logits, as float16, and targets of every trial by its identity."""
    arrays: dict[str, Any] = {}
    for trial in trials:
        logits, target = trial.predicted("test")
        largest = float(logits.abs().max())
        if not math.isfinite(largest) or largest > float(np.finfo(np.float16).max):
            raise FileError(trial.folder, f"has logits up to {largest:.3g}, beyond float16: leave out --predictions")
        arrays[f"{trial.identity}_logits"] = logits.numpy().astype(np.float16)
        arrays[f"{trial.identity}_target"] = target.numpy().astype(np.int16 if int(target.max()) < 2**15 else np.int64)
    with whole_or_not_at_all(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
