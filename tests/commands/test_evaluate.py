"""`calibrant evaluate`, as a user runs it."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from calibrant import metrics
from calibrant.cli import main
from calibrant.commands.evaluate import model_names
from calibrant.commands.terminal import print_scores

RNG = np.random.default_rng(0)
TARGET = RNG.integers(4, size=600)


def logits(sharpness: float, skill: float = 2.0) -> Any:
    noise = np.random.default_rng(1).standard_normal((600, 4))
    return (sharpness * (noise + skill * np.eye(4)[TARGET])).astype(np.float32)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    made = {}
    for name, sharpness in {"sharp": 6.0, "soft": 2.0}.items():
        made[name] = tmp_path / f"{name}.npz"
        np.savez(made[name], logits=logits(sharpness), target=TARGET)
    return made


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    code = ended.value.code
    return code if isinstance(code, int) else 0


def test_one_file(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", files["sharp"], "--draws", 200) == 0
    shown = capsys.readouterr()
    assert "sharp: Over-confident in the top label by" in " ".join(shown.out.split())
    assert f"{100 * metrics.ece(logits=logits(6.0), target=TARGET):.2f} %" in shown.out
    assert "paper: 20 bins (lo, hi]" in shown.out
    assert shown.err == ""  # no progress where nobody is watching


def test_json_is_complete_and_clean(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", files["sharp"], files["soft"], "--json", "--draws", 200, "--convention", "guo") == 0
    found = json.loads(capsys.readouterr().out)
    sharp, soft = found["models"]
    assert (sharp["name"], soft["name"]) == ("sharp", "soft")
    assert sharp["scores"]["ece"]["value"] == metrics.ece(logits=logits(6.0), target=TARGET, convention="guo")
    assert sharp["scores"]["ece"]["convention"] == "guo: 15 bins (lo, hi]"
    assert sharp["test"]["rejected_at_5_percent"]
    assert sharp["test"]["draws"] == 200
    assert sharp["task"] == "multi-class"
    assert [view["kind"] for view in sharp["views"]] == ["top label", *["class"] * 4]
    top = sharp["views"][0]
    assert top["rejected_at_5_percent"]
    assert top["gap"]["low"] < top["gap"]["value"] < top["gap"]["high"]
    assert not top["equivalence"]["on_average"]
    assert [test["name"] for test in top["analytic"]] == ["Spiegelhalter's z", "Kolmogorov-Smirnov", "Kuiper"]
    assert top["calibration_line"]["slope"] < 1
    assert set(sharp["intervals"]) == {"gap", "ece", "nll", "brier"}
    assert set(sharp["parts"]) == {"log_loss", "brier"}
    assert set(sharp["repair"]["cross_fitted_log_loss"]) == {"temperature", "auto"}
    assert len(sharp["repair"]["views"]) == 5
    (comparison,) = found["comparisons"]
    assert comparison["names"] == ["sharp", "soft"]
    assert comparison["difference"] == pytest.approx(comparison["a"] - comparison["b"])


def test_the_risk_of_two_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    risk = np.random.default_rng(0).uniform(0.1, 0.9, 2000)
    event = (np.random.default_rng(1).random(2000) < risk + 0.08).astype(int)
    np.savez(tmp_path / "risk.npz", probabilities=risk, target=event)
    assert run("evaluate", tmp_path / "risk.npz", "--draws", 100, "--margin", 20) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    shown = " ".join(shown.split())
    assert "risk: Risks of class 1 are understated by" in shown
    assert "The average error is within ± 20 points" in shown
    for part in (
        "95 % intervals: gap -",
        "= 0.0",
        "Kuiper",
        "Calibration line: slope",
        "Equivalence: within ± 20 points",
    ):
        assert part in shown, part


def test_the_same_seed_gives_the_same_output(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for seed in (0, 0, 1):
        run("evaluate", files["sharp"], "--json", "--draws", 100, "--seed", seed)
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]


def test_several_files_side_by_side(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", *files.values(), "--draws", 100) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "sharp (a) and soft (b): ESD" in shown
    assert "b is better calibrated" in shown


def test_different_samples_are_not_compared(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.npz"
    np.savez(other, confidence=RNG.random(50), correct=RNG.integers(2, size=50))
    assert run("evaluate", files["sharp"], other, "--draws", 100) == 0
    assert "sharp and other are not compared: they do not have the same samples." in " ".join(
        capsys.readouterr().out.split()
    )


def test_three_samples_are_evaluated_but_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", confidence=[0.5, 0.6, 0.7], correct=[1, 0, 1])
    assert run("evaluate", tmp_path / "a.npz", tmp_path / "b.npz", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["not_compared"] == [{"names": ["a", "b"], "reason": "they have fewer than 4 samples"}]
    assert found["comparisons"] == []
    assert found["models"][0]["verdict"].startswith("3 samples are few: only large errors show")


def test_every_pair_of_models_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = RNG.integers(2, size=60)
    for name in ("a", "b", "c"):
        np.savez(tmp_path / f"{name}.npz", confidence=RNG.random(60), correct=event)
    assert run("evaluate", *(tmp_path / f"{name}.npz" for name in ("a", "b", "c")), "--json", "--draws", 20) == 0
    found = json.loads(capsys.readouterr().out)
    assert [pair["names"] for pair in found["comparisons"]] == [["a", "b"], ["a", "c"], ["b", "c"]]


def test_models_with_several_labels_are_evaluated_but_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = RNG.integers(2, size=(60, 3))
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", logits=RNG.normal(size=(60, 3)), target=target)
    assert run("evaluate", tmp_path / "a.npz", tmp_path / "b.npz", "--json", "--draws", 20) == 0
    found = json.loads(capsys.readouterr().out)
    assert [pair["reason"] for pair in found["not_compared"]] == ["they have several labels for each sample"]


def test_of_two_classes_the_same_is_judged_beyond_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    risk = RNG.uniform(0.05, 0.95, 2000)
    event = RNG.random(2000) < risk - 0.05
    rows = "".join(f"{p!r},{int(y)}\n" for p, y in zip(risk.tolist(), event.tolist(), strict=True))
    (tmp_path / "risks.csv").write_text("y_prob,y_true\n" + rows)
    models = []
    for engine in ("memory", "duckdb"):
        assert run("evaluate", tmp_path / "risks.csv", "--json", "--draws", 100, "--engine", engine) == 0
        models.append(json.loads(capsys.readouterr().out)["models"][0])
    memory, beyond = models
    assert beyond["verdict"].startswith("The average gap of the risks of class 1 is +")
    assert "The hypothesis that they are calibrated is rejected" in beyond["verdict"]
    for key in ("gap", "ece", "ks_error", "esd"):
        assert beyond["scores"][key]["value"] == pytest.approx(memory["scores"][key]["value"], rel=1e-6), key
        assert beyond["scores"][key]["convention"] == memory["scores"][key]["convention"], key
    assert "accuracy" not in beyond["scores"]
    assert beyond["intervals"]["gap"]["low"] == pytest.approx(memory["intervals"]["gap"]["low"], rel=1e-5)


def test_a_loss_that_rests_on_the_floor_of_p_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, highest in (("sure", 1.0), ("unsure", 0.9)):
        confidence = np.where(np.arange(40) % 2, highest, 0.5)
        np.savez(tmp_path / f"{name}.npz", confidence=confidence, correct=np.arange(40) % 3 > 0)
        assert run("evaluate", tmp_path / f"{name}.npz", "--draws", 20) == 0
        assert ("p = 0 counts as 1.2e-38" in " ".join(capsys.readouterr().out.split())) == (name == "sure")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_numbers_are_never_cut(width: int) -> None:
    screen = io.StringIO()
    scores = {f"model_{k}_with_a_long_name": metrics.evaluate(logits=logits(2.0 + k), target=TARGET) for k in range(9)}
    print_scores(Console(file=screen, width=width), scores)
    shown = screen.getvalue()
    assert "…" not in shown
    assert max(len(line) for line in shown.splitlines()) <= width
    for found in scores.values():
        assert all(str(entry) in shown for entry in found)


def test_a_name_that_no_encoding_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / os.fsdecode(b"bad\xff\x1b[31m.npz")
    np.savez(path, logits=logits(2.0), target=TARGET)
    assert run("evaluate", path, "--json", "--draws", 50) == 0
    assert (
        json.loads(capsys.readouterr().out)["models"][0]["name"]
        == "bad\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[31m"
    )


def test_a_name_that_looks_like_markup_stays_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "[bold red]model[link].npz"
    np.savez(path, logits=logits(2.0), target=TARGET)
    assert run("evaluate", path, "--draws", 50) == 0
    assert "[bold red]model[link]" in capsys.readouterr().out


def test_report(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    report = tmp_path / "pages" / "out.html"
    assert run("evaluate", files["sharp"], "--report", report, "--draws", 100) == 0
    page = report.read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "Over-confident in the top label by" in page
    assert f"Report: {report}" in capsys.readouterr().out
    assert [path.name for path in report.parent.iterdir()] == ["out.html"]


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.slow)])
def test_engines_give_the_same_scores(tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip({"duckdb": "duckdb", "spark": "pyspark"}[engine])
    import shutil

    if engine == "spark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    path = tmp_path / "pairs.csv"
    z = np.round(RNG.random(500), 2)
    correct = (RNG.random(500) < z).astype(int)
    np.savetxt(
        path, np.column_stack((z, correct)), delimiter=",", header="confidence,correct", comments="", fmt="%.17g"
    )
    assert run("evaluate", path, "--engine", engine, "--json") == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    expected = metrics.evaluate(z, correct)
    assert model["engine"] == engine
    for key, score in model["scores"].items():
        assert score["value"] == pytest.approx(expected[key], rel=1e-9, abs=1e-12), key
        assert score["convention"].split(";")[0] in (
            [e.convention.split(";")[0] for e in expected] + ["mean squared residual"]
        )


def test_a_table_beyond_memory_goes_to_duckdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    path = tmp_path / "pairs.csv"
    path.write_text("confidence,correct\n" + "0.9,1\n0.8,0\n0.7,1\n" * 100)
    monkeypatch.setattr("calibrant.files.read.free_memory", lambda: 1000)
    assert run("evaluate", path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["engine"] == "duckdb"


BAD: dict[str, tuple[list[str], str]] = {
    "no file": ([], "give at least one file"),
    "missing": (["nope.npz"], "nope.npz: no such file"),
    "twice": (["sharp.npz", "./sharp.npz"], "the same file is given twice"),
    "overwrite": (["sharp.npz", "--report", "sharp.npz"], "would be overwritten: choose another --report"),
    "engine": (["sharp.npz", "--engine", "duckdb"], "reads only tables (.csv"),
    "report beyond memory": (
        ["pairs.csv", "--engine", "duckdb", "--report", "x.html"],
        "--report needs the samples in memory",
    ),
    "bins beyond memory": (["pairs.csv", "--engine", "duckdb", "--convention", "netcal"], "only right-closed bins"),
    "not a table": (["broken.csv"], "must hold a number in every row"),
    "beyond memory, missing column": (["broken.csv", "--engine", "duckdb", "--correct", "x"], "broken.csv"),
    "folder in the way": (["sharp.npz", "--report", "sharp.npz/x.html"], "x.html"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_status_2(
    files: dict[str, Path],
    tmp_path: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments, message = BAD[name]
    (tmp_path / "pairs.csv").write_text("confidence,correct\n0.9,1\n0.8,0\n0.7,1\n")
    (tmp_path / "broken.csv").write_text("confidence,correct\n0.9,1\nx,0\n0.7,1\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.chdir(tmp_path)
    assert run("evaluate", *arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("calibrant: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_doubtful_values_are_a_note_and_not_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(3), 60)
    np.savez(tmp_path / "p.npz", logits=p, target=p.argmax(1))
    notice = "these logits look like probabilities (rows sum to 1): give --probabilities logits if they are"
    assert run("evaluate", tmp_path / "p.npz", "--draws", 19, "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["models"][0]["notices"] == [notice]
    assert shown.err == ""


def test_names_tell_files_apart() -> None:
    assert model_names([Path("a/x.npz"), Path("a/y.npz")]) == ["x", "y"]
    assert model_names([Path("a/x.npz"), Path("a/x.csv")]) == ["x.npz", "x.csv"]
    assert model_names([Path("a/x.npz"), Path("b/x.npz")]) == ["a/x.npz", "b/x.npz"]


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_condition_that_holds(tmp_path: Path) -> None:
    np.savez(tmp_path / "pairs.npz", confidence=RNG.random(50), correct=RNG.integers(2, size=50))
    command = [sys.executable, "-m", "calibrant", "evaluate", str(tmp_path / "pairs.npz"), "--draws", "20"]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as gone:
        ended = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_wrong_column_is_refused_before_anything_is_tested(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrant.commands.evaluate.audit", None)  # calling it would be a TypeError
    assert run("evaluate", files["sharp"], "--group", "nope") == 2
    assert "has no 'nope'" in capsys.readouterr().err


def beyond(path: Path, capsys: pytest.CaptureFixture[str], *more: object) -> dict[str, Any]:
    assert run("evaluate", path, "--engine", "duckdb", "--draws", 100, "--json", *more) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    return dict(model)


def test_beyond_memory_single_classes_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], 3000)
    label = np.array(["ant", "bee", "cow"])[(p[:, [1, 0, 2]].cumsum(1) < rng.random((3000, 1))).sum(1)]
    rows = [",".join([*map(str, each), name]) for each, name in zip(p.round(2), label, strict=True)]
    path = tmp_path / "p.csv"
    path.write_text("\n".join(["prob_ant,prob_bee,prob_cow,label", *rows]))
    model = beyond(path, capsys)
    assert [(view["name"], view["rejected_at_5_percent"]) for view in model["views"]] == [
        ("ant", True), ("bee", True), ("cow", False)
    ]  # fmt: skip
    assert "The probabilities of 2 of 3 classes are not calibrated" in model["verdict"]
    assert "the confidences in the top label" in model["verdict"]
    assert "read 'prob_ant' to 'prob_cow' as probabilities, 'label' as target" in model["notices"]
    assert any("rows of rounded probabilities sum to 0.99 to 1.01" in notice for notice in model["notices"])
    assert run("evaluate", path, "--engine", "duckdb", "--draws", 100) == 0
    shown = capsys.readouterr().out
    assert "class cow" in shown
    assert "Note: read 'prob_ant'" in shown


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("words", [("no", "yes"), ("-1", "1"), ("0", "1"), ("ham", "spam")])
def test_beyond_memory_labels_are_read_as_in_memory(
    words: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    p = rng.random(500)
    path = tmp_path / "risks.csv"
    cells = (f"{each},{words[int(rng.random() < each)]},1" for each in p)
    path.write_text("\n".join(["y_prob,y_true,weight", *cells]))
    model = beyond(path, capsys)
    assert run("evaluate", path, "--draws", 100, "--json") == 0
    (theirs,) = json.loads(capsys.readouterr().out)["models"]
    assert model["scores"]["esd"]["value"] == pytest.approx(theirs["scores"]["esd"]["value"], rel=1e-9)
    assert sorted(model["notices"]) == sorted(theirs["notices"])
    assert model["scores"]["gap"]["convention"] == theirs["scores"]["gap"]["convention"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("confidence,correct\n" + "0.9,yes\n0.8,no\n0.7,right\n" * 3, "9 samples are few"),
        ("y_prob,y_true\n" + "0.9,1\n0.8,1\n" * 20, "only class 1 occurs in 'y_true': check the labels"),
        ("logits_0,logits_1,target\n" + "0.9,0.1,0\n0.2,0.8,1\n" * 20, "these logits look like probabilities"),
        ("prediction,confidence,target\n" + "1,0.9,1\n0,0.2,0\n" * 20, "give --probabilities confidence"),
    ],
)
def test_beyond_memory_doubts_are_told(
    content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.csv"
    path.write_text(content)
    model = beyond(path, capsys)
    assert told in " ".join([model["verdict"], *model["notices"]])


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("labels.csv", "prob_a,prob_b,target_a,target_b\n.1,.9,0,1\n", "--probabilities prob_a --target target_a"),
        ("lm.jsonl", '{"logprobs": {"A": -1, "B": -2}, "target": "A"}\n', "choose --engine memory"),
        ("samples.jsonl", '{"target": 0, "resps": [[[-1, false]]]}\n', "choose --engine memory"),
        ("percent.csv", "y_prob,y_true\n" + "90,1\n20,0\n" * 5, "give --percent if they are percentages"),
        ("names.csv", "y_prob,y_true\n.9,a\n.2,b\n.3,c\n", "give their order with --classes FILE"),
    ],
)
def test_what_needs_memory_says_so(
    name: str, content: str, remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert run("evaluate", path, "--engine", "duckdb") == 2
    assert remedy in capsys.readouterr().err
