"""Trials on disk: named by what they are, and never half there."""

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.files import FileError, read_json, write_json
from calibrant_lab import plugins
from calibrant_lab.recipes import RECIPES
from calibrant_lab.settings import Settings
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.configuration import configure, from_dict
from calibrant_lab.trials.provenance import made_with
from calibrant_lab.trials.store import Progress, Store, Trial, UnknownTrialError, write_result
from tests.lab.pickles import Intruder
from tests.lab.stores import failed, finished, halfway, held_by_another_process, of, own_recipe

# Taken once: trials that are stored must be found again by later versions.
GOLDEN = {"8157fbfe6a7c45a4": configure("mnist"), "8f1eb8ba7e57947c": configure("mnist", "esd")}
OTHER_VALUES: dict[str, Any] = {
    "model": "resnet20", "batchnorm": "freeze", "mean": (0.5,), "std": (0.5,), "precision": "bf16-mixed",
    "max_steps": 7, "calibration_batch_size": 64, "calibration_fraction": 0.2, "validation_fraction": 0.2,
}  # fmt: skip


@pytest.mark.parametrize("digits", GOLDEN)
def test_an_identity_stays_what_it_was(digits: str) -> None:
    assert GOLDEN[digits].identity == digits
    assert Store("runs").trial(GOLDEN[digits]).identity == digits


@pytest.mark.parametrize("name", [name for name in RECIPES["mnist"].settings.model_fields if name != "initial_weights"])
def test_every_setting_makes_another_trial(name: str) -> None:
    value = getattr(configure("mnist").settings, name)
    plain = not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else None
    other = OTHER_VALUES.get(name, plain)
    assert configure("mnist", settings={name: other}) != configure("mnist")


def test_recipe_method_options_and_seed_make_another_trial() -> None:
    esd = configure("mnist", "esd")
    changes: list[dict[str, Any]] = [{"method": "focal"}, {"method": "nll"}, {"weight": 2}, {"seed": 1}]
    found = [esd, configure("cifar10", "esd"), *(esd.replaced(one) for one in changes)]
    assert len({one.identity for one in found}) == len(found)


@given(st.integers(0, 100), st.sampled_from(["weight", "noise", "weight_decay", "bandwidth"]))
def test_equal_configurations_are_one_trial(number: int, name: str) -> None:
    one, other = (of("mmce").replaced({name: value}) for value in (number, float(number) * -1 * -1))
    assert one == other
    assert one.identity == other.identity
    assert of("esd", mean=[-0.0]).identity == of("esd", mean=[0]).identity


def test_a_setting_that_all_recipes_have_counts_only_where_it_is_not_at_its_default() -> None:
    """So that one that is added in a later version leaves stored trials their identity."""
    added = {name: field.default for name, field in Settings.model_fields.items()}
    assert configure("mnist", settings=added).identity == configure("mnist").identity
    content = configure("mnist").to_dict()
    for name in added:
        del content["settings"][name]
    assert from_dict(content).identity == configure("mnist").identity


def change(trial: Trial, **changes: Any) -> None:
    path = trial.folder / kept.CONFIGURATION
    write_json(path, read_json(path) | changes)


UNKNOWN: list[dict[str, Any]] = [
    {"recipe": "/somewhere/else.py:mine"}, {"recipe": "no_such_package.recipes:mine"}, {"recipe": "of_a_later_version"},
    {"method": "/somewhere/else.py:mine"}, {"settings": {"of_a_later_version": 5}},
    {"options": {"of_a_later_version": 5}},
]  # fmt: skip


@pytest.mark.parametrize("changes", UNKNOWN)
def test_a_trial_of_something_unknown_is_intact(changes: dict[str, Any], store: Store) -> None:
    trial, known = finished(store, of("esd")), finished(store, of("nll"))
    change(trial, **changes)
    with pytest.raises(UnknownTrialError) as raised:
        _ = Trial(trial.folder).configuration
    assert "delete" not in str(raised.value)
    assert trial.status == "done"
    assert list(Store(store.folder).results()) == [known.configuration]


