"""One run and all that is left of it; killed at any moment, it ends the same."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from rich.console import Console

import calibrant as cal
from calibrant.cli import main
from calibrant.files import FileError, read_predictions
from calibrant_lab import train as training
from calibrant_lab.configuration import Configuration
from calibrant_lab.fit import fit, prepare
from calibrant_lab.objectives import display_name
from calibrant_lab.progress import training_progress
from calibrant_lab.recipes import RECIPES
from calibrant_lab.train import train
from calibrant_lab.watching import Bar, KeepLast

TINY = RECIPES["digits"].replaced({"objective": "esd", "epochs": 3, "batch_size": 256, "calibration_every": 2})
FILES = {
    ".lock", "config.json", "curves.png", "data.json", "history.json", "last.ckpt", "model.pt", "report.html",
    "summary.json", "tensorboard", "test.npz", "validation.npz",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    train(TINY, None, out, accelerator="cpu")
    return out


def same_result(one: Path, other: Path) -> bool:
    texts = all((one / name).read_bytes() == (other / name).read_bytes() for name in ("history.json", "summary.json"))
    first, second = (torch.load(folder / "model.pt", weights_only=True) for folder in (one, other))
    return texts and all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_leaves_all_it_should(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == FILES
    assert list((finished / "tensorboard").glob("events.*"))
    history = json.loads((finished / "history.json").read_text())
    assert [entry["epoch"] for entry in history] == [0, 1, 2]
    assert {"train_nll", "train_objective", "train_silent", "train_ece", "validation_accuracy"} <= history[0].keys()
    assert len(read_predictions(finished / "test.npz")) == 360
    assert json.loads((finished / "config.json").read_text()) == TINY.to_dict()
    torch.load(finished / "last.ckpt", weights_only=True)


def test_a_finished_run_is_shown_again_and_not_trained_again(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in finished.iterdir()}
    outcome = train(TINY, None, finished, accelerator="cpu")
    assert {path.name: path.stat().st_mtime_ns for path in finished.iterdir()} == before
    screen = capsys.readouterr()
    assert f"{100 * outcome.ece:.2f}" in screen.out
    assert "after VS" in screen.out
    assert screen.err == ""


def test_the_same_configuration_gives_the_same_network(finished: Path, tmp_path: Path) -> None:
    train(TINY, None, tmp_path / "again", accelerator="cpu")
    assert same_result(finished, tmp_path / "again")


def test_a_killed_command_goes_on_to_the_identical_result(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    options = ["--epochs", "3", "--batch-size", "256", "--calibration-every", "2", "--accelerator", "cpu"]
    command = ["train", "--recipe", "digits", "--objective", "esd", "--out", str(out), *options]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(
        [sys.executable, "-c", f"from calibrant.cli import main; main({command!r})"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (out / "last.ckpt").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (out / "last.ckpt").exists()
    main_without_exit(command)
    assert same_result(finished, out)


def main_without_exit(command: list[str]) -> None:
    try:
        main(command)
    except SystemExit as exit_:
        assert not exit_.code  # noqa: PT017


def stopped_at(out: Path, configuration: Configuration, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train to a checkpoint right after a step, and no further."""

    class StoppedError(Exception):
        pass

    def stop(self: KeepLast, trainer: Any, *_: object) -> None:
        self._save(trainer)
        if trainer.global_step == step:
            raise StoppedError

    with monkeypatch.context() as patched:
        patched.setattr(KeepLast, "on_train_batch_end", stop)
        with pytest.raises(StoppedError):
            train(configuration, None, out, accelerator="cpu")
    assert not (out / "summary.json").exists()


@pytest.mark.parametrize("stops", [[1], [7], [11], [12], [5, 6], [6, 12]])
def test_an_interrupted_run_goes_on_to_the_identical_result(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: list[int]
) -> None:
    for step in stops:
        stopped_at(tmp_path / "run", TINY, step, monkeypatch)
    train(TINY, None, tmp_path / "run", accelerator="cpu")
    assert same_result(finished, tmp_path / "run")


