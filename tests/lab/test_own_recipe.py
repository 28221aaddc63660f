"""The example from outside: a sweep of a recipe, an objective and a metric that stand in the user's own files."""

import csv
import io
from pathlib import Path

import pytest

from calibrant.cli import main
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import configure
from calibrant_lab.trials.run import run_trial
from calibrant_lab.trials.store import Store

EXAMPLE = Path(__file__).parents[2] / "examples/own_recipe"


def test_the_example_is_short_and_is_what_it_says() -> None:
    assert sum(len(path.read_text().splitlines()) for path in EXAMPLE.glob("*.*")) <= 60
    sweep = Sweep.read(EXAMPLE / "sweep.toml")
    assert sweep.recipe == f"{EXAMPLE / 'wine.py'}:wine"
    assert sweep.select == "log_loss"
    assert "smooth_ece" in sweep.columns
    assert sweep.grid("esd", "weight") == (0.5, 1.0, 2.0)


@pytest.mark.slow
def test_it_runs_by_one_command_with_two_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--seeds", "1", "--epochs", "2", "--parallel", "2", "--accelerator", "cpu", "--format", "csv"]
    try:
        main(["reproduce", str(EXAMPLE / "sweep.toml"), "--runs", "runs", *options])
    except SystemExit as exit_:
        assert not exit_.code  # noqa: PT017
    results = Store("runs").results()
    methods = [configuration.method.rpartition(":")[2] for configuration in results]
    assert {name: methods.count(name) for name in methods} == {"nll": 2, "esd": 3, "loop": 1, "SquaredGap": 3}
    assert all(configuration.settings.epochs == 2 for configuration in results)
    (recorded,) = (tmp_path / "runs/sweeps").glob("*.toml")
    assert Sweep.read(recorded).select == "log_loss"
    shown = capsys.readouterr().out
    columns = csv.DictReader(io.StringIO(shown)).fieldnames or []
    assert {"smooth_ece_percent_mean", "wine.py:surest_error_mean"} <= set(columns)


def test_its_recipe_objective_and_metric_work_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {"hidden": "8", "epochs": 1}
    configuration = configure(f"{EXAMPLE / 'wine.py'}:wine", f"{EXAMPLE / 'wine.py'}:SquaredGap", settings=changes)
    store = Store("runs")
    assert run_trial(store, configuration, None, "cpu", raises=True) == "done"
    trial = store.trial(configuration)
    assert trial.predicted("test").logits.shape == (60, 3)
    for column in Sweep.read(EXAMPLE / "sweep.toml").columns:
        assert 0 <= trial.score("test", column) < 2
