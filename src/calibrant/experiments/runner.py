"""Run the trials that a plan still misses, until it misses none."""

import time
from collections.abc import Callable, Set
from typing import Protocol

from calibrant.experiments.configuration import Configuration
from calibrant.experiments.executors import Executor
from calibrant.experiments.protocol import Plan, Results
from calibrant.experiments.store import Result, Store

SECONDS_TO_WAIT = 1.0
SECONDS_BETWEEN_VISITS = 15.0  # to a trial that another command is at

MakePlan = Callable[[Results, Set[Configuration]], Plan]


class View(Protocol):
    """Someone who watches."""

    def show(self, plan: Plan, results: Results, failed: Set[Configuration]) -> None:
        """Look at the state of things, about once a second."""


def run(make_plan: MakePlan, store: Store, executor: Executor, view: View) -> Plan:
    """Run what is missing; the plan is made anew with every result, since later trials depend on earlier ones.

    Trials that failed in an earlier command are tried again.
    """
    results = {configuration: result.validation for configuration, result in stored(store).items()}
    failed: set[Configuration] = set()
    submitted: set[Configuration] = set()
    elsewhere: dict[Configuration, float] = {}  # trial -> when to ask for it again
    try:
        while True:
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
    finally:
        executor.stop()


def stored(store: Store) -> dict[Configuration, Result]:
    """The results so far; none where there is no store yet."""
    return store.results() if store.folder.is_dir() else {}
