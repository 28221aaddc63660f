"""A sweep as a file: what it refuses, in one line that names the key."""

import re
from pathlib import Path

import pytest

from calibrant_lab.paper.profiles import PROFILES, paper_sweep
from calibrant_lab.sweeps.sweep import Sweep


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("[grids]\nwieght = [1]", "grids.*weight"),
        ("[grids]\nweight = [1]\nsoftness = [1]", "grids.*softness"),
        ('[grids]\n"mmce.weight" = [1]', "grids.*mmce.weight"),
        ('methods = ["loop"]\n[grids]\nweight = [1, 2]', "grids.*none"),
        ("[grids]\nweight = []", "grids.weight"),
        ('[grids]\nweight = ["a"]', "grids.weight.*number"),
        ('select = "accuracy"', "select.*accuracy"),
        ('select = "mean_confidence"', "select.*mean_confidence"),
        ('columns = ["ecee"]', "columns.*ece,"),
    ],
)
def test_an_error_is_one_line_that_names_the_file_and_the_key(text: str, token: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    methods = "" if "methods" in text else 'methods = ["esd", "avuc"]\n'
    path.write_text(f'recipe = "digits"\n{methods}{text}\n')
    with pytest.raises(ValueError, match=rf"\A{re.escape(str(path))}: {token}[^\n]*\Z"):
        Sweep.read(path)


def test_a_sweep_needs_a_recipe() -> None:
    with pytest.raises(ValueError, match="recipe"):
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
