"""A table of the paper as data: our results, the paper's, and the comparisons between rows."""

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from calibrant_lab.methods import SYMBOLS
from calibrant_lab.paper.published import Printed, published
from calibrant_lab.paper.tables.ensembles import ensemble
from calibrant_lab.paper.tables.significance import Comparison, compare
from calibrant_lab.scores import Column, column, scores_of
from calibrant_lab.sweeps.protocol import Plan, Row
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.store import Store, Trial

Kind = Literal["network", "ensemble", "dropout"]
NOT_RUN, SEARCHING = "not run here", "search not ended"  # not a problem, only incomplete


@dataclass(frozen=True)
class Cell:
    """Numbers as displayed, in percent if the column is in percent."""

    values: tuple[float, ...]  # one per seed, or one for all; NaN if no temperature could be fitted
    paper: Printed | None = None
    best: bool = False  # no other row of single networks has a better mean

    @property
    def mean(self) -> float:
        """Mean over the seeds; NaN without any."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def std(self) -> float:
        """Sample standard deviation over the seeds; NaN for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 and math.isfinite(self.mean) else math.nan

    @property
    def differs(self) -> bool:
        """Whether the mean differs from the paper's by more than twice the root of the sum of both variances."""
        return self.paper is not None and abs(self.mean - self.paper.mean) > 2 * math.hypot(self.std, self.paper.std)


@dataclass(frozen=True)
class TableRow:
    """One row: single networks, an ensemble of all seeds, or networks with MC dropout."""

    name: str
    kind: Kind
    cells: Mapping[str, Cell]  # by the key of the column
    seeds: tuple[int, ...]  # finished seeds
    planned: int  # number of seeds in the sweep
    chosen: Mapping[str, float] = dataclasses.field(default_factory=dict)  # searched options, such as weight (λ)
    within: bool | None = None  # the chosen candidate loses less accuracy than tolerated; None without a search
    problem: str | None = None  # why it has no numbers


@dataclass(frozen=True)
class Tabulated:
    """A table."""

    sweep: Sweep
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]  # networks first, then ensembles, then dropout
    comparisons: tuple[Comparison, ...]  # between rows of networks, over seeds
    failed: tuple[tuple[str, str], ...] = ()  # row, and seed or candidate, of trials without a result
    unkept: tuple[str, ...] = ()  # rows without an ensemble, since predictions were not stored

    @property
    def in_paper(self) -> bool:
        """Whether the paper has numbers to compare with."""
        return any(cell.paper is not None for row in self.rows for cell in row.cells.values())


def tabulate(plan: Plan, store: Store) -> Tabulated:
    """Fill a table from a store; missing rows are "not run here".

    Ensembles of seeds and MC dropout (if the network has dropout) are added as rows if all rows have the
    same batch size.
    """
    columns = tuple(column(key) for key in plan.sweep.columns)
    paper = published(plan.sweep)
    planned = max((len(row.trials) for row in plan.rows), default=0)
    networks = [_networks(row, store, columns, paper.get(row.name), planned) for row in plan.rows]
    rows = _with_best(networks, columns)
    unkept: list[str] = []
    if plan.sweep.batch_divisors == (1,):
        rows += [found for row in plan.rows if (found := _ensemble(row, store, columns, unkept))]
        rows += [found for row in plan.rows if (found := _dropout(row, store, columns))]
    named: dict[Configuration, tuple[str, str]] = {}
    for row in plan.rows:
        for trial, which in _named(row):
            named.setdefault(trial, (row.name, which))  # rows may share a search
    lost = [trial for trial in named if store.result(trial) is None and store.trial(trial).failure() is not None]
    results = {
        row.name: {key: dict(zip(row.seeds, cell.values, strict=True)) for key, cell in row.cells.items()}
        for row in networks
        if row.seeds
    }
    compared = {one.key: one.better for one in columns if "+vector" not in one.key}
    comparisons = compare(results, _pairs([row for row in plan.rows if row.name in results], plan.rows[0]), compared)
    return Tabulated(plan.sweep, columns, tuple(rows), comparisons, tuple(named[one] for one in lost), tuple(unkept))


