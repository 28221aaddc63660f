"""`calibrant train` writes one trial; killed at any moment, it ends the same."""

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from rich.console import Console

import calibrant as cal
from calibrant.cli import main
from calibrant.commands.terminal import timed_bar
from calibrant.files import FileError, read_predictions
from calibrant.metrics.predictions import Predictions
from calibrant.posthoc.notices import FitWarning
from calibrant.report import audit
from calibrant.report.audit import Audit
from calibrant_lab import train as training
from calibrant_lab.train import resolve, train
from calibrant_lab.trials import run
from calibrant_lab.trials.configuration import Configuration, configure, label
from calibrant_lab.trials.fit import fit, prepare
from calibrant_lab.trials.provenance import warning_lines
from calibrant_lab.trials.store import Store, Trial
from calibrant_lab.trials.watching import Bar, KeepLast

TINY = configure("digits", "esd", settings={"epochs": 3, "batch_size": 256, "calibration_every": 2})
COMMAND = [
    "train", "--recipe", "digits", "--method", "esd", "--epochs", "3", "--batch-size", "256", "--calibration-every",
    "2", "--accelerator", "cpu",
]  # fmt: skip
FILES = {
    ".lock", "config.json", "curves.png", "data.json", "final.ckpt", "history.json", "model.pt", "report.html",
    "result.json", "tensorboard", "test.npz", "validation.npz",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return train(TINY, None, tmp_path_factory.mktemp("runs"), accelerator="cpu")


def same_result(one: Trial, other: Trial) -> bool:
    """Byte for byte, but for what the trials cost."""
    first, second = one.result(), other.result()
    files = ("history.json", "model.pt", "data.json", "config.json")
    equal = all((one.folder / name).read_bytes() == (other.folder / name).read_bytes() for name in files)
    return equal and (first.validation, first.test) == (second.validation, second.test)


def test_a_run_is_a_trial_and_leaves_all_it_should(finished: Trial) -> None:
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
def test_warnings_of_the_guard_are_shown_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--recipe", "digits", "--method", "esd", "--weight", "1000", "--epochs", "1", "--batch-size"]
    for _ in range(2):  # trained, and shown again
        main_without_exit([*command, "32", "--accelerator", "cpu", "--runs", str(tmp_path)])
        screen = capsys.readouterr()
        assert "digits, 1 epoch, seed 0" in screen.out
        assert " ".join(screen.err.split()).count("warning: the objective pulled") == 1
    [trial] = [Trial(one) for one in tmp_path.iterdir() if one.is_dir()]
    assert set(trial.warnings()) == {"outweighs"}
    [line] = warning_lines([trial, trial])
    assert line.startswith("warning, ESD λ 1000 batch 32, 2 trials: the objective pulled")
    for damaged in ("", "[1, 2]"):
        (trial.folder / "warnings.json").write_text(damaged)
        assert list(trial.warnings().values()) == ["the trial gave warnings, but warnings.json cannot be read"]


@pytest.mark.filterwarnings("always::calibrant.posthoc.notices.FitWarning")
def test_a_warning_about_a_fit_is_printed_once(
    finished: Trial, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def doubtful(name: str, predictions: Predictions, *, repair: bool) -> Audit:
        assert not repair  # a temperature is fitted on the validation set instead
        warnings.warn("the fit is [doubtful]", FitWarning, stacklevel=1)
        return audit(name, predictions, repair=repair)

    monkeypatch.setattr(training, "audit", doubtful)
    main_without_exit([*COMMAND, "--runs", str(finished.folder.parent)])
    assert capsys.readouterr().err == "warning: the fit is [doubtful]\n"


def test_a_full_disk_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(training, "run_trial", full)
    with pytest.raises(FileError, match="is on a full disk: free some space, then run the same command again"):
        train(TINY, None, tmp_path, accelerator="cpu")


def test_a_finished_trial_is_shown_again_and_not_trained_again(
    finished: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in finished.folder.iterdir()}
    main_without_exit([*COMMAND, "--runs", str(finished.folder.parent)])
    assert {path.name: path.stat().st_mtime_ns for path in finished.folder.iterdir()} == before
    screen = capsys.readouterr()
    assert f"{100 * finished.result().test['ece']:.2f}" in screen.out
    assert "after VS" in screen.out
    assert "is rejected" in " ".join(screen.out.split())
    assert "not tried" not in " ".join(screen.out.split())  # the temperature of the validation set is shown
    page = (finished.folder / "report.html").read_text()
    assert "None was fitted on these samples." in page
    assert "not tried" not in page
    assert ".." not in screen.out.replace("...", "")
    assert screen.err == ""


@pytest.mark.slow
def test_the_same_configuration_gives_the_same_network(finished: Trial, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((finished.folder / "config.json").read_text())
    again = resolve(None, None, None, tmp_path / "config.json", {})
    assert same_result(finished, train(again, None, tmp_path / "again", accelerator="cpu"))


def main_without_exit(command: list[str]) -> None:
    try:
        main(command)
    except SystemExit as exit_:
        assert not exit_.code  # noqa: PT017


@pytest.mark.slow
def test_a_killed_command_goes_on_to_the_identical_result(finished: Trial, tmp_path: Path) -> None:
    command = [*COMMAND, "--runs", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "calibrant", *command],
        env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    checkpoint = Store(tmp_path).trial(TINY).folder / "last.ckpt"
    deadline = time.monotonic() + 300
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert checkpoint.exists()
    main_without_exit(command)
    assert same_result(finished, Store(tmp_path).trial(TINY))


def ran(configuration: Configuration, runs: Path) -> Trial:
    """A trial without the page and the pictures about it, which take longer than the trial."""
    assert run.run_trial(Store(runs), configuration, None, "cpu", raises=True) == "done"
    return Store(runs).trial(configuration)


class StoppedError(Exception):
    pass


@pytest.fixture
def stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Configuration, int], Trial]:
    """Train to a checkpoint right after a step, and no further."""

    def stop(configuration: Configuration, step: int) -> Trial:
        def save(self: KeepLast, trainer: Any, *_: object) -> None:
            self.save(trainer)
            if trainer.global_step == step:
                raise StoppedError

        with monkeypatch.context() as patched:
            patched.setattr(KeepLast, "on_train_batch_end", save)
            with pytest.raises(StoppedError):
                ran(configuration, tmp_path)
        trial = Store(tmp_path).trial(configuration)
        assert not (trial.folder / "result.json").exists()
        return trial

    return stop


# Within an epoch of five steps, at its end, at the last step, and twice.
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("stops", [[7], [1], [5, 6], [10, 15]])
def test_an_interrupted_trial_goes_on_to_the_identical_result(
    finished: Trial, tmp_path: Path, stop: Callable[[Configuration, int], Trial], stops: list[int]
) -> None:
    for step in stops:
        stop(TINY, step)
    assert same_result(finished, ran(TINY, tmp_path))


@pytest.mark.slow
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("method", ["esd", "nll", "adafocal"])
def test_epochs_of_a_single_step_are_resumed_too(
    method: str, tmp_path: Path, stop: Callable[[Configuration, int], Trial]
) -> None:
    configuration = configure("digits", method, settings={"epochs": 3, "batch_size": 2000})
    whole = ran(configuration, tmp_path / "whole")
    stop(configuration, 2)
    assert same_result(whole, ran(configuration, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 6, 8])  # within an epoch of six steps, at its end, within the next
def test_a_loss_updated_from_validation_data_is_resumed_too(
    step: int, tmp_path: Path, stop: Callable[[Configuration, int], Trial]
) -> None:
    configuration = configure("digits", "cals", settings={"epochs": 3, "batch_size": 256})
    whole = ran(configuration, tmp_path / "whole")
    stop(configuration, step)
    assert same_result(whole, ran(configuration, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "writer"),
    [(training, "write_report"), (training, "write_figure"), (run, "_write_predictions")],
)
def test_a_trial_stopped_while_it_writes_is_completed(
    finished: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, writer: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no permission")

    with monkeypatch.context() as patched:
        patched.setattr(module, writer, fails)
        with pytest.raises(OSError, match="no permission"):
            train(TINY, None, tmp_path, accelerator="cpu")
    trial = train(TINY, None, tmp_path, accelerator="cpu")
    assert same_result(finished, trial)
    assert {path.name for path in trial.folder.iterdir()} == FILES


def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(self: KeepLast, trainer: Any, *_: object) -> None:
        self.save(trainer)
        raise KeyboardInterrupt

    monkeypatch.setattr(KeepLast, "on_train_batch_end", interrupt)
    with pytest.raises(SystemExit) as exit_:
        main([*COMMAND, "--runs", str(tmp_path)])
    assert exit_.value.code == 130
    assert capsys.readouterr().err == "calibrant: interrupted: the same command continues from the last checkpoint\n"
    assert Store(tmp_path).trial(TINY).status == "unfinished"


def test_a_trial_that_another_process_trains_is_left_to_it(tmp_path: Path) -> None:
    folder = Store(tmp_path).trial(TINY).folder
    folder.mkdir()
    with FileLock(folder / ".lock"), pytest.raises(FileError, match="is being trained by another process"):
        train(TINY, None, tmp_path, accelerator="cpu")


@pytest.mark.slow
def test_a_failed_trial_says_why_and_may_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("out of luck")

    with monkeypatch.context() as patched:
        patched.setattr(run, "prepare", fails)
        with pytest.raises(ValueError, match="out of luck"):
            train(TINY, None, tmp_path, accelerator="cpu")
    trial = Store(tmp_path).trial(TINY)
    assert trial.status == "failed"
    assert "out of luck" in (trial.failure() or "")
    assert train(TINY, None, tmp_path, accelerator="cpu").status == "done"
    assert trial.failure() is None


def test_a_trial_is_not_continued_on_other_data(tmp_path: Path, stop: Callable[[Configuration, int], Trial]) -> None:
    path = stop(TINY, 7).folder / "data.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"fingerprint": "other"}))
    with pytest.raises(FileError, match="was started with different data"):
        train(TINY, None, tmp_path, accelerator="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"torn", b""])
def test_half_a_checkpoint_is_done_without(
    finished: Trial, tmp_path: Path, stop: Callable[[Configuration, int], Trial], content: bytes
) -> None:
    (stop(TINY, 3).folder / "last.ckpt").write_bytes(content)
    assert same_result(finished, ran(TINY, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("content", ["[]", "{}", '{"validation": {"accuracy": "high"}}', "{"])
def test_a_damaged_result_is_named(finished: Trial, tmp_path: Path, content: str) -> None:
    folder = tmp_path / finished.folder.name
    shutil.copytree(finished.folder, folder)
    (folder / "result.json").write_text(content)
    with pytest.raises(FileError, match=r"result\.json"):
        train(TINY, None, tmp_path, accelerator="cpu")


def test_the_report_shows_the_temperature_of_the_validation_set(finished: Trial) -> None:
    temperature = finished.result().validation["temperature"]
    assert f"T = {temperature:.3g}" in (finished.folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--recipe is required: calibrant recipes lists them"),
        (["--recipe", "mnist", "--data-dir", "nowhere"], "nowhere"),
        (["--recipe", "digits", "--model", "lenet9"], "lenet9"),
        (["--recipe", "digits", "--initial-weights", "none.pt"], "none.pt"),
        (["--recipe", "digits", "--method", "esd", "--calibration-fraction", "0.001"], "holds out 1 of 1293 samples"),
        (["--recipe", "digits", "--calibration-batch-size", "2", "--method", "esd"], "at least 3 samples"),
        (["--recipe", "digits", "--wandb", "project"], "pip install 'calibrant[wandb]'"),
        (["--recipe", "digits", "--data-dir", "."], "digits are embedded"),
        (["--recipe", "digits", "--validation-fraction", "0.0001"], "leaves 0 for validation"),
        (["--recipe", "digits", "--image-size", "64"], "unknown setting 'image-size'"),
        (["--recipe", "digits", "--weight", "2"], "weight is not an option of nll"),
        (["--recipe", "digits", "--runs", "file"], "file"),
        (["--recipe", "digits", "--config", "mnist.toml"], "mnist.toml: is for the recipe mnist: leave out --recipe"),
        (["--config", "none.toml"], "none.toml: cannot be read"),
        (["--config", "flat.toml"], "flat.toml: unknown setting 'batch-size'"),
        (["--config", "old.json"], "old.json: is from Calibrant 0.1: convert its folder"),
        (["--config", "list.json"], "list.json: must contain settings by name"),
        (["--config", "empty.toml"], "empty.toml: must name a recipe"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    files = {
        "file": "mine", "mnist.toml": 'recipe = "mnist"', "flat.toml": 'recipe = "mnist"\nbatch-size = 3',
        "old.json": '{"recipe": "mnist", "objective": "esd"}', "list.json": "[1]", "empty.toml": "",
    }  # fmt: skip
    for name, content in files.items():
        Path(name).write_text(content)
    with pytest.raises(SystemExit) as exit_:
        main(["train", *arguments, "--epochs", "1", "--accelerator", "cpu"])
    screen = capsys.readouterr()
    assert exit_.value.code == 2
    assert message in screen.err
    assert screen.err.count("\n") == 1
    assert screen.out == ""


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


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("method", ["nll", "focal", "mmce", "head"])
def test_other_methods_train_too(method: str, tmp_path: Path) -> None:
    trial = ran(configure("digits", method, settings={"epochs": 1}), tmp_path)
    assert 0 <= trial.result().test["accuracy"] <= 1


def test_losses_with_state_are_updated_before_every_epoch_but_the_first() -> None:
    prepared = prepare(configure("digits", "cals", settings={"epochs": 3, "batch_size": 256}))
    fit(prepared, accelerator="cpu")
    loss = prepared.classifier.loss
    assert isinstance(loss, cal.CALSLoss)
    assert loss.updates == 2
    assert loss.multiplier.shape == (10,)


def test_a_missing_accelerator_is_named(tmp_path: Path) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator here")
    with pytest.raises(ValueError, match="accelerator 'gpu' is not available"):
        train(TINY, None, tmp_path, accelerator="gpu")


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


def test_a_step_limit_ends_the_training() -> None:
    prepared = prepare(TINY.replaced({"max_steps": 7}))
    trained = fit(prepared, accelerator="cpu")
    assert len(trained.history) <= 2
    assert prepared.classifier.trainer.global_step == 7


def test_a_run_with_the_temperature_in_the_loop_is_calibrated_at_its_end() -> None:
    looped = configure("digits", "loop", settings={"epochs": 3, "batch_size": 64})
    assert label(looped) == "temperature in the loop batch 64"
    prepared = prepare(looped)
    assert prepared.batches.calibration_loader is not None
    trained = fit(prepared, accelerator="cpu")
    assert trained.history[-1]["train_temperature"] == 1  # three epochs do not over-fit
    assert prepared.classifier.finished is not None
    assert prepared.classifier.finished.temperature != 1


@pytest.mark.slow
def test_a_finished_trial_says_that_its_data_are_of_another_folder(
    finished: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(TINY, tmp_path, finished.folder.parent, accelerator="cpu")
    line = "warning: trained without --data-dir; use another --runs for other data"
    assert capsys.readouterr().err.splitlines()[0] == line
