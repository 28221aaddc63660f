"""The paper's numbers: against its source, and against some typed by hand."""

import re
from pathlib import Path

import pytest

from calibrant_lab.configuration import RecipeName
from calibrant_lab.names import TableName
from calibrant_lab.paper.published import published

SOURCE = Path(__file__).parents[3] / "../shared/paper/esd-paper.tex"
LABELS: dict[TableName, str] = {"table1": "tab:main", "table2": "tab:batch", "table3": "tab:batchECE"}
DATA: dict[str, RecipeName] = {
    "MNIST": "mnist", "CIFAR10": "cifar10", "CIFAR100": "cifar100", "ImageNet100": "imagenet100", "SNLI": "snli",
    "ANLI": "anli",
}  # fmt: skip


def printed_in_the_source(label: str) -> dict[RecipeName, dict[str, list[str]]]:
    """Data -> row -> cells, from the table with this label; Table 3 names its data in the caption only."""
    before = SOURCE.read_text(encoding="utf-8").partition(rf"\label{{{label}}}")[0]
    body = before.rpartition(r"\begin{tabular}")[2]
    found: dict[RecipeName, dict[str, list[str]]] = {}
    for block in body.split(r"\hline"):
        plain = re.sub(r"\\begin\{small\}|\\end\{small\}|\\bf\b|\\textbf|[{}]", "", block)
        rows = re.findall(r"(NLL|\+[A-Z-]+)\s*(\(b\d+\))?[^&\n]*((?:&\s*[\d.]+\$\\pm\$[\d.]+\s*)+)", plain)
        if rows:
            data = [recipe for name, recipe in DATA.items() if re.search(rf"\b{name}\b\s*&", plain)] or ["cifar100"]
            names = [f"{name.replace('+', '+ ')} {size}".strip() for name, size, _ in rows]
            cells = [[cell.strip() for cell in text.replace(r"$\pm$", "±").split("&")[1:]] for *_, text in rows]
            found[data[0]] = dict(zip(names, cells, strict=True))
    return found


@pytest.mark.skipif(not SOURCE.exists(), reason="the paper's source is not here")
@pytest.mark.parametrize(("table", "cells"), [("table1", 6 * 4 * 5), ("table2", 2 * 5 * 5), ("table3", 4 * 2)])
def test_every_number_is_as_printed(table: TableName, cells: int) -> None:
    source = printed_in_the_source(LABELS[table])
    ours = {
        recipe: {name: [cell.text for cell in row] for name, row in published(table, recipe).items()}
        for recipe in DATA.values()
    }
    assert {recipe: rows for recipe, rows in ours.items() if rows} == source
    assert sum(len(row) for rows in source.values() for row in rows.values()) == cells


@pytest.mark.parametrize(
    ("table", "recipe", "row", "column", "mean", "std"),
    [
        ("table1", "mnist", "NLL", 0, 98.8, 0.034),
        ("table1", "cifar100", "+ SB-ECE", 1, 14.7, 1.370),
        ("table1", "anli", "+ ESD", 4, 4.42, 1.010),
        ("table2", "cifar10", "+ ESD (b64)", 4, 2.65, 1.48),
        ("table2", "snli", "+ ESD (b128)", 2, 0.68, 0.190),
        ("table3", "cifar100", "+ ECE (b128)", 1, 21.0, 0.552),
    ],
)
def test_some_numbers(table: TableName, recipe: RecipeName, row: str, column: int, mean: float, std: float) -> None:
    assert published(table, recipe)[row][column][:2] == (mean, std)


@pytest.mark.parametrize(("table", "recipe"), [("table1", "digits"), ("table2", "mnist"), ("table3", "cifar10")])
def test_what_the_paper_lacks_is_empty(table: TableName, recipe: RecipeName) -> None:
    assert published(table, recipe) == {}
