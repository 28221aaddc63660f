"""The paper's search and selection: a pure function from existing results to missing trials."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from calibrant_lab.methods import method
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import Configuration


class Validated(NamedTuple):
    """Validation scores of a candidate: accuracy, which must stay high, and the score to minimise."""

    accuracy: float
    score: float


Results = Mapping[Configuration, Validated]


@dataclass(frozen=True)
class Search:
    """One step of the search: candidates that differ in one option, and the best of them once all have ended.

    Attributes:
        option: Option in which the candidates differ.
        candidates: Candidates in the order of the grid, each with every seed of the search.
        chosen: The best candidate, with its first seed. None if results are missing or every candidate failed.
        within: Whether the chosen candidate loses less accuracy than tolerated; if none does, the most accurate
            candidate is chosen.
    """

    option: str
    candidates: tuple[Configuration, ...]
    chosen: Configuration | None
    within: bool


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        name: Name of the row.
        trials: One trial per seed; empty if not known yet.
        searches: Searches that chose the options of the trials.
        problem: Reason why there are no trials, if they cannot be run.
    """

    name: str
    trials: tuple[Configuration, ...]
    searches: tuple[Search, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Plan:
    """The trials of a sweep, as far as results determine them.

    Attributes:
        sweep: The request.
        base: Configuration that all trials share.
        rows: Rows of the table, the baseline first.
    """

    sweep: Sweep
    base: Configuration
    rows: tuple[Row, ...]

    @property
    def baselines(self) -> tuple[Configuration, ...]:
        """The NLL networks that candidates are compared with, one per seed of the search."""
        return self.rows[0].trials[: self.sweep.search_seeds]

    @property
    def needed(self) -> tuple[Configuration, ...]:
        """Every trial known to be needed, each once; trials that others depend on come first."""
        searched = (trial for row in self.rows for search in row.searches for trial in search.candidates)
        final = (trial for row in self.rows for trial in row.trials)
        return tuple(dict.fromkeys([*self.baselines, *searched, *final]))

    def missing(self, ended: Set[Configuration]) -> tuple[Configuration, ...]:
        """Trials that have not ended."""
        return tuple(trial for trial in self.needed if trial not in ended)


def plan(sweep: Sweep, results: Results, failed: Set[Configuration] = frozenset()) -> Plan:
    """The rows of a sweep, and the trials of each as far as results determine them.

    Args:
        sweep: The request.
        results: Validation scores of finished trials.
        failed: Trials that ended without a result; they are not candidates.
    """
    base, sized = sweep.base, sweep.batch_divisors != (1,)
    planner = _Planner(sweep, base, results, failed)
    rows = [Row(f"NLL (b{base.settings.batch_size})" if sized else "NLL", planner.seeds(base))]
    if sweep.reduced_split:
        rows.append(Row("NLL, reduced split", planner.seeds(base.replaced({"reduced_split": True}))))
    for name in sweep.methods:
        row = planner.row(name)
        rows += planner.sizes(row) if sized else [row]
    return Plan(sweep, base, tuple(rows))


@dataclass(frozen=True)
class _Planner:
    sweep: Sweep
    base: Configuration
    results: Results
    failed: Set[Configuration]

    def seeds(self, configuration: Configuration, count: int | None = None) -> tuple[Configuration, ...]:
        return tuple(configuration.replaced({"seed": seed}) for seed in range(count or self.sweep.seeds))

    def sizes(self, row: Row) -> Iterable[Row]:
        """Rows for the other batch sizes: options are searched at the recipe's batch size and reused."""
        largest = self.base.settings.batch_size
        for size in dict.fromkeys(max(3, largest // divisor) for divisor in self.sweep.batch_divisors):
            trials = tuple(trial.replaced({"batch_size": size}) for trial in row.trials)
            yield replace(row, name=f"{row.name} (b{size})", trials=trials)

    def row(self, name: str) -> Row:
        of_method, label = method(name), row_name(name)
        start = self.base.replaced({"method": name} | dict(of_method.searched))
        if of_method.objective is None:
            return Row(label, self.seeds(start))
        if any(one in self.failed for one in self._baselines):
            return Row(label, (), problem="the NLL baseline of the search failed")
        searches: list[Search] = []
        chosen: Configuration | None = start
        for option in ("weight", *of_method.searched):
            grid = self.sweep.grid(name, option)
            if chosen is None or not grid:
                continue
            scale = of_method.weight_scale if option == "weight" else 1.0
            values = [scale * value for value in grid]
            if option != "weight":
                values = sorted({*values, of_method.searched[option]})
            searches.append(self._search(option, [chosen.replaced({option: value}) for value in values]))
            chosen = searches[-1].chosen
        if chosen is None:
            ended = self._have_ended(searches[-1].candidates)
            return Row(label, (), tuple(searches), "every candidate of the search failed" if ended else None)
        return Row(label, self.seeds(chosen), tuple(searches))

    @property
    def _baselines(self) -> tuple[Configuration, ...]:
        return self.seeds(self.base, self.sweep.search_seeds)

    def _have_ended(self, candidates: Iterable[Configuration]) -> bool:
        """Whether all candidates and the baselines they are compared with have ended."""
        return all(one in self.results or one in self.failed for one in (*self._baselines, *candidates))

    def _search(self, option: str, settings: Iterable[Configuration]) -> Search:
        candidates = tuple(trial for one in settings for trial in self.seeds(one, self.sweep.search_seeds))
        if not self._have_ended(candidates):
            return Search(option, candidates, None, within=False)
        # If one seed of a candidate fails, the candidate is discarded.
        broken = {one.replaced({"seed": 0}) for one in candidates if one in self.failed}
        scores = mean_scores(candidates, self.results)
        baseline = mean_scores(self._baselines, self.results)[self.base]
        whole = {one: found for one, found in scores.items() if one not in broken}
        chosen, within = best_of(whole, baseline, self.sweep.tolerance)
        return Search(option, candidates, chosen, within)


def row_name(method_name: str) -> str:
    """Name of a method's row in tables.

    Example:
        >>> row_name("nll"), row_name("esd"), row_name("focal")
        ('NLL', '+ ESD', 'focal')
    """
    found = method(method_name)
    return f"+ {found.label}" if found.objective is not None else found.label


def mean_scores(trials: Iterable[Configuration], results: Results) -> dict[Configuration, Validated]:
    """Mean scores of each candidate over its finished seeds, by its trial of seed 0."""
    found: dict[Configuration, list[Validated]] = {}
    for trial in trials:
        if trial in results:
            found.setdefault(trial.replaced({"seed": 0}), []).append(results[trial])
    return {one: Validated(*map(fmean, zip(*scores, strict=True))) for one, scores in found.items()}


def best_of(
    scores: Mapping[Configuration, Validated], baseline: Validated, tolerance: float
) -> tuple[Configuration | None, bool]:
    """The candidate with the lowest score among those accurate enough, and True; else the most accurate, and False."""
    # A difference of exactly 1.5 points, such as 0.938 - 0.923, may be slightly below 0.015 in floating point.
    lost = {one: baseline.accuracy - found.accuracy for one, found in scores.items()}
    within = [one for one in scores if lost[one] < tolerance - 1e-9]
    # Ties go to the more accurate, then to the first in the grid.
    if within:
        return min(within, key=lambda one: (scores[one].score, -scores[one].accuracy)), True
    return max(scores, key=lambda one: (scores[one].accuracy, -scores[one].score), default=None), False


def rehearse(sweep: Sweep) -> Plan:
    """The complete plan, with made-up results: the number of trials does not depend on them."""
    results: dict[Configuration, Validated] = {}
    while missing := (found := plan(sweep, results)).missing(results.keys()):
        results |= dict.fromkeys(missing, Validated(1.0, 0.0))
    return found
