"""What the page about a store says: its trials, what they cost, where they ran, and what went wrong."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from calibrant.report.names import clean
from calibrant_lab import plugins
from calibrant_lab.methods import SYMBOLS
from calibrant_lab.trials.configuration import Configuration, changes_of
from calibrant_lab.trials.quantities import duration
from calibrant_lab.trials.runs import Run

STATUSES = ("done", "running", "failed", "unfinished", "unknown", "damaged")
_WORDS = {"done": "finished", "unfinished": "interrupted"}


def facts(found: Sequence[Run]) -> list[dict[str, str]]:
    """The numbers at the top of the page."""
    counts = Counter[str](run.status for run in found)
    costs = [run.result.cost for run in found if run.result]
    others = [f"{counts[status]} {_WORDS.get(status, status)}" for status in STATUSES[1:] if counts[status]]
    memory = max((cost.peak_memory for cost in costs), default=0)
    content = (
        ("trials finished", f"{counts['done']:,}", ", ".join(others) or "all there are"),
        ("processor time", duration(sum(cost.processor_seconds for cost in costs)), "of the processes that trained"),
        ("training time", duration(sum(cost.seconds for cost in costs)), "by the clock, all trials added up"),
        ("samples", _large(sum(cost.images for cost in costs)), "forward and backward"),
        ("memory", f"{memory / 1e9:.2f}\N{NO-BREAK SPACE}GB", "the most of any trial"),
    )
    return [{"label": label, "value": value, "note": note} for label, value, note in content]


def environments(found: Iterable[Run]) -> list[dict[str, Any]]:
    """Where the trials ran, the most used first."""
    counts = Counter(
        tuple((clean(str(key)), clean(str(value))) for key, value in run.result.environment.items())
        for run in found
        if run.result
    )
    return [{"settings": list(settings), "trials": trials} for settings, trials in counts.most_common()]


def failures(found: Iterable[Run]) -> list[dict[str, Any]]:
    """What went wrong, trials with the same traceback together."""
    groups: dict[str, list[str]] = defaultdict(list)
    for run in found:
        failure = run.trial.failure() if run.status == "failed" else run.problem
        if failure is not None:
            groups[_indented(failure)].append(clean(run.trial.folder.name))
    return [
        {"summary": clean(text.strip().rpartition("\n")[2]), "traceback": text, "trials": names}
        for text, names in groups.items()
    ]


def trial_row(run: Run) -> dict[str, Any]:
    """A line in the list of all trials."""
    one, result = run.configuration, run.result
    row: dict[str, Any] = {
        "identity": clean(run.trial.identity), "status": _WORDS.get(run.status, run.status),
        "recipe": clean(run.trial.folder.name), "method": "", "weight": "", "settings": "", "seed": "",
        "scores": [math.nan] * 5, "cost": "",
    }  # fmt: skip
    if one is not None:
        weight = one.option("weight")
        row |= {
            "recipe": clean(plugins.short(one.recipe)), "settings": _settings(one), "seed": one.seed,
            "method": clean(one.of_method.label) + ", reduced split" * one.settings.reduced_split,
            "weight": "" if weight is None else f"{weight:g}",
        }  # fmt: skip
    if result is not None:
        scores = [part[name] for part in (result.validation, result.test) for name in ("accuracy", "ece")]
        scores.append(result.test["ece+temperature"])
        row |= {"scores": scores, "cost": duration(result.cost.processor_seconds)}
    return row


def _settings(one: Configuration) -> str:
    """Epochs, and what differs from the recipe and the method."""
    defaults = one.of_method.defaults
    changed = {name: value for name, value in one.options if name != "weight" and value != defaults[name]}
    changed |= {name: value for name, value in changes_of(one).items() if name not in ("epochs", "reduced_split")}
    parts = [f"{one.settings.epochs} epochs"]
    for key, value in changed.items():
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        parts.append(f"{SYMBOLS.get(key, key.replace('_', ' '))} {shown}")
    return clean(", ".join(parts))


def _large(count: int) -> str:
    space = "\N{NO-BREAK SPACE}"
    for size, name in ((10**9, "billion"), (10**6, "million")):
        if count >= size:
            return f"{count / size:.3g}{space}{name}"
    return f"{count:,}"


def _indented(text: str) -> str:
    """A traceback, cleaned line by line to keep its indentation."""
    lines = ((line, len(line) - len(line.lstrip(" "))) for line in text.rstrip().splitlines())
    return "\n".join(" " * indent + (clean(line) if line.strip() else "") for line, indent in lines)
