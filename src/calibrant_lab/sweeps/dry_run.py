"""`--dry-run`: list every trial of a plan, and estimate the total cost from a few training steps."""

import statistics
import time
from collections.abc import Callable, Container
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from lightning import Trainer
from lightning.pytorch.callbacks import Callback
from rich import box
from rich.console import Console
from rich.table import Column, Table

from calibrant.report.formats import counted
from calibrant.training.forward import has_dropout
from calibrant_lab.methods import SYMBOLS
from calibrant_lab.score_table import print_whole
from calibrant_lab.sweeps.protocol import Plan, Row
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.fit import fit, prepare
from calibrant_lab.trials.quantities import duration, size

STEPS = 5  # steps timed, after a first one that takes longer and is not timed
BYTES_OF_EPOCH = 1000  # in history.json
COPIES = 3  # copies of the weights in a checkpoint: AdamW keeps two more


class Estimate(NamedTuple):
    """Estimated cost of one trial."""

    seconds: float  # of all steps, and of evaluation after every epoch and at the end
    disk: int  # bytes kept
    checkpoint: int  # additional bytes needed while it runs
    on_gpu: bool


def estimate(configuration: Configuration, data: Path | None, accelerator: str = "auto") -> Estimate:
    """Time a few training steps and one evaluation, and extrapolate."""
    settings, clock = configuration.settings, _Clock()
    prepared = prepare(configuration.replaced({"max_steps": STEPS + 1}), data)
    trained = fit(prepared, callbacks=[clock], accelerator=accelerator)
    evaluation = time.monotonic() - clock.ended
    # The median excludes validation if an epoch has several steps.
    step = statistics.median(later - earlier for earlier, later in pairwise(clock.times)) if clock.times[1:] else 0.0
    steps = min(settings.epochs * clock.steps_in_epoch, settings.max_steps or settings.epochs * clock.steps_in_epoch)
    epochs = -(-steps // clock.steps_in_epoch)
    weights = sum(value.nbytes for value in trained.model.state_dict().values())
    predictions = sum(tensor.nbytes for part in (trained.validation, trained.test) for tensor in part)
    predictions *= 2 if has_dropout(trained.model) else 1
    return Estimate(
        steps * step + (epochs + 1) * evaluation, weights + predictions + epochs * BYTES_OF_EPOCH,
        COPIES * weights, next(trained.model.parameters()).is_cuda,
    )  # fmt: skip


class _Clock(Callback):
    def __init__(self) -> None:
        self.times: list[float] = []
        self.ended = 0.0
        self.steps_in_epoch = 1

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.times.append(time.monotonic())
        self.steps_in_epoch = int(trainer.num_training_batches)

    def on_train_end(self, *_: Any) -> None:
        self.ended = time.monotonic()


def list_trials(
    rehearsed: Plan,
    known: Plan,
    results: Container[Configuration],
    console: Console,
    *,
    estimate: Callable[[Configuration], Estimate],
    gpus: float = 1.0,
) -> None:
    """Print one line per trial: its row, its settings, and whether it is done.

    ``rehearsed`` is the complete plan with placeholders for values that the search chooses, ``known`` the plan as far
    as results exist. One missing trial of each method and batch size is timed.
    """
    columns = (Column(heading, no_wrap=True) for heading in ("row", "step", "settings", "seed", ""))
    table = Table(Column(justify="right"), *columns, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    listed: set[Configuration] = set()
    to_do: list[Configuration] = []
    for row, so_far in zip(rehearsed.rows, known.rows, strict=True):
        for step, trial, unknown in _steps(row, so_far):
            if trial in listed:
                continue
            listed.add(trial)
            finished = trial in results and not unknown
            to_do += [] if finished else [trial]
            state = "done" if finished else "waits" if unknown else "to do"
            table.add_row(str(len(listed)), row.name, step, _settings(trial, row, unknown), str(trial.seed), state)
    print_whole(console, table)
    counts = f"{counted(len(listed), 'trial')}, {len(listed) - len(to_do)} done, {len(to_do)} to do."
    console.print(counts, _cost(to_do, estimate, gpus), highlight=False, markup=False, soft_wrap=True)
    if any(not row.trials for row in known.rows):
        console.print("Waiting trials depend on the values that the search chooses; their number does not.")


def _steps(row: Row, so_far: Row) -> list[tuple[str, Configuration, frozenset[str]]]:
    """The trials of a row, each with the options that the search has not chosen yet."""
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
    names = dict.fromkeys([*SYMBOLS, *(search.option for search in row.searches)])
    return ", ".join(
        f"{SYMBOLS.get(name, name)} {'chosen' if name in unknown else format(options[name], 'g')}"
        for name in names
        if options.get(name) is not None
    )


def _cost(to_do: list[Configuration], estimate: Callable[[Configuration], Estimate], gpus: float) -> str:
    if not to_do:
        return ""
    alike: dict[tuple[str, int], list[Configuration]] = {}
    for trial in to_do:
        alike.setdefault((trial.method, trial.settings.batch_size), []).append(trial)
    try:
        found = [(estimate(trials[0]), len(trials)) for trials in alike.values()]
    except (ValueError, OSError, ImportError) as error:  # such as missing data
        return f"Their cost cannot be estimated: {error}"
    seconds = sum(one.seconds * count for one, count in found)
    gpu_hours = sum(one.seconds * count * gpus for one, count in found if one.on_gpu) / 3600
    disk = sum(one.disk * count for one, count in found)
    checkpoint = max(one.checkpoint for one, _ in found)
    return (
        f"Estimated from a few steps of each method: {duration(seconds)} if run one after another, including "
        f"evaluation; {gpu_hours:.1f} GPU-hours; {size(disk)} of disk, and {size(checkpoint)} per running trial."
    )
