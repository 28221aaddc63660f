"""One HTML page for a whole store: the tables and figures of its sweeps, its trials and what they cost, failures."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from calibrant.files import whole_or_not_at_all
from calibrant.report.content import percent
from calibrant.report.names import clean
from calibrant.report.svg import inline_svg
from calibrant_lab import plugins
from calibrant_lab.methods import SYMBOLS
from calibrant_lab.paper.figures import DRAWN, caption
from calibrant_lab.paper.figures.cost import figure3
from calibrant_lab.paper.figures.parts import NotRunError
from calibrant_lab.paper.tables.build import tabulate
from calibrant_lab.paper.tables.lines import parts
from calibrant_lab.sweeps.protocol import Plan, plan
from calibrant_lab.sweeps.run import recorded, validated
from calibrant_lab.sweeps.sweep import FOLDER
from calibrant_lab.trials.configuration import Configuration, changes_of
from calibrant_lab.trials.quantities import duration
from calibrant_lab.trials.runs import COLOURS, Run, look, order
from calibrant_lab.trials.store import Store

_WORDS = {"done": "finished", "unfinished": "interrupted"}


def write_store_report(path: Path, store: Store) -> None:
    """Write the page of :func:`render_store` to a file, whole or not at all."""
    page = render_store(store)
    with whole_or_not_at_all(path) as temporary:
        temporary.write_bytes(page.encode())


def render_store(store: Store) -> str:
    """Return one self-contained HTML page without scripts; the same trials give the same bytes.

    Tables and figures are those of the recorded sweeps. Missing results are listed.
    """
    found = [look(trial) for trial in store.trials()]
    # In the order of `calibrant runs list`; unreadable trials come last.
    found.sort(key=lambda run: (0, order(run.configuration)) if run.configuration else (1, (run.trial.folder.name,)))
    if not found:
        raise ValueError(f"{store.folder} contains no trials: give the --runs of an earlier calibrant reproduce")
    groups = _groups([plan(sweep, validated(store, sweep)) for sweep in recorded(store)])
    css = resources.files("calibrant.report").joinpath("page.css").read_text(encoding="utf-8")
    template = resources.files("calibrant_lab.paper").joinpath("store.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": percent}
    return environment.from_string(template).render(
        css=Markup(css),  # noqa: S704 (our own file)
        title=_title(groups, len(found)),
        lead=f"{clean(store.folder.name)}: {len(found):,} trial{'s' if len(found) != 1 else ''}",
        facts=_facts(found),
        groups=[_group(group, store, f"g{place}") for place, group in enumerate(groups, start=1)],
        cost=_cost(groups, store),
        environments=_environments(found),
        failures=_failures(found),
        trials=[_trial_row(run) for run in found],
        footer=f"Made by Calibrant {metadata.version('calibrant')} from stored results alone.",
    )


def _title(groups: Sequence[list[Plan]], trials: int) -> str:
    names = list(dict.fromkeys(plugins.short(group[0].base.recipe) for group in groups))
    if not names:
        return f"{trials} trial{'s' if trials != 1 else ''} without a sweep"
    return f"Experiments on {', '.join(names[:-1])}{' and ' if len(names) > 1 else ''}{names[-1]}"


def _groups(plans: Sequence[Plan]) -> list[list[Plan]]:
    """Group plans by recipe and settings; plans with one batch size come first, since figures use the first."""
    groups: dict[Any, list[Plan]] = {}
    for one in sorted(plans, key=lambda one: one.sweep.batch_divisors != (1,)):
        groups.setdefault(one.base, []).append(one)
    return list(groups.values())


def _group(group: list[Plan], store: Store, name: str) -> dict[str, Any]:
    first, missing, drawn = group[0], [], []
    for key, draw in DRAWN.items():
        if key == "figure6" and not first.base.of_recipe.shift:
            continue
        heading, text = caption(key, first.sweep)
        try:
            svg = inline_svg(draw(first, store), f"{name}{key}", f"{heading}. {text}")
        except ValueError as error:  # not run, or its files were not stored; listed on the page
            missing.append(clean(str(error)))
        else:
            drawn.append({"number": key.removeprefix("figure"), "heading": heading, "caption": text, "svg": svg})
    epochs = first.base.settings.epochs
    return {
        "id": name, "heading": clean(f"{first.sweep.subject}, {epochs} epoch{'s' if epochs != 1 else ''}"),
        "sweeps": [clean(f"{FOLDER}/{one.sweep.record_name}") for one in group],
        "tables": [parts(tabulate(one, store)) for one in group], "figures": drawn, "missing": missing,
    }  # fmt: skip


def _cost(groups: Sequence[list[Plan]], store: Store) -> Any:
    """Figure 3 for all recipes together, if there are several."""
    if len(groups) < 2:
        return None
    try:
        plans = [group[0] for group in groups]
        return inline_svg(figure3(plans, store), "cost", ". ".join(caption("figure3", plans[0].sweep)))
    except NotRunError:
        return None


def _facts(found: Sequence[Run]) -> list[dict[str, str]]:
    """The numbers at the top of the page."""
    counts = Counter[str](run.status for run in found)
    costs = [run.result.cost for run in found if run.result]
    others = [
        f"{counts[status]} {_WORDS.get(status, status)}" for status in COLOURS if counts[status] and status != "done"
    ]
    memory = max((cost.peak_memory for cost in costs), default=0)
    content = (
        ("trials finished", f"{counts['done']:,}", ", ".join(others) or "all trials"),
        ("processor time", duration(sum(cost.processor_seconds for cost in costs)), "of training processes"),
        ("training time", duration(sum(cost.seconds for cost in costs)), "wall clock, sum over trials"),
        ("samples", _large(sum(cost.images for cost in costs)), "forward and backward"),
        ("memory", f"{memory / 1e9:.2f}\N{NO-BREAK SPACE}GB", "maximum over trials"),
    )
    return [{"label": label, "value": value, "note": note} for label, value, note in content]


def _environments(found: Iterable[Run]) -> list[dict[str, Any]]:
    """Environments of the trials, the most used first."""
    given = [run.result.environment for run in found if run.result]
    counts = Counter(tuple((clean(str(key)), clean(str(value))) for key, value in one.items()) for one in given)
    return [{"settings": list(settings), "trials": trials} for settings, trials in counts.most_common()]


def _failures(found: Iterable[Run]) -> list[dict[str, Any]]:
    """Failures, with trials of the same traceback grouped."""
    groups: dict[str, list[str]] = defaultdict(list)
    for run in found:
        failure = run.trial.failure() if run.status == "failed" else run.problem
        if failure is not None:
            groups[_indented(failure)].append(clean(run.trial.folder.name))
    return [
        {"summary": clean(text.strip().rpartition("\n")[2]), "traceback": text, "trials": names}
        for text, names in groups.items()
    ]


def _trial_row(run: Run) -> dict[str, Any]:
    """A row in the list of all trials."""
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
    """Epochs, and settings that differ from the recipe and the method."""
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
