"""A table as titles, headings, lines of text and notes, independent of the output format."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from calibrant_lab.methods import SYMBOLS
from calibrant_lab.paper.tables.build import NOT_RUN, SEARCHING, Kind, TableRow, Tabulated
from calibrant_lab.paper.tables.notes import DIFFERS, NOT_WITHIN, footnotes, footnotes_on_significance, title
from calibrant_lab.paper.tables.significance import Comparison
from calibrant_lab.score_table import mean_and_spread
from calibrant_lab.scores import Column

HEADINGS: dict[Kind, str] = {"network": "", "ensemble": "deep ensembles", "dropout": "MC dropout"}


class Styled(NamedTuple):
    """Text, and whether it is bold."""

    text: str
    bold: bool = False


class Line(NamedTuple):
    """Our numbers, the paper's, or a heading with a single cell."""

    source: Literal["ours", "paper", "heading"]
    cells: tuple[Styled, ...]


class Part(NamedTuple):
    """A grid of text with a title and notes."""

    title: str
    columns: tuple[str, ...]  # headings, of one or two lines
    alignment: str  # a letter for each column: l or r
    lines: tuple[Line, ...]
    notes: list[str]


def parts(table: Tabulated) -> list[Part]:
    """The table, and the comparisons over seeds if there are any."""
    headings = ("", *(one.heading for one in table.columns), "chosen", "n")
    whole = Part(title(table), headings, "l" + "r" * len(table.columns) + "lr", tuple(_lines(table)), footnotes(table))
    if not table.comparisons:
        return [whole]
    headings = ("", "difference", "95 % interval", "p", "p, flips", "verdict")
    compared, notes = tuple(_comparison_lines(table)), footnotes_on_significance(table)
    return [whole, Part("Comparisons over seeds", headings, "lrrrrl", compared, notes)]


def _lines(table: Tabulated) -> Iterator[Line]:
    kind: Kind = "network"
    for row in table.rows:
        if row.kind != kind:
            kind = row.kind
            yield Line("heading", (Styled(HEADINGS[kind]),))
        yield Line("ours", tuple(_ours(row, table.columns)))
        if any(cell.paper is not None for cell in row.cells.values()):
            paper = (Styled(cell.paper.text if cell.paper else "") for cell in row.cells.values())
            yield Line("paper", (Styled("the paper"), *paper, Styled(""), Styled("")))


def _comparison_lines(table: Tabulated) -> Iterator[Line]:
    """A heading above the comparisons of each measure."""
    known = {one.key: one for one in table.columns}
    measure = ""
    for one in table.comparisons:
        if one.measure != measure:
            measure = one.measure
            yield Line("heading", (Styled(known[measure].heading.replace("\n", " ")),))
        yield Line("ours", tuple(_comparison(one, known[measure].digits)))


def _ours(row: TableRow, columns: Sequence[Column]) -> Iterator[Styled]:
    yield Styled(row.name)
    for one in columns:
        cell = row.cells[one.key]
        text = mean_and_spread(cell.values, one.digits) if cell.values else ""
        yield Styled(text + (DIFFERS if cell.differs else ""), cell.best)
    chosen = ", ".join(f"{SYMBOLS.get(key, key)}={value:g}" for key, value in row.chosen.items())
    failed = row.problem not in (None, NOT_RUN, SEARCHING)
    yield Styled("failed" if failed else row.problem or chosen + (NOT_WITHIN if row.within is False else ""))
    finished = len(row.seeds)
    yield Styled(str(finished) if finished == row.planned else f"{finished}/{row.planned}")


def _comparison(one: Comparison, digits: int) -> Iterator[Styled]:
    found = one.paired
    yield Styled(f"{one.method} against {one.against}")
    yield Styled(f"{found.difference:+.{digits}f}")
    yield Styled(f"[{found.low:+.{digits}f}, {found.high:+.{digits}f}]")
    yield Styled("<0.001" if one.p_holm < 0.001 else f"{one.p_holm:.3f}")
    yield Styled(f"{found.p_permutation:.3g}")
    yield Styled(one.verdict, one.verdict in ("better", "worse"))
