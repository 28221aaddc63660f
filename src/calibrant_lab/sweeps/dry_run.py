"""`--dry-run`: every trial of a plan, and what is not known of it yet."""

import statistics

from rich import box
from rich.console import Console
from rich.table import Table

from calibrant_lab.methods import SYMBOLS
from calibrant_lab.sweeps.protocol import Plan, Row
from calibrant_lab.table import print_whole
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.store import Result


def list_trials(rehearsed: Plan, known: Plan, results: dict[Configuration, Result], console: Console) -> None:
    """One line a trial: its row, its settings, and whether it is done.

    Args:
        rehearsed: The plan as it will be in the end, but for the values that the search chooses.
        known: The plan as far as results tell.
        results: Of the trials that are done.
        console: Where to print.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column(justify="right")
    for heading in ("row", "step", "settings", "seed", ""):
        table.add_column(heading, no_wrap=True)
    listed: set[Configuration] = set()
    done = 0
    for row, so_far in zip(rehearsed.rows, known.rows, strict=True):
        for step, trial, unknown in _steps(row, so_far):
            if trial in listed:
                continue
            listed.add(trial)
            finished = trial in results and not unknown
            done += finished
            state = "done" if finished else "waits" if unknown else "to do"
            table.add_row(
                str(len(listed)), row.name, step, _settings(trial, row, unknown), str(trial.seed), state
            )  # fmt: skip
    print_whole(console, table)
    console.print(f"{len(listed)} trials, {done} done, {len(listed) - done} to do.{_cost(listed, done, results)}")
    if any(not row.trials for row in known.rows):
        console.print("Those that wait depend on what the search chooses; their number does not.")


def _steps(row: Row, so_far: Row) -> list[tuple[str, Configuration, frozenset[str]]]:
    """What the search has chosen stands in the trials after it; what it has not, is unknown there."""
    found: list[tuple[str, Configuration, frozenset[str]]] = []
    settings = [search.option for search in row.searches]
    for place, search in enumerate(row.searches):
        known = place < len(so_far.searches)
        candidates = so_far.searches[place].candidates if known else search.candidates
        unknown = frozenset() if known else frozenset(settings[:place])
        found += [(f"search {SYMBOLS.get(search.option, search.option)}", trial, unknown) for trial in candidates]
    unknown = frozenset() if so_far.trials else frozenset(settings)
    found += [("seeds", trial, unknown) for trial in so_far.trials or row.trials]
    return found


def _settings(trial: Configuration, row: Row, unknown: frozenset[str]) -> str:
    options = dict(trial.options)
    shown = [name for name in options if name in SYMBOLS or any(name == search.option for search in row.searches)]
    parts = [
        f"{SYMBOLS.get(name, name)} {'chosen' if name in unknown else format(options[name], 'g')}"
        for name in sorted(shown, key=list(SYMBOLS).index)
        if options[name] is not None
    ]
    return ", ".join(parts)


def _cost(listed: set[Configuration], done: int, results: dict[Configuration, Result]) -> str:
    costs = [results[trial].cost.seconds for trial in listed if trial in results]
    if not costs or done == len(listed):
        return ""
    hours = statistics.fmean(costs) * (len(listed) - done) / 3600
    return f" At the mean of those done, {hours:.1f} hours of one worker."
