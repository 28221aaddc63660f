"""The paper's search and selection: a pure function from the results there are to the trials still missing."""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from calibrant_lab.configuration import Configuration
from calibrant_lab.names import PUBLISHED, MethodName, ProfileName, TableName
from calibrant_lab.objectives import REPLACING
from calibrant_lab.trials.store import Validated

ACCURACY_GIVEN_UP = 0.015  # less than this, against the NLL baseline, on the validation set


@dataclass(frozen=True)
class Profile:
    """How much of the search to do.

    Attributes:
        weights: Of an objective beside the NLL, λ.
        bandwidths: Of MMCE, φ.
        softnesses: Of SB-ECE, T.
        seeds: Networks a row.
        epochs: At most so many; None for the recipe's.
        search_seeds: Networks a candidate of the search, whose mean scores are compared; the paper says nothing of
            more than one. At most as many as a row has.
    """

    weights: tuple[float, ...]
    bandwidths: tuple[float, ...]
    softnesses: tuple[float, ...]
    seeds: int
    epochs: int | None = None
    search_seeds: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.search_seeds <= self.seeds:
            most = f"{self.seeds}, the seeds of a row in this profile"
            raise ValueError(f"search-seeds must be from 1 to {most}, got {self.search_seeds}")


_BANDWIDTHS, _SOFTNESSES = (0.2, 0.4, 0.6, 0.8), (1e-4, 1e-3, 1e-2, 1e-1)
PROFILES: dict[ProfileName, Profile] = {
    "paper": Profile((0.2, 0.4, 0.6, 0.8, *map(float, range(1, 11))), _BANDWIDTHS, _SOFTNESSES, seeds=5),
    "cpu": Profile((0.2, 0.6, 1.0, 2.0, 4.0, 8.0), _BANDWIDTHS, _SOFTNESSES, seeds=5, epochs=50),
    "quick": Profile((0.6, 2.0), (0.4, 0.8), (1e-3, 1e-2), seeds=2, epochs=12),
}


@dataclass(frozen=True)
class _Inner:
    """A setting of an objective that is searched after λ: its name, where the search begins, and its grid."""

    name: str
    first: float
    grid: Callable[[Profile], tuple[float, ...]]


_SPELLED = {"avuc": "AvUC", "s-avuc": "S-AvUC", "weighted-mmce": "weighted MMCE", "esd-raw": "ESD, raw"}
_INNER: dict[str, _Inner] = {
    "mmce": _Inner("bandwidth", 0.4, lambda profile: profile.bandwidths),
    "weighted-mmce": _Inner("bandwidth", 0.4, lambda profile: profile.bandwidths),
    "sb-ece": _Inner("softness", 1e-2, lambda profile: profile.softnesses),
}
# The square of a small number is smaller still: raw ESD needs weights a hundred times as large.
_RAW_SCALE = 100.0
# Rows of the table whose method of training takes the place of an objective, with nothing to search.
UNSEARCHED: dict[MethodName, str] = {"loop": "temperature", "head": "head"}


