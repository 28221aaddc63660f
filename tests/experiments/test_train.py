"""One run and all that is left of it; killed at any moment, it ends the same."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from calibrant.cli import main
from calibrant.experiments.configuration import Configuration
from calibrant.experiments.recipes import RECIPES
from calibrant.experiments.train import claim, run_name, train
from calibrant.experiments.watching import KeepLast
from calibrant.files import FileError, read_predictions

TINY = RECIPES["digits"].replaced({"objective": "esd", "epochs": 3, "batch_size": 256, "calibration_every": 2})
FILES = {
    "config.json", "curves.png", "history.json", "last.ckpt", "model.pt", "report.html", "summary.json", "tensorboard",
    "test.npz", "validation.npz",
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
    assert {"train/nll", "train/objective", "train/silent", "train/ece", "validation/accuracy"} <= history[0].keys()
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


@pytest.mark.parametrize("stop_after", [1, 7, 11, 12])
def test_an_interrupted_run_goes_on_to_the_identical_result(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    class StoppedError(Exception):
        pass

    def stop(self: KeepLast, trainer: object, *_: object) -> None:
        self._save(trainer)  # type: ignore[arg-type]
        if trainer.global_step == stop_after:  # type: ignore[attr-defined]
            raise StoppedError

    out = tmp_path / "stopped"
    with monkeypatch.context() as patched:
        patched.setattr(KeepLast, "on_train_batch_end", stop)
        with pytest.raises(StoppedError):
            train(TINY, None, out, accelerator="cpu")
    assert not (out / "summary.json").exists()
    train(TINY, None, out, accelerator="cpu")
    assert same_result(finished, out)


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


def test_a_folder_belongs_to_one_run(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"other settings \(epochs, weight\)"):
        claim(finished, TINY.replaced({"weight": 2.0, "epochs": 9}))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match="is in use, and not by a run"):
        claim(tmp_path, TINY)


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
    assert run_name(RECIPES["mnist"].replaced(changes)) == name


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
