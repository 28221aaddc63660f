"""`calibrant runs`: list a store, show one trial, and remove what is no longer needed."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from calibrant.files import FileError, read_json
from calibrant.report.formats import counted
from calibrant_lab import plugins
from calibrant_lab.methods import METHODS
from calibrant_lab.score_table import NOTE, print_whole, score_table
from calibrant_lab.scores import BINS, KEPT, column
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.configuration import Configuration, changes_of, label
from calibrant_lab.trials.provenance import change_lines, changes_since
from calibrant_lab.trials.quantities import duration, percent, size
from calibrant_lab.trials.store import Result, Status, Store, Trial, UnknownTrialError

COLOURS = {
    "done": "green", "running": "cyan", "failed": "red", "unfinished": "yellow", "unknown": "magenta", "damaged": "red",
}  # fmt: skip
DIGITS = 8  # of an identity, in lists


@dataclass(frozen=True)
class Run:
    """A trial, as far as it can be read."""

    trial: Trial
    status: Status | Literal["damaged", "unknown"]
    configuration: Configuration | None = None
    result: Result | None = None
    problem: str | None = None


def look(trial: Trial) -> Run:
    """Read a trial; problems with its files are reported in the result."""
    status = trial.status
    try:
        configuration = trial.configuration
        return Run(trial, status, configuration, trial.result() if status == "done" else None)
    except UnknownTrialError as error:
        return Run(trial, "unknown", problem=str(error))
    except FileError as error:
        return Run(trial, "damaged", problem=str(error))


def unknown_by_reason(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Trials unknown to this installation, grouped by the reason, which is shown without the path of the trial."""
    groups = defaultdict(list)
    for run in runs:
        if run.status == "unknown":
            groups[str(run.problem).removeprefix(f"{run.trial.folder / kept.CONFIGURATION}: ")].append(run)
    return groups


def list_runs(store: Store, console: Console) -> None:
    """Show all trials, grouped by recipe, model and number of epochs."""
    runs = [look(trial) for trial in store.trials()]
    readable = [(run.configuration, run) for run in runs if run.configuration is not None]
    readable.sort(key=lambda pair: order(pair[0]))
    for (recipe, model, epochs), group in groupby(readable, lambda pair: _group(pair[0])):
        console.print(_listed(group, title=", ".join(filter(None, (recipe, model, counted(epochs, "epoch"))))))
    for run in (run for run in runs if run.status == "damaged"):
        _show_problem(run, console)
    for first, *others in unknown_by_reason(runs).values():
        _show_problem(first, console, f" (and {counted(len(others), 'other trial')})" * bool(others))
    for line in change_lines(run.result for run in runs if run.result is not None):
        console.print(f"[yellow]changed[/] {escape(line)}", highlight=False, soft_wrap=True)
    console.print(_summary(runs), highlight=False, soft_wrap=True)


def _show_problem(run: Run, console: Console, more: str = "") -> None:
    console.print(_status(run), escape(f"{run.problem}{more}"), highlight=False, soft_wrap=True)


def _group(configuration: Configuration) -> tuple[str, str, int]:
    model = getattr(configuration.settings, "model", "")
    return plugins.short(configuration.recipe), str(model), configuration.settings.epochs


def order(configuration: Configuration) -> tuple[Any, ...]:
    """Sort key of trials: by recipe, then method, seeds last."""
    c = configuration
    place = [*METHODS, c.method].index(c.method)  # user-defined methods come last
    searched = tuple(c.option(name) or 0.0 for name in ("weight", "bandwidth", "softness"))
    return *_group(c), place, c.settings.reduced_split, -c.settings.batch_size, *searched, label(c), c.seed


def _listed(runs: Iterable[tuple[Configuration, Run]], *, title: str) -> Table:
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=0, pad_edge=False
    )
    for heading in ("trial", "method", "seed", "status", "accuracy %", "ECE %", "time"):
        is_text = heading in ("trial", "method", "status")
        # Long values may wrap on a narrow terminal.
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=heading not in ("method", "status"))
    for configuration, run in runs:
        if run.result is not None:
            test, cost = run.result.test, run.result.cost
            scores = [percent(test["accuracy"]), percent(test["ece"]), duration(cost.seconds)]
        else:
            progress = run.trial.progress() if run.status == "running" else None
            scores = ["", "", f"{duration(progress.seconds_left)} left" if progress and progress.share > 0 else ""]
        identity, name = run.trial.identity[:DIGITS], escape(label(configuration))
        table.add_row(identity, name, str(configuration.seed), _status(run), *scores)
    return table


def _status(run: Run) -> Text:
    text = Text(run.status, style=COLOURS[run.status])
    if run.status in ("running", "unfinished", "failed") and (progress := run.trial.progress()) is not None:
        text.append(f" {progress.share:.0%}", style="default")
    return text


def _summary(runs: list[Run]) -> str:
    counts = Counter[str](run.status for run in runs)
    parts = [f"{counts[status]} {status}" for status in COLOURS if counts[status]]
    text = counted(len(runs), "trial") + (f": {', '.join(parts)}" if parts else "")
    text += f"; {size(sum(run.trial.size() for run in runs))}"
    if counts["done"]:
        seconds = sum(run.result.cost.seconds for run in runs if run.result is not None)
        scores = f"Accuracy and ECE in {BINS} bins: on the test set, before any scaling"
        text += f", {duration(seconds)} of training. {scores}"
    return text + (". For the cause of a failure: calibrant runs show TRIAL." if counts["failed"] else ".")


