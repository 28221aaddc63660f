"""Trials of Calibrant 0.1, as it wrote them, are brought up to date by one command."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from calibrant.cli import app
from calibrant.files import FileError, read_json, write_json
from calibrant_lab.trials import convert as converting
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.configuration import Configuration, configure
from calibrant_lab.trials.convert import convert
from calibrant_lab.trials.listing import look
from calibrant_lab.trials.store import Store

RESULTS = Path(__file__).parents[3] / "results"
# What version 0.1.0 wrote for one epoch of digits.
SETTINGS: dict[str, Any] = {
    "recipe": "digits", "model": "lenet5", "objective": "nll", "weight": 1.0, "seed": 0, "epochs": 1,
    "batch_size": 512, "calibration_fraction": 0.1, "calibration_batch_size": None, "calibration_every": 1,
    "reduced_split": False, "batchnorm": "update", "learning_rate": 0.001, "weight_decay": 0.01, "root": True,
    "bandwidth": None, "softness": None, "gamma": None, "smoothing": None, "validation_fraction": 0.1,
    "image_size": 32, "crop_padding": 0, "flip": False, "mean": [0.0], "std": [1.0], "noise": 0.3, "max_length": 128,
    "initial_weights": None, "class_list": None, "workers": 0,
}  # fmt: skip
SCORES: dict[str, Any] = {
    "validation": {"accuracy": 0.18055555555555555, "ece": 0.07441417490028673},
    "outcome": {
        "accuracy": 0.13055555555555556, "ece": 0.024396259213487308, "nll": 2.296587957771102,
        "temperature": 0.21240532398223877, "ece_temperature": 0.00025346690995825663,
        "accuracy_vector": 0.46111111111111114, "ece_vector": 0.0688828299029006,
    },
    "cost": {
        "seconds": 0.4191908919965499, "processor_seconds": 0.12725678799999862, "images": 1551,
        "peak_memory": 593653760,
    },
    "environment": {"calibrant": "0.1.0", "torch": "2.13.0+cpu", "device": "cpu: AMD EPYC", "threads": 1},
}  # fmt: skip
HISTORY = [{"epoch": 0, "train/accuracy": 0.125, "validation/ece": 0.07441417490028673, "test/ece": 0.024396259213}]
ESD_RAW = SETTINGS | {"objective": "esd", "root": False, "weight": 60.0}
SHORT: dict[str, Any] = {"epochs": 1, "batch_size": 512}
# Folder, as version 0.1.0 named it -> what it held, and what that is now.
TRIALS: dict[str, tuple[dict[str, Any], Configuration]] = {
    "digits-nll-b8016ef97fe98bcc": (SETTINGS, configure("digits", settings=SHORT)),
    "digits-esd-aaebea6bae97b4ac": (
        ESD_RAW, configure("digits", "esd-raw", options={"weight": 60.0}, settings=SHORT)
    ),
    "digits-nll-355e271782a1bc06": (SETTINGS | {"method": "temperature"}, configure("digits", "loop", settings=SHORT)),
    "digits-mmce-47a14c9be0aff648": (
        SETTINGS | {"objective": "mmce", "bandwidth": 0.4, "root": False},
        configure("digits", "mmce", options={"bandwidth": 0.4, "root": False}, settings=SHORT),
    ),
    "digits-focal-0000000000000001": (
        SETTINGS | {"objective": "focal", "gamma": 2.0, "method": "head", "seed": 3, "noise": 0.5},
        configure("digits", "head", options={"loss": "focal"}, settings=SHORT | {"noise": 0.5}, seed=3),
    ),
}  # fmt: skip


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store of version 0.1.0; the trial of ESD is finished, that of MMCE failed, the others were only begun."""
    for name, (settings, _) in TRIALS.items():
        write_json(tmp_path / name / "config.json", settings)
        write_json(tmp_path / name / "data.json", {"train": 1164, "fingerprint": "36c935f2140e6497"})
    esd = tmp_path / "digits-esd-aaebea6bae97b4ac"
    write_json(esd / "result.json", SCORES)
    write_json(esd / "history.json", HISTORY)
    for part in ("validation", "test"):
        np.savez(esd / f"{part}.npz", logits=np.eye(3, dtype=np.float32), target=np.arange(3))
    write_json(tmp_path / "digits-mmce-47a14c9be0aff648" / "failure.json", {"traceback": "ValueError: no"})
    return tmp_path


def quiet() -> Console:
    return Console(file=io.StringIO())


