"""A sweep as a file: what it refuses, in one line that names the key."""

import re
from pathlib import Path

import pytest

from calibrant_lab.paper.profiles import PROFILES, paper_sweep
from calibrant_lab.sweeps.sweep import Sweep


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grids]\nwieght = [1]", "grids: no method searches 'wieght', did you mean weight: choose from weight, "),
        ("[grids]\nweight = [1]\nsoftness = [1]", "grids: no method searches 'softness': choose from weight, "),
        ('[grids]\n"mmce.weight" = [1]', "grids: no method searches 'mmce.weight', did you mean "),
        ('methods = ["loop"]\n[grids]\nweight = [1, 2]', "grids: no method searches 'weight': choose from none"),
        ("[grids]\nweight = []", "grids.weight should have at least 1 item, got []"),
        ("[grids]\nweight = 1", "grids.weight should be a list, got 1"),
        ('[grids]\nweight = ["a"]', "grids.weight should be a valid number, "),
        ('select = "accuracy"', "select: a lower accuracy is not better: choose a score such as ece, "),
        ('select = "gap"', "select: a lower gap is not better"),
        ('select = "mean_confidence"', "select: a lower mean_confidence is not better"),
        ('columns = ["ecee"]', "columns: unknown metric 'ecee', did you mean ece: choose from accuracy, "),
        ('columns = "ece"', "columns should be a list, got 'ece'"),
        ("[settings]\nepoch = 3", "settings: unknown setting 'epoch', did you mean epochs: choose from "),
        ("search_seeds = 6", "search-seeds must be from 1 to 5, "),
    ],
)
def test_a_mistake_is_one_line_that_names_its_key(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    methods = "" if "methods" in text else 'methods = ["esd", "avuc"]\n'
    path.write_text(f'recipe = "digits"\n{methods}{text}\n')
    with pytest.raises(ValueError, match=rf"\A{re.escape(f'{path}: {message}')}[^\n]*\Z"):
        Sweep.read(path)


def test_a_sweep_needs_a_recipe() -> None:
    with pytest.raises(ValueError, match=r"\Arecipe is required\Z"):
        Sweep.checked({"methods": ["esd"]})


def test_a_sweep_is_written_and_read_by_path_or_string(tmp_path: Path) -> None:
    for sweep in (
        Sweep(recipe="digits", methods=("loop",)),  # the default grid, which loop does not search
        Sweep(recipe="digits", methods=("mmce", "esd"), grids={"mmce.bandwidth": (0.2,), "esd.weight": (1.0,)}),
        Sweep(recipe="digits", methods=("esd",), select="nll", columns=("log_loss", "nll")),
        *(paper_sweep("table1", "digits", profile, {"methods": ["esd"]}) for profile in PROFILES),
    ):
        (tmp_path / "mine.toml").write_text(sweep.to_toml(), encoding="utf-8")
        assert Sweep.read(str(tmp_path / "mine.toml")) == Sweep.read(tmp_path / "mine.toml") == sweep