def show_run(store: Store, prefix: str, console: Console) -> None:
    """Show everything about one trial."""
    run = look(find(store, prefix))
    if (c := run.configuration) is None:
        _show_problem(run, console)
        return
    head = f"[bold]{escape(label(c))}[/] on {escape(plugins.short(c.recipe))}, seed {c.seed}:"
    console.print(head, _status(run), highlight=False, end="\n\n")
    changes = changes_of(c)
    _pairs(console, "options of the method", {name: str(value) for name, value in c.options})
    _pairs(console, "settings other than the recipe's", {name: str(value) for name, value in changes.items()})
    settings = c.settings.to_dict().items()
    rest = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in settings if name not in changes)
    console.print(f"[dim]the recipe's: {escape(rest)}[/]\n", highlight=False)
    if run.result is not None:
        _show_result(run.result, console)
    if (run.trial.folder / kept.DATA).exists():
        found = read_json(run.trial.folder / kept.DATA)
        _pairs(console, "data", found if isinstance(found, dict) else {})
    console.print(escape(f"{run.trial.folder} ({size(run.trial.size())})"), highlight=False, soft_wrap=True)
    if (failure := run.trial.failure()) is not None and run.status != "done":
        console.print(f"\n[red]{escape(failure.strip())}[/]", highlight=False, soft_wrap=True)


def _show_result(result: Result, console: Console) -> None:
    name = escape(result.configuration.of_method.label)
    print_whole(console, score_table({name: [result.test]}, [column(key) for key in KEPT], title="test set"))
    console.print(f"[dim]{NOTE}[/]\n", highlight=False)
    found, cost = result.validation, result.cost
    scores = {"accuracy %": percent(found["accuracy"]), "ECE %": percent(found["ece"])}
    _pairs(console, "validation set", scores | {"temperature": f"{found['temperature']:.3g}"})
    times = {"time": duration(cost.seconds), "processor time": duration(cost.processor_seconds)}
    _pairs(console, "cost", times | {"samples": f"{cost.images:,}", "peak memory": size(cost.peak_memory)})
    _pairs(console, "environment", result.environment)
    for change in changes_since(result):
        console.print(f"[yellow]changed[/] {escape(change)}\n", highlight=False)


def _pairs(console: Console, title: str, content: dict[str, Any]) -> None:
    texts = {name: _text(value) for name, value in content.items() if value not in (None, {})}
    shown = ", ".join(f"{name.replace('_', '-')} [bold]{escape(text)}[/]" for name, text in texts.items())
    # The name of a source, such as a.py:b, is not an emoji.
    console.print(f"{title}: {shown or 'none'}\n", highlight=False, emoji=False)


def _text(value: Any) -> str:
    return ", ".join(f"{name}: {one}" for name, one in value.items()) if isinstance(value, dict) else str(value)


def find(store: Store, prefix: str) -> Trial:
    """Find the trial whose identity starts with the prefix, or whose folder has that name."""
    named = [trial for trial in store.trials() if prefix in (trial.identity, trial.folder.name)]
    found = named or [trial for trial in store.trials() if prefix and trial.identity.startswith(prefix.lower())]
    if not found:
        raise ValueError(f"no trial in {store.folder} starts with {prefix!r}: calibrant runs list shows all trials")
    if len(found) > 1:
        some = ", ".join(trial.identity for trial in found[:5]) + (", ..." if len(found) > 5 else "")
        raise ValueError(f"{len(found)} trials in {store.folder} start with {prefix!r} ({some}): give more digits")
    return found[0]


def prune(store: Store, *, failed: bool, unfinished: bool, weights: bool, apply: bool, console: Console) -> int:
    """Remove what is no longer needed, or list it; running and damaged trials are left alone. Return bytes freed."""
    if not (failed or unfinished or weights):
        raise ValueError("choose what to remove: --failed, --unfinished or --weights")
    freed = 0
    for trial in store.trials():
        run = look(trial)
        if run.configuration is None:
            continue
        paths = []
        if run.status == "done" and weights:
            names = (kept.WEIGHTS, kept.CHECKPOINT, kept.FINAL)
            paths = [path for name in names if (path := trial.folder / name).exists()]
        elif (run.status == "failed" and failed) or (run.status == "unfinished" and unfinished):
            paths = [trial.folder]
        amount = trial.size() if paths == [trial.folder] else sum(path.stat().st_size for path in paths)
        if not paths or (apply and not _removed(run, paths)):
            continue
        freed += amount
        what = f"{run.status} trial" if paths == [trial.folder] else " and ".join(path.name for path in paths)
        name = f"{trial.identity[:DIGITS]} {label(run.configuration)}, seed {run.configuration.seed}"
        line = f"{'removed' if apply else 'would remove'} {what}: {name}, {size(amount)}"
        console.print(escape(line), highlight=False, soft_wrap=True)
    note = "freed" if apply else "can be freed: add --apply to remove them"
    console.print(f"{size(freed)} {note}." if freed else "Nothing to remove.", highlight=False)
    return freed


def _removed(run: Run, paths: list[Path]) -> bool:
    """Remove files, unless another process has continued the trial in the meantime."""
    with run.trial.claimed() as ours:
        finished = (run.trial.folder / kept.RESULT).exists()
        if not ours or finished != (run.status == "done"):
            return False
        for path in paths:
            if path == run.trial.folder:
                run.trial.remove()
            else:
                path.unlink()
        return True
