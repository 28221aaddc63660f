"""Bring a store from Calibrant 0.1 up to date."""

import math
from pathlib import Path
from typing import Any

from rich.console import Console

from calibrant.files import FileError
from calibrant_lab.methods import method
from calibrant_lab.recipes import recipe
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.configuration import Configuration, configure
from calibrant_lab.trials.json_files import read_json, write_json
from calibrant_lab.trials.scores import score
from calibrant_lab.trials.store import Store, Trial

COLUMNS = {
    "accuracy": "accuracy", "ece": "ece", "nll": "nll", "ece_temperature": "ece+temperature",
    "accuracy_vector": "accuracy+vector", "ece_vector": "ece+vector",
}  # fmt: skip


def convert(folder: Path, console: Console) -> int:
    """Convert every trial of a store that is of the earlier form; return how many there were.

    Settings, identities and scores are written anew and folders renamed; predictions, weights and curves stay.

    Args:
        folder: The store.
        console: Where to say what was done.
    """
    if not folder.is_dir():
        raise FileError(folder, "is not a folder: give the --runs of an earlier command")
    store, count = Store(folder), 0
    for path in sorted(folder.glob(f"*/{kept.CONFIGURATION}")):
        found = read_json(path)
        if not isinstance(found, dict) or "objective" not in found:
            continue
        configuration = configuration_of(found)
        target = store.trial(configuration).folder
        if target.exists():
            raise FileError(target, f"is there already, and {path.parent.name} is the same trial: remove one of them")
        result = path.parent / kept.RESULT
        if result.exists():
            write_json(result, _result(read_json(result), path.parent))
        write_json(path, configuration.to_dict())
        path.parent.rename(target)
        count += 1
    console.print(f"{count} trial{'s' if count != 1 else ''} converted.", highlight=False)
    return count


def configuration_of(found: dict[str, Any]) -> Configuration:
    """The configuration that the flat settings of Calibrant 0.1 describe."""
    name, options = _method(found)
    kind = recipe(found["recipe"]).settings
    settings = {key: value for key, value in found.items() if key in kind.model_fields}
    files = {
        key: "unknown"
        for key in ("initial_weights", "class_list")
        if settings.get(key) and not Path(settings[key]).is_file()
    }
    known = method(name).defaults
    given = {key: value for key, value in options.items() if key in known and value is not None}
    return configure(found["recipe"], name, options=given, settings=settings, seed=found["seed"], files=files)


def _method(found: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    objective = found["objective"]
    if found.get("method") in ("temperature", "head"):
        name = {"temperature": "loop", "head": "head"}[found["method"]]
        return name, found | {"loss": None if objective == "nll" else objective}
    return ("esd-raw" if objective == "esd" and not found.get("root", True) else objective), found


def _result(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    outcome = found.pop("outcome")
    validation: dict[str, Any] = dict(found["validation"]) | {"temperature": outcome["temperature"]}
    if "nll" not in validation:
        validation["nll"] = _validation_nll(folder)
    found["validation"] = validation
    found["test"] = {new: outcome[old] for old, new in COLUMNS.items()}
    found["environment"] = found["environment"] | {"sources": {}}
    return found


def _validation_nll(folder: Path) -> float:
    if not (folder / "validation.npz").exists():
        return math.nan
    predicted = Trial(folder).predicted("validation")
    return score("nll", predicted)