@dataclass(frozen=True)
class Search:
    """One step of the search: candidates that differ in one setting, and the best of them, once all have ended.

    Attributes:
        setting: What they differ in, besides the seed.
        candidates: In the order of the grid, each with every seed of the search.
        chosen: With its first seed. None while results are missing, or when every candidate failed.
        within: Whether the chosen one gives up less than 1.5 points of accuracy; if no candidate does, the most
            accurate one is chosen.
    """

    setting: str
    candidates: tuple[Configuration, ...]
    chosen: Configuration | None
    within: bool


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        name: What it is called.
        trials: One for each seed; empty while they are not known.
        searches: Those that led to it.
        problem: Why there will be no trials, if so.
    """

    name: str
    trials: tuple[Configuration, ...]
    searches: tuple[Search, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Plan:
    """What a table consists of, as far as the results tell.

    Attributes:
        base: What its trials have in common.
        rows: The baseline first.
        search_seeds: How many networks stand for each candidate.
    """

    base: Configuration
    rows: tuple[Row, ...]
    search_seeds: int = 1

    @property
    def baselines(self) -> tuple[Configuration, ...]:
        """The NLL networks that candidates are held against, one for each seed of the search."""
        return self.rows[0].trials[: self.search_seeds]

    @property
    def needed(self) -> tuple[Configuration, ...]:
        """Every trial known to be needed, each once: first those that others wait for."""
        searched = (trial for row in self.rows for search in row.searches for trial in search.candidates)
        final = (trial for row in self.rows for trial in row.trials)
        return tuple(dict.fromkeys([*self.baselines, *searched, *final]))

    def missing(self, ended: Set[Configuration]) -> tuple[Configuration, ...]:
        """Those neither finished nor failed."""
        return tuple(trial for trial in self.needed if trial not in ended)


Results = Mapping[Configuration, Validated]


@dataclass(frozen=True)
class Protocol:
    """The trials of a table, for one recipe.

    Args:
        base: The recipe's configuration; objective, weight and seed are the protocol's to choose.
        profile: How much to search.
        results: Validation scores of the trials that are finished.
        failed: Trials that ended without a result; they are not candidates.
    """

    base: Configuration
    profile: Profile
    results: Results
    failed: Set[Configuration] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", replace(self.base, objective="nll", weight=1.0, seed=0, method=None))

    def table1(self, methods: Iterable[MethodName] = PUBLISHED) -> Plan:
        """The NLL, with all the training data as published and with the reduced part, and each method."""
        reduced = Row("NLL, reduced split", self._seeds(replace(self.base, reduced_split=True)))
        others = (self._row(method) for method in dict.fromkeys(methods) if method != "nll")
        return self._plan(self._baseline(), reduced, *others)

    def table2(self) -> Plan:
        """ESD with the batch size of the recipe, a half, a quarter and an eighth of it."""
        return self._plan(self._baseline(sized=True), *self._sizes("esd", (1, 2, 4, 8)))

    def table3(self) -> Plan:
        """ECE as the objective with the batch size of the recipe, a half and a quarter of it; and ESD beside it."""
        rows = (*self._sizes("ece", (1, 2, 4)), *self._sizes("esd", (1, 2, 4)))
        return self._plan(self._baseline(sized=True), *rows)

    def table(self, name: TableName, methods: Iterable[MethodName] = PUBLISHED) -> Plan:
        """One of the three."""
        return self.table1(methods) if name == "table1" else self.table2() if name == "table2" else self.table3()

    def _plan(self, *rows: Row) -> Plan:
        return Plan(self.base, rows, self.profile.search_seeds)

    def _baseline(self, *, sized: bool = False) -> Row:
        name = f"NLL (b{self.base.batch_size})" if sized else "NLL"
        return Row(name, self._seeds(self.base))

    def _seeds(self, configuration: Configuration, count: int | None = None) -> tuple[Configuration, ...]:
        return tuple(replace(configuration, seed=seed) for seed in range(count or self.profile.seeds))

    def _sizes(self, method: MethodName, divisors: Iterable[int]) -> Iterable[Row]:
        """λ is searched at the recipe's batch size, and kept."""
        found = self._row(method)
        for size in dict.fromkeys(max(3, self.base.batch_size // divisor) for divisor in divisors):
            trials = tuple(replace(trial, batch_size=size) for trial in found.trials)
            yield replace(found, name=f"{found.name} (b{size})", trials=trials)

    def _row(self, method: MethodName) -> Row:
        name = method_name(method)
        if method in UNSEARCHED:
            return Row(name, self._seeds(self.base.replaced({"method": UNSEARCHED[method]})))
        if method in REPLACING:
            return Row(name, self._seeds(self.base.replaced({"objective": method})))
        if any(one in self.failed for one in self._baselines):
            return Row(name, (), problem="the NLL baseline of the search failed")
        searches = [self._search("weight", _by_weight(self.base, method, self.profile))]
        chosen, inner = searches[0].chosen, _INNER.get(method)
        if inner is not None and chosen is not None:
            grid = sorted({*inner.grid(self.profile), inner.first})
            searches.append(self._search(inner.name, [chosen.replaced({inner.name: one}) for one in grid]))
            chosen = searches[-1].chosen
        if chosen is None:
            ended = self._have_ended(searches[-1].candidates)
            return Row(name, (), tuple(searches), "every candidate of the search failed" if ended else None)
        return Row(name, self._seeds(chosen), tuple(searches))

    @property
    def _baselines(self) -> tuple[Configuration, ...]:
        return self._seeds(self.base, self.profile.search_seeds)

    def _have_ended(self, candidates: Iterable[Configuration]) -> bool:
        """Whether nothing is left to wait for: neither a candidate nor what it is held against."""
        return all(one in self.results or one in self.failed for one in (*self._baselines, *candidates))

    def _search(self, setting: str, settings: Iterable[Configuration]) -> Search:
        candidates = tuple(trial for one in settings for trial in self._seeds(one, self.profile.search_seeds))
        if not self._have_ended(candidates):
            return Search(setting, candidates, None, within=False)
        # One seed that failed is reason enough not to choose a setting.
        broken = {first_seed(one) for one in candidates if one in self.failed}
        scores = mean_scores([one for one in candidates if first_seed(one) not in broken], self.results)
        chosen, within = best_of(scores, mean_scores(self._baselines, self.results)[self.base])
        return Search(setting, candidates, chosen, within)


def first_seed(configuration: Configuration) -> Configuration:
    """What stands for all seeds of a setting."""
    return replace(configuration, seed=0)


def mean_scores(trials: Iterable[Configuration], results: Results) -> dict[Configuration, Validated]:
    """By setting, the mean over those of its seeds that have a result."""
    found: dict[Configuration, list[Validated]] = {}
    for trial in trials:
        if trial in results:
            found.setdefault(first_seed(trial), []).append(results[trial])
    return {
        one: Validated(fmean(score.accuracy for score in scores), fmean(score.ece for score in scores))
        for one, scores in found.items()
    }


def best_of(scores: Mapping[Configuration, Validated], baseline: Validated) -> tuple[Configuration | None, bool]:
    """The lowest validation ECE among settings that are accurate enough, and if none is, the most accurate.

    Returns:
        The best, None without any; and whether it is accurate enough.
    """
    within = [one for one, score in scores.items() if qualifies(score, baseline)]
    # Ties go to the more accurate, then to the first in the grid, the gentlest.
    if within:
        return min(within, key=lambda one: (scores[one].ece, -scores[one].accuracy)), True
    return max(scores, key=lambda one: (scores[one].accuracy, -scores[one].ece), default=None), False


def qualifies(candidate: Validated, baseline: Validated) -> bool:
    """Whether a network gives up less accuracy than the search allows.

    Example:
        >>> baseline = Validated(accuracy=0.938, ece=0.05)
        >>> qualifies(Validated(accuracy=0.924, ece=0.01), baseline)
        True
        >>> qualifies(Validated(accuracy=0.923, ece=0.01), baseline)
        False
    """
    # A difference of exactly 1.5 points, such as 0.938 - 0.923, may be a hair below 0.015 in binary.
    return baseline.accuracy - candidate.accuracy < ACCURACY_GIVEN_UP - 1e-9


def with_profile(recipe: Configuration, profile: Profile) -> Configuration:
    """The configuration that all trials of a profile have in common."""
    return recipe if profile.epochs is None else replace(recipe, epochs=min(recipe.epochs, profile.epochs))


def method_name(method: MethodName) -> str:
    """What a table calls a method."""
    if method in REPLACING:
        return "margin smoothing" if method == "margin-label-smoothing" else method.replace("-", " ")
    if method in UNSEARCHED:
        return "temperature in the loop" if method == "loop" else "held-out NLL through the head"
    return f"+ {_SPELLED.get(method, method.upper())}"


def _by_weight(base: Configuration, method: MethodName, profile: Profile) -> list[Configuration]:
    raw = method == "esd-raw"
    settings: dict[str, Any] = {"objective": "esd", "root": False} if raw else {"objective": method}
    if inner := _INNER.get(method):
        settings[inner.name] = inner.first
    scale = _RAW_SCALE if raw else 1.0
    return [replace(base, **settings, weight=scale * weight) for weight in profile.weights]


def rehearse(plan: Callable[[Results], Plan]) -> Plan:
    """The plan as it will be in the end, with made-up results: the number of its trials does not depend on them.

    Which λ, φ and T the later trials have does: here it is the first of each grid.
    """
    results: dict[Configuration, Validated] = {}
    while missing := (found := plan(results)).missing(results.keys()):
        results |= dict.fromkeys(missing, Validated(accuracy=1.0, ece=0.0))
    return found
