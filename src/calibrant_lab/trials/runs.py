"""`calibrant runs`: what a store holds, what is known of one trial, what may go, and what to keep for good."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from calibrant.files import FileError
from calibrant_lab.trials.configuration import Configuration, ObjectiveName
from calibrant_lab.trials.json_files import read_json, write_json
from calibrant_lab.objectives import display_name
from calibrant_lab.outcome import BINS
from calibrant_lab.table import NOTE, outcome_table, print_whole
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.labels import changes_of, label
from calibrant_lab.trials.quantities import duration, percent, size
from calibrant_lab.trials.store import Result, Status, Store, Trial

OBJECTIVES = get_args(ObjectiveName)
COLOURS = {"done": "green", "running": "cyan", "failed": "red", "unfinished": "yellow", "damaged": "red"}
DIGITS = 8  # of an identity, in lists


@dataclass(frozen=True)
class Run:
    """A trial as far as it can be read."""

    trial: Trial
    status: Status | Literal["damaged"]
    configuration: Configuration | None = None
    result: Result | None = None
    problem: str | None = None


def look(trial: Trial) -> Run:
    """Read a trial; what is wrong with its files is part of the answer."""
    status = trial.status
    try:
        configuration = trial.configuration
        return Run(trial, status, configuration, trial.result() if status == "done" else None)
    except FileError as error:
        return Run(trial, "damaged", problem=str(error))


def list_runs(store: Store, console: Console) -> None:
    """Show all trials, those of one recipe, model and number of epochs together."""
    runs = [look(trial) for trial in store.trials()]
    readable = [(run.configuration, run) for run in runs if run.configuration is not None]
    readable.sort(key=lambda pair: order(pair[0]))
    for (recipe, model, epochs), group in groupby(readable, lambda pair: _group(pair[0])):
        console.print(_listed(group, title=f"{recipe}, {model}, {epochs} epochs"))
    for run in runs:
        if run.problem is not None:
            console.print(f"[red]damaged[/] {escape(run.problem)}", highlight=False, soft_wrap=True)
    console.print(_summary(runs), highlight=False, soft_wrap=True)


def _group(configuration: Configuration) -> tuple[str, str, int]:
    return configuration.recipe, configuration.model, configuration.epochs


def order(configuration: Configuration) -> tuple[Any, ...]:
    """Which trial comes before which: those of one recipe and objective together, seeds last."""
    c = configuration
    inner = (c.bandwidth or 0.0, c.softness or 0.0)
    place = OBJECTIVES.index(c.objective)
    return *_group(c), place, not c.root, c.reduced_split, -c.batch_size, c.weight, *inner, label(c), c.seed


def _listed(runs: Iterable[tuple[Configuration, Run]], *, title: str) -> Table:
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=0, pad_edge=False
    )
    for heading in ("trial", "objective", "seed", "status", "accuracy %", "ECE %", "time"):
        is_text = heading in ("trial", "objective", "status")
        # What is long may take a second line where the terminal is narrow.
        table.add_column(
            heading, justify="left" if is_text else "right", no_wrap=heading not in ("objective", "status")
        )
    for configuration, run in runs:
        scores = ["", "", _left(run)]
        if run.result is not None:
            outcome, cost = run.result.outcome, run.result.cost
            scores = [percent(outcome.accuracy), percent(outcome.ece), duration(cost.seconds)]
        table.add_row(
            run.trial.identity[:DIGITS], escape(label(configuration)), str(configuration.seed), _status(run), *scores
        )
    return table


def _status(run: Run) -> Text:
    text = Text(run.status, style=COLOURS[run.status])
    progress = run.trial.progress() if run.status in ("running", "unfinished", "failed") else None
    if progress is not None:
        text.append(f" {progress.share:.0%}", style="default")
    return text


def _left(run: Run) -> str:
    progress = run.trial.progress() if run.status == "running" else None
    return f"{duration(progress.seconds_left)} left" if progress is not None and progress.share > 0 else ""


def _summary(runs: list[Run]) -> str:
    counts = Counter[str](run.status for run in runs)
    parts = [f"{counts[status]} {status}" for status in COLOURS if counts[status]]
    text = f"{len(runs)} {'trial' if len(runs) == 1 else 'trials'}" + (f": {', '.join(parts)}" if parts else "")
    text += f"; {size(sum(run.trial.size() for run in runs))}"
    if counts["done"]:
        seconds = sum(run.result.cost.seconds for run in runs if run.result is not None)
        text += (
            f", {duration(seconds)} of training. Accuracy and ECE in {BINS} bins: on the test set, before any scaling"
        )
    return text + (". What went wrong: calibrant runs show TRIAL." if counts["failed"] else ".")


def show_run(store: Store, prefix: str, console: Console) -> None:
    """Show all that is known of one trial.

    Args:
        store: Where it is.
        prefix: The first digits of its identity, enough to tell it from the others; or the name of its folder.
        console: Where to show it.
    """
    run = look(find(store, prefix))
    folder = escape(str(run.trial.folder))
    if run.configuration is None:
        console.print(f"[red]damaged[/] {escape(str(run.problem))}", highlight=False, soft_wrap=True)
        return
    c = run.configuration
    head = f"[bold]{escape(label(c))}[/] on {c.recipe}, seed {c.seed}:"
    console.print(head, _status(run), highlight=False, end="\n\n")
    changes = changes_of(c)
    _pairs(console, "settings other than the recipe's", {name: changes[name] for name in changes if name != "recipe"})
    rest = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in c.to_dict().items() if name not in changes)
    console.print(f"[dim]the recipe's: {escape(rest)}[/]\n", highlight=False)
    if run.result is not None:
        _show_result(run.result, console)
    if (run.trial.folder / kept.DATA).exists():
        found = read_json(run.trial.folder / kept.DATA)
        _pairs(console, "data", found if isinstance(found, dict) else {})
    console.print(f"{folder} ({size(run.trial.size())})", highlight=False, soft_wrap=True)
    if (failure := run.trial.failure()) is not None and run.status != "done":
        console.print(f"\n[red]{escape(failure.strip())}[/]", highlight=False, soft_wrap=True)


def _show_result(result: Result, console: Console) -> None:
    name = display_name(result.configuration)
    print_whole(console, outcome_table({escape(name): [result.outcome]}, title="test set"))
    console.print(f"[dim]{NOTE}[/]\n", highlight=False)
    accuracy, ece, cost = result.validation.accuracy, result.validation.ece, result.cost
    _pairs(console, "validation set", {"accuracy %": percent(accuracy), "ECE %": percent(ece)})
    spent = {
        "time": duration(cost.seconds), "processor time": duration(cost.processor_seconds),
        "samples": f"{cost.images:,}", "peak memory": size(cost.peak_memory),
    }  # fmt: skip
    _pairs(console, "cost", spent)
    _pairs(console, "environment", result.environment)


def _pairs(console: Console, title: str, content: dict[str, Any]) -> None:
    shown = ", ".join(f"{name.replace('_', '-')} [bold]{escape(str(value))}[/]" for name, value in content.items())
    console.print(f"{title}: {shown or 'none'}\n", highlight=False)


def find(store: Store, prefix: str) -> Trial:
    """The one trial whose identity, or folder's name, begins so."""
    named = [trial for trial in store.trials() if prefix in (trial.identity, trial.folder.name)]
    found = named or [trial for trial in store.trials() if prefix and trial.identity.startswith(prefix.lower())]
    if not found:
        raise ValueError(f"no trial in {store.folder} begins with {prefix!r}: calibrant runs list shows what there is")
    if len(found) > 1:
        some = ", ".join(trial.identity for trial in found[:5]) + (", ..." if len(found) > 5 else "")
        raise ValueError(f"{len(found)} trials in {store.folder} begin with {prefix!r} ({some}): give more digits")
    return found[0]