def _named(row: Row) -> Iterator[tuple[Configuration, str]]:
    """The trials of a row, each with a description: the seed, or the candidate of a search."""
    for trial in row.trials:
        yield trial, f"seed {trial.seed}"
    for search in row.searches:
        for trial in search.candidates:
            if trial not in row.trials:
                seed = f", seed {trial.seed}" if trial.seed else ""
                symbol = SYMBOLS.get(search.option, search.option)
                yield trial, f"{symbol}={trial.option(search.option):g} of the search{seed}"


def _networks(
    row: Row, store: Store, columns: Sequence[Column], paper: Mapping[str, Printed] | None, planned: int
) -> TableRow:
    done = _done(row, store)
    found = {seed: {one.key: trial.score("test", one.key) for one in columns} for seed, trial in done.items()}
    begun = any(store.result(trial) is not None for search in row.searches for trial in search.candidates)
    problem = row.problem or (None if found else SEARCHING if begun and not row.trials else NOT_RUN)
    if not found and any(store.trial(trial).failure() is not None for trial in row.trials):
        problem = "every seed failed"
    within = row.searches[-1].within if row.searches and row.searches[-1].chosen is not None else None
    cells = _cells(found.values(), columns, paper)
    return TableRow(row.name, "network", cells, tuple(found), planned, _chosen(row), within, problem)


def _cells(
    found: Collection[Mapping[str, float]], columns: Sequence[Column], paper: Mapping[str, Printed] | None = None
) -> dict[str, Cell]:
    values = {one.key: tuple(one.factor * scores[one.key] for scores in found) for one in columns}
    return {key: Cell(given, (paper or {}).get(key)) for key, given in values.items()}


def _chosen(row: Row) -> dict[str, float]:
    """Searched options, including the weight, of a row whose trials are known."""
    return {search.option: row.trials[0].option(search.option) for search in row.searches} if row.trials else {}


def _with_best(rows: Sequence[TableRow], columns: Sequence[Column]) -> list[TableRow]:
    cells: list[dict[str, Cell]] = [dict(row.cells) for row in rows]
    for one in columns:
        means = [mean for row in rows if math.isfinite(mean := row.cells[one.key].mean)]
        best = (max if one.better > 0 else min)(means) if len(means) > 1 else math.nan
        for row in cells:
            is_best = math.isclose(row[one.key].mean, best, abs_tol=1e-9)
            row[one.key] = dataclasses.replace(row[one.key], best=is_best)
    return [dataclasses.replace(row, cells=marked) for row, marked in zip(rows, cells, strict=True)]


def _done(row: Row, store: Store) -> dict[int, Trial]:
    return {trial.seed: store.trial(trial) for trial in row.trials if store.result(trial) is not None}


def _ensemble(row: Row, store: Store, columns: Sequence[Column], unkept: list[str]) -> TableRow | None:
    trials = _done(row, store)
    if len(trials) < 2:
        return None
    members = ((trial.predicted("validation"), trial.predicted("test")) for trial in trials.values())
    try:
        cells = _cells([ensemble(members, [one.key for one in columns])], columns)
    except ValueError:  # predictions that were removed or damaged, or other test data, do not affect other rows
        unkept.append(row.name)
        return None
    return TableRow(row.name, "ensemble", cells, tuple(trials), len(row.trials), _chosen(row))


def _dropout(row: Row, store: Store, columns: Sequence[Column]) -> TableRow | None:
    """Networks with probabilities averaged over passes with dropout (Gal and Ghahramani, ICML 2016)."""
    found = {}
    for seed, trial in _done(row, store).items():
        with suppress(ValueError):  # a damaged file does not affect other rows
            if trial.has_dropout():
                validation, test = (trial.predicted(part, sampled=True) for part in ("validation", "test"))
                found[seed] = scores_of(validation, test, [one.key for one in columns])
    if not found:
        return None
    return TableRow(row.name, "dropout", _cells(found.values(), columns), tuple(found), len(row.trials), _chosen(row))


def _pairs(rows: Sequence[Row], baseline: Row) -> list[tuple[str, str]]:
    """Each row with the baseline, rows of one batch size with each other, and each row with its largest batch size."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row.trials[0].method, row)

    def comparable(row: Row, other: Row) -> bool:
        one, against = row.trials[0], other.trials[0]
        same_size = one.settings.batch_size == against.settings.batch_size
        return other is baseline or same_size or other is first[one.method]

    return [(row.name, other.name) for other, row in combinations(rows, 2) if comparable(row, other)]
