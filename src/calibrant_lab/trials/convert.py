"""Convert a store written by Calibrant 0.1."""

import math
from pathlib import Path
from typing import Any

from rich.console import Console

from calibrant.files import FileError, read_json, write_json
from calibrant.report.formats import counted
from calibrant_lab.methods import method
from calibrant_lab.recipes import recipe
from calibrant_lab.scores import KEPT, score
from calibrant_lab.trials.configuration import Configuration, configure
from calibrant_lab.trials.store import CONFIGURATION, RESULT, Store, Trial


def convert(path: Path, console: Console) -> int:
    """Convert every trial written by Calibrant 0.1, in place; return their number.

    Settings, identities and scores are rewritten and folders renamed; predictions, weights and curves stay.
    """
    if not path.exists():
        raise FileError(path, "does not exist: give a folder of trials, or a file written by calibrant runs export")
    count = _convert_store(path) if path.is_dir() else _convert_export(path)
    console.print(f"{counted(count, 'trial')} converted.", highlight=False)
    return count


def _convert_store(folder: Path) -> int:
    store, count = Store(folder), 0
    for path in sorted(folder.glob(f"*/{CONFIGURATION}")):
        found = read_json(path)
        if not _is_earlier(found):
            continue
        configuration = configuration_of(found)
        target = store.trial(configuration).folder
        if target.exists() and target != path.parent:
            raise FileError(target, f"already exists, and {path.parent.name} is the same trial: remove one of them")
        # The configuration is written last, so that the same command completes an interrupted conversion.
        path.parent.rename(target)
        result = target / RESULT
        if result.exists() and "outcome" in (scores := read_json(result)):
            write_json(result, _result(scores, scores.pop("outcome"), target))
        write_json(target / CONFIGURATION, configuration.to_dict())
        count += 1
    return count


def _convert_export(path: Path) -> int:
    content, count = read_json(path), 0
    if not isinstance(content, dict) or not isinstance(content.get("trials"), list):
        raise FileError(path, "was not written by calibrant runs export")
    for trial in content["trials"]:
        if _is_earlier(trial["configuration"]):
            configuration = configuration_of(trial["configuration"])
            trial |= {"trial": configuration.identity, "configuration": configuration.to_dict()}
            trial |= _result(trial, trial["test"])
            count += 1
    write_json(path, content)
    return count


def _is_earlier(found: Any) -> bool:
    return isinstance(found, dict) and "objective" in found


def configuration_of(found: dict[str, Any]) -> Configuration:
    """Convert the flat settings of Calibrant 0.1 to a configuration."""
    name, options = found["objective"], found
    if found.get("method") in ("temperature", "head"):
        options = found | {"loss": None if name == "nll" else name}
        name = {"temperature": "loop", "head": "head"}[found["method"]]
    elif name == "esd" and not found.get("root", True):
        name = "esd-raw"
    settings = {key: value for key, value in found.items() if key in recipe(found["recipe"]).settings.model_fields}
    named = [key for key in ("initial_weights", "class_list") if settings.get(key)]
    files = {key: "unknown" for key in named if not Path(settings[key]).is_file()}
    known = method(name).defaults
    given = {key: value for key, value in options.items() if key in known and value is not None}
    return configure(found["recipe"], name, options=given, settings=settings, seed=found["seed"], files=files)


def _result(found: dict[str, Any], outcome: dict[str, Any], folder: Path | None = None) -> dict[str, Any]:
    validation: dict[str, Any] = {**found["validation"], "temperature": outcome["temperature"]}
    if "nll" not in validation:
        validation["nll"] = math.nan
        if folder is not None and (folder / "validation.npz").exists():
            validation["nll"] = score("nll", Trial(folder).predicted("validation"))
    test = {column: outcome[column.replace("+", "_")] for column in KEPT}
    return found | {"validation": validation, "test": test, "environment": found["environment"] | {"sources": {}}}
