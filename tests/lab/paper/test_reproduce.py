"""`calibrant reproduce`, `runs` and `report` as a user calls them, on a search of seconds."""

import csv
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from calibrant.training import CalibrationWarning
from calibrant_lab.paper import reproduce
from calibrant_lab.paper.request import requested
from calibrant_lab.sweeps.dry_run import Estimate
from calibrant_lab.sweeps.run import recorded
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.fit import prepare
from calibrant_lab.trials.store import Store
from tests.shell import run

SMALL = ["--recipe", "digits", "--profile", "quick", "--methods", "esd", "--epochs", "1"]
TABLES = ("md", "tex", "csv", "significance.csv", "toml")
FIGURES = ("svg", "png", "pdf", "csv")
Screen = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NLL twice, and ESD: two λ and two seeds, an epoch each."""
    folder = tmp_path_factory.mktemp("reproduced") / "runs"
    # More processes would take longer to start.
    assert run("reproduce", "table1", *SMALL, "--runs", folder, "--parallel", "1") == 0
    return folder


@pytest.fixture
def copy(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs, tmp_path / "runs"))


def table1(runs: Path, *more: object, code: int = 0) -> None:
    assert run("reproduce", "table1", *SMALL, "--runs", runs, *more) == code


def listed(screen: Screen) -> str:
    return " ".join(screen.readouterr().out.split())


def test_a_dry_run_prints_a_warning_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Screen) -> None:
    def warned(trial: Configuration, **_: Any) -> Estimate:
        warnings.warn("the objective is silent", CalibrationWarning, stacklevel=1)
        return Estimate(1.0, 1, 1, False)

    monkeypatch.setattr(reproduce, "estimate", warned)
    with warnings.catch_warnings():
        warnings.simplefilter("always", CalibrationWarning)
        table1(tmp_path / "runs", "--dry-run")
    assert capsys.readouterr().err == "warning: the objective is silent\n"


def test_the_same_command_again_trains_nothing_and_prints_the_same(runs: Path, capsys: Screen) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/result.json")}
    assert len(before) == 7
    printed = []
    for _ in range(2):
        table1(runs)
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "+ ESD" in printed[0]
    assert before == {path: path.stat().st_mtime_ns for path in before}
    table1(runs, "--dry-run")
    assert "7 trials, 7 done, 0 to do." in listed(capsys)


@pytest.mark.slow
def test_tables_and_figures_are_written_in_every_format(runs: Path, tmp_path: Path, capsys: Screen) -> None:
    table1(runs, "--out", tmp_path, "--format", "csv")
    assert capsys.readouterr().out == (tmp_path / "digits-quick-table1.csv").read_text() + "\n"
    for number in (1, 3, 4, 5):
        assert run("reproduce", f"figure{number}", *SMALL, "--runs", runs, "--out", tmp_path) == 0
    expected = {f"digits-quick-table1.{ending}" for ending in TABLES}
    expected |= {f"digits-quick-figure{number}.{ending}" for number in (1, 3, 4, 5) for ending in FIGURES}
    assert {path.name for path in tmp_path.iterdir()} == expected
    assert Sweep.read(tmp_path / "digits-quick-table1.toml") in recorded(Store(runs))
    curves = list(csv.DictReader((tmp_path / "digits-quick-figure1.csv").read_text().splitlines()))
    [trial] = [one for one in Store(runs).trials() if one.configuration.method == "esd" and one.configuration.seed]
    [drawn] = [one for one in curves if (one["row"], one["seed"], one["epoch"]) == ("ESD", "1", "1")]
    assert float(drawn["test_ece"]) == pytest.approx(trial.history()[0]["test_ece"], rel=1e-5)


@pytest.mark.slow
def test_files_of_other_settings_are_not_overwritten(runs: Path, tmp_path: Path, capsys: Screen) -> None:
    def reproduced(*more: str) -> set[str]:
        for target in ("table1", "figure3"):
            assert run("reproduce", target, *SMALL, *more, "--runs", runs, "--out", tmp_path) == 0
        return {path.name for path in tmp_path.iterdir()}

    first = reproduced()
    assert capsys.readouterr().err == ""
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    changes = {"methods": ("esd",), "columns": ("accuracy", "nll")}
    [request] = requested("table1", ["digits"], "quick", changes, {"epochs": "1"})
    identity = request.sweeps[0].identity
    added = reproduced("--columns", "accuracy", "nll") - first
    assert "different settings" in capsys.readouterr().err
    expected = {f"digits-quick-table1-{identity}.{ending}" for ending in TABLES}
    assert added == expected | {f"digits-quick-figure3-{identity}.{ending}" for ending in FIGURES}
    assert reproduced() == reproduced("--columns", "accuracy", "nll") == first | added
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow  # Figure 6 is in tests/lab/shift too; Tables 2 and 3 train networks of their own
def test_all_shows_every_table_and_figure(copy: Path, tmp_path: Path, capsys: Screen) -> None:
    everything = ["reproduce", "all", *SMALL, "--runs", copy, "--out", tmp_path / "made"]
    assert run(*everything, "--shift-images", "40") == 0
    shown = capsys.readouterr().out
    for name in ("Table 1", "Table 2", "Table 3", "+ ESD (b16)", "+ ECE (b32)", "figure2: not drawn: "):
        assert name in shown
    made = {path.name for path in (tmp_path / "made").glob("digits-*.svg")}
    assert made == {f"digits-quick-figure{number}.svg" for number in (1, 3, 4, 5, 6)}
    shifted = list(csv.DictReader((tmp_path / "made" / "digits-quick-figure6.csv").read_text().splitlines()))
    # Three rows of two networks: the clean images, and fourteen corruptions at five severities.
    assert len(shifted) == 3 * 2 * (1 + 14 * 5)
    assert {one["images"] for one in shifted} == {"40"}
    assert run("runs", "prune", "--weights", "--apply", "--runs", copy) == 0
    assert run(*everything) == 0
    assert "figure6: not drawn: " in capsys.readouterr().out


def test_ctrl_c_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Screen) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "run", interrupt)
    table1(tmp_path, code=130)
    error = capsys.readouterr().err
    assert "same command" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "token"),
    [
        (["reproduce", "table1", *SMALL, "--weight", "2"], "'weight'"),
        (["reproduce", "table1", "--recipe", "digits", "--profile", "slow"], "'slow'"),
        (["reproduce", "table1", *SMALL[:-1], "2", "--accelerator", "tpu9"], "tpu9"),
        (["reproduce", "figure2", *SMALL], "MMCE"),
        (["reproduce", "figure6", "--recipe", "snli", "--dry-run"], "snli"),
        (["reproduce", "figure6", *SMALL, "--corrupted-dir", "nowhere"], "digits"),
        (["reproduce", "table1", "--recipe", "mnist", "--data-dir", "nowhere"], "nowhere"),
        (["reproduce", "table1", *SMALL[:-1], "2", "--executor", "ray", "--parallel", "2"], "--executor local"),
        (["reproduce", "table1", *SMALL, "--cpus-per-trial", "2"], "--executor ray"),
        (["reproduce", "table1", *SMALL, "--shift-images", "20"], "figure6"),
    ],
)
def test_errors_are_one_line(arguments: list[str], token: str, runs: Path, capsys: Screen) -> None:
    assert run(*arguments, "--runs", runs) == 2
    error = capsys.readouterr().err
    assert token in error
    assert len(error.splitlines()) == 1


def test_a_store_can_be_listed_shown_exported_pruned_and_reported(runs: Path, tmp_path: Path, capsys: Screen) -> None:
    trial = Store(runs).trials()[0]
    assert run("runs", "list", "--runs", runs) == 0
    assert trial.identity[:8] in capsys.readouterr().out
    assert run("runs", "show", trial.identity[:6], "--runs", runs) == 0
    assert trial.identity in capsys.readouterr().out
    assert run("runs", "export", tmp_path / "trials.json", "--runs", runs) == 0
    assert len(json.loads((tmp_path / "trials.json").read_text())["trials"]) == 7
    assert run("runs", "prune", "--weights", "--runs", runs) == 0
    assert (trial.folder / "model.pt").exists()
    assert run("report", runs, "--out", tmp_path / "report.html") == 0
    assert "+ ESD" in (tmp_path / "report.html").read_text()


def test_other_data_are_not_mixed_into_a_table(copy: Path, capsys: Screen) -> None:
    of_esd = [trial for trial in Store(copy).trials() if trial.configuration.method == "esd"]
    first, *_, last = sorted(of_esd, key=lambda trial: trial.configuration.seed)  # the last is not part of the search
    shutil.rmtree(last.folder)
    (first.folder / "data.json").write_text('{"fingerprint": "of other images"}')
    table1(copy, code=2)
    assert "different data" in capsys.readouterr().err
    assert not last.folder.exists()


@pytest.mark.slow
def test_a_recipe_without_its_data_does_not_stop_the_next(runs: Path, tmp_path: Path, capsys: Screen) -> None:
    # digits, too, would look for a folder of its own; there all is done, and no data are needed.
    two = ["reproduce", "table1", "--recipe", "mnist", *SMALL, "--runs", runs, "--data-dir", tmp_path]
    assert run(*two) == 1
    shown = capsys.readouterr()
    assert "on digits" in shown.out
    assert shown.err.startswith("error: mnist: ")
    assert len(shown.err.splitlines()) == 1


def test_a_dry_run_takes_the_options_of_a_cluster_and_writes_nothing(tmp_path: Path) -> None:
    options = [
        "--weights", "2", "--seeds", "2", "--select", "nll", "--columns", "accuracy", "--data-dir", tmp_path,
        "--runs", tmp_path / "runs", "--format", "csv", "--out", tmp_path / "out", "--executor", "ray",
        "--ray-address", "auto", "--gpus-per-trial", "0.5", "--cpus-per-trial", "2", "--batchnorm", "freeze",
    ]  # fmt: skip
    assert run("reproduce", "all", *SMALL, *options, "--dry-run") == 0
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_from_a_file_is_changed_by_the_command_line(tmp_path: Path) -> None:
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
    with pytest.raises(ValueError, match="--profile"):
        requested(str(path), profile="quick")
    with pytest.raises(ValueError, match="'noise'"):
        requested(str(path), ["mnist"])


def test_without_a_recipe_the_papers_six_are_requested_each_with_its_folder(tmp_path: Path) -> None:
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
def test_a_metric_that_raises_is_refused_before_any_training(
    option: str, more: list[str], tmp_path: Path, capsys: Screen
) -> None:
    (tmp_path / "own.py").write_text("def bad(predictions):\n    raise KeyError('absent')\n")
    table1(tmp_path / "runs", option, f"{tmp_path / 'own.py'}:bad", *more, code=2)
    error = capsys.readouterr().err
    assert "own.py, line 2" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_metric_that_needs_the_real_rows_and_classes_is_not_refused() -> None:
    changes = {"columns": ("calibrant_lab.recipes.made:error_of_p",), "settings": {"rows": 100, "test_rows": 50}}
    (request,) = requested("table1", ("made",), "quick", changes)
    reproduce._check_metrics(request, prepare(request.base))