def test_a_trial_is_found_again_where_the_file_of_its_recipe_has_moved(store: Store, tmp_path: Path) -> None:
    before, after = (configure(own_recipe(tmp_path / folder)) for folder in ("before", "after"))
    change(finished(store, before), recipe="/gone/mine.py:mine")
    same = Store(store.folder).trial(after)
    with pytest.raises(UnknownTrialError):
        same.result()
    same.found_again(after)
    assert same.result().test["accuracy"] == 0.89
    assert list(Store(store.folder).results()) == [after]


def test_a_different_file_of_the_same_name_is_refused(store: Store, tmp_path: Path) -> None:
    a, b, copy = (
        configure(own_recipe(tmp_path / folder, more)) for folder, more in (("a", ""), ("b", "# another"), ("copy", ""))
    )
    trial = finished(store, a)
    result = trial.result()
    write_result(trial.folder, dataclasses.replace(result, environment=result.environment | made_with(a)))
    store.trial(copy).found_again(copy)
    with pytest.raises(FileError, match=r"/a/mine\.py:mine.*/b/mine\.py:mine"):
        store.trial(b).found_again(b)


def test_a_setting_added_to_a_users_recipe_makes_its_old_trials_unknown(store: Store, tmp_path: Path) -> None:
    source, path = "from calibrant_lab.recipes import digits\nfrom calibrant_lab import Recipe\n", tmp_path / "mine.py"
    made = "mine = Recipe(digits.load, digits.build, settings=digits.settings{})\n"
    path.write_text(source + made.format(", width=3"))
    trial = finished(store, configure(f"{path}:mine"))
    for more in (", width=3, depth=2", ", width='wide'"):
        path.write_text(source + made.format(more))
        plugins._from_file.cache_clear()
        with pytest.raises(UnknownTrialError, match=r"mine\.py:mine") as raised:
            _ = Trial(trial.folder).configuration
        assert "delete" not in str(raised.value)


def test_a_store_is_a_frame_of_its_finished_trials(store: Store) -> None:
    finished(store, of("esd", weight=2.0), accuracy=0.9, ece=0.05, seconds=3.5)
    finished(store, of("nll", seed=3))
    failed(store, of("focal"))
    frame = Store(str(store.folder)).to_frame()
    assert list(frame["method"]) == ["esd", "nll"]
    expected = {
        "recipe": "digits", "seed": 0, "epochs": 12, "weight": 2.0, "seconds": 3.5, "samples": 12000,
        "validation_accuracy": 0.9, "test_accuracy": 0.89, "test_ece+temperature": 0.02,
        "trial": of("esd", weight=2.0).identity,
    }  # fmt: skip
    assert expected.items() <= dict(frame.set_index("method").loc["esd"]).items()
    assert math.isnan(frame["weight"][1])
    (store.trial(of("nll", seed=3)).folder / kept.RESULT).write_text("{")
    with pytest.raises(FileError, match=r"result\.json"):
        store.to_frame()


def test_predictions_are_not_unpickled(store: Store, tmp_path: Path) -> None:
    trial = finished(store, of("esd"))
    array = np.empty(1, dtype=object)
    array[0] = Intruder(tmp_path / "intruded")
    np.savez(trial.folder / "test.npz", logits=array, target=array)
    with pytest.raises((FileError, ValueError)):
        trial.predicted("test")
    assert not (tmp_path / "intruded").exists()


