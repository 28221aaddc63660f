import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from tests.report.data import classifier

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs/audit_figure.py"


@pytest.mark.slow
def test_the_picture_of_the_readme_can_be_drawn(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {}
    for name, seed in (("val", 0), ("test", 1)):
        given = classifier(samples=300, sharpness=2.0, seed=seed)
        arrays |= {f"{name}_logits": given.logits, f"{name}_labels": given.target}
    np.savez(tmp_path / "predictions.npz", **arrays)
    out = tmp_path / "audit.png"
    subprocess.run([sys.executable, SCRIPT, tmp_path / "predictions.npz", "--out", out], check=True)
    assert imread(out).std() > 0.1


@pytest.mark.slow
def test_a_file_without_the_arrays_ends_in_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", logits=np.zeros((3, 2)))
    ended = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "other.npz"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "test_logits" in ended.stderr.splitlines()[-1]
