"""Every command of the audit side runs where torch is not installed."""

from pathlib import Path

import numpy as np

from tests.shell import run_without

SKLEARN = """
import warnings
from calibrant.sklearn import PredictionCalibrator
warnings.simplefilter("ignore")
PredictionCalibrator("temperature").fit([[0.0, 3.0], [2.0, 0.0]] * 20, [1, 1, 0, 0] * 10).predict_proba([[0.0, 1.0]])
"""


def table(path: Path, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(300, classes))
    target = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(1)
    header = ",".join([*(f"logits_{k}" for k in range(classes)), "target", "region", "day"])
    rows = np.column_stack((logits.round(4), target, np.arange(300) % 2, np.arange(300) // 30))
    path.write_text("\n".join([header, *(",".join(f"{cell:g}" for cell in row) for row in rows)]))


def test_files_are_audited_recalibrated_and_watched_without_torch(tmp_path: Path) -> None:
    for name, classes, seed in (("fit", 3, 0), ("new", 3, 1), ("risk", 2, 2), ("last", 2, 3)):
        table(tmp_path / f"{name}.csv", classes, seed)
    commands = [
        "evaluate fit.csv new.csv --draws 20 --report page.html",
        "evaluate fit.csv --draws 20 --engine duckdb",
        "evaluate risk.csv --draws 20 --group region --time day --baseline last.csv --history history.csv --json",
        "recalibrate --fit fit.csv --apply new.csv --save auto.safetensors",
        "recalibrate --fit fit.csv --method vector --prior 0.2,0.3,0.5 --save prior.safetensors",
        "apply new.csv --calibrator auto.safetensors --out out.parquet",
        "apply new.csv --calibrator prior.safetensors --out out.npz",
        "train --recipe digits",
    ]
    *audits, (error, status) = run_without(["torch"], commands, tmp_path, SKLEARN)
    assert audits == [("", 0)] * (len(commands) - 1)
    assert "pip install 'calibrant[lab]'" in error
    assert status == 2
    written = {"page.html", "history.csv", "new-calibrated.csv", "auto.safetensors", "out.parquet", "out.npz"}
    assert written <= {path.name for path in tmp_path.iterdir()}