def prune(store: Store, *, failed: bool, unfinished: bool, weights: bool, apply: bool, console: Console) -> int:
    """Remove what is no longer wanted; what is running or damaged is left alone.

    Args:
        store: Where from.
        failed: Trials that failed.
        unfinished: Trials that were begun and not ended, with their checkpoints.
        weights: The networks of finished trials, and checkpoints that are left of them.
        apply: Remove, instead of only saying what.
        console: Where to say it.

    Returns:
        Bytes that were, or would be, freed.
    """
    if not (failed or unfinished or weights):
        raise ValueError("choose what to remove: --failed, --unfinished or --weights")
    freed = 0
    for trial in store.trials():
        run = look(trial)
        if run.configuration is None:
            continue
        paths = []
        if run.status == "done" and weights:
            paths = [path for path in (trial.folder / kept.WEIGHTS, trial.folder / kept.CHECKPOINT) if path.exists()]
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
    note = "freed" if apply else "to be freed: the same command with --apply does it"
    console.print(f"{size(freed)} {note}." if freed else "Nothing to remove.", highlight=False)
    return freed


def _removed(run: Run, paths: list[Path]) -> bool:
    """Remove, unless someone has gone on with the trial since we looked."""
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


def export(store: Store, path: Path) -> int:
    """Write the finished trials to one JSON file, without networks, predictions and paths of this machine.

    Args:
        store: The trials. One that is damaged is an error: half of the results would pass for all of them.
        path: Of the file.

    Returns:
        How many there are.
    """
    finished = [trial for trial in store.trials() if trial.status == "done"]
    results = sorted(((trial, trial.result()) for trial in finished), key=lambda pair: order(pair[1].configuration))
    write_json(path, {"trials": [_exported(trial, result) for trial, result in results]})
    return len(results)


def _exported(trial: Trial, result: Result) -> dict[str, Any]:
    configuration = result.configuration.to_dict()
    for name in ("initial_weights", "class_list"):
        configuration[name] = configuration[name] and Path(configuration[name]).name
    if Path(configuration["model"]).is_absolute():
        configuration["model"] = Path(configuration["model"]).name
    data = trial.folder / kept.DATA
    return {
        "trial": trial.identity, "configuration": configuration, "validation": asdict(result.validation),
        "test": asdict(result.outcome), "cost": asdict(result.cost), "environment": result.environment,
        "data": read_json(data) if data.exists() else None,
    }  # fmt: skip
