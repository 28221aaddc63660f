"""The source archive and the wheel have what they need, and no file names a place on somebody's machine."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def build(target: str, folder: Path) -> Path:
    """Build an archive without a network."""
    pytest.importorskip("hatchling", reason="needs hatchling, which builds the package: pip install hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("calibrant-*"))


@pytest.mark.slow
def test_the_tests_in_the_source_archive_can_be_collected(tmp_path: Path) -> None:
    archive = build("sdist", tmp_path)
    assert archive.stat().st_size < 4e6
    with tarfile.open(archive) as file:
        assert not [name for name in file.getnames() if re.search(r"__pycache__|\.(pyc|npz|pt|gz|so)$", name)]
        file.extractall(tmp_path, filter="data")
    folder = tmp_path / archive.name.removesuffix(".tar.gz")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": f"{folder}/src{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_packages(tmp_path: Path) -> None:
    ours = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").glob("calibrant*/**/*.*")}
    with zipfile.ZipFile(build("wheel", tmp_path)) as file:
        inside = {name for name in file.namelist() if ".dist-info/" not in name}
    assert inside == {name for name in ours if "__pycache__" not in name}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a source archive has no list of tracked files")
def test_no_file_names_a_place_on_a_machine() -> None:
    place = re.compile(r"[.]{2}/shared|(?<![\w.}])/(home|root|Users|work|mnt)/")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    found = [
        f"{name}: {line.strip()[:100]}"
        for name in tracked.stdout.splitlines()
        if name != ".ci/run" and Path(name).suffix not in (".npz", ".png", ".zip")
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
        if place.search(line)
    ]
    assert not found
