"""The example server: what it answers is what the calibrator says, by label, and bad input is explained."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import posthoc

APP = Path(__file__).parent.parent / "examples" / "serve" / "app.py"
NAMES = np.asarray(["ant", "bee", "cat"])


def held_out() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    target = rng.integers(3, size=500)
    return (3 * (rng.standard_normal((500, 3)) + np.eye(3)[target])).astype(np.float32), NAMES[target]


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> posthoc.Calibrator:
    calibrator = posthoc.IsotonicCalibration().fit(*held_out())
    posthoc.save(calibrator, tmp_path / "calibrator.safetensors")
    monkeypatch.setenv("CALIBRATOR", str(tmp_path / "calibrator.safetensors"))
    return calibrator


def loaded_app() -> Any:
    for package in ("fastapi", "httpx"):
        pytest.importorskip(package, reason=f"the example server needs {package}")
    spec = importlib.util.spec_from_file_location("serve_app", APP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app


@pytest.fixture
def client(saved: posthoc.Calibrator) -> Any:
    app = loaded_app()
    from fastapi.testclient import TestClient

    return TestClient(app)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sets_are_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posthoc.save(posthoc.ConformalClassifier().fit(*held_out()), tmp_path / "sets.safetensors")
    monkeypatch.setenv("CALIBRATOR", str(tmp_path / "sets.safetensors"))
    with pytest.raises(ValueError, match="ConformalClassifier"):
        loaded_app()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_samples_have_no_answers(client: Any) -> None:
    answer = client.post("/predict", json={"logits": []})
    assert (answer.status_code, answer.json()) == (200, [])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_server_answers_with_calibrated_probabilities(client: Any, saved: posthoc.Calibrator) -> None:
    logits = held_out()[0][:7]
    answer = client.post("/predict", json={"logits": logits.tolist()})
    assert answer.status_code == 200
    rows = answer.json()
    assert [list(row) for row in rows] == [list(NAMES)] * 7
    found = np.asarray([list(row.values()) for row in rows])
    np.testing.assert_allclose(found, saved.predict_proba(logits), rtol=0, atol=1e-7)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([[1.0, 2.0]], "fitted on 3 classes, got 2"),
        ([[1.0, 2.0, 3.0], [1.0]], "all rows of logits must have the same length"),
        ([[]], "logits must have shape (N, C)"),
        ([[1.0, 2.0, np.inf]], "logits must be finite"),
    ],
)
def test_bad_input_is_explained(client: Any, logits: Any, message: str) -> None:
    answer = client.post(
        "/predict", content=json.dumps({"logits": logits}), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422
    said = answer.json()["detail"]
    assert message in said
    assert "\n" not in said


def test_the_example_has_20_lines() -> None:
    assert len(APP.read_text().splitlines()) <= 20
