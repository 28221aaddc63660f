"""The examples run as they stand, without a warning, and print what they say."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
# What each prints, in this order; one is quick.
PRINTED = {
    "audit_risk_score": ["overstated by a factor", "region = south", "Corrected in each region", "is not rejected"],
    "monitor_weekly": ["exit status 0", "exit status 1 calibrant: week4: worse-than-baseline", "audits.csv has"],
    "plain_pytorch": ["cross-entropy", "+ temperature", "CalibratedLoss", "ECE-sweep"],
    "with_hugging_face": ["Trainer", "+ temperature", "InterleavedTrainer"],
    "with_lightning": ["epoch 40", "cross-entropy", "+ temperature", 'method="temperature"'],
    "with_scikit_learn": ["as it is", "Calibrant, auto", "Mixture", "95 % interval of a - b"],
}
NEEDED = {"with_lightning": "lightning", "with_hugging_face": "transformers"}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_and_prints_what_it_says(name: str, tmp_path: Path) -> None:
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    done = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    place = 0
    for part in PRINTED[name]:
        place = done.stdout.index(part, place) + len(part)
    assert list(tmp_path.iterdir()) == []


def test_the_readme_of_the_examples_lists_each() -> None:
    text = (FOLDER / "README.md").read_text()
    assert {path.stem for path in FOLDER.glob("*.py")} == set(PRINTED)
    for path in FOLDER.iterdir():
        if path.name not in ("README.md", "__pycache__"):
            assert f"({path.name})" in text


def test_no_example_shadows_a_package() -> None:
    assert [name for name in PRINTED if importlib.util.find_spec(name) is not None] == []
