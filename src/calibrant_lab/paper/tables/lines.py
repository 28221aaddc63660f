"""The lines of a table as text, before a format gives them their looks."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from calibrant_lab.paper.footnotes import DIFFERS, NOT_WITHIN
from calibrant_lab.paper.significance import Comparison
from calibrant_lab.paper.tabulated import NOT_RUN, SEARCHING, Cell, Kind, TableRow, Tabulated
from calibrant_lab.table import mean_and_spread
from calibrant_lab.trials.labels import SYMBOLS

Source = Literal["ours", "paper", "heading"]
HEADINGS: dict[Kind, str] = {"network": "", "ensemble": "deep ensembles", "dropout": "MC dropout"}
ALIGNMENT, COMPARISON_ALIGNMENT = "llrrrrrr", "lrrrrl"  # left and right; a table with fewer columns has its first
COMPARISON_COLUMNS = ("", "difference", "95 % interval", "p", "p, flips", "verdict")


class Styled(NamedTuple):
    """Text, and whether it is bold."""

    text: str
    bold: bool = False


class Line(NamedTuple):
    """Ours, the paper's under it, or a heading, which has one cell only."""

    source: Source
    cells: tuple[Styled, ...]


def columns(table: Tabulated) -> list[str]:
    """Headings, of one or two lines."""
    return ["", "chosen", "n", *(measure.heading for measure in table.measures)]


def lines(table: Tabulated) -> Iterator[Line]:
    """Line by line."""
    kind: Kind = "network"
    for row in table.rows:
        if row.kind != kind:
            kind = row.kind
            yield Line("heading", (Styled(HEADINGS[kind]),))
        yield Line("ours", tuple(_ours(row)))
        if any(cell.paper is not None for cell in row.cells.values()):
            paper = (Styled(cell.paper.text if cell.paper else "") for cell in row.cells.values())
            yield Line("paper", (Styled("the paper"), Styled(""), Styled(""), *paper))


def comparison_lines(table: Tabulated) -> Iterator[Line]:
    """Line by line, a heading above those of each measure."""
    headings = {measure.key: measure.heading.replace("\n", " ") for measure in table.measures}
    measure = ""
    for one in table.comparisons:
        if one.measure != measure:
            measure = one.measure
            yield Line("heading", (Styled(headings[measure]),))
        yield Line("ours", tuple(_comparison(one)))


def _ours(row: TableRow) -> Iterator[Styled]:
    yield Styled(row.name)
    chosen = ", ".join(f"{SYMBOLS[key]}={value:g}" for key, value in row.chosen.items())
    failed = row.problem not in (None, NOT_RUN, SEARCHING)
    yield Styled("failed" if failed else row.problem or (chosen if row.within else f"{chosen}{NOT_WITHIN}"))
    finished = len(row.seeds)
    yield Styled(str(finished) if finished == row.planned else f"{finished}/{row.planned}")
    for cell in row.cells.values():
        yield Styled(_cell(cell), cell.best)


def _cell(cell: Cell) -> str:
    if not cell.values:
        return ""
    return mean_and_spread(cell.values) + (DIFFERS if cell.differs else "")


def _comparison(one: Comparison) -> Iterator[Styled]:
    found, told = one.paired, one.verdict in ("better", "worse")
    yield Styled(f"{one.method} against {one.against}")
    yield Styled(f"{found.difference:+.2f}")
    yield Styled(f"[{found.low:+.2f}, {found.high:+.2f}]")
    yield Styled(_p(one.p_holm))
    yield Styled(f"{found.p_permutation:.3g}")
    yield Styled(one.verdict, told)


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"
