"""What a trial was run with, and what has changed since."""

import os
import platform
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

import calibrant as cal
from calibrant.files import FileError, read_json
from calibrant.report.formats import counted
from calibrant_lab import plugins
from calibrant_lab.trials.configuration import Configuration, label
from calibrant_lab.trials.store import DATA, Result, Trial


def made_with(configuration: Configuration) -> dict[str, Any]:
    """The version of Calibrant, and digests of the source files of a user's recipe and method."""
    names = [configuration.recipe, configuration.method, configuration.option("loss") or "nll"]
    found = {plugins.short(name): plugins.source_digest(name) for name in names}
    sources = {name: digest for name, digest in found.items() if digest is not None}
    return {"calibrant": cal.__version__, "sources": sources}


def changes_since(result: Result) -> list[str]:
    """What has changed since a trial was run: the version of Calibrant, a user's source, files named in settings."""
    then, now = result.environment, made_with(result.configuration)
    found = []
    if then.get("calibrant") != now["calibrant"]:
        found.append(f"run with Calibrant {then.get('calibrant')}, this is {now['calibrant']}")
    sources = then.get("sources", {})
    changed = [name.rpartition(":")[0] for name, digest in now["sources"].items() if sources.get(name) != digest]
    found += [f"{name} has changed since" for name in dict.fromkeys(changed)]
    return found + [f"{name} has changed since" for name in _changed_files(result.configuration)]


def other_data(trial: Trial, folder: Path | None) -> list[str]:
    """A line if a trial was run with the data of another folder than the given one."""
    path, given = trial.folder / DATA, folder and str(folder.resolve())
    used = read_json(path).get("folder", given) if given and path.exists() else given
    place = f"on the data in {used}" if used else "without --data-dir"
    return [] if used == given else [f"trained {place}; use another --runs for other data"]


def change_lines(results: Iterable[Result], more: Iterable[str] = ()) -> list[str]:
    """Lines about what has changed since trials were run, and more, each with the number of trials concerned."""
    counts = Counter(chain((change for result in results for change in changes_since(result)), more))
    return [f"{counted(count, 'trial')}: {change}" for change, count in counts.items()]


def warning_lines(trials: Iterable[Trial]) -> list[str]:
    """Lines about warnings of the guard over training, one of each kind and method, with the number of trials."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for trial in trials:
        for kind, text in trial.warnings().items():
            found[label(trial.configuration), kind].append(text)
    return [f"warning, {name}, {counted(len(texts), 'trial')}: {texts[0]}" for (name, _), texts in found.items()]


def check_files(configuration: Configuration) -> None:
    """Raise ``FileError`` if a file named in the configuration has changed: a different file is a different trial."""
    for name in _changed_files(configuration):
        path = Path(getattr(configuration.settings, name))
        raise FileError(path, f"has changed since: give {name.replace('_', '-')} again")


def _changed_files(configuration: Configuration) -> list[str]:
    """Settings whose files exist but have changed."""
    named = [(name, Path(getattr(configuration.settings, name)), digest) for name, digest in configuration.files]
    return [name for name, path, digest in named if path.is_file() and plugins.digest_of(path) != digest]


def environment_of(model: nn.Module) -> dict[str, Any]:
    """Package versions, and the machine that a network was trained on."""
    device = next(model.parameters()).device
    return {
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