def test_a_score_that_was_not_kept_is_computed_once_unless_it_is_a_users(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text("def samples(predictions):\n    return float(len(predictions.target))\n")
    trial = finished(store, of("esd"))
    found = [trial.score("test", "brier"), trial.score("validation", "brier")]
    assert trial.score("test", f"{tmp_path / 'own.py'}:samples") == 3
    monkeypatch.setattr(Trial, "predicted", None)
    assert [trial.score("test", "brier"), trial.score("validation", "brier")] == found
    assert trial.score("test", "ece") == trial.result().test["ece"]
    assert 0 < found[0] < 1
    with pytest.raises(TypeError):
        trial.score("test", f"{tmp_path / 'own.py'}:samples")


def test_what_is_written_is_read(store: Store) -> None:
    trial = finished(store, of("esd", weight=2.0), temperature=math.nan, seconds=3.5)
    result = trial.result()
    assert math.isnan(result.validation["temperature"])
    assert trial.folder.name == f"digits-esd-{trial.identity}"
    assert result.configuration == of("esd", weight=2.0)
    assert (result.validation["accuracy"], result.test["accuracy"], result.cost.seconds) == (0.9, 0.89, 3.5)
    assert math.isnan(trial.history()[0]["test_ece"])
    assert trial.predicted("test").logits.shape == (3, 3)
    assert trial.size() == sum(path.stat().st_size for path in trial.folder.iterdir())
    assert list(Store(store.folder).results()) == [result.configuration]
    assert store.result(of("esd", weight=3.0)) is None


def test_the_status_follows_from_the_files_and_the_lock(store: Store) -> None:
    assert (finished(store, of("esd")).status, failed(store, of("nll")).status) == ("done", "failed")
    trial = halfway(store, of("mmce"), 3.0, 0.5, 0.1)
    found = [trial.status]
    with held_by_another_process(trial):
        found.append(trial.status)
    found.append(trial.status)  # the lock file is still there, and nobody holds it
    assert found == ["unfinished", "running", "unfinished"]
    assert trial.progress() == Progress(3.0, 12, 30.0, 0.5, 0.1)


def test_other_folders_are_left_alone(store: Store) -> None:
    finished(store, of("esd"))
    for name in ("digits-esd-seed0", "notes", "x-0123456789ABCDEF"):
        write_json(store.folder / name / kept.CONFIGURATION, of("esd").to_dict())
    assert [trial.configuration for trial in store.trials()] == [of("esd")]


def rewritten(**changes: Any) -> Any:
    return lambda text: json.dumps(json.loads(text) | changes)


@pytest.mark.parametrize(
    ("name", "damage", "token"),
    [
        (kept.RESULT, lambda text: text[:40], "JSON"),
        (kept.RESULT, lambda text: '{"validation": {}}', "'test'"),
        (kept.RESULT, rewritten(validation={"accuracy": "high", "ece": 0}), "'high'"),
        (kept.RESULT, rewritten(validation={"accuracy": True, "ece": 0}), "True"),
        (kept.CONFIGURATION, lambda text: "{}", "'recipe'"),
        (kept.CONFIGURATION, rewritten(options={"weight": "much"}), "weight"),
        (kept.CONFIGURATION, rewritten(options={"weight": 7.0}), "name"),
    ],
)
def test_a_damaged_trial_is_named_and_the_others_are_read(name: str, damage: Any, token: str, store: Store) -> None:
    good, bad = finished(store, of("nll")), finished(store, of("esd"))
    path = bad.folder / name
    path.write_text(damage(path.read_text()))
    with pytest.raises(FileError, match=rf"\A{re.escape(str(path))}: .*{token}.*delete its folder"):
        Trial(bad.folder).result()
    assert list(Store(store.folder).results()) == [good.configuration]
    assert Store(store.folder).result(of("esd")) is None


def test_other_files_that_cannot_be_read_are_named_or_left_out(store: Store) -> None:
    done, lost, running = finished(store, of("esd")), failed(store, of("nll")), halfway(store, of("mmce"), 3, 0.5, 0.1)
    (done.folder / kept.HISTORY).write_text("7")
    with pytest.raises(FileError, match=kept.HISTORY):
        done.history()
    assert lost.failure() == "ValueError: no"
    (lost.folder / kept.FAILURE).write_text("")
    assert lost.status == "failed"
    assert kept.FAILURE in (lost.failure() or "")
    (running.folder / kept.PROGRESS).write_text("{")
    assert running.progress() is None


def test_a_trial_is_removed_result_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = finished(store, of("esd"))
    monkeypatch.setattr(shutil, "rmtree", lambda folder: None)  # as if killed there
    trial.remove()
    assert trial.status == "unfinished"
    monkeypatch.undo()
    trial.remove()
    assert not trial.folder.exists()
