"""Run the missing trials of a sweep until none is missing."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress

from calibrant.files import FileError, write_whole
from calibrant_lab import plugins
from calibrant_lab.sweeps.protocol import Plan, Results, Validated, plan
from calibrant_lab.sweeps.sweep import FOLDER, Sweep
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.local_executor import Executor
from calibrant_lab.trials.store import CHECKPOINT, FULL, Store

SECONDS_TO_WAIT = 1.0
SECONDS_BETWEEN_VISITS = 5.0  # to a trial that another command runs


def run(
    sweep: Sweep, store: Store, executor: Executor, show: Callable[[Plan, Results, Set[Configuration]], None]
) -> Plan:
    """Run the missing trials; every result updates the plan, since later trials depend on earlier ones.

    The sweep is recorded in the store before its first trial. Trials that failed in an earlier command are run again.
    ``show`` is called with the state of the sweep about once a second. The executor is always stopped at the end.
    """
    record(sweep, store)
    results = validated(store, sweep)
    for trial in results:  # a process killed after writing the result leaves a checkpoint
        (store.trial(trial).folder / CHECKPOINT).unlink(missing_ok=True)
    failed: set[Configuration] = set()
    submitted: set[Configuration] = set()
    elsewhere: dict[Configuration, float] = {}  # trials that another command runs -> when to try again
    with _stopped_in_the_end(executor):
        while True:
            for trial in list(elsewhere):
                if (found := scores_of(trial, store, sweep)) is not None:
                    results[trial] = found
                    del elsewhere[trial]
            current = plan(sweep, results, failed)
            missing = current.missing(results.keys() | failed)
            for trial in missing:
                if trial not in submitted and elsewhere.get(trial, 0.0) <= time.monotonic():
                    executor.submit(trial)
                    submitted.add(trial)
            show(current, results, failed)
            if not missing:
                return current
            for trial, ending in executor.wait(SECONDS_TO_WAIT):
                if ending == "disk full":
                    raise FileError(store.folder, FULL)
                if ending == "done" and (found := scores_of(trial, store, sweep)) is not None:
                    results[trial] = found
                elif ending == "busy":
                    submitted.discard(trial)
                    elsewhere[trial] = time.monotonic() + SECONDS_BETWEEN_VISITS
                else:
                    failed.add(trial)


def record(sweep: Sweep, store: Store) -> None:
    """Write the sweep to the store, for tables, figures and the report."""
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(store.folder, f"cannot be created ({error.strerror}): give another --runs") from error
    write_whole(store.folder / FOLDER / sweep.record_name, sweep.to_toml())


def recorded(store: Store) -> list[Sweep]:
    """The sweeps of a store whose recipes and methods this installation knows."""
    found = []
    for path in sorted((store.folder / FOLDER).glob("*.toml")):
        with suppress(FileError):
            found.append(Sweep.read(path))
    return found


def validated(store: Store, sweep: Sweep) -> dict[Configuration, Validated]:
    """Validation scores of all finished trials; empty if there is no store yet."""
    if not store.folder.is_dir():
        return {}
    # Those of other recipes cannot be part of the sweep, and their scores may take long to compute.
    ours = [one for one in store.results() if plugins.short(one.recipe) == plugins.short(sweep.recipe)]
    return {one: scores for one in ours if (scores := scores_of(one, store, sweep)) is not None}


def scores_of(trial: Configuration, store: Store, sweep: Sweep) -> Validated | None:
    """The scores by which a sweep chooses; None for an unfinished trial."""
    result = store.result(trial)
    if result is None:
        return None
    return Validated(result.validation["accuracy"], store.trial(trial).score("validation", sweep.select))


@contextmanager
def _stopped_in_the_end(executor: Executor) -> Iterator[None]:
    """Stop the executor however the block ends, also by Ctrl-C or SIGTERM."""
    # Only the main thread can set a signal handler; an existing handler is left alone.
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        executor.stop()
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
