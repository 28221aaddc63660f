"""A table for terminals, and as Markdown, LaTeX and CSV."""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from calibrant_lab import plugins
from calibrant_lab.paper.tables.build import TableRow, Tabulated
from calibrant_lab.paper.tables.lines import Line, Part, Styled, parts
from calibrant_lab.score_table import Whole
from calibrant_lab.sweeps.sweep import Sweep

FileFormat = Literal["markdown", "latex", "csv"]
Format = Literal["table", FileFormat]


def render(tabulated: Tabulated, format: FileFormat) -> str:  # noqa: A002
    """A table with notes and (except CSV) the comparisons over seeds, as text."""
    if format == "markdown":
        return "\n\n".join(map(_markdown, parts(tabulated))) + "\n"
    if format == "latex":
        return "\n".join(["% needs \\usepackage{booktabs}", *map(_latex, parts(tabulated))]) + "\n"
    if format == "csv":
        options = list(dict.fromkeys(option for row in tabulated.rows for option in row.chosen))
        return csv_of(_common(tabulated.sweep) | _csv_row(row, tabulated, options) for row in tabulated.rows)
    raise ValueError(f"unknown format {format!r}: choose from {', '.join(get_args(FileFormat))}")


def for_terminal(table: Tabulated) -> RenderableType:
    """A table with notes and the comparisons over seeds, 80 columns wide."""
    whole, *compared = parts(table)
    narrow = whole._replace(columns=whole.columns[:-2], lines=tuple(_narrow(whole)), alignment=whole.alignment[:-2])
    if not compared or any(one.verdict in ("better", "worse") for one in table.comparisons):
        return Group(*(_grid(part) for part in (narrow, *compared)))
    seeds = max(one.paired.pairs for one in table.comparisons)
    text = f"None of the {len(table.comparisons)} differences between rows is significant over {seeds} seeds"
    return Group(_grid(narrow), Text(f"{text}; Markdown, LaTeX and CSV list them.\n"))


def _narrow(part: Part) -> Iterator[Line]:
    """Lines that fit 80 columns: chosen options go below the row, the number of seeds only if some are missing."""
    for line in part.lines:
        if line.source == "heading":
            yield line
            continue
        name, *cells, chosen, seeds = line.cells
        shown = f"{name.text} ({seeds.text})" if "/" in seeds.text else name.text
        yield Line(line.source, (Styled(shown), *cells))
        if chosen.text:
            yield Line("paper", (Styled(chosen.text),))


def _grid(part: Part) -> RenderableType:
    grid = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    # Align numbers with a ± on the ±.
    signed = {place for line in part.lines for place, cell in enumerate(line.cells) if "±" in cell.text}
    before = [max(len(_before(line, place)) for line in part.lines) for place in range(len(part.columns))]
    for place, (heading, side) in enumerate(zip(part.columns, part.alignment, strict=True)):
        right = side == "r" and place not in signed
        grid.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for number, line in enumerate(part.lines):
        style = {"ours": "", "paper": "dim", "heading": "italic"}[line.source]
        if line.source == "heading" and number:
            grid.add_row()
        cells = []
        for place, cell in enumerate(line.cells):
            indent = before[place] - len(_before(line, place)) if place in signed else 0
            indent += 2 if place == 0 and line.source == "paper" else 0
            cells.append(Text(" " * indent + cell.text, style="bold" if cell.bold else style))
        grid.add_row(*cells)
    notes = Table.grid(padding=(0, 1))
    for note in part.notes:
        notes.add_row(Text("-", style="dim"), Text(note, style="dim"))
    return Group(Text(part.title, style="bold"), Whole(grid), Padding(notes, (0, 0, 1, 0)))


def _before(line: Line, place: int) -> str:
    return line.cells[place].text.partition("±")[0] if place < len(line.cells) else ""


def _markdown(part: Part) -> str:
    rows = [[_markdown_text(heading.replace("\n", " ")) for heading in part.columns]]
    rows.append([":--" if side == "l" else "--:" for side in part.alignment])
    for line in part.lines:
        texts = [_markdown_text(cell.text) for cell in line.cells]
        if line.source == "ours":
            cells = [f"**{text}**" if cell.bold else text for text, cell in zip(texts, line.cells, strict=True)]
        else:
            cells = [f"*{text}*" if text else "" for text in texts]
        rows.append(cells + [""] * (len(part.columns) - len(cells)))
    grid = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    notes = "\n".join(f"- {_markdown_text(note)}" for note in part.notes)
    return f"**{_markdown_text(part.title)}**\n\n{grid}\n\n{notes}"


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~#$])", r"\\\1", text)