@pytest.mark.parametrize("objective", ["nll", "esd", "adafocal"])
def test_epochs_of_a_single_step_are_resumed_too(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = RECIPES["digits"].replaced({"objective": objective, "epochs": 3, "batch_size": 2000})
    train(configuration, None, tmp_path / "whole", accelerator="cpu")
    stopped_at(tmp_path / "run", configuration, 2, monkeypatch)
    train(configuration, None, tmp_path / "run", accelerator="cpu")
    assert same_result(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("writer", ["_write_results", "write_report", "write_curves"])
def test_a_run_stopped_while_it_writes_is_completed(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(training, writer, fails)
        with pytest.raises(OSError, match="no space left"):
            train(TINY, None, tmp_path / "run", accelerator="cpu")
    train(TINY, None, tmp_path / "run", accelerator="cpu")
    assert same_result(finished, tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES


def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(KeepLast, "on_train_batch_end", interrupt)
    with pytest.raises(SystemExit) as exit_:
        main(["train", "--recipe", "digits", "--epochs", "1", "--out", str(tmp_path / "run"), "--accelerator", "cpu"])
    assert exit_.value.code == 130
    assert capsys.readouterr().err == "calibrant: interrupted: the same command goes on from the last checkpoint\n"


def test_a_folder_belongs_to_one_run(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"other settings \(epochs, weight\)"):
        train(TINY.replaced({"weight": 2.0, "epochs": 9}), None, finished)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match="is in use, and not by a run"):
        train(TINY, None, tmp_path)
    with FileLock(finished / ".lock"), pytest.raises(FileError, match="trained in by another process"):
        train(TINY, None, finished)


def test_a_failed_start_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lenet9"):
        train(TINY.replaced({"model": "lenet9"}), None, tmp_path / "run")
    train(TINY.replaced({"epochs": 1}), None, tmp_path / "run", accelerator="cpu")


def test_a_run_is_not_continued_on_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_at(tmp_path / "run", TINY, 7, monkeypatch)
    found = json.loads((tmp_path / "run/data.json").read_text())
    assert {name: found[name] for name in ("train", "calibration", "validation")} == {
        "train": 1164, "calibration": 129, "validation": 144,
    }  # fmt: skip
    (tmp_path / "run/data.json").write_text(json.dumps(found | {"fingerprint": "other"}))
    with pytest.raises(FileError, match="was trained on other data"):
        train(TINY, None, tmp_path / "run", accelerator="cpu")


@pytest.mark.parametrize(("name", "content"), [("last.ckpt", b"torn"), ("last.ckpt", b"")])
def test_a_damaged_checkpoint_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
) -> None:
    stopped_at(tmp_path / "run", TINY, 3, monkeypatch)
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(FileError, match=r"last\.ckpt: is damaged, or not one of ours: delete it"):
        train(TINY, None, tmp_path / "run", accelerator="cpu")


@pytest.mark.parametrize("content", ["[]", "{}", '{"accuracy": "high"}', "{"])
def test_a_damaged_summary_is_named(finished: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run/summary.json").write_text(content)
    with pytest.raises(FileError, match=r"summary\.json"):
        train(TINY, None, tmp_path / "run")


def test_the_report_shows_the_temperature_of_the_validation_set(finished: Path) -> None:
    temperature = json.loads((finished / "summary.json").read_text())["temperature"]
    assert f"T = {temperature:.3g}" in (finished / "report.html").read_text()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"objective": "nll"}, "NLL"),
        ({"objective": "esd"}, "NLL + ESD"),
        ({"objective": "weighted-mmce", "weight": 0.4}, "NLL + weighted-mmce (weight 0.4)"),
        ({"objective": "focal"}, "focal"),
    ],
)
def test_a_run_is_called_by_what_it_minimises(changes: dict[str, object], name: str) -> None:
    assert display_name(RECIPES["mnist"].replaced(changes)) == name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipe", "mnist", "--data-dir", "nowhere"], "nowhere"),
        (["--recipe", "digits", "--model", "lenet9"], "lenet9"),
        (["--recipe", "digits", "--initial-weights", "none.pt"], "none.pt"),
        (
            ["--recipe", "digits", "--objective", "esd", "--calibration-fraction", "0.001"],
            "holds out 1 of 1293 samples",
        ),
        (["--recipe", "digits", "--calibration-batch-size", "2", "--objective", "esd"], "at least 3 samples"),
        (["--recipe", "digits", "--wandb", "project"], "pip install wandb"),
        (["--recipe", "digits", "--data-dir", "."], "digits are embedded"),
        (["--recipe", "digits", "--validation-fraction", "0.0001"], "leaves 0 to validate"),
        (["--recipe", "digits", "--image-size", "64"], "image-size is not a setting of the recipe digits"),
        (["--recipe", "digits", "--weight", "2"], "weight is not a setting of the objective nll"),
        (["--recipe", "digits", "--out", "file"], "file: is in use"),
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
    Path("file").write_text("mine")
    with pytest.raises(SystemExit) as exit_:
        main(["train", *arguments, "--epochs", "1", "--accelerator", "cpu"])
    screen = capsys.readouterr()
    assert exit_.value.code == 2
    assert message in screen.err
    assert screen.err.count("\n") == 1
    assert screen.out == ""


