"""A trial in a store: stopped anywhere, it ends the same; what goes wrong stays with it."""

import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from calibrant_lab import fit as fitting
from calibrant_lab.configuration import Configuration
from calibrant_lab.json_files import read_json, write_json
from calibrant_lab.recipes import RECIPES
from calibrant_lab.trials import store as kept
from calibrant_lab.trials import trial as trials
from calibrant_lab.trials.store import Result, Store, Trial
from calibrant_lab.trials.trial import run_trial
from calibrant_lab.watching import KeepLast
from tests.lab.made_trials import files_of, held_by_another_process

TINY = RECIPES["digits"].replaced({"objective": "esd", "epochs": 2, "batch_size": 512})
STEPS = 6
FILES = {"config.json", "data.json", "history.json", "model.pt", "result.json", "test.npz", "validation.npz"}


class KilledError(BaseException):
    """As sudden as a signal: nothing in the code under test catches it."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    store = Store(tmp_path_factory.mktemp("whole"))
    assert run_trial(store, TINY, None, "cpu") == "done"
    return store.trial(TINY)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def reproducible(result: Result) -> Result:
    """Without what is measured with a clock."""
    return replace(result, cost=replace(result.cost, seconds=0, processor_seconds=0, peak_memory=0))


def assert_same(one: Trial, other: Trial) -> None:
    assert files_of(one.folder) == files_of(other.folder) == FILES
    assert reproducible(one.result()) == reproducible(other.result())
    assert (one.folder / kept.HISTORY).read_bytes() == (other.folder / kept.HISTORY).read_bytes()
    for part in ("validation", "test"):
        for ours, theirs in zip(one.predicted(part), other.predicted(part), strict=True):
            assert torch.equal(ours, theirs)
    weights = [torch.load(trial.folder / kept.WEIGHTS, weights_only=True) for trial in (one, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def killed_at(step: int, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run to a checkpoint right after a step, and no further."""

    def stop(self: KeepLast, trainer: Any, *_: object) -> None:
        self._save(trainer)
        if trainer.global_step == step:
            raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(KeepLast, "on_train_batch_end", stop)
        with pytest.raises(KilledError):
            run_trial(store, TINY, None, "cpu")
    assert store.trial(TINY).status == "unfinished"


def test_a_trial_leaves_all_it_should(whole: Trial) -> None:
    result, history = whole.result(), whole.history()
    assert files_of(whole.folder) == FILES
    assert whole.status == "done"
    assert whole.configuration == result.configuration == TINY
    # All training images an epoch, and beside each step the whole calibration part, which is smaller than a batch.
    data = read_json(whole.folder / kept.DATA)
    assert result.cost.images == 2 * data["train"] + STEPS * data["calibration"]
    assert 0 < result.cost.seconds < 60
    assert result.cost.processor_seconds > 0
    assert 1e8 < result.cost.peak_memory < 1e11
    last = history[-1]
    assert [entry["epoch"] for entry in history] == [0, 1]
    assert all(
        {"train_ece", "validation_ece", "test_ece", "test_accuracy", "test_nll"} <= row.keys() for row in history
    )
    assert (last["validation_accuracy"], last["test_accuracy"]) == pytest.approx(
        (result.validation.accuracy, result.outcome.accuracy)
    )
    assert last["test_ece"] == result.outcome.ece
    assert len(whole.predicted("test").target) == 360
    assert not whole.has_dropout()
    assert result.environment["torch"] == torch.__version__


