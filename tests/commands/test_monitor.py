"""Groups, time, baselines, conditions and history of `calibrant evaluate`."""

import csv
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import shell
from tests.shell import Ended

Screen = pytest.CaptureFixture[str]


def write(path: Path, columns: dict[str, Any]) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.fixture
def risks(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    p, region = rng.uniform(0.05, 0.95, 2000), rng.choice(["north", "south"], 2000)
    event = rng.random(2000) < np.where(region == "south", 0.7 * p, p)
    day = (np.datetime64("2026-01-01") + np.arange(2000) // 100).astype(str)
    return write(tmp_path / "risks.csv", {"y_prob": p, "y_true": event.astype(int), "region": region, "day": day})


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    p = rng.uniform(0.05, 0.95, 2000)
    return write(tmp_path / "last.csv", {"y_prob": p, "y_true": (rng.random(2000) < p).astype(int)})


def evaluate(capsys: Screen, *arguments: object) -> Ended:
    return shell.ended(capsys, "evaluate", *arguments, "--draws", 100)


def test_the_worst_group_comes_first(risks: Path, capsys: Screen) -> None:
    (model,) = evaluate(capsys, risks, "--group", "region", "--json").json["models"]
    assert [group["name"] for group in model["groups"]["groups"]] == ["south", "north"]
    assert model["groups"]["rejected"] == ["south"]
    assert "1 of 2 groups are not calibrated" in evaluate(capsys, risks, "--group", "region").shown


def test_windows_of_time_are_shown(risks: Path, capsys: Screen) -> None:
    shown = evaluate(capsys, risks, "--time", "day").shown
    assert "Over time: no change" in shown
    assert "2026-01-01 to 2026-01-02" in shown


def test_a_baseline_of_other_samples_shows_a_change(risks: Path, baseline: Path, capsys: Screen) -> None:
    found = evaluate(capsys, risks, "--baseline", baseline, "--fail-if", "worse-than-baseline")
    assert found.status == 1
    assert "has changed (p < 0.001) and is worse" in found.shown
    assert found.error == "calibrant: risks: worse-than-baseline\n"
    assert evaluate(capsys, baseline, "--baseline", risks, "--fail-if", "worse-than-baseline").status == 0


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("condition", "status"),
    [("rejected", 1), ("ece > 0.01", 1), ("ece > 0.5", 0), ("accuracy<0.9", 1), ("changed", 1)],
)
def test_conditions_set_the_exit_status(
    risks: Path, baseline: Path, condition: str, status: int, capsys: Screen
) -> None:
    found = evaluate(capsys, risks, "--baseline", baseline, "--fail-if", condition, "--fail-if", "ece > 0.9")
    assert (found.status, bool(found.error)) == (status, bool(status))


def test_conditions_hold_beyond_memory_too(risks: Path, capsys: Screen) -> None:
    for condition, status in (("rejected", 1), ("ece > 0.5", 0)):
        assert evaluate(capsys, risks, "--engine", "duckdb", "--fail-if", condition).status == status


def test_a_score_that_the_file_does_not_have_fails(tmp_path: Path, capsys: Screen) -> None:
    rng = np.random.default_rng(0)
    pairs = write(tmp_path / "pairs.csv", {"confidence": rng.random(100), "correct": rng.integers(2, size=100)})
    found = evaluate(capsys, pairs, "--fail-if", "log_loss > 9", "--fail-if", "ece > 0.01", "--json")
    assert found.status == 1
    assert "pairs: has no log_loss" in found.error
    assert len(found.json["failed"]) == 2


BAD: dict[str, tuple[list[str], str]] = {
    "event": (["--fail-if", "wrong"], "worse-than-baseline"),
    "score": (["--fail-if", "speed > 1"], "accuracy"),
    "no baseline": (["--fail-if", "changed"], "--baseline FILE"),
    "group": (["--group", "sex"], "has no 'sex'; it has y_prob, y_true, region, day"),
    "other classes": (["--baseline", "classes.npz"], "other classes"),
    "format of the history": (["--history", "audits.txt"], ".parquet"),
    "history is no table": (["--history", "other.parquet"], "other.parquet: is not a Parquet file"),
    "several labels": (["labels.npz", "--group", "region"], "several labels"),
    "empty times": (["holes.csv", "--time", "day"], "'day' has empty cells"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_one_line(
    risks: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: Screen
) -> None:
    monkeypatch.chdir(tmp_path)
    target = np.arange(60).reshape(20, 3) % 2
    np.savez("classes.npz", probabilities=np.full((50, 3), 1 / 3), target=np.arange(50) % 3)
    np.savez("labels.npz", probabilities=np.full((20, 3), 0.4), target=target, region=target[:, 0])
    Path("holes.csv").write_text("y_prob,y_true,day\n0.1,0,1\n0.7,1,\n0.4,0,2\n")
    Path("other.parquet").write_text("not a table")
    arguments, message = BAD[name]
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    files = [] if "." in arguments[0] else [risks]
    shell.refused(capsys, message, "evaluate", *files, *arguments, "--draws", 19)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_history_grows_by_a_row_a_run(risks: Path, baseline: Path, tmp_path: Path, kind: str, capsys: Screen) -> None:
    import duckdb

    history = tmp_path / f"audits.{kind}"
    for given in (risks, risks, baseline):
        assert evaluate(capsys, given, "--history", history).status == 0
    with duckdb.connect() as connection:
        asked = f"SELECT name, samples, rejected, length(sha256) FROM '{history}'"  # noqa: S608
        rows = connection.execute(asked).fetchall()
    assert rows == [("risks", 2000, True, 64), ("risks", 2000, True, 64), ("last", 2000, False, 64)]


@pytest.mark.parametrize("how", ["itself", "relative", "symlink", "hard link", "baseline", "in a folder"])
def test_a_history_never_overwrites_another_file(
    risks: Path, baseline: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, capsys: Screen
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link.csv").symlink_to(risks)
    Path("hard.csv").hardlink_to(risks)
    (tmp_path / "parts").mkdir()
    part = write(tmp_path / "parts" / "a.csv", {"y_prob": [0.1, 0.7, 0.4], "y_true": [0, 1, 1]})
    history = {"itself": risks, "relative": Path("risks.csv"), "symlink": Path("link.csv"),
               "hard link": Path("hard.csv"), "baseline": baseline, "in a folder": part}[how]  # fmt: skip
    given = part.parent if how == "in a folder" else risks
    before = history.read_bytes()
    shell.refused(capsys, "choose another --history", "evaluate", given, "--baseline", baseline, "--history", history)
    assert history.read_bytes() == before


def test_the_page_shows_groups_time_and_the_baseline_and_how_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Screen
) -> None:
    rng = np.random.default_rng(0)
    risk, region = rng.uniform(0.1, 0.9, 900), rng.choice(["north <b>", "south"], 900)
    event = rng.random(900) < risk - 0.3 * (region == "south") * (risk > 0.3)
    week = np.repeat(np.arange(9), 100)
    path = write(tmp_path / "week.csv", {"y_prob": risk, "y_true": event.astype(int), "region": region, "week": week})
    page = tmp_path / "week.html"
    command = ["evaluate", str(path), "--group", "region", "--time", "week", "--baseline", str(path)]
    monkeypatch.setattr("sys.argv", ["calibrant", *command])
    assert evaluate(capsys, path, *command[2:], "--report", page).status == 0
    shown = page.read_text(encoding="utf-8")
    assert "1 of 2 groups is not calibrated (Holm" in shown  # the verdict, before everything else
    for heading in ("In which groups is it wrong?", "Has it changed over time?", "since the baseline?"):
        assert heading in shown
    assert "<bdi>north &lt;b&gt;</bdi>" in shown
    assert hashlib.sha256(path.read_bytes()).hexdigest() in shown
    assert "calibrant evaluate" in shown
    assert "<dt>Date</dt>" in shown


def test_names_of_groups_are_not_broken_at_80_columns(tmp_path: Path, capsys: Screen) -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.95, 400)
    region, age = rng.choice(["north", "south"], 400), rng.choice(["under thirty", "over thirty"], 400)
    columns = {"y_prob": p, "y_true": (rng.random(400) < p).astype(int), "region of birth": region, "group of age": age}
    path = write(tmp_path / "groups.csv", columns)
    assert shell.run("evaluate", path, "--group", "region of birth,group of age", "--draws", 100) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("group of age = under thirty ") for line in lines)
    assert "group of age = under thirty" in lines  # below its region
