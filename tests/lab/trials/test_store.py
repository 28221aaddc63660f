"""Trials on disk: named by what they are, and never half there."""

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.files import FileError
from calibrant_lab.configuration import Configuration
from calibrant_lab.json_files import read_json, write_json
from calibrant_lab.recipes import RECIPES
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.identity import FIRST_SETTINGS, identity
from calibrant_lab.trials.store import Progress, Store, Trial
from tests.lab.made_trials import begun, failed, finished, halfway, held_by_another_process, of

# Taken once, from the first release: trials that are stored must be found again by later ones.
GOLDEN = {
    "376cd65c3816fe7a": RECIPES["mnist"],
    "5983a26cf88636b1": of("esd", weight=0.6, seed=1),
}
OTHER_VALUES: dict[str, Any] = {
    "recipe": "cifar10", "model": "resnet20", "objective": "esd", "batchnorm": "freeze", "mean": (0.5,), "std": (0.5,),
    "initial_weights": "weights.pt", "class_list": "classes.txt", "bandwidth": 0.4, "softness": 0.01, "gamma": 3.0,
    "smoothing": 0.1, "calibration_batch_size": 64, "calibration_fraction": 0.2, "validation_fraction": 0.2,
    "method": "temperature",
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


@pytest.mark.parametrize("digits", GOLDEN)
def test_an_identity_stays_what_it_was(digits: str) -> None:
    assert identity(GOLDEN[digits]) == digits
    assert Store(Path("runs")).trial(GOLDEN[digits]).identity == digits


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Configuration)])
def test_every_setting_makes_another_trial(name: str) -> None:
    value = getattr(RECIPES["mnist"], name)
    other = OTHER_VALUES.get(
        name, not value if isinstance(value, bool) else value + 1 if name not in OTHER_VALUES else 0
    )
    changed = dataclasses.replace(RECIPES["mnist"], **{name: other})
    assert identity(changed) != identity(RECIPES["mnist"])


computed = identity.__wrapped__  # as in a process that has not yet met its equal


@given(st.integers(0, 100), st.sampled_from(["weight", "noise", "weight_decay", "bandwidth"]))
def test_equal_configurations_are_one_trial(number: int, name: str) -> None:
    one, other = (of("mmce").replaced({name: value}) for value in (number, float(number) * -1 * -1))
    assert one == other
    assert computed(one) == computed(other)


def test_zero_has_no_sign() -> None:
    assert computed(of("esd", weight=-0.0)) == computed(of("esd", weight=0.0))
    assert computed(of("esd", mean=[-0.0])) == computed(of("esd", mean=[0]))


def test_a_setting_of_a_later_version_leaves_stored_trials_their_identity() -> None:
    later = dataclasses.make_dataclass(
        "Later", [("warmup", int, dataclasses.field(default=0))], bases=(Configuration,), frozen=True
    )
    assert identity(later("mnist", "lenet5")) == "376cd65c3816fe7a"
    assert identity(later("mnist", "lenet5", warmup=5)) != "376cd65c3816fe7a"
    assert {field.name for field in dataclasses.fields(Configuration)} >= FIRST_SETTINGS


def test_a_stored_configuration_without_a_later_setting_had_its_default(store: Store) -> None:
    configuration = RECIPES["cifar10"].replaced({"crop_padding": 0})  # the recipe's is 4
    trial = begun(store, configuration)
    content = configuration.to_dict()
    del content["crop_padding"]
    write_json(trial.folder / kept.CONFIGURATION, content)
    assert trial.configuration == configuration


def test_histories_with_the_earlier_names_of_scores_are_read(store: Store) -> None:
    trial = finished(store, of("esd"))
    write_json(trial.folder / kept.HISTORY, [{"epoch": 0, "train/accuracy": 0.5, "validation/ece": 0.1}])
    assert trial.history() == [{"epoch": 0, "train_accuracy": 0.5, "validation_ece": 0.1}]


def test_what_is_written_is_read(store: Store) -> None:
    trial = finished(store, of("esd", weight=2.0), accuracy=0.9, ece=0.05, seconds=3.5)
    result = trial.result()
    assert trial.folder.name == f"digits-esd-{trial.identity}"
    assert result.configuration == of("esd", weight=2.0)
    assert (result.validation.accuracy, result.outcome.accuracy, result.cost.seconds) == (0.9, 0.89, 3.5)
    assert math.isnan(trial.history()[0]["test_ece"])
    assert trial.predicted("test").logits.shape == (3, 3)
    assert trial.size() == sum(path.stat().st_size for path in trial.folder.iterdir())
    assert Store(store.folder).results() == {result.configuration: result}
    assert store.result(of("esd", weight=3.0)) is None


def test_a_temperature_that_could_not_be_fitted_comes_back_as_such(store: Store) -> None:
    trial = finished(store, of("esd"))
    result = trial.result()
    outcome = dataclasses.replace(result.outcome, temperature=math.nan)
    kept.write_result(trial.folder, dataclasses.replace(result, outcome=outcome))
    assert math.isnan(trial.result().outcome.temperature)


