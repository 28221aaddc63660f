"""`calibrant recalibrate --save` and `calibrant apply`, as a user runs them."""

import json
from pathlib import Path

import numpy as np
import pytest

from calibrant import posthoc
from calibrant.posthoc import METHODS, ConformalClassifier
from tests.commands.test_evaluate import run
from tests.commands.test_recalibrate import folder, sample

__all__ = ["folder"]  # the fixture
SAVED = "calibrator.safetensors"


def save(*, method: str = "temperature") -> None:
    logits, target = sample(400, 1)
    posthoc.save(METHODS[method]().fit(logits, target), SAVED)


@pytest.mark.parametrize("method", ["temperature", "vector", "isotonic", "ensemble-temperature"])
def test_a_saved_calibrator_gives_what_recalibrate_gave(
    folder: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--fit", "val.npz", "--apply", "test.npz", "--method", method, "--out", "first.npz", "--save", SAVED]
    assert run("recalibrate", *options, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert first["calibrator"] == SAVED
    assert run("apply", "test.npz", "--calibrator", SAVED, "--json") == 0
    second = json.loads(capsys.readouterr().out)
    assert second["method"] == METHODS[method].__name__
    assert (second["calibrator"], second["out"]) == (SAVED, "test-calibrated.npz")
    assert (second["before"], second["after"]) == (first["before"], first["after"])
    with np.load("first.npz") as one, np.load("test-calibrated.npz") as other:
        assert np.array_equal(one["probabilities"], other["probabilities"])
        assert np.array_equal(other["target"], sample(300, 2)[1])


def test_a_calibrator_is_saved_without_predictions_to_apply_it_to(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name for path in folder.iterdir()}
    assert run("recalibrate", "--fit", "val.npz", "--method", "temperature", "--save", f"new/{SAVED}") == 0
    shown = " ".join(capsys.readouterr().out.split())
    temperature = posthoc.load(folder / "new" / SAVED).temperature_
    assert f"temperature {temperature:.4g}, fitted on val.npz" in shown
    assert f"Saved: new/{SAVED}" in shown
    assert {path.name for path in folder.iterdir()} == before | {"new"}
    assert run("recalibrate", "--fit", "val.npz", "--method", "temperature", "--save", SAVED, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "method": "temperature", "temperature": temperature, "notices": [], "calibrator": SAVED, "out": None,
        "before": None, "after": None,
    }  # fmt: skip


def test_scores_are_shown_if_there_are_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save()
    assert run("apply", "test.npz", "--calibrator", SAVED, "--out", "sub/out.csv") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"TemperatureScaling from {SAVED}." in shown
    assert "before after convention" in shown
    assert "Written: sub/out.csv" in shown
    np.savez("new.npz", logits=sample(50, 3)[0])
    assert run("apply", "new.npz", "--calibrator", SAVED) == 0
    assert "new.npz has no target" in capsys.readouterr().out
    with np.load("new-calibrated.npz") as file:
        assert file.files == ["probabilities"]


@pytest.mark.parametrize("rows", [1, 2])
def test_a_few_labelled_rows_are_calibrated_without_scores(
    folder: Path, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    save()
    logits, target = sample(rows, 3)
    np.savez("few.npz", logits=logits, target=target)
    said = "few.npz has fewer than 3 rows, so there are no scores to show. Written: few-calibrated.npz"
    assert run("apply", "few.npz", "--calibrator", SAVED) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    with np.load("few-calibrated.npz") as file:
        assert file["probabilities"].shape == (rows, 3)
        assert np.array_equal(file["target"], target)
    assert run("recalibrate", "--fit", "val.npz", "--apply", "few.npz", "--method", "temperature") == 0
    assert said in " ".join(capsys.readouterr().out.split())
    assert run("apply", "few.npz", "--calibrator", SAVED, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["before"], found["after"]) == (None, None)


BAD: dict[str, tuple[list[str], str]] = {
    "no calibrator": (["apply", "test.npz", "--calibrator", "nope.safetensors"], "nope.safetensors: no such file"),
    "folder": (["apply", "test.npz", "--calibrator", "."], ".: cannot be read: Is a directory"),
    "not one": (["apply", "test.npz", "--calibrator", "val.npz"], "val.npz: is not a safetensors file"),
    "truncated": (["apply", "test.npz", "--calibrator", "cut.safetensors"], "cut.safetensors: is truncated"),
    "sets": (["apply", "test.npz", "--calibrator", "sets.safetensors"], "holds a ConformalClassifier, which gives"),
    "labels": (
        ["apply", "test.npz", "--calibrator", "labels.safetensors"],
        "holds a MultiLabelCalibration, which gives probabilities of several labels",
    ),
    "classes": (["apply", "two.npz", "--calibrator", SAVED], "two.npz: TemperatureScaling was fitted on 3 classes"),
    "no file": (["apply", "nope.npz", "--calibrator", SAVED], "nope.npz: no such file"),
    "overwritten": (["apply", "test.npz", "--calibrator", SAVED, "--out", "test.npz"], "test.npz: would be"),
    "suffix": (["apply", "test.npz", "--calibrator", SAVED, "--out", "x.txt"], "x.txt: expected one of"),
    "nothing to do": (["recalibrate", "--fit", "val.npz"], "give --apply FILE, --save FILE, or both"),
    "no use": (["recalibrate", "--fit", "val.npz", "--save", SAVED, "--out", "x.npz"], "--out is for the"),
    "name": (["recalibrate", "--fit", "val.npz", "--save", "c.pt"], "c.pt: expected a name that ends in .safetensors"),
    "is input": (["recalibrate", "--fit", "val.npz", "--save", "val.npz"], "val.npz: would be overwritten"),
}  # fmt: skip


@pytest.mark.slow_after(7)
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_status_2_and_writes_nothing(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save()
    logits, target = sample(50, 3)
    posthoc.save(ConformalClassifier().fit(logits, target), "sets.safetensors")
    posthoc.save(posthoc.MultiLabelCalibration("platt").fit(logits, np.eye(3, dtype=int)[target]), "labels.safetensors")
    Path("cut.safetensors").write_bytes(Path(SAVED).read_bytes()[:-2])
    np.savez("two.npz", logits=logits[:, :2], target=target % 2)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    arguments, message = BAD[name]
    assert run(*arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
