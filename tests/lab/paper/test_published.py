"""The paper's numbers: against its source, and against some typed by hand."""

import re
from pathlib import Path

import pytest

from calibrant_lab.paper.profiles import paper_sweep
from calibrant_lab.paper.published import Printed, published

SOURCE = Path(__file__).parents[3] / "../shared/paper/esd-paper.tex"
LABELS = {"table1": "tab:main", "table2": "tab:batch", "table3": "tab:batchECE"}
DATA = {
    "MNIST": "mnist", "CIFAR10": "cifar10", "CIFAR100": "cifar100", "ImageNet100": "imagenet100", "SNLI": "snli",
    "ANLI": "anli",
}  # fmt: skip


def printed_in_the_source(label: str) -> dict[str, dict[str, list[str]]]:
    """Data -> row -> cells, from the table with this label; Table 3 names its data in the caption only."""
    before = SOURCE.read_text(encoding="utf-8").partition(rf"\label{{{label}}}")[0]
    body = before.rpartition(r"\begin{tabular}")[2]
    found: dict[str, dict[str, list[str]]] = {}
    for block in body.split(r"\hline"):
        plain = re.sub(r"\\begin\{small\}|\\end\{small\}|\\bf\b|\\textbf|[{}]", "", block)
        rows = re.findall(r"(NLL|\+[A-Z-]+)\s*(\(b\d+\))?[^&\n]*((?:&\s*[\d.]+\$\\pm\$[\d.]+\s*)+)", plain)
        if rows:
            data = [recipe for name, recipe in DATA.items() if re.search(rf"\b{name}\b\s*&", plain)] or ["cifar100"]
            names = [f"{name.replace('+', '+ ')} {size}".strip() for name, size, _ in rows]
            cells = [[cell.strip() for cell in text.replace(r"$\pm$", "±").split("&")[1:]] for *_, text in rows]
            found[data[0]] = dict(zip(names, cells, strict=True))
    return found


def beside(table: str, recipe: str, **settings: object) -> dict[str, dict[str, Printed]]:
    return published(paper_sweep(table, recipe, "cpu", {"settings": settings}))


@pytest.mark.skipif(not SOURCE.exists(), reason="the paper's source is not here")
@pytest.mark.parametrize(("table", "cells"), [("table1", 6 * 4 * 5), ("table2", 2 * 5 * 5), ("table3", 4 * 2)])
def test_every_number_is_as_printed(table: str, cells: int) -> None:
    source = printed_in_the_source(LABELS[table])
    ours = {
        recipe: {name: [cell.text for cell in row.values()] for name, row in beside(table, recipe).items()}
        for recipe in DATA.values()
    }
    assert {recipe: rows for recipe, rows in ours.items() if rows} == source
    assert sum(len(row) for rows in source.values() for row in rows.values()) == cells


@pytest.mark.parametrize(
    ("table", "recipe", "row", "column", "mean", "std"),
    [
        ("table1", "mnist", "NLL", "accuracy", 98.8, 0.034),
        ("table1", "cifar100", "+ SB-ECE", "ece", 14.7, 1.370),
        ("table1", "anli", "+ ESD", "ece+vector", 4.42, 1.010),
        ("table2", "cifar10", "+ ESD (b64)", "ece+vector", 2.65, 1.48),
        ("table2", "snli", "+ ESD (b128)", "ece+temperature", 0.68, 0.190),
        ("table3", "cifar100", "+ ECE (b128)", "ece", 21.0, 0.552),
    ],
)
def test_some_numbers(table: str, recipe: str, row: str, column: str, mean: float, std: float) -> None:
    assert beside(table, recipe)[row][column][:2] == (mean, std)


@pytest.mark.parametrize(("table", "recipe"), [("table1", "digits"), ("table2", "mnist"), ("table3", "cifar10")])
def test_what_the_paper_lacks_is_empty(table: str, recipe: str) -> None:
    assert beside(table, recipe) == {}


def test_the_numbers_stand_only_beside_the_papers_data_and_network(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"of another training")
    assert beside("table1", "cifar10", epochs=3, batch_size=64)
    assert beside("table1", "snli", model=str(tmp_path / "bert-base-uncased"))
    assert beside("table1", "cifar10", model="resnet20") == {}
    assert beside("table1", "cifar10", initial_weights=str(weights)) == {}
    assert published(paper_sweep("table1", "mnist", "cpu", {"name": "mine"})) == {}


def test_a_recipe_of_ones_own_has_no_published_numbers_whatever_its_name(tmp_path: Path) -> None:
    source = "from calibrant_lab.recipes import digits as mnist\n"
    (tmp_path / "own.py").write_text(source)
    assert beside("table1", f"{tmp_path / 'own.py'}:mnist") == {}