@pytest.mark.parametrize("objective", ["nll", "focal", "mmce"])
def test_other_objectives_train_too(objective: str, tmp_path: Path) -> None:
    configuration: Configuration = RECIPES["digits"].replaced({"objective": objective, "epochs": 1})
    assert 0 <= train(configuration, None, tmp_path / "run", accelerator="cpu").accuracy <= 1


@pytest.mark.parametrize("step", [4, 6, 8])  # within an epoch of six steps, at its end, within the next
def test_a_loss_updated_from_validation_data_is_resumed_too(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = RECIPES["digits"].replaced({"objective": "cals", "epochs": 3, "batch_size": 256})
    train(configuration, None, tmp_path / "whole", accelerator="cpu")
    stopped_at(tmp_path / "run", configuration, step, monkeypatch)
    train(configuration, None, tmp_path / "run", accelerator="cpu")
    assert same_result(tmp_path / "whole", tmp_path / "run")


def test_losses_with_state_are_updated_before_every_epoch_but_the_first() -> None:
    prepared = prepare(RECIPES["digits"].replaced({"objective": "cals", "epochs": 3, "batch_size": 256}))
    fit(prepared, accelerator="cpu")
    loss = prepared.classifier.loss
    assert isinstance(loss, cal.CALSLoss)
    assert loss.updates == 2
    assert loss.multiplier.shape == (10,)


def test_a_missing_accelerator_is_named(tmp_path: Path) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator here")
    with pytest.raises(ValueError, match="there is no accelerator 'gpu' here"):
        train(TINY, None, tmp_path / "run", accelerator="gpu")


def test_the_bar_shows_running_scores_and_those_of_the_last_validation(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with training_progress(console) as progress:
        task = progress.add_task("reading", total=None, scores="")
        configuration = RECIPES["digits"].replaced({"objective": "esd", "epochs": 2, "batch_size": 256})
        trained = fit(prepare(configuration), callbacks=[Bar(progress, task, label="NLL + ESD")], accelerator="cpu")
        shown = progress.tasks[0]
    last = trained.history[-1]
    assert shown.description == "NLL + ESD: epoch 2 of 2"
    assert shown.completed == shown.total == 2
    accuracy, ece = (f"{100 * last[f'validation_{name}']:.2f}" for name in ("accuracy", "ece"))
    pattern = rf"accuracy \d+\.\d\d / {accuracy} %, ECE \d+\.\d\d / {ece} %, objective 0\.\d{{4}}"
    assert re.fullmatch(pattern, shown.fields["scores"])


def test_a_run_with_the_temperature_in_the_loop_is_calibrated_at_its_end() -> None:
    looped = RECIPES["digits"].replaced({"method": "temperature", "epochs": 3, "batch_size": 64})
    assert display_name(looped) == "temperature in the loop"
    prepared = prepare(looped)
    assert prepared.batches.calibration_loader is not None
    trained = fit(prepared, accelerator="cpu")
    assert trained.history[-1]["train_temperature"] == 1  # three epochs do not over-fit
    assert prepared.classifier.finished is not None
    assert prepared.classifier.finished.temperature != 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "temperature", "objective": "esd"}, "method temperature has no objective"),
        ({"method": "published", "objective": "nll"}, "method published needs an objective"),
    ],
)
def test_methods_and_objectives_that_do_not_go_together(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(RECIPES["digits"].replaced(settings))
