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


def named(path: str, columns: list[str], seed: int) -> None:
    """Write over-confident probabilities of ants and bees, with a bias for bees, in the order of the columns."""
    generator = np.random.default_rng(seed)
    odds = generator.normal(size=600)
    bee = generator.random(600) < 1 / (1 + np.exp(-odds))
    p = 1 / (1 + np.exp(-4 * odds - 2))
    by_name = {"ant": 1 - p, "bee": p, "cat": 1 - p}
    lines = [f"{','.join(f'prob_{name}' for name in columns)},label"]
    for row in range(600):
        values = ",".join(f"{by_name[name][row]:.9f}" for name in columns)
        lines.append(f"{values},{'bee' if bee[row] else next(name for name in columns if name != 'bee')}")
    Path(path).write_text("\n".join(lines) + "\n")


def test_columns_are_matched_by_the_names_of_the_classes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named("val.csv", ["ant", "bee"], 1)
    named("right.csv", ["ant", "bee"], 2)
    named("swapped.csv", ["bee", "ant"], 2)
    named("other.csv", ["cat", "bee"], 2)
    assert run("recalibrate", "--fit", "val.csv", "--save", SAVED) == 0
    assert posthoc.load(SAVED).classes_.tolist() == ["ant", "bee"]
    capsys.readouterr()
    scores = []
    for name in ("right.csv", "swapped.csv"):
        assert run("apply", name, "--calibrator", SAVED, "--json") == 0
        scores.append(json.loads(capsys.readouterr().out)["after"]["scores"]["log_loss"]["value"])
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)
    right, swapped = (Path(f"{name}-calibrated.csv").read_text().splitlines() for name in ("right", "swapped"))
    assert right[0] == "label,probabilities_ant,probabilities_bee"
    assert swapped[0] == "label,probabilities_bee,probabilities_ant"
    assert right[1].split(",")[1:] == swapped[1].split(",")[:0:-1]
    assert run("apply", "other.csv", "--calibrator", SAVED) == 2
    refusal = "its classes are cat, bee, but those of the calibrator ant, bee"
    assert refusal in " ".join(capsys.readouterr().err.split())


def test_a_file_of_float64_is_served_with_the_same_probabilities(folder: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    generator = np.random.default_rng(3)
    honest = 1.5 * generator.standard_normal((3000, 3))
    p = np.exp(honest) / np.exp(honest).sum(1, keepdims=True)
    target = (p.cumsum(1) < generator.random((3000, 1))).sum(1).clip(max=2)
    logits = (12 * honest).astype(np.float32)
    for path, rows in (("val.csv", slice(0, 1000)), ("new.csv", slice(1000, None))):
        table = np.column_stack((logits[rows].astype(np.float64), target[rows]))
        np.savetxt(path, table, delimiter=",", header="logits_0,logits_1,logits_2,target", comments="", fmt="%.17g")
    assert run("recalibrate", "--fit", "val.csv", "--save", SAVED, "--apply", "new.csv", "--out", "out.npz") == 0
    with np.load("out.npz") as found:
        written = found["probabilities"]
    calibrator = posthoc.load(SAVED)
    posthoc.to_onnx(calibrator, "calibrator.onnx")
    (served,) = onnxruntime.InferenceSession("calibrator.onnx").run(None, {"logits": logits[1000:]})
    assert np.abs(served - written).max() < 1e-6
    assert np.abs(calibrator.predict_proba(logits[1000:]) - written).max() < 1e-6


def test_probabilities_have_the_names_that_the_calibrator_knows(folder: Path) -> None:
    logits, target = sample(300, 1)
    names = np.array([f"class {k}" for k in range(logits.shape[1])])
    np.savez("named.npz", logits=logits, target=names[target])
    np.savez("new.npz", logits=logits)
    assert run("recalibrate", "--fit", "named.npz", "--save", SAVED) == 0
    assert run("apply", "new.npz", "--calibrator", SAVED, "--out", "out.npz") == 0
    with np.load("out.npz") as found:
        assert found["classes_"].tolist() == names.tolist()
    assert run("apply", "new.npz", "--calibrator", SAVED, "--out", "out.csv") == 0
    assert Path("out.csv").read_text().splitlines()[0] == ",".join(f"probabilities_{name}" for name in names)


def forest(path: str, order: list[int], seed: int) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], str]:
    """Write probabilities in steps of 1/30, as forests have them, with columns in another order."""
    generator = np.random.default_rng(seed)
    truth = generator.dirichlet([0.5, 0.5, 0.5], 600)
    target = (truth.cumsum(1) < generator.random((600, 1))).sum(1).clip(max=2)
    votes = np.stack([generator.multinomial(30, row) for row in truth]) / 30
    names = np.array(["ant", "bee", "red fox"])
    header = ",".join([*(f"probabilities_{name}" for name in names[order]), "target"])
    lines = [",".join([*map(repr, row[order].tolist()), names[k]]) for row, k in zip(votes, target, strict=True)]
    Path(path).write_text("\n".join([header, *lines]) + "\n")
    return votes, header


def test_a_forest_gives_the_same_probabilities_at_every_step(folder: Path) -> None:
    forest("val.csv", [0, 1, 2], 0)
    votes, header = forest("new.csv", [2, 0, 1], 1)
    assert run("recalibrate", "--fit", "val.csv", "--save", SAVED, "--method", "isotonic") == 0
    assert run("apply", "new.csv", "--calibrator", SAVED, "--out", "out.csv") == 0
    assert set(Path("out.csv").read_text().splitlines()[0].split(",")) == set(header.split(","))
    written = np.genfromtxt("out.csv", delimiter=",", names=True, usecols=(1, 2, 3))
    found = np.column_stack([written[f"probabilities_{name}"] for name in ("ant", "bee", "red_fox")])
    logits = posthoc.logits_from_probabilities(votes)
    assert logits.dtype == np.float64
    calibrator = posthoc.load(SAVED)
    for given in (logits, logits.astype(np.float32), logits.tolist()):
        assert np.abs(calibrator.predict_proba(given) - found).max() < 1e-6


@pytest.mark.parametrize(("method", "told"), [("vector", True), ("dirichlet", False), ("temperature", False)])
def test_a_method_that_sees_row_constants_says_that_it_was_fitted_on_another_kind(
    folder: Path, method: str, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    logits, target = sample(300, 2)
    p = np.exp(np.asarray(logits, dtype=np.float64))
    np.savez("p.npz", probabilities=p / p.sum(1, keepdims=True), target=target)
    fit = ("recalibrate", "--fit", "val.npz", "--method", method)
    said = []
    for more in ((), ("--prior", "0.5,0.3,0.2")):
        assert run(*fit, *more, "--save", SAVED) == 0
        capsys.readouterr()
        assert run("apply", "p.npz", "--calibrator", SAVED, "--json") == 0
        said.append(capsys.readouterr().out)
    assert run(*fit, "--apply", "p.npz", "--json") == 0
    for out in (*said, capsys.readouterr().out):
        notices = " ".join(json.loads(out)["notices"])
        assert ("was fitted on logits and is applied to probabilities" in notices) is told
