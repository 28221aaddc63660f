"""Run the trials that a plan still misses, until it misses none."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any, Protocol

from calibrant.files import FileError
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.local_executor import Executor
from calibrant_lab.sweeps.protocol import Plan, Results
from calibrant_lab.trials.store import CHECKPOINT, Result, Store

SECONDS_TO_WAIT = 1.0
SECONDS_BETWEEN_VISITS = 5.0  # to a trial that another command is at

MakePlan = Callable[[Results, Set[Configuration]], Plan]


class View(Protocol):
    """Someone who watches."""

    def show(self, plan: Plan, results: Results, failed: Set[Configuration]) -> None:
        """Look at the state of things, about once a second."""


def run(make_plan: MakePlan, store: Store, executor: Executor, view: View) -> Plan:
    """Run what is missing; the plan is made anew with every result, since later trials depend on earlier ones.

    Trials that failed in an earlier command are tried again. The executor is stopped in the end, whatever happens.

    Args:
        make_plan: From results, and the trials that failed, to what is needed.
        store: Where the executor keeps trials.
        executor: Who runs them.
        view: Who watches.
    """
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(store.folder, f"cannot be made ({error.strerror}): keep trials in another folder") from error
    results = {configuration: result.validation for configuration, result in stored(store).items()}
    for trial in results:  # killed between the two, it has left its last checkpoint beside its result
        (store.trial(trial).folder / CHECKPOINT).unlink(missing_ok=True)
    failed: set[Configuration] = set()
    submitted: set[Configuration] = set()
    elsewhere: dict[Configuration, float] = {}  # trials that another command is at -> when to ask for them again
    with _stopped_in_the_end(executor):
        while True:
            for trial in list(elsewhere):
                if (result := store.result(trial)) is not None:
                    results[trial] = result.validation
                    del elsewhere[trial]
            plan = make_plan(results, failed)
            missing = plan.missing(results.keys() | failed)
            if not missing:
                view.show(plan, results, failed)
                return plan
            for trial in missing:
                if trial not in submitted and elsewhere.get(trial, 0.0) <= time.monotonic():
                    executor.submit(trial)
                    submitted.add(trial)
            view.show(plan, results, failed)
            for trial, ending in executor.wait(SECONDS_TO_WAIT):
                if ending == "done" and (result := store.result(trial)) is not None:
                    results[trial] = result.validation
                elif ending == "busy":
                    submitted.discard(trial)
                    elsewhere[trial] = time.monotonic() + SECONDS_BETWEEN_VISITS
                else:
                    failed.add(trial)


def stored(store: Store) -> dict[Configuration, Result]:
    """The results so far; none where there is no store yet."""
    return store.results() if store.folder.is_dir() else {}


@contextmanager
def _stopped_in_the_end(executor: Executor) -> Iterator[None]:
    """Stop the executor however the block ends: by Ctrl-C, or by SIGTERM, which Python would just die of."""
    # Only the main thread may say what a signal does; a handler that someone has set is theirs.
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        executor.stop()
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, _: Any) -> None:
    raise SystemExit(128 + number)
