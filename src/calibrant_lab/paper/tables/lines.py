"""The lines of a table as text, before a format gives them their looks."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from calibrant_lab.columns import Column
from calibrant_lab.methods import SYMBOLS
from calibrant_lab.paper.tables.build import NOT_RUN, SEARCHING, Cell, Kind, TableRow, Tabulated
from calibrant_lab.paper.tables.notes import DIFFERS, NOT_WITHIN
from calibrant_lab.paper.tables.significance import Comparison
from calibrant_lab.table import mean_and_spread

Source = Literal["ours", "paper", "heading"]
HEADINGS: dict[Kind, str] = {"network": "", "ensemble": "deep ensembles", "dropout": "MC dropout"}
COMPARISON_ALIGNMENT = "lrrrrl"  # left and right
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
    return ["", "chosen", "n", *(one.heading for one in table.columns)]


def alignment(table: Tabulated) -> str:
    """Of the columns, left and right."""
    return "llr" + "r" * len(table.columns)


def lines(table: Tabulated) -> Iterator[Line]:
    """Line by line."""
    kind: Kind = "network"
    for row in table.rows:
        if row.kind != kind:
            kind = row.kind
            yield Line("heading", (Styled(HEADINGS[kind]),))
        yield Line("ours", tuple(_ours(row, table.columns)))
        if any(cell.paper is not None for cell in row.cells.values()):
            paper = (Styled(cell.paper.text if cell.paper else "") for cell in row.cells.values())
            yield Line("paper", (Styled("the paper"), Styled(""), Styled(""), *paper))


def comparison_lines(table: Tabulated) -> Iterator[Line]:
    """Line by line, a heading above those of each measure."""
    headings = {one.key: one.heading.replace("\n", " ") for one in table.columns}
    digits = {one.key: one.digits for one in table.columns}
    measure = ""
    for one in table.comparisons:
        if one.measure != measure:
            measure = one.measure
            yield Line("heading", (Styled(headings[measure]),))
        yield Line("ours", tuple(_comparison(one, digits[measure])))


def _ours(row: TableRow, columns: Sequence[Column]) -> Iterator[Styled]:
    yield Styled(row.name)
    chosen = ", ".join(f"{SYMBOLS.get(key, key)}={value:g}" for key, value in row.chosen.items())
    failed = row.problem not in (None, NOT_RUN, SEARCHING)
    yield Styled("failed" if failed else row.problem or (chosen if row.within else f"{chosen}{NOT_WITHIN}"))
    finished = len(row.seeds)
    yield Styled(str(finished) if finished == row.planned else f"{finished}/{row.planned}")
    for one in columns:
        cell = row.cells[one.key]
        yield Styled(_cell(cell, one.digits), cell.best)


def _cell(cell: Cell, digits: int) -> str:
    if not cell.values:
        return ""
    return mean_and_spread(cell.values, digits) + (DIFFERS if cell.differs else "")


def _comparison(one: Comparison, digits: int) -> Iterator[Styled]:
    found, told = one.paired, one.verdict in ("better", "worse")
    yield Styled(f"{one.method} against {one.against}")
    yield Styled(f"{found.difference:+.{digits}f}")
    yield Styled(f"[{found.low:+.{digits}f}, {found.high:+.{digits}f}]")
    yield Styled(_p(one.p_holm))
    yield Styled(f"{found.p_permutation:.3g}")
    yield Styled(one.verdict, told)


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"
