"""What a store was filled for: the protocols that its trials belong to, found from nothing but the trials."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from typing import Any, get_args

from calibrant.files import FileError
from calibrant_lab.configuration import Configuration, ObjectiveName
from calibrant_lab.names import PUBLISHED, MethodName, ProfileName, TableName
from calibrant_lab.recipes import RECIPES
from calibrant_lab.trials.protocol import (
    PROFILES,
    UNSEARCHED,
    Plan,
    Protocol,
    Results,
    Row,
    Search,
    first_seed,
    with_profile,
)
from calibrant_lab.trials.store import Store

# What the protocol chooses; trials that differ in nothing else belong together. Table 2 also varies the batch size.
_CHOSEN: dict[str, Any] = {
    "objective": "nll", "weight": 1.0, "seed": 0, "reduced_split": False, "root": True, "bandwidth": None,
    "method": None, "softness": None, "gamma": None, "smoothing": None,
}  # fmt: skip


@dataclass(frozen=True)
class Inferred:
    """A protocol that a store has trials of.

    Attributes:
        profile: The one of whose trials the store has the most.
        protocol: Which makes its plans.
        methods: Those of the paper, and which others were run.
    """

    profile: ProfileName
    protocol: Protocol
    methods: tuple[MethodName, ...]

    def table(self, name: TableName) -> Plan:
        """The plan of a table, all its rows."""
        return self.protocol.table(name, self.methods)

    def begun(self, name: TableName) -> Plan | None:
        """The plan of a table without the rows that nothing was run of; None if only the baseline is left."""
        plan = self.table(name)
        rows = tuple(
            row
            for row in plan.rows[1:]
            if row.problem is not None or self._ended(row.trials) or any(map(self._ended_in, row.searches))
        )
        plan = replace(plan, rows=(plan.rows[0], *rows))
        if name != "table1":
            return plan if rows and self._searched(plan) else None
        return plan if self._searched(plan) else replace(plan, rows=tuple(map(self._as_run, plan.rows)))

    @property
    def profile_name(self) -> str:
        """For the reader: trials of which none belongs to a search may have been run by any command."""
        return self.profile if self._searched(self.table("table1")) else "unknown"

    def _searched(self, plan: Plan) -> bool:
        """Whether there was a search, over two values or more; or none of its rows has any need of one."""
        searches = [search for row in plan.rows for search in row.searches if self._ended_in(search)]
        return not searches or any(len(set(map(first_seed, self._ended_in(search)))) > 1 for search in searches)

    def _as_run(self, row: Row) -> Row:
        """The trials that there are, instead of those that a search would lead to."""
        if row.trials or not row.searches:
            return replace(row, trials=self._ended(row.trials) or row.trials[:1])
        (first,) = set(map(first_seed, self._ended_in(row.searches[0])))
        seeds = [first.replaced({"seed": seed}) for seed in range(self.protocol.profile.seeds)]
        return Row(f"{row.name}, λ {first.weight:g}", self._ended(seeds))

    def _ended(self, trials: Iterable[Configuration]) -> tuple[Configuration, ...]:
        known = self.protocol
        return tuple(trial for trial in trials if trial in known.results or trial in known.failed)

    def _ended_in(self, search: Search) -> tuple[Configuration, ...]:
        return self._ended(search.candidates)


def inferred(store: Store) -> list[Inferred]:
    """The protocols of a store, in the order of their recipes."""
    results = {trial: result.validation for trial, result in store.results().items()}
    failed = frozenset(_failed(store))
    groups: dict[Configuration, set[Configuration]] = defaultdict(set)
    for trial in results:
        if trial.recipe in RECIPES:
            groups[trial.replaced({**_CHOSEN, "batch_size": RECIPES[trial.recipe].batch_size})].add(trial)
    order = list(RECIPES)
    ordered = sorted(groups.items(), key=lambda group: (order.index(group[0].recipe), str(group[0].to_dict())))
    return [_fitting(base, trials, results, failed) for base, trials in ordered]


def _failed(store: Store) -> Iterator[Configuration]:
    for trial in store.trials():
        try:
            if trial.status == "failed":
                yield trial.configuration
        except FileError:
            continue  # damaged: the page lists it as such


def _fitting(base: Configuration, trials: Set[Configuration], results: Results, failed: Set[Configuration]) -> Inferred:
    methods = (*PUBLISHED, *(method for method in _methods(trials) if method not in PUBLISHED))
    best: tuple[tuple[int, bool, int], Inferred] | None = None
    for name, profile in PROFILES.items():
        for size in sorted({trial.batch_size for trial in trials}, reverse=True):
            found = Inferred(name, Protocol(base.replaced({"batch_size": size}), profile, results, failed), methods)
            needed = found.table("table1").needed
            done = sum(trial in results for trial in needed)
            # A few trials may belong to any profile: then to that of their epochs, and to the smallest.
            usual = with_profile(RECIPES[base.recipe], profile).epochs == base.epochs
            fit = (done, usual, done - len(needed))
            if best is None or fit > best[0]:
                best = fit, found
    if best is None:
        raise ValueError("a protocol has at least one trial, got none")
    return _with_search_seeds(best[1])


def _with_search_seeds(found: Inferred) -> Inferred:
    """With as many seeds a candidate as leave the fewest trials missing; of these numbers the highest."""
    protocol = found.protocol
    ended = protocol.results.keys() | protocol.failed
    fewest = None
    for seeds in range(protocol.profile.seeds, 0, -1):
        more = replace(found, protocol=replace(protocol, profile=replace(protocol.profile, search_seeds=seeds)))
        plan = more.begun("table1")
        if plan is None or not any(row.searches for row in plan.rows):
            return found
        missing = len(plan.missing(ended))
        if fewest is None or missing < fewest[0]:
            fewest = missing, more
    return fewest[1] if fewest else found


def _methods(trials: Set[Configuration]) -> list[MethodName]:
    """Besides the NLL, in the order in which the command line lists them."""
    run = {trial.objective for trial in trials if trial.root} - {"nll"}
    found: list[MethodName] = [name for name in get_args(ObjectiveName) if name in run]
    if any(trial.objective == "esd" and not trial.root for trial in trials):
        found.append("esd-raw")
    run_by = {trial.method for trial in trials}
    return found + [name for name, method in UNSEARCHED.items() if method in run_by]
