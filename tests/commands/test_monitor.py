"""Groups, time, baselines, conditions and history of `calibrant evaluate`."""

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.cli import main


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


def run(*arguments: object) -> int:
    try:
        main(["evaluate", *map(str, arguments), "--draws", "100"])
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def test_the_worst_group_comes_first(risks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(risks, "--group", "region", "--json") == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert [group["name"] for group in model["groups"]["groups"]] == ["south", "north"]
    assert model["groups"]["rejected"] == ["south"]
    assert run(risks, "--group", "region") == 0
    assert "1 of 2 groups are not calibrated, after Holm's correction" in capsys.readouterr().out


def test_combinations_of_columns_are_groups(risks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(risks, "--group", "region,day", "--json") == 0
    groups = json.loads(capsys.readouterr().out)["models"][0]["groups"]["groups"]
    assert {"region = south", "day = 2026-01-01", "region = south, day = 2026-01-01"} <= {g["name"] for g in groups}


def test_windows_of_time_are_shown(risks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(risks, "--time", "day") == 0
    shown = capsys.readouterr().out
    assert "Over time: no change of the average gap over time is detected" in shown
    assert "2026-01-01 to 2026-01-02" in shown


def test_a_baseline_of_other_samples_tells_a_change(
    risks: Path, baseline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(risks, "--baseline", baseline, "--fail-if", "worse-than-baseline") == 1
    found = capsys.readouterr()
    assert "calibration has changed (p < 0.001) and is worse" in " ".join(found.out.split())
    assert found.err == "calibrant: risks: worse-than-baseline\n"
    assert run(baseline, "--baseline", risks, "--fail-if", "worse-than-baseline") == 0


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("condition", "status"), [("rejected", 1), ("ece > 0.01", 1), ("ece > 0.5", 0), ("accuracy<0.9", 1)]
)
def test_conditions_set_the_exit_status(
    risks: Path, condition: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(risks, "--fail-if", condition) == status
    assert bool(capsys.readouterr().err) == bool(status)


def test_a_score_that_the_file_does_not_have_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    pairs = write(tmp_path / "pairs.csv", {"confidence": rng.random(100), "correct": rng.integers(2, size=100)})
    assert run(pairs, "--fail-if", "log_loss > 9") == 1
    assert "pairs: has no log_loss" in capsys.readouterr().err


def test_several_conditions_are_each_told(risks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(risks, "--fail-if", "rejected", "--fail-if", "ece > 0.01", "--json") == 1
    assert len(json.loads(capsys.readouterr().out)["failed"]) == 2


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("wrong", "expected rejected, worse-than-baseline, changed, or a score and a limit"),
        ("ece > x", "expected rejected"),
        ("speed > 1", "the scores are accuracy"),
        ("changed", "needs a --baseline FILE"),
    ],
)
def test_a_wrong_condition_is_told_in_one_line(
    risks: Path, condition: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(risks, "--fail-if", condition) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_history_grows_by_a_row_a_run(risks: Path, baseline: Path, tmp_path: Path, kind: str) -> None:
    import duckdb

    history = tmp_path / f"audits.{kind}"
    for _ in range(2):
        assert run(risks, "--history", history) == 0
    assert run(baseline, "--history", history) == 0
    with duckdb.connect() as connection:
        asked = f"SELECT name, samples, rejected, length(sha256) FROM '{history}'"  # noqa: S608
        rows = connection.execute(asked).fetchall()
    assert rows == [("risks", 2000, True, 64), ("risks", 2000, True, 64), ("last", 2000, False, 64)]


def test_a_history_that_is_something_else_is_left_alone(
    risks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.parquet"
    other.write_text("not a table")
    assert run(risks, "--history", other) == 2
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert "other.parquet: holds something else than a history: choose another --history" in found.err
    assert other.read_text() == "not a table"
    assert run(risks, "--history", tmp_path / "audits.txt") == 2


@pytest.mark.parametrize(
    "how", ["itself", "relative", "symlink", "hard link", "baseline", "in a folder", "other table"]
)
def test_a_history_never_overwrites_another_file(
    risks: Path,
    baseline: Path,
    tmp_path: Path,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given, history = risks, tmp_path / "link.csv"
    monkeypatch.chdir(tmp_path)
    match how:
        case "itself":
            history = risks
        case "relative":
            history = Path("risks.csv")
        case "symlink":
            history.symlink_to(risks)
        case "hard link":
            history.hardlink_to(risks)
        case "baseline":
            history.symlink_to(baseline)
        case "in a folder":
            (tmp_path / "parts").mkdir()
            history = write(tmp_path / "parts" / "a.csv", {"y_prob": [0.1, 0.7, 0.4], "y_true": [0, 1, 1]})
            given = tmp_path / "parts"
        case "other table":
            history = write(tmp_path / "customers.csv", {"name": ["Ada"], "samples": [3]})
    before = history.read_bytes()
    assert run(given, "--baseline", baseline, "--history", history) == 2
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert "choose another --history" in found.err
    assert history.read_bytes() == before


def test_a_history_that_cannot_be_written_is_refused_at_once(
    risks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.csv").mkdir()
    assert run(risks, "--history", tmp_path / "folder.csv") == 2
    found = capsys.readouterr()
    assert "is a folder: choose the name of a file in it" in found.err
    assert found.out == ""


def test_missing_columns_and_labels_are_told(
    risks: Path, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(risks, "--group", "sex") == 2
    assert "has no 'sex'; it has y_prob, y_true, region, day" in capsys.readouterr().err
    classes = tmp_path / "classes.npz"
    np.savez(classes, probabilities=np.full((50, 3), 1 / 3), target=np.arange(50) % 3)
    assert run(risks, "--baseline", classes, "--fail-if", "changed") == 2
    assert "has other classes" in capsys.readouterr().err


def test_the_page_shows_groups_time_and_the_baseline_and_how_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    risk, region = rng.uniform(0.1, 0.9, 900), rng.choice(["north <b>", "south"], 900)
    event = rng.random(900) < risk - 0.3 * (region == "south") * (risk > 0.3)
    week = np.repeat(np.arange(9), 100)
    path = write(tmp_path / "week.csv", {"y_prob": risk, "y_true": event.astype(int), "region": region, "week": week})
    page = tmp_path / "week.html"
    command = ["evaluate", str(path), "--group", "region", "--time", "week", "--baseline", str(path)]
    monkeypatch.setattr("sys.argv", ["calibrant", *command])
    assert run(path, *command[2:], "--report", page) == 0
    shown = page.read_text(encoding="utf-8")
    assert "1 of 2 groups is not calibrated (Holm" in shown  # the verdict, before everything else
    for heading in ("In which groups is it wrong?", "Has it changed over time?", "since the baseline?"):
        assert heading in shown
    assert "<bdi>north &lt;b&gt;</bdi>" in shown
    assert hashlib.sha256(path.read_bytes()).hexdigest() in shown
    assert "calibrant evaluate" in shown
    assert "<dt>Date</dt>" in shown


def test_names_of_groups_are_not_broken_at_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.95, 400)
    region, age = rng.choice(["north", "south"], 400), rng.choice(["under thirty", "over thirty"], 400)
    columns = {"y_prob": p, "y_true": (rng.random(400) < p).astype(int), "region of birth": region, "group of age": age}
    path = write(tmp_path / "groups.csv", columns)
    assert run(path, "--group", "region of birth,group of age") == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("group of age = under thirty ") for line in lines)
    assert "group of age = under thirty" in lines  # below its region
