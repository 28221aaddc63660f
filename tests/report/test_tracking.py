"""One call stores scores, figures and the calibrator in MLflow and W&B; both with a local store."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant import metrics, posthoc, report
from tests.posthoc.data import overconfident

FIT, FIT_TARGET = overconfident(600, 3, 2.0, seed=0)
TEST, TEST_TARGET = overconfident(500, 3, 2.0, seed=1)
NAMES = np.asarray(["ant", "bee", "cat"])
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


def expected(calibrator: posthoc.Calibrator) -> dict[str, float]:
    probabilities = calibrator.predict_proba(TEST)
    return {
        "model/ece": metrics.ece(logits=TEST, target=TEST_TARGET),
        "calibrated/ece": metrics.ece(probabilities=probabilities, target=TEST_TARGET),
        "calibrated/log_loss": metrics.evaluate(probabilities=probabilities, target=TEST_TARGET).log_loss,
    }


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    package = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    before = package.get_tracking_uri()
    package.set_tracking_uri(f"file:{tmp_path / 'runs'}")
    yield package
    while package.active_run():
        package.end_run()
    package.set_tracking_uri(before)


def test_mlflow_gets_scores_figures_and_the_calibrator(mlflow: Any, tmp_path: Path) -> None:
    calibrator = posthoc.IsotonicCalibration().fit(FIT.numpy(), NAMES[FIT_TARGET.numpy()])
    with mlflow.start_run() as run:
        scores = report.log_mlflow(TEST, NAMES[TEST_TARGET.numpy()], calibrator=calibrator, step=3)
    client, number = mlflow.MlflowClient(), run.info.run_id
    found = client.get_run(number).data.metrics
    for key, value in expected(calibrator).items():
        assert found[f"calibration/{key}"] == pytest.approx(value, rel=1e-6)
    assert client.get_metric_history(number, "calibration/model/ece")[0].step == 3
    assert scores["calibrated"].ece < scores["model"].ece
    kept = {file.path for file in client.list_artifacts(number, "calibration")}
    assert kept == {f"calibration/{name}" for name in (
        "calibrator.safetensors", "reliability-model.png", "reliability-calibrated.png"
    )}  # fmt: skip
    path = client.download_artifacts(number, "calibration/calibrator.safetensors", str(tmp_path))
    assert torch.equal(posthoc.load(path).predict_proba(TEST), calibrator.predict_proba(TEST))


def test_mlflow_takes_a_run_by_its_number_and_needs_one(mlflow: Any) -> None:
    with pytest.raises(ValueError, match="run_id="):
        report.log_mlflow(TEST, TEST_TARGET)
    client = mlflow.MlflowClient()
    number = client.create_run("0").info.run_id
    report.log_mlflow(TEST.numpy(), TEST_TARGET.numpy(), run_id=number, folder="test")
    assert mlflow.active_run() is None
    assert {name.split("/")[1] for name in client.get_run(number).data.metrics} == {"model"}
    assert [file.path for file in client.list_artifacts(number, "test")] == ["test/reliability-model.png"]


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in {"MODE": "offline", "ERROR_REPORTING": "false", "SILENT": "true", "DIR": tmp_path}.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    for name in ("cache", "data", "config"):
        monkeypatch.setenv(f"WANDB_{name.upper()}_DIR", str(tmp_path / name))
    return pytest.importorskip("wandb", reason="wandb is not installed")


@pytest.mark.slow
def test_wandb_gets_scores_figures_and_the_calibrator(wandb: Any, tmp_path: Path) -> None:
    calibrator = posthoc.TemperatureScaling().fit(FIT, FIT_TARGET)
    with pytest.raises(ValueError, match=r"wandb\.init"):
        report.log_wandb(TEST, TEST_TARGET, calibrator=calibrator)
    with wandb.init(project="calibration", mode="offline", dir=tmp_path) as run:
        report.log_wandb(TEST, TEST_TARGET, calibrator=calibrator)
        summary = dict(run.summary)
    for key, value in expected(calibrator).items():
        assert summary[f"calibration/{key}"] == pytest.approx(value, rel=1e-6)
    assert len(list(tmp_path.rglob("calibration/*/reliability_*.png"))) == 2
    staged = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert any(posthoc.load(path).temperature_ == calibrator.temperature_ for path in staged)


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=rf"calibrant\[{name}\]"):
        getattr(report, f"log_{name}")(TEST, TEST_TARGET)
