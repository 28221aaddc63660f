"""What a reader of a table has to know, in sentences."""

import dataclasses
import math
from collections.abc import Iterator

from calibrant_lab.outcome import BINS
from calibrant_lab.paper.significance import LEVEL, least_p
from calibrant_lab.paper.tabulated import NOT_RUN, SEARCHING, TableRow, Tabulated
from calibrant_lab.recipes import RECIPES
from calibrant_lab.trials.labels import SYMBOLS
from calibrant_lab.trials.protocol import ACCURACY_GIVEN_UP, PROFILES
from calibrant_lab.trials.store import DROPOUT_PASSES

DIFFERS, NOT_WITHIN = "†", "‡"


def title(table: Tabulated) -> str:
    """One line: which table, of what."""
    number = table.name.removeprefix("table")
    search = "" if table.search_seeds == 1 else f", {table.search_seeds} seeds a candidate"
    return f"The paper's Table {number} on {table.base.recipe} ({table.base.model}), profile {table.profile}{search}"


def footnotes(table: Tabulated) -> list[str]:
    """Under the table."""
    return [*_how_it_was_made(table), *_columns(table), *_paper(table), *_search(table), *_gaps(table), *_votes(table)]


def footnotes_on_significance(table: Tabulated) -> list[str]:
    """Under the comparisons."""
    pairs = sorted({one.paired.pairs for one in table.comparisons})
    if not pairs:
        return []
    least = least_p(pairs[-1])
    reach = f": not {LEVEL:.0%}, whatever the differences" if least >= LEVEL else ""
    return [
        "Differences in percentage points over the seeds that both have: the same seed gives the same validation split "
        f"and initial weights. p: paired t-test, corrected by Holm for the {len(table.comparisons)} comparisons shown; "
        f"better and worse are those below {LEVEL:.0%}.",
        "p, flips: exact test over all changes of sign, not corrected; "
        f"with {pairs[-1]} seeds it cannot be below {least:g}{reach}"
        f"{'' if len(pairs) == 1 else ', and with fewer not even that'}.",
    ]


def _how_it_was_made(table: Tabulated) -> Iterator[str]:
    base, recipe = table.base, RECIPES[table.base.recipe]
    planned = max((row.planned for row in table.rows), default=0)
    changed = [
        f"{field.name.replace('_', '-')} {getattr(base, field.name)} instead of {getattr(recipe, field.name)}"
        for field in dataclasses.fields(base)
        if getattr(base, field.name) != getattr(recipe, field.name)
    ]
    whose = "the paper's" if base.recipe != "digits" else "the recipe's own"
    settings = f"unlike {whose} settings: {', '.join(changed)}" if changed else f"trained with {whose} settings"
    yield f"Profile {table.profile}: {base.epochs} epochs, {planned} seed{'s' if planned != 1 else ''}; {settings}."
    yield "Mean ± standard deviation over the seeds, of which n have finished. Bold: the best mean of single networks."


def _columns(table: Tabulated) -> Iterator[str]:
    scaling = (
        " TS and VS: temperature and vector scaling, fitted on the validation set." if len(table.measures) > 2 else ""
    )
    yield f"ECE in {BINS} bins of equal width, right-closed.{scaling}"
    if any(row.name == "NLL, reduced split" for row in table.rows):
        yield "NLL, reduced split: trained without the part that the objectives hold out; the paper has no such row."


def _paper(table: Tabulated) -> Iterator[str]:
    number = table.name.removeprefix("table")
    if not table.in_paper:
        yield f"The paper's Table {number} has no numbers for {table.base.recipe}: there is nothing to compare with."
        return
    yield "the paper: as published there, mean ± standard deviation of five trials."
    names = {measure.key: measure.heading.replace(" %", "").replace("\n", " ") for measure in table.measures}
    found = [
        f"{row.name}: "
        + ", ".join(f"{names[key]} {cell.mean - cell.paper.mean:+.2f}" for key, cell in differing if cell.paper)
        for row in table.rows
        if (differing := [(key, cell) for key, cell in row.cells.items() if cell.differs])
    ]
    rule = f"{DIFFERS} further from the paper's mean than twice the root of the sum of both squared standard deviations"
    judged = [cell for row in table.rows for cell in row.cells.values() if cell.paper and not math.isnan(cell.std)]
    if found:
        yield f"{rule}: {'; '.join(found)}."
    elif judged:
        yield f"None of the {len(judged)} means of two or more seeds is {rule.removeprefix(DIFFERS).strip()}."


def _search(table: Tabulated) -> Iterator[str]:
    if any(row.chosen for row in table.rows):
        inner = {"bandwidth": "φ: bandwidth of MMCE", "softness": "T: temperature of SB-ECE"}
        names = [text for key, text in inner.items() if any(key in row.chosen for row in table.rows)]
        kept = (
            ""
            if table.name == "table1"
            else f" Searched at batch size {table.base.batch_size}, and kept for the others."
        )
        lowest = "validation ECE"
        if table.search_seeds > 1:
            lowest = f"mean validation ECE over {table.search_seeds} seeds"
        yield (
            f"{'; '.join(['λ: weight beside the NLL', *names])}; chosen by the lowest {lowest} that gives up "
            f"less than {100 * ACCURACY_GIVEN_UP:g} points of accuracy.{kept} The paper does not say what it chose."
        )
        if lacking := list(_not_searched(table)):
            yield f"Not searched, though by the paper: {'; '.join(lacking)}."
    if any(not row.within for row in table.rows):
        yield f"{NOT_WITHIN} no candidate gave up less than that: the most accurate was taken."


def _not_searched(table: Tabulated) -> Iterator[str]:
    """What the search of a smaller profile leaves out."""
    if table.profile not in PROFILES or table.base.recipe == "digits":
        return
    ours, paper = PROFILES[table.profile], PROFILES["paper"]
    grids = {"weight": "weights", "bandwidth": "bandwidths", "softness": "softnesses"}
    for setting, grid in grids.items():
        missing = [f"{value:g}" for value in getattr(paper, grid) if value not in getattr(ours, grid)]
        if missing and any(setting in row.chosen for row in table.rows):
            yield f"{SYMBOLS[setting]} {', '.join(missing)}"


def _gaps(table: Tabulated) -> Iterator[str]:
    single = [row for row in table.rows if row.kind == "network"]
    fewer = [f"{row.name} ({len(row.seeds)} of {row.planned})" for row in single if 0 < len(row.seeds) < row.planned]
    if fewer:
        yield f"Seeds are missing: {', '.join(fewer)}."
    broken = [f"{row.name} ({row.problem})" for row in single if row.problem not in (None, NOT_RUN, SEARCHING)]
    if broken:
        yield f"Without numbers: {', '.join(broken)}."
    if table.failed:
        yield f"Failed trials: {'; '.join(f'{name}, {which}' for name, which in table.failed)}."


def _votes(table: Tabulated) -> Iterator[str]:
    def some(kind: str) -> list[TableRow]:
        return [row for row in table.rows if row.kind == kind]

    if some("ensemble"):
        yield (
            "Ensembles: the mean of the probabilities of a row's seeds. After TS and VS: each network scaled by its "
            "own validation set first, since one network's validation set is another's training data."
        )
    if some("dropout"):
        yield f"MC dropout: the mean of the probabilities of {DROPOUT_PASSES} passes with dropout on, for each seed."
    if table.unkept:
        yield f"No ensemble of {', '.join(table.unkept)}: their predictions were not kept, or do not fit together."
