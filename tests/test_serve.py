"""The example server: what it answers is what the calibrator says, by label, and bad input is explained."""

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import posthoc

APP = Path(__file__).parent.parent / "examples" / "serve" / "app.py"
NAMES = np.asarray(["ant", "bee", "cat"])
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def held_out() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    target = rng.integers(3, size=500)
    return (3 * (rng.standard_normal((500, 3)) + np.eye(3)[target])).astype(np.float32), NAMES[target]


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> posthoc.Calibrator:
    calibrator, path = posthoc.IsotonicCalibration().fit(*held_out()), tmp_path / "calibrator.safetensors"
    posthoc.save(calibrator, path)
    monkeypatch.setenv("CALIBRATOR", str(path))
    return calibrator


def loaded_app() -> Any:
    for package in ("fastapi", "httpx"):
        pytest.importorskip(package, reason=f"the example server needs {package}")
    return runpy.run_path(str(APP))["app"]


@pytest.fixture
def client(saved: posthoc.Calibrator) -> Any:
    app = loaded_app()
    from fastapi.testclient import TestClient

    return TestClient(app)


def test_sets_are_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posthoc.save(posthoc.ConformalClassifier().fit(*held_out()), tmp_path / "sets.safetensors")
    monkeypatch.setenv("CALIBRATOR", str(tmp_path / "sets.safetensors"))
    with pytest.raises(ValueError, match="ConformalClassifier"):
        loaded_app()


def test_no_samples_have_no_answers(client: Any) -> None:
    answer = client.post("/predict", json={"logits": []})
    assert (answer.status_code, answer.json()) == (200, [])


def test_the_server_answers_with_calibrated_probabilities(client: Any, saved: posthoc.Calibrator) -> None:
    logits = held_out()[0][:7]
    answer = client.post("/predict", json={"logits": logits.tolist()})
    assert answer.status_code == 200
    rows = answer.json()
    assert [list(row) for row in rows] == [list(NAMES)] * 7
    found = np.asarray([list(row.values()) for row in rows])
    np.testing.assert_allclose(found, saved.predict_proba(logits), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([[1.0, 2.0]], "of 2 classes"),
        ([[1.0, 2.0, 3.0], [1.0]], "same length"),
        ([[]], "(N, C)"),
        ([[1.0, 2.0, np.inf]], "finite"),
    ],
)
def test_bad_input_is_explained(client: Any, logits: Any, message: str) -> None:
    body = json.dumps({"logits": logits})  # the client itself refuses infinity
    answer = client.post("/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert message in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]
