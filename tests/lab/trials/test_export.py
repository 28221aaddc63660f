"""Finished trials as one file, with their predictions beside it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant import metrics
from calibrant.files import FileError, read_json, write_json
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.configuration import configure
from calibrant_lab.trials.export import export
from calibrant_lab.trials.store import Store
from tests.lab.stores import failed, finished, halfway, noisy, of, own_recipe, predict
from tests.shell import run

RESULTS = Path(__file__).parents[3] / "results"
ESD, NLL = of("esd", weight=2.0), of("nll")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "runs")
    finished(store, ESD, accuracy=0.9, ece=0.05)
    finished(store, NLL)
    failed(store, of("focal"), "ValueError: no")
    halfway(store, of("mmce"), 3.0, 0.5, 0.1)
    return store


def test_the_finished_trials_are_exported_without_paths(store: Store, tmp_path: Path) -> None:
    weights = tmp_path / "weights" / "resnet.pt"
    weights.parent.mkdir()
    weights.write_bytes(b"1")
    changes: dict[str, Any] = {"initial_weights": str(weights), "model": str(tmp_path / "bert")}
    trial = finished(store, configure(own_recipe(tmp_path), settings=changes))
    write_json(trial.folder / kept.DATA, {"train": 80, "folder": str(tmp_path)})
    assert export(store, tmp_path / "results" / "runs.json") == 3
    done = store.trial(ESD).result()
    text = (tmp_path / "results" / "runs.json").read_text()
    nll, esd, mine = json.loads(text)["trials"]
    assert str(tmp_path) not in text
    settings = mine["configuration"]["settings"]
    assert mine["configuration"]["recipe"] == "mine.py:mine"
    assert (settings["initial_weights"], settings["model"]) == ("resnet.pt", "bert")
    assert len(mine["configuration"]["files"]["initial_weights"]) == 16
    assert nll["configuration"] == NLL.to_dict()
    assert esd == {"trial": ESD.identity, "configuration": ESD.to_dict(), "data": esd["data"]} | done.to_dict()
    assert esd["data"]["train"] == 80


def test_half_of_the_results_are_not_exported_as_all(store: Store, tmp_path: Path) -> None:
    (store.trial(ESD).folder / kept.RESULT).write_text("{")
    with pytest.raises(FileError, match=r"result\.json"):
        export(store, tmp_path / "runs.json")
    assert not (tmp_path / "runs.json").exists()


def test_trials_of_something_unknown_are_left_out_and_counted(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store.trial(ESD).folder / kept.CONFIGURATION
    write_json(path, read_json(path) | {"method": "/somewhere/else.py:mine"})
    assert export(store, tmp_path / "runs.json", predictions=True) == 1
    assert "1 trial " in capsys.readouterr().err
    assert [one["configuration"]["method"] for one in read_json(tmp_path / "runs.json")["trials"]] == ["nll"]
    assert list(Store(store.folder).to_frame()["method"]) == ["nll"]


def test_the_command_exports_predictions_from_which_the_scores_can_be_computed(store: Store, tmp_path: Path) -> None:
    logits, target = noisy(50, 4, target_seed=0, seed=0)
    predict(store.trial(ESD), "test", logits, target)
    assert run("runs", "export", tmp_path / "runs.json", "--runs", store.folder, "--predictions") == 0
    found = np.load(tmp_path / "runs.npz")
    identity = store.trial(ESD).identity
    assert set(found.files) == {
        f"{store.trial(one).identity}_{name}" for one in (ESD, NLL) for name in ("logits", "target")
    }
    assert found[f"{identity}_logits"].dtype == np.float16
    np.testing.assert_allclose(found[f"{identity}_logits"], logits, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(found[f"{identity}_target"], target)


def test_logits_beyond_float16_are_refused(store: Store, tmp_path: Path) -> None:
    predict(store.trial(ESD), "test", 1e5 * torch.eye(3), torch.arange(3))
    with pytest.raises(FileError, match="float16"):
        export(store, tmp_path / "runs.json", predictions=True)
    assert not (tmp_path / "runs.npz").exists()


@pytest.mark.skipif(not [*RESULTS.glob("mnist/trials-*.npz")], reason="the logits are not in a source archive")
@pytest.mark.parametrize("path", sorted((RESULTS / "mnist").glob("trials-*.npz")), ids=lambda path: str(path.stem))
def test_published_logits_give_the_published_scores(path: Path) -> None:
    trials = json.loads(path.with_suffix(".json").read_text())["trials"]
    with np.load(path) as arrays:
        assert len(arrays) == 2 * len(trials)
        for trial in trials:
            name = trial["trial"]
            given = metrics.predictions(
                logits=arrays[f"{name}_logits"].astype(np.float32), target=arrays[f"{name}_target"]
            )
            assert metrics.accuracy(given) == pytest.approx(trial["test"]["accuracy"], abs=2e-4)
            assert metrics.ece(given) == pytest.approx(trial["test"]["ece"], abs=2e-4)
            assert metrics.log_loss(given) == pytest.approx(trial["test"]["nll"], rel=1e-3)
