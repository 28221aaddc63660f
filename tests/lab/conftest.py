"""What several tests of this folder need, made once."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calibrant_lab.trials.store import Store
from tests.lab import interrupted_sweep as sweeps


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store in which there is nothing yet."""
    return Store(tmp_path / "my runs")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a sweep that nobody interrupted."""
    folder = tmp_path_factory.mktemp("sweeps") / "undisturbed"
    assert sweeps.end(sweeps.begin(folder, "local")) == (0, "")
    assert len(sweeps.left_by(folder)) == sweeps.TRIALS
    return folder


@pytest.fixture
def begin() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Begin sweeps, which end with the test at the latest."""
    begun = []

    def begin(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
        begun.append(sweeps.begin(folder, *arguments))
        return begun[-1]

    yield begin
    for process in begun:
        if process.poll() is None:
            process.kill()
            process.communicate()