def _latex(part: Part) -> str:
    width = len(part.columns)
    rows = [" & ".join(_latex_text(heading.replace("\n", " ")) for heading in part.columns) + r" \\", r"\midrule"]
    for line in part.lines:
        texts = [_latex_text(cell.text) for cell in line.cells]
        if line.source == "heading":
            rows += [r"\addlinespace", rf"\multicolumn{{{width}}}{{l}}{{\emph{{{texts[0]}}}}} \\"]
            continue
        if line.source == "paper":
            texts = [rf"\quad\emph{{{texts[0]}}}", *(rf"\emph{{{text}}}" if text else "" for text in texts[1:])]
        cells = [rf"\textbf{{{text}}}" if cell.bold else text for text, cell in zip(texts, line.cells, strict=True)]
        rows.append(" & ".join(cells) + r" \\")
    return "\n".join([
        r"\begin{table}", r"\centering\small\setlength{\tabcolsep}{4pt}", rf"\caption{{{_latex_text(part.title)}}}",
        rf"\begin{{tabular}}{{{part.alignment}}}", r"\toprule", *rows, r"\bottomrule", r"\end{tabular}",
        *(rf"\par\smallskip\raggedright\footnotesize {_latex_text(note)}" for note in part.notes), r"\end{table}",
    ])  # fmt: skip


_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "λ": r"$\lambda$", "φ": r"$\phi$",
    "†": r"$^{\dagger}$", "‡": r"$^{\ddagger}$", "<": "$<$", ">": "$>$", "[": "{[}", "]": "{]}",
})  # fmt: skip


def _latex_text(text: str) -> str:
    return re.sub(r"(?<![\w-])([+-])(?=\d)", r"$\1$", text.translate(_LATEX))  # a sign, not a hyphen


def _common(sweep: Sweep) -> dict[str, object]:
    return {"table": sweep.name} | subject_of(sweep) | {
        "profile": sweep.profile, "search_seeds": sweep.search_seeds, "select": plugins.short(sweep.select),
    }  # fmt: skip


def subject_of(sweep: Sweep) -> dict[str, object]:
    """First columns of every CSV: data and network."""
    settings = sweep.base.settings
    return {
        "recipe": plugins.short(sweep.recipe), "model": getattr(settings, "model", None), "epochs": settings.epochs,
    }  # fmt: skip


def _csv_row(row: TableRow, table: Tabulated, options: Sequence[str]) -> dict[str, object]:
    """Scores, in percent if the column name says so; empty if missing."""
    found: dict[str, object] = {
        "row": _csv_name(row.name), "kind": row.kind, "seeds": len(row.seeds), "planned_seeds": row.planned,
        **{option: row.chosen.get(option) for option in options}, "within_tolerance": row.within,
        "problem": row.problem,
    }  # fmt: skip
    for one in table.columns:
        cell = row.cells[one.key]
        name = plugins.short(one.key).replace("+", "_") + ("_percent" if one.factor == 100 else "")
        found |= {f"{name}_mean": _number(cell.mean), f"{name}_std": _number(cell.std)}
        if table.in_paper:
            paper = cell.paper
            found |= {f"{name}_paper_mean": paper and paper.mean, f"{name}_paper_std": paper and paper.std}
    return found


def significance_csv(table: Tabulated) -> str:
    """The comparisons over seeds, one per line; differences in percentage points."""
    return csv_of(
        {
            **_common(table.sweep), "row": _csv_name(one.method), "against": _csv_name(one.against),
            "measure": plugins.short(one.measure), "seeds": one.paired.pairs,
            "difference": _number(one.paired.difference), "low": _number(one.paired.low),
            "high": _number(one.paired.high), "p_t": one.paired.p_t, "p_t_holm": one.p_holm,
            "p_permutation": one.paired.p_permutation, "verdict": one.verdict,
        }
        for one in table.comparisons
    )  # fmt: skip


def csv_of(rows: Iterable[dict[str, object]]) -> str:
    """CSV with the column names of the first row."""
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: str(value).lower() if isinstance(value, bool) else value for name, value in row.items()})
    return text.getvalue()


def _csv_name(name: str) -> str:
    """Avoid a leading plus, which spreadsheets read as a formula."""
    return f"NLL {name}" if name.startswith("+") else name


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
