"""The paper's numbers are those that it printed."""

import hashlib
from importlib.resources import files
from pathlib import Path

from calibrant_lab.paper.profiles import RECIPES, TABLES, paper_sweep
from calibrant_lab.paper.published import Printed, published


def beside(table: str, recipe: str, **settings: object) -> dict[str, dict[str, Printed]]:
    return published(paper_sweep(table, recipe, "cpu", {"settings": settings}))


def test_every_number_is_as_printed() -> None:
    # Every cell was compared with the LaTeX source of the paper when this digest was taken.
    text = (files("calibrant_lab.paper") / "published.txt").read_text(encoding="utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "472543bf725a93c38debffc109f3add571f30c0e9dc006c6cf94ff470a71a5a8"


def test_every_number_is_read() -> None:
    cells = {table: sum(len(row) for one in RECIPES for row in beside(table, one).values()) for table in TABLES}
    assert cells == {"table1": 6 * 4 * 5, "table2": 2 * 5 * 5, "table3": 4 * 2}
    assert beside("table1", "cifar100")["+ SB-ECE"]["ece"][:2] == (14.7, 1.370)
    assert beside("table2", "snli")["+ ESD (b128)"]["ece+temperature"][:2] == (0.68, 0.190)


def test_the_numbers_stand_only_beside_the_papers_data_and_network(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"of another training")
    assert beside("table1", "cifar10", epochs=3, batch_size=64)
    assert beside("table1", "snli", model=str(tmp_path / "bert-base-uncased"))
    assert beside("table1", "cifar10", model="resnet20") == {}
    assert beside("table1", "cifar10", initial_weights=str(weights)) == {}
    assert published(paper_sweep("table1", "mnist", "cpu", {"name": "mine"})) == {}
    for table, recipe in (("table1", "digits"), ("table2", "mnist"), ("table3", "cifar10")):
        assert beside(table, recipe) == {}
    (tmp_path / "own.py").write_text("from calibrant_lab.recipes import digits as mnist\n")
    assert beside("table1", f"{tmp_path / 'own.py'}:mnist") == {}
