"""`calibrant train` writes one trial, its curves and its report; killed at any moment, it ends the same."""

import errno
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from rich.console import Console

import calibrant as cal
from calibrant.commands.terminal import timed_bar
from calibrant.files import FileError, read_predictions
from calibrant_lab import train as training
from calibrant_lab.train import resolve, train
from calibrant_lab.trials import watching
from calibrant_lab.trials.configuration import configure
from calibrant_lab.trials.fit import fit, prepare
from calibrant_lab.trials.provenance import warning_lines
from calibrant_lab.trials.store import Store, Trial
from calibrant_lab.trials.watching import Bar
from tests.lab.training import assert_same
from tests.shell import run

TINY = configure("digits", "esd", settings={"epochs": 3, "batch_size": 256, "calibration_every": 2})
COMMAND = [
    "train", "--recipe", "digits", "--method", "esd", "--epochs", "3", "--batch-size", "256", "--calibration-every",
    "2", "--accelerator", "cpu",
]  # fmt: skip
FILES = {
    ".lock", "config.json", "curves.png", "data.json", "final.ckpt", "history.json", "model.pt", "report.html",
    "result.json", "tensorboard", "test.npz", "validation.npz",
}  # fmt: skip
Screen = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return train(TINY, None, tmp_path_factory.mktemp("runs"), accelerator="cpu")


def test_a_run_is_a_trial_with_all_its_files(finished: Trial) -> None:
    store = Store(finished.folder.parent)
    assert [trial.identity for trial in store.trials()] == [TINY.identity]
    assert (finished.status, finished.configuration) == ("done", TINY)
    assert {path.name for path in finished.folder.iterdir()} == FILES
    assert list((finished.folder / "tensorboard").glob("events.*"))
    history = finished.history()
    assert [entry["epoch"] for entry in history] == [0, 1, 2]
    assert {"train_nll", "train_objective", "train_silent", "train_ece", "validation_accuracy"} <= history[0].keys()
    assert len(read_predictions(finished.folder / "test.npz")) == 360


@pytest.mark.slow
def test_warnings_of_the_guard_are_shown_and_kept(tmp_path: Path, capsys: Screen) -> None:
    command = ["train", "--recipe", "digits", "--method", "esd", "--weight", "1000", "--epochs", "1"]
    for _ in range(2):  # trained, and shown again
        assert run(*command, "--batch-size", "32", "--accelerator", "cpu", "--runs", tmp_path) == 0
        assert capsys.readouterr().err.count("warning: ") == 1
    [trial] = [Trial(one) for one in tmp_path.iterdir() if one.is_dir()]
    assert set(trial.warnings()) == {"outweighs"}
    [line] = warning_lines([trial, trial])
    assert line.startswith("warning, ESD λ 1000 batch 32, 2 trials: ")
    for damaged in ("", "[1, 2]"):
        (trial.folder / "warnings.json").write_text(damaged)
        [text] = trial.warnings().values()
        assert "warnings.json" in text


def test_a_finished_trial_is_shown_again_and_not_trained_again(finished: Trial, capsys: Screen) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in finished.folder.iterdir()}
    assert run(*COMMAND, "--runs", finished.folder.parent) == 0
    assert {path.name: path.stat().st_mtime_ns for path in finished.folder.iterdir()} == before
    screen, page = capsys.readouterr(), (finished.folder / "report.html").read_text()
    assert f"{100 * finished.result().test['ece']:.2f}" in screen.out
    assert "after VS" in screen.out
    assert "is rejected" in " ".join(screen.out.split())
    assert "not tried" not in " ".join(screen.out.split()) + page  # the temperature of the validation set is shown
    assert f"T = {finished.result().validation['temperature']:.3g}" in page
    assert screen.err == ""


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["write_report", "write_figure"])
def test_a_trial_stopped_while_it_writes_is_completed(
    finished: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(training, writer, lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(TINY, None, tmp_path, accelerator="cpu")
    trial = train(TINY, None, tmp_path, accelerator="cpu")
    assert_same(finished, trial)
    assert {path.name for path in trial.folder.iterdir()} == FILES


def test_ctrl_c_leaves_an_unfinished_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Screen) -> None:
    def interrupt(_: Bar, trainer: Any, *__: object) -> None:
        if trainer.current_epoch:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching, "SECONDS_BETWEEN_EPOCHS", 0.0)
    monkeypatch.setattr(Bar, "on_train_epoch_start", interrupt)
    assert run(*COMMAND, "--runs", tmp_path) == 130
    assert "checkpoint" in capsys.readouterr().err
    assert Store(tmp_path).trial(TINY).status == "unfinished"


