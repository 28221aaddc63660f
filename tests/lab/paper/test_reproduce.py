"""`calibrant reproduce`, `runs` and `report` as a user calls them, on a search of seconds."""

import csv
import io
import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from calibrant.cli import main
from calibrant.training import CalibrationWarning
from calibrant_lab.paper import reproduce
from calibrant_lab.paper.request import requested
from calibrant_lab.sweeps.dry_run import Estimate
from calibrant_lab.sweeps.run import recorded
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.fit import prepare
from calibrant_lab.trials.store import Store

SMALL = ["--recipe", "digits", "--profile", "quick", "--methods", "esd", "--epochs", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NLL twice, and ESD: two λ and two seeds, an epoch each."""
    folder = tmp_path_factory.mktemp("reproduced") / "runs"
    call("reproduce", "table1", *SMALL, "--runs", folder, "--parallel", "1")  # more would take longer to start
    return folder


@pytest.fixture(scope="module")
def complete(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trials of all tables, and the scores of Figure 6: Tables 2 and 3 train networks of their own."""
    folder = tmp_path_factory.mktemp("complete") / "runs"
    shutil.copytree(runs, folder)
    call("reproduce", "all", *SMALL, "--runs", folder, "--shift-images", "40")
    return folder


def call(*arguments: str | Path, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert ended.value.code == code


@pytest.mark.slow  # sweeps/test_dry_run.py is the quick one
def test_a_dry_run_lists_every_trial_and_runs_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("reproduce", "table1", "--recipe", "mnist", "--runs", tmp_path / "runs", "--dry-run")
    shown = capsys.readouterr().out
    assert "70 trials, 0 done, 70 to do" in shown
    assert shown.count("not run here") == 5
    assert "98.6±0.204" in shown
    numbers = [line.split()[0] for line in shown.splitlines() if line.split() and line.split()[0].isdecimal()]
    assert numbers[:70] == [str(number) for number in range(1, 71)]
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_prints_a_warning_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warned(trial: Configuration, **_: Any) -> Estimate:
        del trial
        warnings.warn("the objective is silent", CalibrationWarning, stacklevel=1)
        return Estimate(1.0, 1, 1, False)

    monkeypatch.setattr(reproduce, "estimate", warned)
    with warnings.catch_warnings():
        warnings.simplefilter("always", CalibrationWarning)
        call("reproduce", "table1", *SMALL, "--runs", tmp_path / "runs", "--dry-run")
    shown, warned_of = capsys.readouterr()
    assert warned_of == "warning: the objective is silent\n"
    assert "digits, 1 epoch: table1\n" in shown


def test_the_same_command_again_trains_nothing_and_prints_the_same(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Store(runs).trials()
    before = {trial.folder: (trial.folder / "result.json").stat().st_mtime_ns for trial in trials}
    assert len(before) == 7
    printed = []
    for _ in range(2):
        call("reproduce", "table1", *SMALL, "--runs", runs)
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "+ ESD" in printed[0]
    assert before == {folder: (folder / "result.json").stat().st_mtime_ns for folder in before}
    call("reproduce", "table1", *SMALL, "--runs", runs, "--dry-run")
    assert "7 trials, 7 done, 0 to do." in capsys.readouterr().out


@pytest.mark.slow
def test_tables_and_figures_are_written_in_every_format(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("reproduce", "table1", *SMALL, "--runs", runs, "--out", tmp_path, "--format", "csv")
    printed = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    written = list(csv.DictReader((tmp_path / "digits-quick-table1.csv").read_text().splitlines()))
    assert printed == written
    assert len(written) >= 3
    for name in ("figure1", "figure3", "figure4", "figure5"):
        call("reproduce", name, *SMALL, "--runs", runs, "--out", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *(f"digits-quick-table1.{ending}" for ending in ("md", "tex", "csv", "significance.csv", "toml")),
        *(
            f"digits-quick-figure{number}.{ending}"
            for number in (1, 3, 4, 5)
            for ending in ("svg", "png", "pdf", "csv")
        ),
    }
    assert Sweep.read(tmp_path / "digits-quick-table1.toml") in recorded(Store(runs))
    curves = list(csv.DictReader((tmp_path / "digits-quick-figure1.csv").read_text().splitlines()))
    trial = next(one for one in Store(runs).trials() if one.configuration.method == "esd" and one.configuration.seed)
    [epoch] = trial.history()
    [drawn] = [one for one in curves if (one["row"], one["seed"], one["epoch"]) == ("ESD", "1", "1")]
    assert float(drawn["test_ece"]) == pytest.approx(epoch["test_ece"], rel=1e-5)


@pytest.mark.slow
def test_tables_and_figures_of_other_settings_are_not_overwritten(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command: list[str | Path] = ["--runs", runs, "--out", tmp_path]
    call("reproduce", "table1", *SMALL, *command)
    call("reproduce", "figure3", *SMALL, *command)
    assert capsys.readouterr().err == ""
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    other = [*SMALL, "--columns", "accuracy", "nll"]
    [request] = requested(
        "table1", ["digits"], "quick", {"methods": ("esd",), "columns": ("accuracy", "nll")}, {"epochs": "1"}
    )
    identity = request.sweeps[0].identity
    for _ in range(2):
        call("reproduce", "table1", *other, *command)
        call("reproduce", "figure3", *other, *command)
    assert "has different settings" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
    added = {path.name for path in tmp_path.iterdir()} - {path.name for path in before}
    assert added == {
        *(f"digits-quick-table1-{identity}.{ending}" for ending in ("md", "tex", "csv", "significance.csv", "toml")),
        *(f"digits-quick-figure3-{identity}.{ending}" for ending in ("svg", "png", "pdf", "csv")),
    }
    assert "NLL" in (tmp_path / f"digits-quick-table1-{identity}.md").read_text()
    call("reproduce", "table1", *SMALL, *command)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow  # Figure 6 is in tests/lab/shift too
def test_all_is_all_that_can_be_shown(complete: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("reproduce", "all", *SMALL, "--runs", complete, "--out", tmp_path, "--shift-images", "40")
    shown = capsys.readouterr().out
    for name in ("Table 1", "Table 2", "Table 3", "+ ESD (b16)", "+ ECE (b32)", "figure2: not drawn: "):
        assert name in shown
    made = {path.name for path in tmp_path.glob("digits-*.svg")}
    assert made == {f"digits-quick-figure{number}.svg" for number in (1, 3, 4, 5, 6)}
    shifted = list(csv.DictReader((tmp_path / "digits-quick-figure6.csv").read_text().splitlines()))
    # Three rows of two networks: the clean images, and fourteen corruptions at five severities.
    assert len(shifted) == 3 * 2 * (1 + 14 * 5)
    assert {one["images"] for one in shifted} == {"40"}
    worst = next(one for one in shifted if (one["corruption"], one["severity"]) == ("fog", "5"))
    assert 0 <= float(worst["accuracy"]) <= 1


def test_a_search_with_more_seeds_takes_what_is_there(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("reproduce", "table1", *SMALL, "--runs", runs, "--search-seeds", "2", "--dry-run")
    listed = " ".join(capsys.readouterr().out.split())
    assert "profile quick, 2 seeds per candidate" in listed
    assert "8 trials, 7 done, 1 to do." in listed


@pytest.mark.slow
def test_a_search_with_more_seeds_is_kept_apart(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = tmp_path / "runs"
    shutil.copytree(runs, again)
    more: list[str | Path] = ["reproduce", "table1", *SMALL, "--runs", again, "--search-seeds", "2"]
    call(*more, "--out", tmp_path / "made")
    shown = " ".join(capsys.readouterr().out.split())
    assert "profile quick, 2 seeds per candidate" in shown
    assert "with the lowest mean validation ECE over 2 seeds among those that lose less" in shown
    assert len(Store(again).trials()) == 8
    assert {path.name.partition(".")[0] for path in (tmp_path / "made").iterdir()} == {"digits-quick-2seeds-table1"}
    call("reproduce", "figure6", *SMALL, "--runs", again, "--search-seeds", "2", "--shift-images", "20")
    call("report", again, "--out", tmp_path / "report.html")
    assert "Figure 6. Distribution shift" in (tmp_path / "report.html").read_text()
    assert "2 seeds per candidate" in (tmp_path / "report.html").read_text()


def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "run", interrupt)
    call("reproduce", "table1", *SMALL, "--runs", tmp_path, code=130)
    error = capsys.readouterr().err
    assert error == "calibrant: interrupted: finished trials are kept; run the same command to continue\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "table1", *SMALL, "--search-seeds", "3"], "search-seeds must be from 1 to 2"),
        (["reproduce", "table1", *SMALL, "--weight", "2"], "unknown setting 'weight'"),
        (["reproduce", "table1", *SMALL, "--max-length", "64"], "unknown setting 'max-length'"),
        (["reproduce", "table9", *SMALL], "unknown target 'table9': choose from table1"),
        (["reproduce", "table1", "--recipe", "digits", "--profile", "slow"], "unknown profile 'slow'"),
        (["reproduce", "table1", *SMALL[:-1], "2", "--accelerator", "tpu9"], "accelerator 'tpu9' is not available"),
        (["reproduce", "figure2", *SMALL], "MMCE"),
        (["reproduce", "figure6", "--recipe", "snli", "--dry-run"], "images of snli cannot be corrupted"),
        (["reproduce", "figure6", *SMALL, "--corrupted-dir", "nowhere"], "not for digits"),
        (["reproduce", "table1", "--recipe", "dgits"], "unknown recipe 'dgits', did you mean digits"),
        (["reproduce", "table1", "--recipe", "mnist", "--data-dir", "nowhere"], "nowhere"),
        (["reproduce", "table1", *SMALL[:-1], "2", "--ray-address", "auto"], "--executor ray"),
        (["reproduce", "table1", *SMALL[:-1], "2", "--executor", "ray", "--parallel", "2"], "--executor local"),
        (["reproduce", "table1", *SMALL, "--cpus-per-trial", "2"], "need --executor ray"),
        (["reproduce", "table1", *SMALL, "--gpus-per-trial", "1", "--dry-run"], "need --executor ray"),
        (["reproduce", "table1", *SMALL, "--shift-images", "20"], "are for figure6, which is not drawn"),
        (["reproduce", "figure1", *SMALL, "--corrupted-dir", "nowhere"], "are for figure6, which is not drawn"),
        (["reproduce", "table1", *SMALL, "--bandwidth", "0.2"], "unknown setting 'bandwidth'"),
        (["runs", "show", "zzzz"], "zzzz"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    arguments: list[str], message: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(*arguments, "--runs", runs, code=2)
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_store_can_be_listed_shown_exported_pruned_and_reported(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("runs", "list", "--runs", runs)
    listed = capsys.readouterr().out
    trial = Store(runs).trials()[0]
    assert trial.identity[:8] in listed
    call("runs", "show", trial.identity[:6], "--runs", runs)
    assert trial.identity in capsys.readouterr().out
    call("runs", "export", tmp_path / "trials.json", "--runs", runs)
    assert len(json.loads((tmp_path / "trials.json").read_text())["trials"]) == 7
    call("runs", "prune", "--weights", "--runs", runs)
    assert (trial.folder / "model.pt").exists()
    call("report", runs, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "+ ESD" in page


@pytest.mark.slow
def test_what_is_broken_in_one_trial_leaves_the_others(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "runs"
    shutil.copytree(runs, broken)
    esd = next(trial for trial in Store(broken).trials() if trial.configuration.method == "esd")
    (esd.folder / "test.npz").write_bytes(b"cut sh")
    nll = next(trial for trial in Store(broken).trials() if trial.configuration.method == "nll")
    shutil.rmtree(nll.folder)
    nll.folder.write_text("a file where a folder should be")
    call("reproduce", "table1", *SMALL, "--runs", broken, "--parallel", "1", code=1)
    shown = capsys.readouterr().out
    assert "NLL" in shown
    assert "reduced split" in shown


def test_other_data_are_not_mixed_into_a_table(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = tmp_path / "runs"
    shutil.copytree(runs, mixed)
    of_esd = [trial for trial in Store(mixed).trials() if trial.configuration.method == "esd"]
    first, *_, last = sorted(of_esd, key=lambda trial: trial.configuration.seed)  # the last is not part of the search
    shutil.rmtree(last.folder)
    (first.folder / "data.json").write_text('{"fingerprint": "of other images"}')
    call("reproduce", "table1", *SMALL, "--runs", mixed, code=2)
    assert "was run with different data" in capsys.readouterr().err
    assert not last.folder.exists()


@pytest.mark.slow
def test_a_table_of_other_data_than_those_given_says_so(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("reproduce", "table1", *SMALL, "--runs", runs, "--data-dir", tmp_path)
    assert "trained without --data-dir; use another --runs for other data" in capsys.readouterr().err
    call("reproduce", "table1", *SMALL, "--runs", runs)
    assert "--data-dir" not in capsys.readouterr().err


def test_settings_of_the_objectives_hold_for_all_trials(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(
        "reproduce", "table1", *SMALL, "--runs", runs, "--dry-run", "--batchnorm", "freeze",
        "--calibration-every", "2", "--calibration-fraction", "0.2", "--calibration-batch-size", "64",
    )  # fmt: skip
    assert "7 trials, 0 done, 7 to do" in capsys.readouterr().out


@pytest.mark.slow
def test_a_recipe_without_its_data_does_not_stop_those_after_it(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # digits, too, would look for a folder of its own; there all is done, and no data are needed.
    call("reproduce", "table1", "--recipe", "mnist", *SMALL, "--runs", runs, "--data-dir", tmp_path, code=1)
    shown = capsys.readouterr()
    assert "on digits" in shown.out
    assert shown.err.startswith("error: mnist: ")
    assert len(shown.err.splitlines()) == 1


@pytest.mark.slow
def test_figure6_of_all_without_networks_leaves_the_others(
    complete: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "runs"
    shutil.copytree(complete, store)
    call("runs", "prune", "--weights", "--apply", "--runs", store)
    call("reproduce", "all", *SMALL, "--runs", store, "--out", tmp_path)
    assert "figure6: not drawn: " in capsys.readouterr().out


@pytest.mark.slow
def test_a_narrow_terminal_cuts_no_numbers(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed, trial = [], Store(runs).trials()[0]
    for columns in ("200", "80", "50"):
        monkeypatch.setenv("COLUMNS", columns)
        call("reproduce", "table1", *SMALL, "--runs", runs)
        call("runs", "show", trial.identity, "--runs", runs)
        printed.append(capsys.readouterr().out)
    assert printed[0].split() == printed[1].split() == printed[2].split()


@pytest.mark.slow
def test_what_is_damaged_costs_its_own_line_only(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "runs"
    shutil.copytree(runs, broken)
    trials = [trial for trial in Store(broken).trials() if trial.configuration.seed == 1]
    (trials[0].folder / "result.json").unlink()
    (trials[0].folder / "failure.json").write_text("")
    (trials[1].folder / "test-dropout.npz").write_bytes(b"cut sh")
    (trials[2].folder / "data.json").write_text("{}")
    call("report", broken, "--out", tmp_path / "report.html")
    assert "failure.json cannot be read" in (tmp_path / "report.html").read_text()
    call("reproduce", "table1", *SMALL, "--runs", broken)
    assert "Failed" not in capsys.readouterr().out


def test_every_option_of_the_help_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("reproduce", "--help")
    shown = capsys.readouterr().out
    listed = set(re.findall(r"│ \*? +(?:[A-Z]+ )?(--[a-z][a-z-]+)", shown))
    assert {"--target", "--shift-images", "--gpus-per-trial", "--dry-run"} <= listed
    keyword = " ".join(shown.partition("--[KEYWORD] STR")[2].replace("│", " ").split())
    assert keyword.startswith("Settings of the recipe for all trials, such as --epochs 5;")
    given = {
        "--recipe": "digits", "--profile": "quick", "--methods": "esd", "--weights": "2", "--seeds": "2",
        "--search-seeds": "2", "--select": "nll", "--columns": "accuracy", "--data-dir": str(tmp_path),
        "--runs": str(tmp_path / "runs"), "--format": "csv", "--out": str(tmp_path / "out"), "--executor": "ray",
        "--ray-address": "auto", "--gpus-per-trial": "0.5", "--cpus-per-trial": "2", "--accelerator": "cpu",
        "--shift-images": "20", "--epochs": "1",
    }  # fmt: skip
    # Refused beside those of the cluster, and for data without published corruptions.
    others = {"--parallel", "--corrupted-dir", "--dry-run", "--target"}
    assert listed - others | {"--epochs"} == given.keys()
    call("reproduce", "all", *(text for pair in given.items() for text in pair), "--dry-run")
    assert not (tmp_path / "runs").exists()


def test_a_sweep_from_a_file_takes_what_the_command_line_says_instead(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nrecipe = "digits"\nmethods = ["esd", "mmce"]\nseeds = 3\n'
        '[grids]\nweight = [1]\n"esd.weight" = [4]\nbandwidth = [0.4]\n[settings]\nepochs = 2\nnoise = 0.1\n'
    )
    [plain] = requested(str(path))
    assert plain.sweeps == (Sweep.read(path),)
    changes = {"methods": ("esd",), "grids": {"weight": (2.0, 8.0)}}
    [request] = requested(str(path), changes=changes, settings={"epochs": "1"})
    [sweep] = request.sweeps
    assert (sweep.name, sweep.methods, sweep.seeds) == ("mine", ("esd",), 3)
    assert sweep.grids == {"weight": (2.0, 8.0)}  # without the grid that only mmce searches
    assert sweep.settings == {"epochs": 1, "noise": 0.1}
    with pytest.raises(ValueError, match="leave out --profile"):
        requested(str(path), profile="quick")
    with pytest.raises(ValueError, match="unknown setting 'noise'"):
        requested(str(path), ["mnist"])


def test_without_a_recipe_the_papers_six_are_asked_for_each_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "snli").mkdir()
    requests = requested("all", data=tmp_path)
    assert [one.base.recipe for one in requests] == ["mnist", "cifar10", "cifar100", "imagenet100", "snli", "anli"]
    assert [one.data for one in requests] == [None] * 4 + [tmp_path / "snli", None]
    assert [len(one.figures) for one in requests] == [6, 6, 6, 5, 5, 5]
    assert {tuple(sweep.name for sweep in one.sweeps) for one in requests} == {("table1", "table2", "table3")}


def test_rows_and_columns_of_ones_own_are_those_of_the_table_asked_for() -> None:
    changes = {"methods": ("mdca",), "columns": ("nll",)}
    [every] = requested("all", ["digits"], "quick", changes)
    assert [sweep.methods for sweep in every.sweeps] == [("mdca",), ("esd",), ("ece", "esd")]
    [second] = requested("table2", ["digits"], "quick", changes)
    assert [(sweep.name, sweep.methods, sweep.columns) for sweep in second.sweeps] == [("table2", ("mdca",), ("nll",))]


@pytest.mark.parametrize("option", ["--columns", "--select"])
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_metric_that_raises_is_told_before_any_training(
    option: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text("def bad(predictions):\n    raise KeyError('absent')\n")
    given = [*SMALL, option, f"{tmp_path / 'own.py'}:bad", "--runs", str(tmp_path / "runs"), *more]
    call("reproduce", "table1", *given, code=2)
    said = capsys.readouterr().err
    assert re.search(r"the metric own\.py:bad failed \(KeyError: 'absent' in .*own\.py, line 2\): correct it", said)
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_metric_that_needs_the_real_rows_and_classes_is_not_refused() -> None:
    changes = {"columns": ("calibrant_lab.recipes.made:error_of_p",), "settings": {"rows": 100, "test_rows": 50}}
    (request,) = requested("table1", ("made",), "quick", changes)
    reproduce._check_metrics(request, prepare(request.base))
