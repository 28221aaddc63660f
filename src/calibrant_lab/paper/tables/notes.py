"""Titles and footnotes of tables, from the sweep and its results."""

import math
from collections.abc import Iterable, Iterator

from calibrant.report.formats import counted
from calibrant_lab.methods import SYMBOLS, method
from calibrant_lab.paper.profiles import profile
from calibrant_lab.paper.tables.build import NOT_RUN, SEARCHING, Tabulated
from calibrant_lab.paper.tables.significance import LEVEL, least_p
from calibrant_lab.scores import BINS, column
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import changes_of
from calibrant_lab.trials.store import DROPOUT_PASSES

DIFFERS, NOT_WITHIN = "†", "‡"
TABLES = {"table1": "The paper's Table 1", "table2": "The paper's Table 2", "table3": "The paper's Table 3"}


def title(table: Tabulated) -> str:
    """Title of the table, in one line."""
    sweep = table.sweep
    parts = [f"{TABLES.get(sweep.name, sweep.name)} on {sweep.subject}"]
    parts += [f"profile {sweep.profile}"] if sweep.profile else []
    parts += [f"{sweep.search_seeds} seeds per candidate"] if sweep.search_seeds > 1 else []
    return ", ".join(parts)


def footnotes(table: Tabulated) -> list[str]:
    """Footnotes of the table."""
    return [*_how_it_was_made(table), *_columns(table), *_paper(table), *_search(table), *_gaps(table), *_votes(table)]


def footnotes_on_significance(table: Tabulated) -> list[str]:
    """Footnotes of the comparisons."""
    pairs = sorted({one.paired.pairs for one in table.comparisons})
    if not pairs:
        return []
    least = least_p(pairs[-1])
    reach = f", so never below {LEVEL:.0%}" if least >= LEVEL else ""
    return [
        "Differences over the seeds that both rows have, in percentage points for columns in percent. The same seed "
        "gives the same validation split and initial weights. p: paired t-test, corrected by Holm for the "
        f"{len(table.comparisons)} comparisons shown; better and worse: p below {LEVEL:.0%}.",
        f"p, flips: exact test over all changes of sign, not corrected. With {pairs[-1]} seeds it cannot go below "
        f"{least:g}{reach}{'' if len(pairs) == 1 else '; with fewer seeds its minimum is higher'}.",
    ]


def _how_it_was_made(table: Tabulated) -> Iterator[str]:
    base = table.sweep.base
    defaults, changes = base.of_recipe.settings(), changes_of(base)
    planned = max((row.planned for row in table.rows), default=0)
    changed = [f"{name.replace('_', '-')} {changes[name]} instead of {getattr(defaults, name)}" for name in changes]
    settings = f"Settings other than the recipe's: {', '.join(changed)}" if changed else "Settings are the recipe's"
    yield f"{counted(base.settings.epochs, 'epoch')}, {counted(planned, 'seed')}. {settings}."
    yield "Mean ± standard deviation over the n finished seeds. Bold: the best mean of single networks."


def _columns(table: Tabulated) -> Iterator[str]:
    metrics, repairs = zip(*(one.key.partition("+")[::2] for one in table.columns), strict=True)
    known = {"temperature": "TS: temperature", "vector": "VS: vector"}
    scaling = [name for repair, name in known.items() if repair in repairs]
    notes = [f"ECE in {BINS} bins of equal width, right-closed."] if "ece" in metrics else []
    notes += [f"{'; '.join(scaling)} scaling, fitted on the validation set."] if scaling else []
    if notes:
        yield " ".join(notes)
    if any(row.name == "NLL, reduced split" for row in table.rows):
        yield "NLL, reduced split: trained without the share of the data that other methods hold out."