def test_a_finished_trial_is_not_run_again(whole: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_run", None)
    assert run_trial(Store(whole.folder.parent), TINY, None, "cpu") == "done"


@pytest.mark.parametrize("stops", [[1], [3], [5], [STEPS], [2, 3, 4]])
def test_a_trial_killed_at_any_step_goes_on_to_the_identical_result(
    stops: list[int], whole: Trial, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in stops:
        killed_at(step, store, monkeypatch)
    assert run_trial(store, TINY, None, "cpu") == "done"
    assert_same(whole, store.trial(TINY))


@pytest.mark.parametrize("writer", ["_write_predictions", "judge", "write_result"])
def test_a_trial_killed_while_it_writes_goes_on_to_the_identical_result(
    writer: str, whole: Trial, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(trials, writer, kill)
        with pytest.raises(KilledError):
            run_trial(store, TINY, None, "cpu")
    assert store.trial(TINY).status == "unfinished"
    assert store.results() == {}
    assert run_trial(store, TINY, None, "cpu") == "done"
    assert_same(whole, store.trial(TINY))


def test_what_a_killed_trial_left_half_written_is_cleared(
    whole: Trial, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(1, store, monkeypatch)
    folder = store.trial(TINY).folder
    (folder / ".result-x1y2z3.json").write_text("{")
    (folder / "last.ckpt.partial").write_bytes(b"PK")
    (folder / kept.CHECKPOINT).write_bytes((folder / kept.CHECKPOINT).read_bytes()[:5000])  # torn by a power cut
    assert run_trial(store, TINY, None, "cpu") == "done"
    assert_same(whole, store.trial(TINY))


def test_a_trial_that_another_process_is_at_is_left_to_it(store: Store) -> None:
    trial = store.trial(TINY)
    trial.folder.mkdir(parents=True)
    with held_by_another_process(trial):
        assert run_trial(store, TINY, None, "cpu") == "busy"
        assert trial.is_locked()
        assert files_of(trial.folder) == set()
    assert trial.status == "unfinished"


def test_a_glance_at_a_trial_does_not_keep_it_from_being_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = store.trial(TINY)
    trial.folder.mkdir(parents=True)
    monkeypatch.setattr(trials, "_run", lambda *_: None)
    with ExitStack() as glance:
        assert glance.enter_context(trial.claimed())
        threading.Timer(0.2, glance.pop_all().close).start()
        assert run_trial(store, TINY, None, "cpu") == "done"


def test_a_failure_is_kept_with_the_trial_and_cleared_by_success(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of luck")

    trial = store.trial(TINY)
    with monkeypatch.context() as patched:
        patched.setattr(trials, "prepare", fail)
        assert run_trial(store, TINY, None, "cpu") == "failed"
    failure = trial.failure()
    assert trial.status == "failed"
    assert failure is not None
    assert failure.startswith("Traceback")
    assert failure.endswith("RuntimeError: out of luck\n")
    assert store.results() == {}
    monkeypatch.setattr(trials, "_run", lambda *_: None)
    assert run_trial(store, TINY, None, "cpu") == "done"
    assert trial.failure() is None


def test_a_damaged_result_is_a_failure_and_is_not_overwritten(whole: Trial, store: Store) -> None:
    trial = store.trial(TINY)
    trial.folder.mkdir(parents=True)
    for name in (kept.CONFIGURATION, kept.HISTORY):
        (trial.folder / name).write_bytes((whole.folder / name).read_bytes())
    (trial.folder / kept.RESULT).write_text("{")
    assert run_trial(store, TINY, None, "cpu") == "failed"
    assert "delete its folder, and the same command runs it anew" in str(trial.failure())
    assert (trial.folder / kept.RESULT).read_text() == "{"
    assert store.result(TINY) is None


def test_a_trial_is_not_continued_with_other_data(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at(1, store, monkeypatch)
    trial = store.trial(TINY)
    found = read_json(trial.folder / kept.DATA)
    write_json(trial.folder / kept.DATA, found | {"fingerprint": "other"})
    assert run_trial(store, TINY, None, "cpu") == "failed"
    assert "was begun with other data" in str(trial.failure())
    assert '"fingerprint": "other"' in str(trial.failure())


@pytest.fixture
def with_dropout(monkeypatch: pytest.MonkeyPatch) -> Configuration:
    def make(configuration: Configuration, loaders: Any) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(1024, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))

    monkeypatch.setattr(fitting, "make_model", make)
    return TINY.replaced({"epochs": 1})


def test_predictions_with_dropout_are_kept_for_networks_that_have_it(
    with_dropout: Configuration, tmp_path: Path
) -> None:
    found = []
    for name in ("one", "other"):
        store = Store(tmp_path / name)
        assert run_trial(store, with_dropout, None, "cpu") == "done"
        found.append(store.trial(with_dropout))
    trial, again = found
    assert trial.has_dropout()
    plain, sampled = trial.predicted("test"), trial.predicted("test", sampled=True)
    assert torch.equal(plain.target, sampled.target)
    assert torch.allclose(sampled.logits.exp().sum(1), torch.ones(360), atol=1e-5)
    # A mean of passes that differ: near what the network says without dropout, and not the same.
    difference = (sampled.logits.exp() - plain.logits.softmax(1)).abs().max()
    assert 1e-4 < difference < 0.3
    assert torch.equal(sampled.logits, again.predicted("test", sampled=True).logits)
    assert not torch.equal(trial.predicted("validation").logits, trial.predicted("validation", sampled=True).logits)


class Attentive(nn.Module):
    """Dropout that is no layer, as in the attention of transformers, beside a layer that has a state."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.norm(inputs), 0.5, training=self.training)


def test_sampling_drops_in_attention_too_and_leaves_batchnorm_alone() -> None:
    model, batches = Attentive(), [(torch.randn(8, 3), torch.zeros(8, dtype=torch.long))]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = fitting.predict(model, batches, dropout=True).logits
    assert (drawn == 0).any()
    assert not (fitting.predict(model, batches).logits == 0).any()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