def test_a_trial_of_another_process_and_a_full_disk_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Store(tmp_path).trial(TINY).folder
    folder.mkdir()
    with FileLock(folder / ".lock"), pytest.raises(FileError, match="process"):
        train(TINY, None, tmp_path, accelerator="cpu")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(training, "run_trial", full)
    with pytest.raises(FileError, match="full disk"):
        train(TINY, None, tmp_path, accelerator="cpu")


@pytest.mark.parametrize(
    ("arguments", "token"),
    [
        (["--recipe", "mnist", "--data-dir", "nowhere"], "nowhere"),
        (["--recipe", "digits", "--model", "lenet9"], "lenet9"),
        (["--recipe", "digits", "--method", "esd", "--calibration-fraction", "0.001"], "1293 samples"),
        (["--recipe", "digits", "--calibration-batch-size", "2", "--method", "esd"], "3 samples"),
        (["--recipe", "digits", "--wandb", "project"], "calibrant[wandb]"),
        (["--recipe", "digits", "--data-dir", "."], "digits"),
        (["--recipe", "digits", "--runs", "file"], "file"),
        (["--recipe", "digits", "--config", "mnist.toml"], "mnist.toml"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], token: str, tmp_path: Path, capsys: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    Path("file").write_text("mine")
    Path("mnist.toml").write_text('recipe = "mnist"')
    assert run("train", *arguments, "--epochs", "1", "--accelerator", "cpu") == 2
    screen = capsys.readouterr()
    assert token in screen.err
    assert (screen.err.count("\n"), screen.out) == (1, "")


def test_options_go_before_the_file_and_the_file_before_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        'recipe = "mnist"\nmethod = "mmce"\nseed = 4\n[options]\nweight = 2\n'
        "[settings]\nbatch_size = 64\nmean = [0.1]\n"
    )
    found: Any = resolve(None, None, None, path, {"weight": "3", "std": "0.2,0.3"})
    assert (found.recipe, found.method, found.seed, found.option("weight")) == ("mnist", "mmce", 4, 3.0)
    settings = found.settings
    assert (settings.batch_size, settings.mean, settings.std, settings.epochs) == (64, (0.1,), (0.2, 0.3), 250)
    other = resolve("mnist", "nll", 0, path, {})
    assert (other.method, other.seed, other.options) == ("nll", 0, ())


def test_losses_with_state_are_updated_before_every_epoch_but_the_first() -> None:
    prepared = prepare(configure("digits", "cals", settings={"epochs": 3, "batch_size": 256}))
    fit(prepared, accelerator="cpu")
    loss = prepared.classifier.loss
    assert isinstance(loss, cal.CALSLoss)
    assert loss.updates == 2
    assert loss.multiplier.shape == (10,)


def test_the_bar_shows_running_scores_and_those_of_the_last_validation() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with timed_bar(console, "{task.fields[scores]}") as progress:
        task = progress.add_task("reading", total=None, scores="")
        configuration = TINY.replaced({"epochs": 2, "calibration_every": 1})
        trained = fit(prepare(configuration), callbacks=[Bar(progress, task, label="ESD")], accelerator="cpu")
        shown = progress.tasks[0]
    last = trained.history[-1]
    assert shown.description == "ESD: epoch 2 of 2"
    assert shown.completed == shown.total == 2
    accuracy, ece = (f"{100 * last[f'validation_{name}']:.2f}" for name in ("accuracy", "ece"))
    pattern = rf"accuracy \d+\.\d\d / {accuracy} %, ECE \d+\.\d\d / {ece} %, objective 0\.\d{{4}}"
    assert re.fullmatch(pattern, shown.fields["scores"])
