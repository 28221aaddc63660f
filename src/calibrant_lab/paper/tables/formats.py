"""A table for terminals, for Markdown, for LaTeX and for programs."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, overload

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from calibrant_lab import plugins
from calibrant_lab.paper.tables.build import TableRow, Tabulated
from calibrant_lab.paper.tables.lines import (
    COMPARISON_ALIGNMENT,
    COMPARISON_COLUMNS,
    Line,
    Styled,
    alignment,
    columns,
    comparison_lines,
    lines,
)
from calibrant_lab.paper.tables.notes import footnotes, footnotes_on_significance, title
from calibrant_lab.table import Whole

Format = Literal["table", "markdown", "latex", "csv"]
SIGNIFICANCE = "Which differences survive"


@overload
def render(tabulated: Tabulated, format: Literal["table"]) -> RenderableType: ...
@overload
def render(tabulated: Tabulated, format: Literal["markdown", "latex", "csv"]) -> str: ...
def render(tabulated: Tabulated, format: Format) -> RenderableType:  # noqa: A002
    """A table with its notes and, but for CSV, the comparisons over seeds under it.

    Args:
        tabulated: The table.
        format: ``"table"`` for a rich renderable, 80 columns wide; the others are text. CSV has one line for each row
            with numbers of its own columns; that of the comparisons is :func:`significance_csv`.
    """
    formats: dict[Format, Callable[[Tabulated], RenderableType]] = {
        "table": _terminal, "markdown": _markdown, "latex": _latex, "csv": _csv,
    }  # fmt: skip
    if format not in formats:
        raise ValueError(f"there is no format {format!r}: there are {', '.join(formats)}")
    return formats[format](tabulated)


def _terminal(table: Tabulated) -> RenderableType:
    headings = ["", *(one.heading for one in table.columns)]
    parts = [_grid(title(table), headings, list(_narrow(table)), "l" + "r" * len(table.columns))]
    parts.append(_notes(footnotes(table)))
    if any(one.verdict in ("better", "worse") for one in table.comparisons):
        parts.append(_grid(SIGNIFICANCE, COMPARISON_COLUMNS, list(comparison_lines(table)), COMPARISON_ALIGNMENT))
        parts.append(_notes(footnotes_on_significance(table)))
    elif table.comparisons:
        seeds = max(one.paired.pairs for one in table.comparisons)
        text = (
            f"None of the {len(table.comparisons)} differences between rows survives a paired test over {seeds} seeds"
        )
        parts.append(Text(f"{text}; Markdown, LaTeX and CSV list them.\n"))
    return Group(*parts)


def _narrow(table: Tabulated) -> Iterator[Line]:
    """Lines that fit 80 columns: what was chosen stands under a row, how many seeds only where some are missing."""
    for line in lines(table):
        if line.source == "heading":
            yield line
            continue
        name, chosen, seeds, *cells = line.cells
        shown = f"{name.text} ({seeds.text})" if "/" in seeds.text else name.text
        yield Line(line.source, (Styled(shown), *cells))
        if chosen.text:
            yield Line("paper", (Styled(chosen.text),))


def _grid(name: str, headings: Sequence[str], content: Sequence[Line], alignment: str) -> RenderableType:
    grid = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    # With a ±, numbers stand under numbers of other lengths.
    signed = {place for line in content for place, cell in enumerate(line.cells) if "±" in cell.text}
    before = [max(len(_before(line, place)) for line in content) for place in range(len(headings))]
    for place, (heading, side) in enumerate(zip(headings, alignment, strict=False)):
        right = side == "r" and place not in signed
        grid.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for number, line in enumerate(content):
        style = {"ours": "", "paper": "dim", "heading": "italic"}[line.source]
        if line.source == "heading" and number:
            grid.add_row()
        cells = []
        for place, cell in enumerate(line.cells):
            indent = before[place] - len(_before(line, place)) if place in signed else 0
            indent += 2 if place == 0 and line.source == "paper" else 0
            cells.append(Text(" " * indent + cell.text, style="bold" if cell.bold else style))
        grid.add_row(*cells)
    return Group(Text(name, style="bold"), Whole(grid))


def _before(line: Line, place: int) -> str:
    return line.cells[place].text.partition("±")[0] if place < len(line.cells) else ""


def _notes(notes: Iterable[str]) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    for note in notes:
        grid.add_row(Text("-", style="dim"), Text(note, style="dim"))
    return Padding(grid, (0, 0, 1, 0))


def _markdown(table: Tabulated) -> str:
    parts = [f"**{_markdown_text(title(table))}**", _markdown_grid(columns(table), lines(table), alignment(table))]
    parts.append("\n".join(f"- {_markdown_text(note)}" for note in footnotes(table)))
    if table.comparisons:
        parts += [
            f"**{SIGNIFICANCE}**",
            _markdown_grid(COMPARISON_COLUMNS, comparison_lines(table), COMPARISON_ALIGNMENT),
        ]
        parts.append("\n".join(f"- {_markdown_text(note)}" for note in footnotes_on_significance(table)))
    return "\n\n".join(parts) + "\n"


def _markdown_grid(headings: Sequence[str], content: Iterable[Line], alignment: str) -> str:
    rows = [[_markdown_text(heading.replace("\n", " ")) for heading in headings]]
    rows.append([":--" if side == "l" else "--:" for side in alignment[: len(headings)]])
    for line in content:
        texts = [_markdown_text(cell.text) for cell in line.cells]
        if line.source == "ours":
            cells = [f"**{text}**" if cell.bold else text for text, cell in zip(texts, line.cells, strict=True)]
        else:
            cells = [f"*{text}*" if text else "" for text in texts]
        rows.append(cells + [""] * (len(headings) - len(cells)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~#$])", r"\\\1", text)


def _latex(table: Tabulated) -> str:
    parts = ["% needs \\usepackage{booktabs}"]
    parts.append(_latex_table(title(table), columns(table), lines(table), alignment(table), footnotes(table)))
    if table.comparisons:
        notes, compared = footnotes_on_significance(table), list(comparison_lines(table))
        parts.append(_latex_table(SIGNIFICANCE, COMPARISON_COLUMNS, compared, COMPARISON_ALIGNMENT, notes))
    return "\n".join(parts) + "\n"


def _latex_table(
    name: str, headings: Sequence[str], content: Iterable[Line], alignment: str, notes: Iterable[str]
) -> str:
    rows = [" & ".join(_latex_text(heading.replace("\n", " ")) for heading in headings) + r" \\", r"\midrule"]
    for line in content:
        texts = [_latex_text(cell.text) for cell in line.cells]
        if line.source == "heading":
            rows += [r"\addlinespace", rf"\multicolumn{{{len(headings)}}}{{l}}{{\emph{{{texts[0]}}}}} \\"]
            continue
        if line.source == "paper":
            texts = [rf"\quad\emph{{{texts[0]}}}", *(rf"\emph{{{text}}}" if text else "" for text in texts[1:])]
        cells = [rf"\textbf{{{text}}}" if cell.bold else text for text, cell in zip(texts, line.cells, strict=True)]
        rows.append(" & ".join(cells) + r" \\")
    return "\n".join(
        [
            r"\begin{table}", r"\centering\small\setlength{\tabcolsep}{4pt}", rf"\caption{{{_latex_text(name)}}}",
            rf"\begin{{tabular}}{{{alignment[: len(headings)]}}}", r"\toprule", *rows, r"\bottomrule", r"\end{tabular}",
            *(rf"\par\smallskip\raggedright\footnotesize {_latex_text(note)}" for note in notes), r"\end{table}",
        ]
    )  # fmt: skip


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "λ": r"$\lambda$", "φ": r"$\phi$",
    "†": r"$^{\dagger}$", "‡": r"$^{\ddagger}$", "<": "$<$", ">": "$>$", "[": "{[}", "]": "{]}",
}  # fmt: skip


def _latex_text(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w-])([+-])(?=\d)", r"$\1$", escaped)  # a sign, not a hyphen


def _csv(table: Tabulated) -> str:
    """Scores in percent where the name says so; empty where there is none."""
    options = list(dict.fromkeys(option for row in table.rows for option in row.chosen))
    return csv_of({**_common(table), **_csv_row(row, table, options)} for row in table.rows)


def _common(table: Tabulated) -> dict[str, object]:
    base, sweep = table.base, table.sweep
    return {
        "table": sweep.name, "recipe": plugins.short(base.recipe), "model": getattr(base.settings, "model", None),
        "profile": sweep.profile, "search_seeds": sweep.search_seeds, "select": sweep.select,
        "epochs": base.settings.epochs,
    }  # fmt: skip


def _csv_row(row: TableRow, table: Tabulated, options: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {
        "row": _csv_name(row.name), "kind": row.kind, "seeds": len(row.seeds), "planned_seeds": row.planned,
        **{option: row.chosen.get(option) for option in options}, "within_tolerance": str(row.within).lower(),
        "problem": row.problem,
    }  # fmt: skip
    for one in table.columns:
        cell = row.cells[one.key]
        name = one.key.replace("+", "_") + ("_percent" if one.factor == 100 else "")
        found |= {f"{name}_mean": _number(cell.mean), f"{name}_std": _number(cell.std)}
        if table.in_paper:
            paper = cell.paper
            found |= {f"{name}_paper_mean": paper and paper.mean, f"{name}_paper_std": paper and paper.std}
    return found


def significance_csv(table: Tabulated) -> str:
    """The comparisons over seeds, one a line; differences in percentage points."""
    return csv_of(
        {
            **_common(table), "row": _csv_name(one.method), "against": _csv_name(one.against),
            "measure": one.measure, "seeds": one.paired.pairs, "difference": _number(one.paired.difference),
            "low": _number(one.paired.low), "high": _number(one.paired.high), "p_t": one.paired.p_t,
            "p_t_holm": one.p_holm, "p_permutation": one.paired.p_permutation, "verdict": one.verdict,
        }
        for one in table.comparisons
    )  # fmt: skip


def csv_of(rows: Iterable[dict[str, object]]) -> str:
    """Lines that all have the names of the first."""
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_name(name: str) -> str:
    """Spreadsheets take what begins with a plus for a formula."""
    return f"NLL {name}" if name.startswith("+") else name


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