def _paper(table: Tabulated) -> Iterator[str]:
    if not table.in_paper:
        if table.sweep.name in TABLES:
            yield "The paper has no numbers for these data and this network."
        return
    yield "the paper: as published, mean ± standard deviation of five trials."
    names = {one.key: one.label for one in table.columns}
    found = []
    for row in table.rows:
        compared = [(names[key], cell.mean, cell.paper) for key, cell in row.cells.items() if cell.differs]
        if differing := [f"{name} {mean - paper.mean:+.2f}" for name, mean, paper in compared if paper]:
            found.append(f"{row.name}: {', '.join(differing)}")
    rule = f"{DIFFERS} further from the paper's mean than twice the root of the sum of both variances"
    judged = [cell for row in table.rows for cell in row.cells.values() if cell.paper and not math.isnan(cell.std)]
    if found:
        yield f"{rule}: {'; '.join(found)}."
    elif judged:
        yield f"None of the {len(judged)} means of two or more seeds is {rule.removeprefix(DIFFERS).strip()}."


def _search(table: Tabulated) -> Iterator[str]:
    sweep = table.sweep
    options = {option: SYMBOLS.get(option, option) for row in table.rows for option in row.chosen}
    if options:
        names = [f"{symbol}: {_meaning(sweep, option)}" for option, symbol in options.items()]
        score = f"validation {column(sweep.select).label}"
        lowest = f"mean {score} over {sweep.search_seeds} seeds" if sweep.search_seeds > 1 else score
        yield (
            f"{'; '.join(names)}. We choose the candidate with the lowest {lowest} among those that lose less than "
            f"{100 * sweep.tolerance:g} points of accuracy."
        )
        if sweep.batch_divisors != (1,):
            yield f"Searched at batch size {sweep.base.settings.batch_size} and reused for the others."
        if table.in_paper:
            yield "The paper does not say what it chose."
            if lacking := list(_not_searched(sweep, options)):
                yield f"Searched in the paper, but not here: {'; '.join(lacking)}."
    if any(row.within is False for row in table.rows):
        yield f"{NOT_WITHIN} no candidate lost less than that: the most accurate one was chosen."


def _meaning(sweep: Sweep, option: str) -> str:
    """Description of an option, and the methods that have it."""
    if option == "weight":
        return "weight of the objective relative to the NLL"
    methods = [found for name in sweep.methods if option in (found := method(name)).searched]
    return f"{methods[0].keywords.get(option, option)} of {', '.join(one.label for one in methods)}"


def _not_searched(sweep: Sweep, options: Iterable[str]) -> Iterator[str]:
    """Values that the paper searched and this sweep does not."""
    paper = profile("paper")["grids"]
    for option in options:
        ours = {value for name in sweep.methods for value in sweep.grid(name, option)}
        if missing := [f"{value:g}" for value in paper.get(option, ()) if value not in ours]:
            yield f"{SYMBOLS.get(option, option)} {', '.join(missing)}"


def _gaps(table: Tabulated) -> Iterator[str]:
    single = [row for row in table.rows if row.kind == "network"]
    fewer = [f"{row.name} ({len(row.seeds)} of {row.planned})" for row in single if 0 < len(row.seeds) < row.planned]
    if fewer:
        yield f"Missing seeds: {', '.join(fewer)}."
    if broken := [f"{row.name} ({row.problem})" for row in single if row.problem not in (None, NOT_RUN, SEARCHING)]:
        yield f"Without numbers: {', '.join(broken)}."
    scaled = [(row, [cell.values for key, cell in row.cells.items() if "+" in key]) for row in single]
    lost = [(row, max((sum(map(math.isnan, one)) for one in values), default=0)) for row, values in scaled]
    if dashes := [f"{row.name} ({count} of {len(row.seeds)} seeds)" for row, count in lost if count]:
        yield f"A dash: no temperature could be fitted for {', '.join(dashes)}."
    if table.failed:
        yield f"Failed trials: {'; '.join(f'{name}, {which}' for name, which in table.failed)}."


def _votes(table: Tabulated) -> Iterator[str]:
    kinds = {row.kind for row in table.rows}
    if "ensemble" in kinds:
        yield (
            "Ensembles: the mean of the probabilities of a row's seeds. After TS and VS: each network is first scaled "
            "on its own validation set, since one network's validation set is another's training data."
        )
    if "dropout" in kinds:
        yield f"MC dropout: the mean of the probabilities of {DROPOUT_PASSES} passes with dropout, for each seed."
    if table.unkept:
        yield f"No ensemble of {', '.join(table.unkept)}: their predictions were not stored, or do not match."
