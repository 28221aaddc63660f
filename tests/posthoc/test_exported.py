"""ONNX models of every method give the probabilities of predict_proba; the search for a bin equals torch's."""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from calibrant import posthoc
from calibrant.posthoc import AutoCalibration, Calibrator, ConformalClassifier, TemperatureScaling
from calibrant.posthoc.map import TorchOps, halving_search
from tests.posthoc.data import CALIBRATORS, FIT, TARGET, TEST, overconfident

MAKERS: dict[str, Callable[[], Calibrator]] = {
    "temperature strict": lambda: TemperatureScaling(strict=True),
    **CALIBRATORS,
}
SATURATED = torch.tensor([[1e4, -1e4, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-90.0, 20.0, 20.0, 0.0], [88.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize("right", [False, True])
@given(
    table=arrays.arrays(np.float32, st.tuples(st.just(2), st.integers(0, 40)), elements=st.integers(-5, 5)),
    position=arrays.arrays(np.float32, (2, 9), elements=st.sampled_from([-6, -5, 0, 0.5, 3, 5, 6, np.inf, np.nan])),
)
def test_the_search_in_exported_programs_is_that_of_torch(right: bool, table: Any, position: Any) -> None:
    ascending, places = torch.from_numpy(table).sort(1).values, torch.from_numpy(position)
    found = halving_search(TorchOps(), ascending, places, right, torch.zeros_like(places, dtype=torch.long))
    assert torch.equal(found, torch.searchsorted(ascending, places, right=right))


@pytest.fixture
def runtime() -> Any:
    pytest.importorskip("onnx", reason="ONNX export needs onnx")
    return pytest.importorskip("onnxruntime", reason="onnxruntime runs the exported models")


def session(runtime: Any, path: Path) -> Any:
    return runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", MAKERS)
def test_onnx_gives_the_probabilities_of_every_method(name: str, runtime: Any, tmp_path: Path) -> None:
    calibrator = MAKERS[name]().fit(FIT.float(), TARGET)
    path = tmp_path / "calibrator.onnx"
    posthoc.to_onnx(calibrator, path)
    run = session(runtime, path)
    for logits in (TEST[:1].float(), TEST.float(), SATURATED, FIT.float()):
        (found,) = run.run(["probabilities"], {"logits": logits.numpy()})
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, calibrator.predict_proba(logits).numpy(), rtol=0, atol=1e-6)


def test_labels_and_operators_are_those_asked_for(runtime: Any, tmp_path: Path) -> None:
    import onnx

    path = tmp_path / "new" / "calibrator.onnx"
    target = np.asarray(["ant", "bee", "cat", "dog"])[TARGET.numpy()]
    calibrator = TemperatureScaling().fit(FIT.numpy(), target)  # float64 parameters
    posthoc.to_onnx(calibrator, path)
    run = session(runtime, path)
    (found,) = run.run(["probabilities"], {"logits": TEST[:5].float().numpy()})
    np.testing.assert_allclose(found, calibrator.predict_proba(TEST[:5].float()).numpy(), rtol=0, atol=1e-6)
    metadata = run.get_modelmeta().custom_metadata_map
    assert metadata["calibrant.method"] == "TemperatureScaling"
    assert json.loads(metadata["calibrant.labels"]) == ["ant", "bee", "cat", "dog"]
    assert [each.version for each in onnx.load(path).opset_import if each.domain == ""] == [18]


@pytest.mark.parametrize("classes", [2, 60])
def test_few_and_many_classes(classes: int, runtime: Any, tmp_path: Path) -> None:
    logits, target = overconfident(3000, classes, 2.0, seed=3)
    calibrator = AutoCalibration().fit(logits.float(), target)
    posthoc.to_onnx(calibrator, tmp_path / "auto.onnx")
    (found,) = session(runtime, tmp_path / "auto.onnx").run(None, {"logits": logits.float().numpy()})
    np.testing.assert_allclose(found, calibrator.predict_proba(logits.float()).numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("score", ["lac", "aps", "raps", "top-k"])
def test_sets_are_exported_too(score: Any, runtime: Any, tmp_path: Path) -> None:
    conformal = ConformalClassifier(score, randomized=False).fit(FIT.float(), TARGET)
    posthoc.to_onnx(conformal, tmp_path / "sets.onnx")
    (found,) = session(runtime, tmp_path / "sets.onnx").run(["sets"], {"logits": TEST.float().numpy()})
    assert np.array_equal(found, conformal.predict_set(TEST.float()).numpy())


def test_sets_of_groups_take_positions(runtime: Any, tmp_path: Path) -> None:
    names = [("north", 1), ("south", 2)]
    groups = [names[place % 2] for place in range(len(TARGET))]
    conformal = ConformalClassifier("lac", coverage="group-conditional").fit(FIT.float(), TARGET, groups=groups)
    posthoc.to_onnx(conformal, tmp_path / "sets.onnx")
    run = session(runtime, tmp_path / "sets.onnx")
    assert [each.name for each in run.get_inputs()] == ["logits", "groups"]
    assert json.loads(run.get_modelmeta().custom_metadata_map["calibrant.groups"]) == [["north", 1], ["south", 2]]
    places = np.arange(len(TEST)) % 2
    (found,) = run.run(["sets"], {"logits": TEST.float().numpy(), "groups": places})
    expected = conformal.predict_set(TEST.float(), groups=[names[place] for place in places])
    assert np.array_equal(found, expected.numpy())
    (found,) = run.run(["sets"], {"logits": TEST.float().numpy(), "groups": places - 3})
    assert found.all()


@pytest.mark.parametrize("score", ["aps", "raps"])
def test_randomised_sets_are_refused_before_the_export(score: Any, runtime: Any, tmp_path: Path) -> None:
    conformal = ConformalClassifier(score).fit(FIT, TARGET)
    with pytest.raises(ValueError, match="randomized=False"):
        posthoc.to_onnx(conformal, tmp_path / "sets.onnx")
    assert not list(tmp_path.iterdir())


def test_binary_input_is_zeros_and_the_logit(runtime: Any, tmp_path: Path) -> None:
    logit = FIT[:, 0].float()
    calibrator = TemperatureScaling().fit(logit, (TARGET == 0).long())
    posthoc.to_onnx(calibrator, tmp_path / "binary.onnx")
    both = np.stack((np.zeros(len(logit), np.float32), logit.numpy()), axis=1)
    (found,) = session(runtime, tmp_path / "binary.onnx").run(None, {"logits": both})
    np.testing.assert_allclose(found, calibrator.predict_proba(logit).numpy(), rtol=0, atol=1e-6)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "calibrant.posthoc.onnx_graph", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"calibrant\[onnx\]"):
        posthoc.to_onnx(TemperatureScaling().fit(FIT, TARGET), tmp_path / "calibrator.onnx")


def test_tables_that_were_fitted_in_float64_are_warned_of(tmp_path: Path) -> None:
    target = torch.arange(len(FIT)) % FIT.shape[1]
    for dtype, warned in ((torch.float32, 0), (torch.float64, 1)):
        calibrator = posthoc.IsotonicCalibration().fit(FIT.to(dtype), target)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", posthoc.FitWarning)
            posthoc.to_onnx(calibrator, tmp_path / "isotonic.onnx")
        assert sum("fitted in float64" in str(each.message) for each in caught) == warned
