"""`calibrant evaluate`, as a user runs it."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from calibrant import metrics
from calibrant.commands.evaluate import model_names
from calibrant.commands.terminal import print_scores, timed_bar, warnings_shown
from tests.shell import ended, refused

RNG = np.random.default_rng(0)
TARGET = RNG.integers(4, size=600)
Screen = pytest.CaptureFixture[str]


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


def risks(path: Path, samples: int = 2000, shift: float = 0.08) -> Path:
    risk = np.random.default_rng(0).uniform(0.1, 0.9, samples)
    event = np.random.default_rng(1).random(samples) < risk + shift
    rows = (f"{p!r},{int(y)}\n" for p, y in zip(risk.tolist(), event.tolist(), strict=True))
    path.write_text("y_prob,y_true\n" + "".join(rows))
    return path


def test_one_file(files: dict[str, Path], capsys: Screen) -> None:
    found = ended(capsys, "evaluate", files["sharp"], "--draws", 200)
    assert found.status == 0
    assert found.shown.startswith("sharp: Over-confident")
    assert f"{100 * metrics.ece(logits=logits(6.0), target=TARGET):.2f} %" in found.shown
    assert "paper: 20 bins (lo, hi]" in found.shown
    assert found.error == ""  # no progress where nobody is watching


def test_json_is_complete_and_clean(files: dict[str, Path], capsys: Screen) -> None:
    options = ("--json", "--draws", 200, "--convention", "guo")
    found = ended(capsys, "evaluate", files["sharp"], files["soft"], *options).json
    sharp, soft = found["models"]
    assert (sharp["name"], soft["name"], sharp["task"]) == ("sharp", "soft", "multi-class")
    expected = metrics.ece(logits=logits(6.0), target=TARGET, convention="guo")
    assert sharp["scores"]["ece"] == {"value": expected, "convention": "guo: 15 bins (lo, hi]"}
    assert (sharp["test"]["rejected_at_5_percent"], sharp["test"]["draws"]) == (True, 200)
    assert [view["kind"] for view in sharp["views"]] == ["top label", *["class"] * 4]
    top = sharp["views"][0]
    assert top["gap"]["low"] < top["gap"]["value"] < top["gap"]["high"]
    assert not top["equivalence"]["on_average"]
    assert len(top["analytic"]) == 3
    assert top["calibration_line"]["slope"] < 1
    assert set(sharp["intervals"]) == {"gap", "ece", "log_loss", "brier"}
    assert set(sharp["parts"]) == {"log_loss", "brier"}
    assert set(sharp["repair"]["cross_fitted_log_loss"]) == {"temperature", "auto"}
    assert len(sharp["repair"]["views"]) == 5
    (comparison,) = found["comparisons"]
    assert comparison["names"] == ["sharp", "soft"]
    assert comparison["difference"] == pytest.approx(comparison["a"] - comparison["b"])


def test_the_risk_of_two_classes_fits_a_narrow_terminal(tmp_path: Path, capsys: Screen) -> None:
    found = ended(capsys, "evaluate", risks(tmp_path / "risk.csv"), "--draws", 100, "--margin", 20)
    assert max(map(len, found.out.splitlines())) <= 80
    for part in ("risk: Risks of class 1 are understated", "95 % intervals: gap -", "Kuiper", "slope", "± 20 points"):
        assert part in found.shown, part


def test_the_same_seed_gives_the_same_output(files: dict[str, Path], capsys: Screen) -> None:
    command = ("evaluate", files["sharp"], "--json", "--draws", 100, "--seed")
    first, second, other = (ended(capsys, *command, seed).shown for seed in (0, 0, 1))
    assert first == second != other


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"confidence": [0.5, 0.6, 0.7], "correct": [1, 0, 1]}, "at least 4 samples"),
        ({"logits": RNG.normal(size=(60, 3)), "target": RNG.integers(2, size=(60, 3))}, "labels of a sample"),
    ],
)
def test_what_cannot_be_compared_is_evaluated(
    tmp_path: Path, arrays: dict[str, Any], reason: str, capsys: Screen
) -> None:
    paths = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for path in paths:
        np.savez(path, **arrays)
    found = ended(capsys, "evaluate", *paths, "--json", "--draws", 20).json
    (pair,) = found["not_compared"]
    assert (pair["names"], found["comparisons"], len(found["models"])) == (["a", "b"], [], 2)
    assert reason in pair["reason"]


def test_every_pair_of_the_same_samples_is_compared(files: dict[str, Path], tmp_path: Path, capsys: Screen) -> None:
    other = tmp_path / "pairs.npz"
    np.savez(other, confidence=RNG.random(60), correct=RNG.integers(2, size=60))
    shown = ended(capsys, "evaluate", *files.values(), other, "--draws", 20).shown
    assert "sharp (a) and soft (b): ESD" in shown
    assert "b is better calibrated" in shown
    for name in files:
        assert f"{name} and pairs are not compared" in shown


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


@pytest.mark.parametrize(
    ("name", "shown"),
    [("bad\udcff\x1b[31m", "bad\ufffd [31m"), ("[bold red]model[link]", "[bold red]model[link]")],
)
def test_a_name_stays_text(name: str, shown: str, tmp_path: Path, capsys: Screen) -> None:
    path = tmp_path / f"{name}.npz"
    np.savez(path, logits=logits(2.0), target=TARGET)
    assert ended(capsys, "evaluate", path, "--json", "--draws", 50).json["models"][0]["name"] == shown
    assert ended(capsys, "evaluate", path, "--draws", 50).shown.startswith(shown)


def test_names_tell_files_apart() -> None:
    assert model_names([Path("a/x.npz"), Path("a/y.npz")]) == ["x", "y"]
    assert model_names([Path("a/x.npz"), Path("a/x.csv")]) == ["x.npz", "x.csv"]
    assert model_names([Path("a/x.npz"), Path("b/x.npz")]) == ["a/x.npz", "b/x.npz"]


def test_the_report_is_written_whole(files: dict[str, Path], tmp_path: Path, capsys: Screen) -> None:
    report = tmp_path / "pages" / "out.html"
    assert "Report:" in ended(capsys, "evaluate", files["sharp"], "--report", report, "--draws", 100).shown
    assert "Over-confident in the top label by" in report.read_text(encoding="utf-8")
    assert [path.name for path in report.parent.iterdir()] == ["out.html"]


def test_results_are_printed_where_the_report_cannot_be_written(
    files: dict[str, Path], capsys: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    found = ended(capsys, "evaluate", files["sharp"], "--report", files["sharp"].parent / "x.html", "--draws", 20)
    assert (found.status, found.error.count("\n")) == (2, 1)
    assert "x.html: cannot be written: No space left" in found.error
    assert found.shown.startswith("sharp: Over-confident")


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_condition_that_holds(tmp_path: Path) -> None:
    page, history = tmp_path / "page.html", tmp_path / "history.csv"
    np.savez(tmp_path / "pairs.npz", confidence=RNG.random(50), correct=RNG.integers(2, size=50))
    command: list[str | Path] = [sys.executable, "-m", "calibrant", "evaluate", tmp_path / "pairs.npz", "--draws", "20"]
    command += ["--report", page, "--history", history]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as gone:
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")
    assert page.exists()  # outputs are written before anything is printed
    assert history.exists()


BAD: dict[str, tuple[list[str], str]] = {
    "no file": ([], "at least one file"),
    "twice": (["sharp.npz", "./sharp.npz"], "twice"),
    "overwrite": (["sharp.npz", "--report", "sharp.npz"], "choose another --report"),
    "place of the report": (["sharp.npz", "--report", "sharp.npz/x.html"], "sharp.npz is a file, not a folder"),
    "report is a folder": (["sharp.npz", "--report", "."], ".: is a folder"),
    "place of the history": (["sharp.npz", "--history", "soft.npz/a/b.csv"], "soft.npz is a file, not a folder"),
    "engine": (["sharp.npz", "--engine", "duckdb"], "(.csv"),
    "report beyond memory": (["pairs.csv", "--engine", "duckdb", "--report", "x.html"], "--report"),
    "groups beyond memory": (["pairs.csv", "--engine", "duckdb", "--group", "x"], "--group"),
    "bins beyond memory": (["pairs.csv", "--engine", "duckdb", "--convention", "netcal"], "--convention"),
    "not a table": (["broken.csv"], "row 2 has 'x'"),
    "beyond memory, missing column": (["broken.csv", "--engine", "duckdb", "--correct", "x"], "broken.csv"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_status_2(
    files: dict[str, Path], tmp_path: Path, name: str, capsys: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, message = BAD[name]
    (tmp_path / "pairs.csv").write_text("confidence,correct\n0.9,1\n0.8,0\n0.7,1\n")
    (tmp_path / "broken.csv").write_text("confidence,correct\n0.9,1\nx,0\n0.7,1\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("calibrant.commands.evaluate.audit", None)  # files are checked before anything is tested
    refused(capsys, message, "evaluate", *arguments)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_doubtful_values_are_a_note_and_not_a_warning(tmp_path: Path, capsys: Screen) -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(3), 60)
    np.savez(tmp_path / "p.npz", logits=p, target=p.argmax(1))
    found = ended(capsys, "evaluate", tmp_path / "p.npz", "--draws", 19, "--json")
    notice = found.json["models"][0]["notices"][0]
    assert "--probabilities logits" in notice
    assert found.error == ""


def beyond(path: Path, capsys: Screen, *more: object) -> dict[str, Any]:
    (model,) = ended(capsys, "evaluate", path, "--engine", "duckdb", "--draws", 100, "--json", *more).json["models"]
    return dict(model)


def in_memory(path: Path, capsys: Screen) -> dict[str, Any]:
    (model,) = ended(capsys, "evaluate", path, "--draws", 100, "--json").json["models"]
    return dict(model)


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.slow)])
def test_engines_give_the_same_scores(tmp_path: Path, engine: str, capsys: Screen) -> None:
    if engine == "spark" and (pytest.importorskip("pyspark") and shutil.which("java") is None):
        pytest.skip("Spark needs Java")
    z = np.round(RNG.random(500), 2)
    correct = (RNG.random(500) < z).astype(int)
    path = tmp_path / "pairs.csv"
    np.savetxt(path, np.column_stack((z, correct)), "%.17g", ",", header="confidence,correct", comments="")
    (model,) = ended(capsys, "evaluate", path, "--engine", engine, "--json").json["models"]
    expected = {entry.key: entry for entry in metrics.evaluate(z, correct)}
    assert model["engine"] == engine
    for key, score in model["scores"].items():
        assert score["value"] == pytest.approx(expected[key].value, rel=1e-9, abs=1e-12), key


def test_of_two_classes_the_same_is_judged_beyond_memory(tmp_path: Path, capsys: Screen) -> None:
    path = risks(tmp_path / "risks.csv", shift=-0.05)
    memory, table = in_memory(path, capsys), beyond(path, capsys)
    assert memory["verdict"].startswith(table["verdict"])
    for key in ("calibration_line", "equivalence"):
        assert table["views"][0][key] == pytest.approx(memory["views"][0][key], rel=1e-3), key
    for key in ("gap", "ece", "ks_error", "esd"):
        assert table["scores"][key]["value"] == pytest.approx(memory["scores"][key]["value"], rel=1e-6), key
        assert table["scores"][key]["convention"] == memory["scores"][key]["convention"], key
    assert "accuracy" not in table["scores"]
    assert table["intervals"]["gap"]["low"] == pytest.approx(memory["intervals"]["gap"]["low"], rel=1e-5)


def test_a_table_beyond_memory_goes_to_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Screen) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("confidence,correct\n" + "0.9,1\n0.8,0\n0.7,1\n" * 100)
    monkeypatch.setattr("calibrant.files.read.free_memory", lambda: 1000)
    assert ended(capsys, "evaluate", path, "--json").json["models"][0]["engine"] == "duckdb"


def test_beyond_memory_single_classes_are_judged(tmp_path: Path, capsys: Screen) -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], 3000)
    label = np.array(["ant", "bee", "cow"])[(p[:, [1, 0, 2]].cumsum(1) < rng.random((3000, 1))).sum(1)]
    rows = [",".join([*map(str, each), name]) for each, name in zip(p.round(2), label, strict=True)]
    path = tmp_path / "p.csv"
    path.write_text("\n".join(["prob_ant,prob_bee,prob_cow,label", *rows]))
    model = beyond(path, capsys)
    judged = [(view["name"], view["rejected_at_5_percent"]) for view in model["views"]]
    assert judged[1:] == [("ant", True), ("bee", True), ("cow", False)]
    assert "2 of 3 classes are not calibrated" in model["verdict"]
    assert "read 'prob_ant' to 'prob_cow' as probabilities, 'label' as target" in model["notices"]
    assert any("rounded" in notice for notice in model["notices"])
    shown = ended(capsys, "evaluate", path, "--engine", "duckdb", "--draws", 100).shown
    assert "class cow" in shown
    assert "Note: read 'prob_ant'" in shown


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("words", [("no", "yes"), ("-1", "1"), ("0", "1"), ("ham", "spam")])
def test_beyond_memory_labels_are_read_as_in_memory(words: tuple[str, str], tmp_path: Path, capsys: Screen) -> None:
    rng = np.random.default_rng(0)
    cells = (f"{each},{words[int(rng.random() < each)]},1" for each in rng.random(500))
    path = tmp_path / "risks.csv"
    path.write_text("\n".join(["y_prob,y_true,weight", *cells]))
    table, memory = beyond(path, capsys), in_memory(path, capsys)
    assert table["scores"]["esd"]["value"] == pytest.approx(memory["scores"]["esd"]["value"], rel=1e-9)
    assert sorted(table["notices"][:-1]) == sorted(memory["notices"])
    assert table["scores"]["gap"]["convention"] == memory["scores"]["gap"]["convention"]


@pytest.mark.parametrize(
    ("content", "noted"),
    [
        ("confidence,correct\n" + "0.9,yes\n0.8,no\n0.7,right\n" * 3, "9 samples are few"),
        ("y_prob,y_true\n" + "0.9,1\n0.8,1\n" * 20, "only class 1 occurs in 'y_true'"),
        ("logits_0,logits_1,target\n" + "0.9,0.1,0\n0.2,0.8,1\n" * 20, "give --probabilities logits"),
        ("prediction,confidence,target\n" + "1,0.9,1\n0,0.2,0\n" * 20, "give --probabilities confidence"),
    ],
)
def test_beyond_memory_mistakes_are_noted(content: str, noted: str, tmp_path: Path, capsys: Screen) -> None:
    (tmp_path / "p.csv").write_text(content)
    model = beyond(tmp_path / "p.csv", capsys)
    assert noted in " ".join([model["verdict"], *model["notices"]])


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("labels.csv", "prob_a,prob_b,target_a,target_b\n.1,.9,0,1\n", "--probabilities prob_a --target target_a"),
        ("lm.jsonl", '{"logprobs": {"A": -1, "B": -2}, "target": "A"}\n', "--engine memory"),
        ("samples.jsonl", '{"target": 0, "resps": [[[-1, false]]]}\n', "--engine memory"),
        ("percent.csv", "y_prob,y_true\n" + "90,1\n20,0\n" * 5, "--percent"),
        ("names.csv", "y_prob,y_true\n.9,a\n.2,b\n.3,c\n", "--classes FILE"),
    ],
)
def test_what_needs_memory_says_so(name: str, content: str, remedy: str, tmp_path: Path, capsys: Screen) -> None:
    (tmp_path / name).write_text(content)
    refused(capsys, remedy, "evaluate", tmp_path / name, "--engine", "duckdb")


def test_a_warning_is_printed_once_and_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with warnings_shown(), timed_bar(Console(stderr=True, force_terminal=True, width=100)) as progress:
        warnings.simplefilter("always")
        progress.add_task("training", total=None)
        progress.refresh()
        for _ in range(2):
            warnings.warn("the fit is a:b:c [doubtful]", UserWarning, stacklevel=1)
    [before] = screen.getvalue().split("warning: the fit is a:b:c [doubtful]")[:-1]
    assert before.endswith("\r\x1b[2K")  # the line of the bar is cleared first
