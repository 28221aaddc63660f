"""`calibrant recalibrate` and `calibrant apply`, as a user runs them."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from calibrant import metrics, posthoc
from calibrant.commands import Method
from calibrant.files import read_predictions
from calibrant.posthoc import AutoCalibration, ConformalClassifier
from calibrant.posthoc.registry import METHODS
from tests.shell import ended, refused, run

RNG = np.random.default_rng(0)
SAVED = "calibrator.safetensors"
FIT = ("recalibrate", "--fit", "val.npz")
Screen = pytest.CaptureFixture[str]


def sample(n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    target = rng.integers(3, size=n)
    return (5 * (rng.standard_normal((n, 3)) + 1.5 * np.eye(3)[target])).astype(np.float32), target


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, n, seed in (("val", 400, 1), ("test", 300, 2)):
        logits, target = sample(n, seed)
        np.savez(tmp_path / f"{name}.npz", logits=logits, target=target)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_offers_every_method() -> None:
    assert get_args(Method) == tuple(METHODS)


@pytest.mark.slow_after(6)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_better_and_saved_as_it_is(folder: Path, method: str, capsys: Screen) -> None:
    options = ("--apply", "test.npz", "--method", method, "--out", "first.npz", "--save", SAVED, "--json")
    first = ended(capsys, *FIT, *options).json
    assert (first["calibrator"], first["out"]) == (SAVED, "first.npz")
    written = read_predictions(folder / "first.npz")
    assert first["after"]["scores"]["log_loss"]["value"] == pytest.approx(metrics.evaluate(written).log_loss, rel=1e-6)
    assert first["after"]["scores"]["ece"]["value"] < first["before"]["scores"]["ece"]["value"]
    second = ended(capsys, "apply", "test.npz", "--calibrator", SAVED, "--json").json
    assert second["method"] == METHODS[method].__name__
    assert (second["calibrator"], second["out"]) == (SAVED, "test-calibrated.npz")
    assert (second["before"], second["after"]) == (first["before"], first["after"])
    again = read_predictions(folder / "test-calibrated.npz")
    assert np.array_equal(np.asarray(written.probabilities), np.asarray(again.probabilities))
    assert np.array_equal(np.asarray(again.target), sample(300, 2)[1])


def test_a_calibrator_is_saved_without_predictions_to_apply_it_to(folder: Path, capsys: Screen) -> None:
    before = {path.name for path in folder.iterdir()}
    shown = ended(capsys, *FIT, "--method", "temperature", "--save", f"new/{SAVED}").shown
    temperature = posthoc.load(folder / "new" / SAVED).temperature_
    assert f"temperature {temperature:.4g}, fitted on val.npz" in shown
    assert f"Saved: new/{SAVED}" in shown
    assert {path.name for path in folder.iterdir()} == before | {"new"}
    assert ended(capsys, *FIT, "--method", "temperature", "--save", SAVED, "--json").json == {
        "method": "temperature", "temperature": temperature, "notices": [], "calibrator": SAVED, "out": None,
        "before": None, "after": None,
    }  # fmt: skip


def test_before_and_after_are_shown_if_there_are_labels(folder: Path, capsys: Screen) -> None:
    shown = ended(capsys, *FIT, "--apply", "test.npz", "--out", "sub/out.csv", "--save", SAVED).shown
    auto = AutoCalibration().fit(*sample(400, 1))
    name, weight = max(auto.weights_.items(), key=lambda member: member[1])
    assert f"auto, fitted on val.npz. Mixture: {name} {weight:.0%}" in shown
    assert f"{-auto.gain_[0]:+.4f}" in shown
    assert "before after convention" in shown
    assert "Written: sub/out.csv" in shown
    assert (folder / "sub/out.csv").exists()
    np.savez("new.npz", logits=sample(50, 3)[0])
    for command in (("apply", "new.npz", "--calibrator", SAVED), (*FIT, "--apply", "new.npz")):
        assert "new.npz has no target" in ended(capsys, *command).shown
        with np.load("new-calibrated.npz") as file:
            assert file.files == ["probabilities"]
            assert np.allclose(file["probabilities"].sum(1), 1, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_few_labelled_rows_are_calibrated_without_scores(folder: Path, rows: int, capsys: Screen) -> None:
    logits, target = sample(rows, 3)
    np.savez("few.npz", logits=logits, target=target)
    fit = (*FIT, "--apply", "few.npz", "--method", "temperature", "--save", SAVED)
    for command in (fit, ("apply", "few.npz", "--calibrator", SAVED)):
        assert "few.npz has fewer than 3 rows" in ended(capsys, *command).shown
        with np.load("few-calibrated.npz") as file:
            assert file["probabilities"].shape == (rows, 3)
            assert np.array_equal(file["target"], target)
        found = ended(capsys, *command, "--json").json
        assert (found["before"], found["after"]) == (None, None)


def test_ids_stay_and_the_same_file_twice_is_noted(folder: Path, capsys: Screen) -> None:
    rng = np.random.default_rng(0)
    p = rng.random(60).round(3)
    rows = [f"{k:04d},{x},{1 - x:.3f},{'cat' if rng.random() < x else 'dog'}" for k, x in enumerate(p)]
    Path("p.csv").write_text("\n".join(["id,prob_cat,prob_dog,label", *rows]) + "\n")
    again = ("recalibrate", "--fit", "p.csv", "--method", "temperature", "--apply")
    notices = ended(capsys, *again, "p.csv", "--json").json["notices"]
    assert "p.csv: read 'prob_cat' to 'prob_dog' as probabilities, 'label' as target" in notices
    assert any("fitted on the file that it is applied to" in notice for notice in notices)
    written = Path("p-calibrated.csv").read_text().splitlines()
    assert written[0] == "id,label,probabilities_cat,probabilities_dog"
    assert [row.split(",")[0] for row in written[1:]] == [f"{k:04d}" for k in range(60)]
    Path("q.csv").write_text(Path("p.csv").read_text().replace("dog", "cow"))
    refused(capsys, "'cat', 'cow'", *again, "q.csv")
    columns = np.genfromtxt("p.csv", delimiter=",", dtype=str)[:, [0, 2, 1, 3]]
    np.savetxt("swapped.csv", columns, delimiter=",", fmt="%s")
    for options in (["--method", "vector"], ["--prior", "em"]):
        for name in ("p", "swapped"):
            assert run("recalibrate", "--fit", "p.csv", "--apply", f"{name}.csv", *options, "--out", f"{name}.npz") == 0
        with np.load("p.npz") as first, np.load("swapped.npz") as second:
            assert second["classes_"].tolist() == ["dog", "cat"]
            np.testing.assert_array_equal(first["probabilities"], second["probabilities"][:, ::-1])


BAD: dict[str, tuple[str, str]] = {
    "missing": ("recalibrate --fit nope.npz --apply test.npz", "nope.npz: no such file"),
    "no target": ("recalibrate --fit bare.npz --apply test.npz", "bare.npz: has no 'target'"),
    "other classes": ("recalibrate --fit val.npz --apply two.npz", "two.npz: "),
    "keep": ("recalibrate --fit val.npz --apply test.npz --method beta --accuracy keep", "--accuracy keep is for"),
    "pairs": ("recalibrate --fit val.npz --apply pairs.npz", "--probabilities confidence --target correct"),
    "nan": ("recalibrate --fit val.npz --apply nan.npz", "nan.npz: "),
    "text": ("recalibrate --fit val.npz --apply text.npz", "text.npz: logits must hold numbers"),
    "sums": ("recalibrate --fit val.npz --apply sum.npz", "sum.npz: probabilities must sum to 1"),
    "several labels": ("recalibrate --fit tags.npz --save a.safetensors", "MultiLabelCalibration"),
    "overwritten": ("recalibrate --fit val.npz --apply test.npz --out val.npz", "val.npz: would be overwritten"),
    "place of --out": ("recalibrate --fit val.npz --apply test.npz --out val.npz/x.npz", "val.npz is a file, not"),
    "place of --save": ("recalibrate --fit val.npz --save .", ".: is a folder"),
    "suffix": ("recalibrate --fit val.npz --apply test.npz --out x.txt", "x.txt: expected one of"),
    "nothing to do": ("recalibrate --fit val.npz", "--save FILE, or both"),
    "no use": ("recalibrate --fit val.npz --save a.safetensors --out x.npz", "--out is for"),
    "name": ("recalibrate --fit val.npz --save c.pt", "c.pt: expected a name that ends in .safetensors"),
    "is input": ("recalibrate --fit val.npz --save val.npz", "val.npz: would be overwritten"),
    "prior": ("recalibrate --fit val.npz --save a.safetensors --prior often", "em, confusion"),
    "sum of the prior": ("recalibrate --fit val.npz --save a.safetensors --prior 0.5,0.6,0.1", "sum to 1"),
    "prior, keep": ("recalibrate --fit val.npz --save a.safetensors --prior em --accuracy keep", "--prior"),
    "prior of nothing": ("recalibrate --fit val.npz --save a.safetensors --prior em", "give --apply FILE"),
    "no calibrator": ("apply test.npz --calibrator nope.safetensors", "nope.safetensors: cannot be read: No such file"),
    "folder": ("apply test.npz --calibrator .", ".: cannot be read"),
    "not one": ("apply test.npz --calibrator val.npz", "val.npz: is not a safetensors file"),
    "truncated": ("apply test.npz --calibrator cut.safetensors", "cut.safetensors: is not a safetensors file, or is"),
    "sets": ("apply test.npz --calibrator sets.safetensors", "ConformalClassifier"),
    "labels": ("apply test.npz --calibrator labels.safetensors", "MultiLabelCalibration"),
    "classes": (f"apply two.npz --calibrator {SAVED}", "two.npz: TemperatureScaling was fitted on 3 classes"),
    "applied to itself": (f"apply test.npz --calibrator {SAVED} --out test.npz", "test.npz: would be overwritten"),
}


@pytest.mark.slow_after(12)
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_status_2_and_writes_nothing(folder: Path, name: str, capsys: Screen) -> None:
    logits, target = sample(50, 3)
    tags = np.eye(3, dtype=int)[target]
    np.savez("bare.npz", logits=logits)
    np.savez("two.npz", logits=logits[:, :2], target=target % 2)
    np.savez("pairs.npz", confidence=RNG.random(50), correct=target > 0)
    np.savez("tags.npz", probabilities=RNG.random((50, 3)), target=RNG.integers(2, size=(50, 3)))
    np.savez("text.npz", logits=logits.astype(str))
    np.savez("sum.npz", probabilities=np.full((50, 3), 0.3))
    np.savez("nan.npz", logits=np.where(logits > 3, np.nan, logits))
    posthoc.save(METHODS["temperature"]().fit(logits, target), SAVED)
    posthoc.save(ConformalClassifier().fit(logits, target), "sets.safetensors")
    posthoc.save(posthoc.MultiLabelCalibration("platt").fit(logits, tags), "labels.safetensors")
    Path("cut.safetensors").write_bytes(Path(SAVED).read_bytes()[:-2])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    command, message = BAD[name]
    refused(capsys, message, *command.split())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_scores_of_two_classes_are_those_that_evaluate_shows(tmp_path: Path, capsys: Screen) -> None:
    rng = np.random.default_rng(0)
    event = (rng.random(500) < 0.3).astype(int)
    np.savez(tmp_path / "risk.npz", probabilities=np.full(500, 0.4), target=event)
    np.savez(tmp_path / "fit.npz", probabilities=rng.uniform(0.1, 0.9, 500), target=event)
    command = ["recalibrate", "--fit", tmp_path / "fit.npz", "--apply", tmp_path / "risk.npz", "--method", "platt"]
    before = ended(capsys, *command, "--json").json["before"]["scores"]
    assert before["gap"]["value"] == pytest.approx(0.4 - event.mean())
    evaluated = ended(capsys, "evaluate", tmp_path / "risk.npz", "--draws", 19, "--json").json
    assert evaluated["models"][0]["scores"] == before


def shifted(path: Path, share: float, seed: int) -> Path:
    """Binary logits of a model that is right where half of the samples are positive, with another share of them."""
    rng = np.random.default_rng(seed)
    target = (rng.random(4000) < share).astype(int)
    np.savez(path, logits=2 * (rng.normal(size=4000) + 2 * target - 1), target=target)
    return path


@pytest.mark.parametrize("prior", ["0.9,0.1", "em", "confusion"])
def test_a_prior_moves_probabilities_to_other_frequencies(tmp_path: Path, prior: str, capsys: Screen) -> None:
    fit, new = shifted(tmp_path / "fit.npz", 0.5, 0), shifted(tmp_path / "new.npz", 0.1, 1)
    save = tmp_path / "shift.safetensors"
    options = ["--method", "platt", "--prior", prior, "--save", str(save)]
    found = ended(capsys, "recalibrate", "--fit", fit, "--apply", new, *options, "--json").json
    assert found["prior"][1] == pytest.approx(0.1, abs=0.02)
    assert found["prior_of_fit"][1] == pytest.approx(0.5, abs=0.03)
    with np.load(tmp_path / "new-calibrated.npz") as written:
        assert written["probabilities"][:, 1].mean() == pytest.approx(0.1, abs=0.02)
        np.testing.assert_allclose(
            posthoc.load(save).predict_proba(np.load(new)["logits"]), written["probabilities"], atol=1e-6
        )
    assert "class 0" in ended(capsys, "recalibrate", "--fit", fit, "--apply", new, *options).shown


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


def test_names_of_classes_stay(folder: Path) -> None:
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
    (folder / "names.txt").write_text("cat\ndog\nfrog\n")
    assert run(*FIT, "--apply", "test.npz", "--classes", "names.txt", "--method", "temperature") == 0
    assert read_predictions(folder / "test-calibrated.npz").names == ("cat", "dog", "frog")


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


def test_a_forest_gives_the_same_probabilities_at_every_step(folder: Path, capsys: Screen) -> None:
    forest("val.csv", [0, 1, 2], 0)
    votes, header = forest("new.csv", [2, 0, 1], 1)
    assert run("recalibrate", "--fit", "val.csv", "--save", SAVED, "--method", "isotonic") == 0
    assert run("apply", "new.csv", "--calibrator", SAVED, "--out", "out.csv") == 0
    assert Path("out.csv").read_text().splitlines()[0].split(",") == ["target", *header.split(",")[:-1]]
    written = np.genfromtxt("out.csv", delimiter=",", names=True, usecols=(1, 2, 3))
    found = np.column_stack([written[f"probabilities_{name}"] for name in ("ant", "bee", "red_fox")])
    logits = posthoc.logits_from_probabilities(votes)
    assert logits.dtype == np.float64
    calibrator = posthoc.load(SAVED)
    for given in (logits, logits.astype(np.float32), logits.tolist()):
        assert np.abs(calibrator.predict_proba(given) - found).max() < 1e-6
    capsys.readouterr()
    Path("other.csv").write_text(Path("new.csv").read_text().replace("ant", "cat"))
    refused(capsys, "'ant', 'bee', 'red fox'", "apply", "other.csv", "--calibrator", SAVED)


@pytest.mark.parametrize(("method", "noted"), [("vector", True), ("dirichlet", False), ("temperature", False)])
def test_a_method_that_sees_row_constants_says_that_it_was_fitted_on_another_kind(
    folder: Path, method: str, noted: bool, capsys: Screen
) -> None:
    logits, target = sample(300, 2)
    p = np.exp(np.asarray(logits, dtype=np.float64))
    np.savez("p.npz", probabilities=p / p.sum(1, keepdims=True), target=target)
    fit = (*FIT, "--method", method)
    found = [ended(capsys, *fit, "--apply", "p.npz", "--json")]
    for more in ((), ("--prior", "0.5,0.3,0.2")):
        assert run(*fit, *more, "--save", SAVED) == 0
        capsys.readouterr()
        found.append(ended(capsys, "apply", "p.npz", "--calibrator", SAVED, "--json"))
    for each in found:
        assert ("was fitted on logits and is applied to" in " ".join(each.json["notices"])) is noted
