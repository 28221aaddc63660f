"""What the page about a store says: its trials, what they cost, where they ran, and what went wrong."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.report.names import clean
from calibrant_lab import plugins
from calibrant_lab.methods import SYMBOLS
from calibrant_lab.trials.configuration import Configuration, changes_of
from calibrant_lab.trials.quantities import duration
from calibrant_lab.trials.runs import look, order
from calibrant_lab.trials.store import Result, Store

STATUSES = ("done", "running", "failed", "unfinished", "unknown", "damaged")
_WORDS = {"done": "finished", "unfinished": "interrupted"}


@dataclass(frozen=True)
class Entry:
    """A trial of a store; without a configuration if that cannot be read."""

    name: str
    identity: str
    status: str
    configuration: Configuration | None
    result: Result | None
    failure: str | None


def entries(store: Store) -> list[Entry]:
    """Every trial of a store, those that belong together side by side."""
    found = []
    for trial in store.trials():
        run = look(trial)
        failure = trial.failure() if run.status == "failed" else run.problem
        found.append(Entry(trial.folder.name, trial.identity, run.status, run.configuration, run.result, failure))
    return sorted(found, key=_place)


def facts(found: Sequence[Entry]) -> list[dict[str, str]]:
    """The numbers at the top of the page."""
    counts = Counter(entry.status for entry in found)
    costs = [entry.result.cost for entry in found if entry.result]
    others = [f"{counts[status]} {_WORDS.get(status, status)}" for status in STATUSES[1:] if counts[status]]
    memory = max((cost.peak_memory for cost in costs), default=0)
    return [
        {"label": "trials finished", "value": f"{counts['done']:,}", "note": ", ".join(others) or "all there are"},
        {
            "label": "processor time",
            "value": duration(sum(cost.processor_seconds for cost in costs)),
            "note": "of the processes that trained",
        },
        {
            "label": "training time",
            "value": duration(sum(cost.seconds for cost in costs)),
            "note": "by the clock, all trials added up",
        },
        {"label": "samples", "value": _large(sum(cost.images for cost in costs)), "note": "forward and backward"},
        {"label": "memory", "value": f"{memory / 1e9:.2f}\N{NO-BREAK SPACE}GB", "note": "the most of any trial"},
    ]


def trial_rows(found: Iterable[Entry]) -> list[dict[str, Any]]:
    """The list of all trials."""
    return [_trial_row(entry) for entry in found]


def environments(found: Iterable[Entry]) -> list[dict[str, Any]]:
    """Where the trials ran, the most used first."""
    counts = Counter(
        tuple((clean(str(key)), clean(str(value))) for key, value in entry.result.environment.items())
        for entry in found
        if entry.result
    )
    return [{"settings": list(settings), "trials": trials} for settings, trials in counts.most_common()]


def failures(found: Iterable[Entry]) -> list[dict[str, Any]]:
    """What went wrong, trials with the same traceback together."""
    groups: dict[str, list[str]] = defaultdict(list)
    for entry in found:
        if entry.failure is not None:
            groups["\n".join(_lines(entry.failure))].append(clean(entry.name))
    return [
        {"summary": clean(text.strip().rpartition("\n")[2]), "traceback": text, "trials": names}
        for text, names in groups.items()
    ]


def _place(entry: Entry) -> tuple[Any, ...]:
    """As `calibrant runs list` has them; what cannot be read comes last."""
    return (0, order(entry.configuration)) if entry.configuration else (1, entry.name)


def _trial_row(entry: Entry) -> dict[str, Any]:
    one, result = entry.configuration, entry.result
    return {
        "identity": clean(entry.identity),
        "status": _WORDS.get(entry.status, entry.status),
        "recipe": clean(plugins.short(one.recipe)) if one else clean(entry.name),
        "method": (clean(one.of_method.label) + ", reduced split" * one.settings.reduced_split) if one else "",
        "weight": f"{one.option('weight'):g}" if one and one.option("weight") is not None else "",
        "settings": _settings(one) if one else "",
        "seed": one.seed if one else "",
        "scores": (
            [result.validation["accuracy"], result.validation["ece"], result.test["accuracy"], result.test["ece"],
             result.test["ece+temperature"]]
            if result else [math.nan] * 5
        ),
        "cost": duration(result.cost.processor_seconds) if result else "",
    }  # fmt: skip


def _settings(one: Configuration) -> str:
    """Epochs, and what differs from the recipe and the method."""
    defaults = one.of_method.defaults
    changed = {name: value for name, value in one.options if name != "weight" and value != defaults[name]}
    changed |= {name: value for name, value in changes_of(one).items() if name not in ("epochs", "reduced_split")}
    parts = [f"{one.settings.epochs} epochs"]
    parts += [f"{SYMBOLS.get(key, key.replace('_', ' '))} {_plain(value)}" for key, value in changed.items()]
    return clean(", ".join(parts))


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _large(count: int) -> str:
    space = "\N{NO-BREAK SPACE}"
    for size, name in ((10**9, "billion"), (10**6, "million")):
        if count >= size:
            return f"{count / size:.3g}{space}{name}"
    return f"{count:,}"


def _lines(text: str) -> list[str]:
    """A traceback line by line, its indentation kept."""
    found = []
    for line in text.rstrip().splitlines():
        indent = len(line) - len(line.lstrip(" "))
        found.append(" " * indent + (clean(line) if line.strip() else ""))
    return found