def test_every_trial_is_found_under_its_new_identity(old: Path) -> None:
    assert convert(old, quiet()) == len(TRIALS)
    store = Store(old)
    assert {trial.configuration for trial in store.trials()} == {expected for _, expected in TRIALS.values()}
    assert {store.trial(expected).folder.name for _, expected in TRIALS.values()} == {
        trial.folder.name for trial in store.trials()
    }
    assert sorted(look(trial).status for trial in store.trials()) == ["done", "failed", *["unfinished"] * 3]


def test_scores_cost_curves_and_predictions_stay(old: Path) -> None:
    convert(old, quiet())
    store = Store(old)
    trial = store.trial(TRIALS["digits-esd-aaebea6bae97b4ac"][1])
    result = trial.result()
    assert result.test == {
        "accuracy": 0.13055555555555556, "ece": 0.024396259213487308, "nll": 2.296587957771102,
        "ece+temperature": 0.00025346690995825663, "accuracy+vector": 0.46111111111111114,
        "ece+vector": 0.0688828299029006,
    }  # fmt: skip
    assert {name: result.validation[name] for name in ("accuracy", "ece", "temperature")} == {
        "accuracy": 0.18055555555555555, "ece": 0.07441417490028673, "temperature": 0.21240532398223877,
    }  # fmt: skip
    # Which version 0.1.0 did not keep; that of the identity matrix as logits.
    assert result.validation["nll"] == pytest.approx(np.log(np.e + 2) - 1, abs=1e-6)
    assert (result.cost.images, result.environment["calibrant"]) == (1551, "0.1.0")
    assert trial.history()[0]["train_accuracy"] == 0.125
    assert trial.predicted("test").logits.shape == (3, 3)


def test_an_old_store_says_how_to_convert_it_and_is_not_touched(old: Path) -> None:
    trial = Store(old).trials()[0]
    assert "convert its folder with calibrant runs convert" in str(look(trial).problem)
    assert Store(old).results() == {}
    assert {path.name for path in old.iterdir()} == set(TRIALS)


def test_the_command_converts_and_a_second_time_finds_nothing(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for count in (f"{len(TRIALS)} trials", "0 trials"):
        app(["runs", "convert", str(old)], result_action="return_value")
        assert capsys.readouterr().out == f"{count} converted.\n"


@pytest.mark.parametrize("writes", range(1 + len(TRIALS)))
def test_a_conversion_that_is_interrupted_goes_on(old: Path, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [writes]

    def interrupted(path: Path, content: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        write_json(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(converting, "write_json", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert(old, quiet())
    convert(old, quiet())
    found = {trial.configuration for trial in Store(old).trials()}
    assert found == {expected for _, expected in TRIALS.values()}
    assert len(Store(old).results()) == 1


def test_two_folders_of_one_trial_are_named_and_both_are_left(old: Path) -> None:
    expected = TRIALS["digits-nll-b8016ef97fe98bcc"][1]
    shutil.copytree(old / "digits-nll-b8016ef97fe98bcc", old / "digits-nll-b8016ef97fe98bcd")
    with pytest.raises(FileError, match=f"{expected.identity}: already exists, and digits-nll-b8016ef97fe98bcd is"):
        convert(old, quiet())
    assert (old / "digits-nll-b8016ef97fe98bcd" / kept.CONFIGURATION).exists()


def test_weights_that_are_no_longer_there_do_not_stop_it(tmp_path: Path) -> None:
    settings = SETTINGS | {"initial_weights": str(tmp_path / "gone.pt")}
    write_json(tmp_path / "digits-nll-b8016ef97fe98bcc" / "config.json", settings)
    assert convert(tmp_path, quiet()) == 1
    (trial,) = Store(tmp_path).trials()
    assert trial.configuration.files == (("initial_weights", "unknown"),)


@pytest.mark.parametrize("name", ["mnist/trials-250-epochs.json", "cifar10/trials.json", "nli/trials.json"])
def test_exported_results_are_converted(name: str, tmp_path: Path) -> None:
    before = json.loads((RESULTS / name).read_text())["trials"]
    shutil.copy(RESULTS / name, tmp_path / "trials.json")
    convert(tmp_path / "trials.json", quiet())
    after = read_json(tmp_path / "trials.json")["trials"]
    assert len(after) == len(before) > 0
    for old, new in zip(before, after, strict=True):
        assert new["test"]["accuracy"] == old["test"]["accuracy"]
        assert "ece+temperature" in new["test"]
        assert "objective" not in new["configuration"]
        assert new["cost"] == old["cost"]


def test_what_is_neither_a_store_nor_an_export_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="none: does not exist"):
        convert(tmp_path / "none", quiet())
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(FileError, match=r"a\.json: was not written by calibrant runs export"):
        convert(tmp_path / "a.json", quiet())