def test_a_folder_without_a_result_is_no_result(store: Store) -> None:
    trial = finished(store, of("esd"))
    (trial.folder / kept.RESULT).rename(trial.folder / ".result-x1y2.json")
    assert trial.status == "unfinished"
    assert store.results() == {}
    assert store.trials() == [trial]


def test_the_status_is_told_by_the_files_and_the_lock(store: Store) -> None:
    assert finished(store, of("esd")).status == "done"
    assert failed(store, of("nll"), "Traceback\nValueError: no").status == "failed"
    trial = halfway(store, of("mmce"), 3.0, 0.5, 0.1)
    found = [trial.status]
    with held_by_another_process(trial):
        found.append(trial.status)
    found.append(trial.status)  # the lock file is still there, and nobody holds it
    assert found == ["unfinished", "running", "unfinished"]
    assert trial.progress() == Progress(3.0, 12, 30.0, 0.5, 0.1)


def test_progress_tells_the_time_left() -> None:
    assert Progress(3.0, 12, 30.0, 0.5, 0.1).seconds_left == pytest.approx(90)
    assert Progress(12.0, 12, 30.0, 0.5, 0.1).seconds_left == 0
    assert math.isnan(Progress(0.0, 12, 0.0, math.nan, math.nan).seconds_left)


def test_other_folders_are_left_alone(store: Store) -> None:
    finished(store, of("esd"))
    for name in ("digits-esd-seed0", "notes", "x-0123456789ABCDEF"):
        write_json(store.folder / name / kept.CONFIGURATION, of("esd").to_dict())
    assert [trial.configuration for trial in store.trials()] == [of("esd")]


def test_a_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="nowhere: is not a folder: give the --runs of an earlier command"):
        Store(tmp_path / "nowhere").trials()


def rewritten(**changes: Any) -> Any:
    def change(text: str) -> str:
        return json.dumps(json.loads(text) | changes)

    return change


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        (kept.RESULT, lambda text: text[:40], "is not valid JSON"),
        (kept.RESULT, lambda text: "", "is not valid JSON"),
        (kept.RESULT, lambda text: "[]", "list indices"),
        (kept.RESULT, lambda text: '{"validation": {}}', "it lacks 'accuracy'"),
        (kept.RESULT, rewritten(validation={"accuracy": "high", "ece": 0}), "accuracy must be a number, got 'high'"),
        (kept.RESULT, rewritten(validation={"accuracy": True, "ece": 0}), "accuracy must be a number, got True"),
        (kept.CONFIGURATION, lambda text: "{", "is not valid JSON"),
        (kept.CONFIGURATION, lambda text: "{}", "it lacks 'recipe'"),
        (kept.CONFIGURATION, rewritten(weight="2"), "weight must be a number, got '2'"),
        (kept.CONFIGURATION, rewritten(warmup=5), "there is no setting 'warmup'"),
        (kept.CONFIGURATION, rewritten(weight=7.0), "not those its folder is named by"),
    ],
)
def test_a_damaged_trial_is_named_and_the_others_are_read(
    name: str, damage: Any, reason: str, store: Store, tmp_path: Path
) -> None:
    good, bad = finished(store, of("nll")), finished(store, of("esd"))
    path = bad.folder / name
    path.write_text(damage(path.read_text()))
    with pytest.raises(FileError) as raised:
        Trial(bad.folder).result()
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert reason in message
    assert message.endswith("delete its folder, and the same command runs it anew")
    assert list(Store(store.folder).results()) == [good.configuration]
    assert Store(store.folder).result(of("esd")) is None


def test_a_damaged_history_is_named(store: Store) -> None:
    trial = finished(store, of("esd"))
    (trial.folder / kept.HISTORY).write_text("7")
    with pytest.raises(FileError, match=rf"{kept.HISTORY}: is not what a trial leaves"):
        trial.history()


def test_a_failure_that_cannot_be_read_is_a_failure_all_the_same(store: Store) -> None:
    trial = failed(store, of("esd"), "ValueError: no")
    assert trial.failure() == "ValueError: no"
    (trial.folder / kept.FAILURE).write_text("")
    assert trial.status == "failed"
    assert trial.failure() == "it failed, and failure.json cannot be read"


def test_an_unreadable_sign_of_life_is_none(store: Store) -> None:
    trial = halfway(store, of("esd"), 3.0, 0.5, 0.1)
    (trial.folder / kept.PROGRESS).write_text("{")
    assert trial.progress() is None


def test_a_trial_is_removed_result_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = finished(store, of("esd"))
    monkeypatch.setattr(shutil, "rmtree", lambda folder: None)  # as if killed there
    trial.remove()
    assert trial.status == "unfinished"
    monkeypatch.undo()
    trial.remove()
    assert not trial.folder.exists()


def test_json_is_written_without_numbers_it_does_not_know(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": [math.nan, math.inf, 1.5], "b": (True, None, "ü")})
    assert read_json(tmp_path / "x.json") == {"a": [None, None, 1.5], "b": [True, None, "ü"]}
