"""`calibrant recalibrate`, as a user runs it."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from calibrant import metrics, posthoc
from calibrant.cli import Method
from calibrant.files import read_predictions
from calibrant.posthoc import METHODS, AutoCalibration
from tests.commands.test_evaluate import run

RNG = np.random.default_rng(0)


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
def test_every_method_writes_probabilities_that_are_better(
    folder: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("recalibrate", "--fit", "val.npz", "--apply", "test.npz", "--method", method, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    written = read_predictions(folder / "test-calibrated.npz")
    assert found["out"] == "test-calibrated.npz"
    assert found["after"]["scores"]["log_loss"]["value"] == pytest.approx(metrics.evaluate(written).log_loss, rel=1e-6)
    assert found["after"]["scores"]["ece"]["value"] < found["before"]["scores"]["ece"]["value"]
    assert np.array_equal(np.asarray(written.target), sample(300, 2)[1])


def test_before_and_after_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("recalibrate", "--fit", "val.npz", "--apply", "test.npz", "--out", "sub/out.csv") == 0
    shown = " ".join(capsys.readouterr().out.split())
    logits, target = sample(400, 1)
    auto = AutoCalibration().fit(logits, target)
    name, weight = max(auto.weights_.items(), key=lambda member: member[1])
    assert f"auto, fitted on val.npz. Mixture: {name} {weight:.0%}" in shown
    assert f"Log loss in cross-validation: {-auto.gain_[0]:+.4f} against the predictions as they are" in shown
    assert "before after convention" in shown
    assert "Written: sub/out.csv" in shown
    assert (folder / "sub/out.csv").exists()


def test_without_a_target_probabilities_are_written_all_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez("new.npz", logits=sample(50, 3)[0])
    assert run("recalibrate", "--fit", "val.npz", "--apply", "new.npz") == 0
    assert "has no target" in capsys.readouterr().out
    with np.load("new-calibrated.npz") as file:
        assert file.files == ["probabilities"]
        assert np.allclose(file["probabilities"].sum(1), 1, atol=1e-6)


def test_probabilities_are_recalibrated_like_logits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, n, seed in (("pval", 400, 1), ("ptest", 300, 2)):
        logits, target = sample(n, seed)
        p = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
        np.savez(f"{name}.npz", probabilities=p / p.sum(1, keepdims=True), target=target)
    for fit, new in (("val.npz", "test.npz"), ("pval.npz", "ptest.npz")):
        run("recalibrate", "--fit", fit, "--apply", new, "--method", "sms", "--json")
    first, second = read_predictions(Path("test-calibrated.npz")), read_predictions(Path("ptest-calibrated.npz"))
    assert np.allclose(np.asarray(first.probabilities), np.asarray(second.probabilities), atol=1e-5)
    capsys.readouterr()


def test_ids_stay_and_the_same_file_twice_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    p = rng.random(60).round(3)
    rows = [f"{k:04d},{x},{1 - x:.3f},{'cat' if rng.random() < x else 'dog'}" for k, x in enumerate(p)]
    Path("p.csv").write_text("\n".join(["id,prob_cat,prob_dog,label", *rows]) + "\n")
    assert run("recalibrate", "--fit", "p.csv", "--apply", "p.csv", "--method", "temperature", "--json") == 0
    notices = json.loads(capsys.readouterr().out)["notices"]
    assert "p.csv: read 'prob_cat' to 'prob_dog' as probabilities, 'label' as target" in notices
    assert any("fitted on the file that it is applied to" in notice for notice in notices)
    written = Path("p-calibrated.csv").read_text().splitlines()
    assert written[0] == "id,label,probabilities_cat,probabilities_dog"
    assert [row.split(",")[0] for row in written[1:]] == [f"{k:04d}" for k in range(60)]
    Path("q.csv").write_text(Path("p.csv").read_text().replace("dog", "cow"))
    assert run("recalibrate", "--fit", "p.csv", "--apply", "q.csv", "--method", "temperature") == 2
    assert "its classes are cat, cow, but those of p.csv are cat, dog" in capsys.readouterr().err
    columns = np.genfromtxt("p.csv", delimiter=",", dtype=str)[:, [0, 2, 1, 3]]
    np.savetxt("swapped.csv", columns, delimiter=",", fmt="%s")
    for options in (["--method", "vector"], ["--prior", "em"]):
        for name in ("p", "swapped"):
            assert run("recalibrate", "--fit", "p.csv", "--apply", f"{name}.csv", *options, "--out", f"{name}.npz") == 0
        with np.load("p.npz") as first, np.load("swapped.npz") as second:
            assert second["classes_"].tolist() == ["dog", "cat"]
            np.testing.assert_array_equal(first["probabilities"], second["probabilities"][:, ::-1])


BAD: dict[str, tuple[list[str], str]] = {
    "missing": (["--fit", "nope.npz", "--apply", "test.npz"], "nope.npz: no such file"),
    "no target": (["--fit", "bare.npz", "--apply", "test.npz"], "bare.npz: has no 'target'"),
    "classes": (["--fit", "val.npz", "--apply", "two.npz"], "two.npz: "),
    "keep": (
        ["--fit", "val.npz", "--apply", "test.npz", "--method", "beta", "--accuracy", "keep"],
        "--accuracy keep is for --method auto, temperature, ensemble-temperature, not beta",
    ),
    "pairs": (["--fit", "val.npz", "--apply", "pairs.npz"], "--probabilities confidence --target correct"),
    "nan": (["--fit", "val.npz", "--apply", "nan.npz"], "nan.npz: "),
    "text without target": (["--fit", "val.npz", "--apply", "text.npz"], "text.npz: logits must hold numbers"),
    "sums without target": (["--fit", "val.npz", "--apply", "sum.npz"], "sum.npz: probabilities must sum to 1"),
    "overwrite": (["--fit", "val.npz", "--apply", "test.npz", "--out", "val.npz"], "val.npz: would be overwritten"),
    "suffix": (["--fit", "val.npz", "--apply", "test.npz", "--out", "x.txt"], "x.txt: expected one of"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_status_2_and_writes_nothing(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logits, target = sample(50, 3)
    np.savez("bare.npz", logits=logits)
    np.savez("two.npz", logits=logits[:, :2], target=target % 2)
    np.savez("right.npz", logits=logits, target=logits.argmax(1))
    np.savez("pairs.npz", confidence=RNG.random(50), correct=target > 0)
    np.savez("text.npz", logits=logits.astype(str))
    np.savez("sum.npz", probabilities=np.full((50, 3), 0.3))
    np.savez("nan.npz", logits=np.where(logits > 3, np.nan, logits))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    arguments, message = BAD[name]
    assert run("recalibrate", *arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_scores_of_two_classes_are_those_that_evaluate_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    event = (rng.random(500) < 0.3).astype(int)
    np.savez(tmp_path / "risk.npz", probabilities=np.full(500, 0.4), target=event)
    np.savez(tmp_path / "fit.npz", probabilities=rng.uniform(0.1, 0.9, 500), target=event)
    command = ["recalibrate", "--fit", tmp_path / "fit.npz", "--apply", tmp_path / "risk.npz", "--method", "platt"]
    assert run(*command, "--json") == 0
    before = json.loads(capsys.readouterr().out)["before"]["scores"]
    assert before["gap"]["value"] == pytest.approx(0.4 - event.mean())
    assert run("evaluate", tmp_path / "risk.npz", "--draws", 19, "--json") == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["scores"] == before


def test_the_probability_of_being_right_can_be_recalibrated(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.5, 1, 400)
    right = (rng.random(400) < sure - 0.2).astype(int)
    file = tmp_path / "answers.npz"
    np.savez(file, confidence=sure, correct=right)
    names = ["--probabilities", "confidence", "--target", "correct", "--method", "platt"]
    assert run("recalibrate", "--fit", file, "--apply", file, *names) == 0
    with np.load(tmp_path / "answers-calibrated.npz") as written:
        assert written["probabilities"][:, 1].mean() == pytest.approx(right.mean(), abs=0.01)


def test_names_of_classes_stay_in_an_npz(folder: Path) -> None:
    (folder / "names.txt").write_text("cat\ndog\nfrog\n")
    named = ["--classes", "names.txt", "--method", "temperature"]
    assert run("recalibrate", "--fit", "val.npz", "--apply", "test.npz", *named) == 0
    assert read_predictions(folder / "test-calibrated.npz").names == ("cat", "dog", "frog")


def shifted(path: Path, share: float, seed: int) -> Path:
    """Binary logits of a model that is right where half of the samples are positive, with another share of them."""
    rng = np.random.default_rng(seed)
    target = (rng.random(4000) < share).astype(int)
    np.savez(path, logits=2 * (rng.normal(size=4000) + 2 * target - 1), target=target)
    return path


@pytest.mark.parametrize("prior", ["0.9,0.1", "em", "confusion"])
def test_a_prior_moves_probabilities_to_other_frequencies(
    tmp_path: Path, prior: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fit, new = shifted(tmp_path / "fit.npz", 0.5, 0), shifted(tmp_path / "new.npz", 0.1, 1)
    save = tmp_path / "shift.safetensors"
    options = ["--method", "platt", "--prior", prior, "--save", str(save)]
    assert run("recalibrate", "--fit", fit, "--apply", new, *options, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prior"][1] == pytest.approx(0.1, abs=0.02)
    assert found["prior_of_fit"][1] == pytest.approx(0.5, abs=0.03)
    with np.load(tmp_path / "new-calibrated.npz") as written:
        assert written["probabilities"][:, 1].mean() == pytest.approx(0.1, abs=0.02)
        np.testing.assert_allclose(
            posthoc.load(save).predict_proba(np.load(new)["logits"]), written["probabilities"], atol=1e-6
        )
    assert run("recalibrate", "--fit", fit, "--apply", new, *options) == 0
    assert "Frequencies moved: class 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prior", "often"], "expected em, confusion, or a frequency for each class"),
        (["--prior", "0.5,0.6"], "must sum to 1"),
        (["--prior", "0.9,0.1", "--accuracy", "keep"], "leave out --accuracy keep"),
        (["--prior", "em"], "give --apply FILE"),
    ],
)
def test_a_wrong_prior_is_told_in_one_line(
    tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = shifted(tmp_path / "fit.npz", 0.5, 0)
    assert run("recalibrate", "--fit", fit, "--save", tmp_path / "a.safetensors", *options) == 2
    assert message in capsys.readouterr().err


def test_several_labels_per_sample_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = tmp_path / "labels.npz"
    np.savez(labels, probabilities=RNG.random((50, 3)), target=RNG.integers(2, size=(50, 3)))
    assert run("recalibrate", "--fit", labels, "--save", tmp_path / "a.safetensors") == 2
    assert "holds several labels per sample: use calibrant.posthoc.MultiLabelCalibration" in capsys.readouterr().err
