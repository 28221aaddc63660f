"""Files of calibrators: what was fitted comes back to the bit, anywhere, and other files are refused in one line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import calibrant
from calibrant import posthoc
from calibrant.posthoc import ConformalClassifier, MatrixScaling, TemperatureScaling
from calibrant.posthoc.fit import Fitted
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.saved import KEY, read_header
from tests.posthoc.data import CALIBRATORS, FIT, TARGET, TEST

MAKERS: dict[str, Callable[[], Any]] = {
    **CALIBRATORS,
    "conformal": ConformalClassifier,
    "raps": lambda: ConformalClassifier("raps", 0.2, penalty="tune", rank="tune", seed=3),
    "temperature strict": lambda: TemperatureScaling(strict=True),
    "matrix cross-validated": lambda: MatrixScaling("cv", 0.5),
    "histogram of seven bins": lambda: posthoc.HistogramBinning(7, "equal-width", "class-wise"),
}


def results(calibrator: Any) -> torch.Tensor:
    predict = calibrator.predict_set if hasattr(calibrator, "predict_set") else calibrator.predict_proba
    return torch.as_tensor(predict(TEST))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calibrator.safetensors"


@pytest.fixture
def written(path: Path) -> Path:
    posthoc.save(TemperatureScaling().fit(FIT, TARGET), path)
    return path


def changed(path: Path, **changes: Any) -> Path:
    """A copy of a file with another header."""
    copy = path.with_name("changed.safetensors")
    save_file(load_file(path), copy, {KEY: json.dumps(read_header(path) | changes)})
    return copy


@pytest.mark.parametrize("name", MAKERS)
def test_what_was_fitted_comes_back_to_the_bit(name: str, path: Path) -> None:
    calibrator = MAKERS[name]().fit(FIT.float(), TARGET)
    posthoc.save(calibrator, path)
    loaded = posthoc.load(path)
    assert type(loaded) is type(calibrator)
    assert repr(loaded) == repr(calibrator)
    assert torch.equal(results(loaded), results(calibrator))
    for attribute in loaded.found:
        np.testing.assert_equal(getattr(loaded, attribute), getattr(calibrator, attribute))
    again = path.with_name("again.safetensors")
    posthoc.save(loaded, again)
    assert read_header(again) == read_header(path)


def test_every_class_that_a_user_can_fit_can_be_saved() -> None:
    offered = {getattr(posthoc, name) for name in posthoc.__all__ if isinstance(getattr(posthoc, name), type)}
    fitted = {kind for kind in offered if issubclass(kind, Fitted) and not getattr(kind, "__abstractmethods__", None)}
    assert fitted <= set(Fitted.kinds.values())
    assert fitted >= set(METHODS.values()) | {ConformalClassifier}


def test_the_header_says_what_the_file_is(path: Path) -> None:
    target = np.asarray(["ant", "bee", "cat", "dog"])[TARGET.numpy()]
    calibrator = posthoc.SplineCalibration(view="class-wise").fit(FIT.numpy(), target)
    posthoc.save(calibrator, path)
    header = read_header(path)
    assert header["format"] == "calibrant-calibrator"
    assert header["version"] == 2
    assert header["method"] == "SplineCalibration"
    assert header["options"] == {"knots": 6, "view": "class-wise", "strict": False}
    assert (header["classes"], header["rows"]) == (4, 2000)
    assert header["labels"] == ["ant", "bee", "cat", "dog"]
    assert set(load_file(path)) == {"of.curve.knots", "of.curve.values"}
    assert posthoc.load(path).predict(TEST).tolist() == calibrator.predict(TEST).tolist()


def test_a_file_replaces_another_whole_or_not_at_all(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ValueError, match="No space"):
        posthoc.save(posthoc.VectorScaling().fit(FIT, TARGET), written)
    monkeypatch.undo()
    assert written.read_bytes() == before
    assert os.listdir(written.parent) == [written.name]  # noqa: PTH208 (hidden files count)
    posthoc.save(posthoc.VectorScaling().fit(FIT, TARGET), written.parent / "new" / "vector.safetensors")
    with pytest.raises(ValueError, match="is a folder"):
        posthoc.save(TemperatureScaling().fit(FIT, TARGET), written.parent)
    with pytest.raises(ValueError, match="cannot be written"):
        posthoc.save(TemperatureScaling().fit(FIT, TARGET), written / "inside")


def test_other_files_are_refused_in_one_line(written: Path) -> None:
    whole = written.read_bytes()
    length = 8 + int.from_bytes(whole[:8], "little")
    for data in [
        b"",
        b"temperature,2.5\n" * 100,
        (5).to_bytes(8, "little") + b"{oops",
        whole[: length - 9],
        whole[:-1],
    ]:
        written.write_bytes(data)
        with pytest.raises(ValueError, match="not a safetensors file, or is damaged") as raised:
            posthoc.load(written)
        assert str(raised.value).startswith(f"{written}: ")
        assert "\n" not in str(raised.value)


def test_a_file_of_another_tool_is_refused(path: Path) -> None:
    for metadata in (None, {"format": "pt"}, {KEY: "[]"}):
        save_file({"temperature": np.ones(1)}, path, metadata)
        with pytest.raises(ValueError, match="not of a calibrator"):
            posthoc.load(path)


def test_a_newer_format_or_method_is_refused(written: Path) -> None:
    with pytest.raises(ValueError, match=r"version 3.*: install a newer calibrant"):
        posthoc.load(changed(written, version=3))
    with pytest.raises(ValueError, match="Oracle"):
        posthoc.load(changed(written, method="Oracle", calibrant="9.1"))
    with pytest.raises(ValueError, match="magic"):
        posthoc.load(changed(written, options={"magic": 1}))
    with pytest.raises(ValueError, match="cannot be restored"):
        posthoc.load(changed(written, map={"kind": "Oracle"}))
    header = read_header(written)
    del header["map"]
    save_file(load_file(written), written, {KEY: json.dumps(header)})
    with pytest.raises(ValueError, match="cannot be restored: 'map'"):
        posthoc.load(written)


@pytest.mark.parametrize(
    "kind", ["TemperatureScaling", "AutoCalibration", "MultiLabelCalibration", "PriorShift", "ConformalClassifier"]
)
def test_a_file_of_the_first_format_says_how_to_make_it_again(kind: str, path: Path) -> None:
    header = {"format": "calibrant-calibrator", "version": 1, "calibrant": "0.2.0", "method": kind, "options": {}}
    header |= {"classes": 2, "labels": None, "rows": 400, "inputs": None, "settings": {"": {"method": kind}}}
    save_file({"temperature": np.ones(())}, path, {KEY: json.dumps(header)})
    with pytest.raises(ValueError, match=r"version 1.* by calibrant 0\.2\.0.*: fit again and save, or use") as raised:
        posthoc.load(path)
    assert "\n" not in str(raised.value)


def test_another_kind_than_expected_is_refused_in_one_line(path: Path) -> None:
    posthoc.save(ConformalClassifier().fit(FIT, TARGET), path)
    assert isinstance(posthoc.load(path, kind=ConformalClassifier), ConformalClassifier)
    with pytest.raises(ValueError, match="expected a Calibrator"):
        posthoc.load(path, kind=posthoc.Calibrator)
    posthoc.save(TemperatureScaling().fit(FIT, TARGET), path)
    assert isinstance(posthoc.load(path, kind=posthoc.Calibrator), TemperatureScaling)


def test_what_cannot_be_saved_is_explained(path: Path) -> None:
    class Mine(TemperatureScaling):
        pass

    with pytest.raises(RuntimeError, match="TemperatureScaling is not fitted"):
        posthoc.save(TemperatureScaling(), path)
    with pytest.raises(TypeError, match="got Mine"):
        posthoc.save(Mine().fit(FIT, TARGET), path)
    with pytest.raises(TypeError, match="got dict"):
        posthoc.save({}, path)  # type: ignore[arg-type]
    dated = TemperatureScaling().fit(FIT, TARGET)
    dated.labels_ = [object()]
    with pytest.raises(TypeError, match="only numbers"):
        posthoc.save(dated, path)
    assert not path.exists()


SERVER = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "scipy", "sklearn", "pandas", "matplotlib", "transformers", "lightning"}:
            raise ModuleNotFoundError(f"no {name} here")
sys.meta_path.insert(0, Missing())
import numpy as np
from calibrant import posthoc
for path in sys.argv[2:]:
    calibrator = posthoc.load(path)
    logits = np.load(sys.argv[1])
    found = calibrator.predict_set(logits) if hasattr(calibrator, "predict_set") else calibrator.predict_proba(logits)
    np.save(path + ".npy", found)
"""


@pytest.mark.slow
def test_another_machine_needs_nothing_of_the_fit(tmp_path: Path) -> None:
    np.save(tmp_path / "logits.npy", TEST.numpy())
    fitted: dict[str, Any] = {name: make().fit(FIT, TARGET) for name, make in MAKERS.items()}
    files = {name: str(tmp_path / f"{name}.safetensors") for name in fitted}
    for name, calibrator in fitted.items():
        posthoc.save(calibrator, files[name])
    environment = os.environ | {"PYTHONPATH": str(Path(calibrant.__file__).parents[1])}
    command = [sys.executable, "-c", SERVER, str(tmp_path / "logits.npy"), *files.values()]
    subprocess.run(command, check=True, env=environment)
    for name, calibrator in fitted.items():
        assert np.array_equal(np.load(files[name] + ".npy"), results(calibrator).numpy()), name
