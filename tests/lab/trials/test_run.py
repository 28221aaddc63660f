"""A trial in a store: stopped anywhere, it ends the same; what goes wrong stays with it."""

import errno
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

import calibrant as cal
from calibrant.files import FileError, read_json, write_json
from calibrant_lab.data.samples import Data
from calibrant_lab.scores import KEPT
from calibrant_lab.trials import fit as fitting
from calibrant_lab.trials import run as running
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.configuration import Configuration, configure
from calibrant_lab.trials.provenance import change_lines, changes_since, other_data
from calibrant_lab.trials.run import run_trial
from calibrant_lab.trials.store import Store, Trial
from calibrant_lab.trials.worker import Job, attempt
from tests.lab.pickles import Intruder
from tests.lab.stores import files_of
from tests.lab.training import KilledError, assert_same, killed_at, trained

TINY = configure("digits", "esd", settings={"epochs": 2, "batch_size": 512})
STEPS = 6
FILES = {"config.json", "data.json", "history.json", "model.pt", "result.json", "test.npz", "validation.npz"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return trained(Store(tmp_path_factory.mktemp("whole")), TINY)


def test_a_trial_leaves_all_it_should(whole: Trial) -> None:
    result, history = whole.result(), whole.history()
    assert (files_of(whole), whole.status) == (FILES, "done")
    assert whole.configuration == result.configuration == TINY
    # All training images an epoch, and beside each step the whole calibration part, which is smaller than a batch.
    data = read_json(whole.folder / kept.DATA)
    assert result.cost.images == 2 * data["train"] + STEPS * data["calibration"]
    assert result.cost.seconds > 0
    assert result.cost.processor_seconds > 0
    assert 1e8 < result.cost.peak_memory < 1e11
    last = history[-1]
    assert [entry["epoch"] for entry in history] == [0, 1]
    assert {"train_ece", "validation_ece", "test_ece", "test_accuracy", "test_nll"} <= last.keys()
    assert (last["validation_accuracy"], last["test_accuracy"]) == pytest.approx(
        (result.validation["accuracy"], result.test["accuracy"])
    )
    assert last["test_ece"] == result.test["ece"]
    assert tuple(result.test) == KEPT
    assert result.validation.keys() == {"accuracy", "ece", "nll", "temperature"}
    assert len(whole.predicted("test").target) == 360
    assert not whole.has_dropout()
    assert result.environment["torch"] == torch.__version__
    assert (result.environment["calibrant"], result.environment["sources"]) == (cal.__version__, {})


def test_a_finished_trial_is_not_run_again(whole: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_run", None)
    trained(Store(whole.folder.parent), TINY)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("stops", [[2, 4, 5], [3], [STEPS]])
def test_a_trial_killed_at_any_step_goes_on_to_the_identical_result(
    stops: list[int], whole: Trial, store: Store
) -> None:
    for step in stops:
        trial = killed_at(step, store, TINY)
        assert (trial.folder / kept.CHECKPOINT).exists() == (step > 3)
    assert_same(whole, trained(store, TINY))


# Epochs of one step, and losses that are updated from validation data after each epoch.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "batch", "step"),
    [("esd", 2000, 2), ("nll", 2000, 2), ("adafocal", 2000, 2), ("cals", 256, 8), ("cals", 256, 14), ("loop", 512, 4)],
)
def test_other_methods_are_resumed_too(method: str, batch: int, step: int, tmp_path: Path) -> None:
    configuration = configure("digits", method, settings={"epochs": 3, "batch_size": batch})
    straight, resumed = Store(tmp_path / "straight"), Store(tmp_path / "resumed")
    killed_at(step, resumed, configuration)
    assert_same(trained(straight, configuration), trained(resumed, configuration))


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["write_result", "_write_predictions", "write_weights", "scores_of"])
def test_a_trial_killed_while_it_writes_goes_on_to_the_identical_result(
    writer: str, whole: Trial, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(running, writer, kill)
        with pytest.raises(KilledError):
            run_trial(store, TINY, None, "cpu")
    assert store.trial(TINY).status == "unfinished"
    assert store.results() == {}
    assert_same(whole, trained(store, TINY))


def test_what_a_killed_trial_left_half_written_is_cleared(whole: Trial, store: Store) -> None:
    folder = killed_at(4, store, TINY).folder
    (folder / ".result-x1y2z3.json").write_text("{")
    (folder / "last.ckpt.partial").write_bytes(b"PK")
    (folder / kept.CHECKPOINT).write_bytes((folder / kept.CHECKPOINT).read_bytes()[:5000])  # torn by a power cut
    assert_same(whole, trained(store, TINY))


def test_a_look_at_a_trial_does_not_keep_it_from_being_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = store.trial(TINY)
    trial.folder.mkdir(parents=True)
    monkeypatch.setattr(running, "_run", lambda *_: None)
    held = threading.Event()

    def look() -> None:
        with trial.claimed():  # released by its own thread, as older versions of filelock require
            held.set()
            time.sleep(0.2)

    threading.Thread(target=look).start()
    assert held.wait(5)
    trained(store, TINY)


def test_a_failure_is_kept_with_the_trial_and_cleared_by_success(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of luck")

    trial = store.trial(TINY)
    with monkeypatch.context() as patched:
        patched.setattr(running, "prepare", fail)
        assert run_trial(store, TINY, None, "cpu") == "failed"
    assert (trial.status, store.results()) == ("failed", {})
    assert re.fullmatch(r"(?s)Traceback.*RuntimeError: out of luck\n", trial.failure() or "")
    monkeypatch.setattr(running, "_run", lambda *_: None)
    assert trained(store, TINY).failure() is None


def test_a_damaged_result_is_a_failure_and_is_not_overwritten(whole: Trial, store: Store) -> None:
    trial = store.trial(TINY)
    trial.folder.mkdir(parents=True)
    for name in (kept.CONFIGURATION, kept.HISTORY):
        (trial.folder / name).write_bytes((whole.folder / name).read_bytes())
    (trial.folder / kept.RESULT).write_text("{")
    assert run_trial(store, TINY, None, "cpu") == "failed"
    assert kept.RESULT in str(trial.failure())
    assert (trial.folder / kept.RESULT).read_text() == "{"
    assert store.result(TINY) is None


def test_a_trial_is_not_continued_with_other_data(store: Store) -> None:
    trial = killed_at(4, store, TINY)
    found = read_json(trial.folder / kept.DATA)
    write_json(trial.folder / kept.DATA, found | {"fingerprint": "other"})
    assert run_trial(store, TINY, None, "cpu") == "failed"
    assert '"fingerprint": "other"' in str(trial.failure())


def test_a_checkpoint_is_not_unpickled(store: Store, tmp_path: Path) -> None:
    trial = killed_at(4, store, TINY)
    content = torch.load(trial.folder / kept.CHECKPOINT, weights_only=True)
    torch.save(content | {"more": Intruder(tmp_path / "intruded")}, trial.folder / kept.CHECKPOINT)
    assert run_trial(store, TINY, None, "cpu") == "failed"
    assert "weights_only" in str(trial.failure())
    assert not (tmp_path / "intruded").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_under_a_checkpoint_is_no_failure_of_the_trial(store: Store) -> None:
    folder = store.trial(TINY).folder
    folder.mkdir(parents=True)
    (folder / f"{kept.CHECKPOINT}.partial").symlink_to("/dev/full")
    assert attempt(Job(store.folder, None, "cpu"), TINY) == ("disk full", None)
    assert store.trial(TINY).status == "unfinished"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_under_a_result_is_no_failure_of_the_trial(
    number: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(number, "no room")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert attempt(Job(store.folder, None, "cpu"), TINY) == ("disk full", None)
    monkeypatch.undo()
    assert store.trial(TINY).failure() is None


def test_a_trial_whose_folder_cannot_be_made_fails_with_its_traceback(store: Store) -> None:
    store.folder.mkdir()
    store.trial(TINY).folder.write_text("a file")
    ending, text = attempt(Job(store.folder, None, "cpu"), TINY)
    assert (ending, "FileExistsError" in str(text)) == ("failed", True)


@pytest.mark.slow
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("method", ["esd", "loop", "adafocal"])
def test_a_finished_trial_is_prolonged_to_the_result_of_a_longer_one(method: str, tmp_path: Path) -> None:
    straight, prolonged = Store(tmp_path / "straight"), Store(tmp_path / "prolonged")
    longer = TINY.replaced({"epochs": 4, "method": method})
    for epochs in (1, 3):
        shorter = trained(prolonged, longer.replaced({"epochs": epochs}), keeps_checkpoint=True)
        assert kept.FINAL in files_of(shorter)
    steps: list[int] = []

    class Count(Callback):
        def on_train_batch_end(self, trainer: Any, *_: object) -> None:
            steps.append(trainer.global_step)

    assert_same(trained(straight, longer), trained(prolonged, longer, callbacks=[Count()]))
    assert steps == [10, 11, 12]  # the fourth epoch alone


def test_only_a_trial_that_is_the_same_but_for_its_length_is_prolonged(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(store, TINY, keeps_checkpoint=True)
    begun: list[bool] = []

    def look(folder: Path, *_: object) -> None:
        begun.append((folder / kept.CHECKPOINT).exists())

    monkeypatch.setattr(running, "_run", look)
    more: list[dict[str, Any]] = [{"seed": 1}, {"weight": 2.0}, {"max_steps": 9}, {}]
    for changes in ({"epochs": 1}, *({"epochs": 4} | one for one in more)):
        run_trial(store, TINY.replaced(changes), None, "cpu")
    assert begun == [False, False, False, False, True]
    monkeypatch.setattr(cal, "__version__", "9.9.9")
    run_trial(store, TINY.replaced({"epochs": 5}), None, "cpu")
    assert begun[-1] is False


def test_less_precision_gives_another_result_and_is_kept_in_full(mine: Path, store: Store) -> None:
    full = configure(f"{mine}:mine", settings={"batch_size": 16, "epochs": 5})
    half = full.replaced({"precision": "bf16-mixed"})
    ours, theirs = (trained(store, one).predicted("test").logits for one in (half, full))
    assert ours.dtype == torch.float32
    assert not torch.equal(ours, theirs)
    assert torch.allclose(ours, theirs, atol=0.1)


@pytest.mark.slow
def test_a_compiled_network_learns_the_same_and_leaves_the_same_names(mine: Path, store: Store) -> None:
    plain = configure(f"{mine}:mine")
    compiled = plain.replaced({"compile": True})
    assert compiled.identity != plain.identity
    assert fitting.prepare(compiled).classifier.model._compiled_call_impl is not None
    weights = [torch.load(trained(store, one).folder / kept.WEIGHTS, weights_only=True) for one in (plain, compiled)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-4) for name in weights[0])


RECIPE = """
import torch
from torch import nn
from calibrant_lab import Data, Recipe
x = torch.linspace(-1, 1, 100)[torch.randperm(100, generator=torch.Generator().manual_seed(0))][:, None]
y = (x[:, 0] > 0).long()
mine = Recipe(load=lambda: Data((x[:80], y[:80]), (x[80:], y[80:])), build=lambda: nn.Linear(1, 2), epochs=2)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(RECIPE)
    return tmp_path / "mine.py"


def test_the_source_and_the_version_belong_to_a_trial_and_a_change_is_told(
    mine: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = trained(store, configure(f"{mine}:mine")).result()
    assert changes_since(result) == []
    assert list(result.environment["sources"]) == ["mine.py:mine"]
    mine.write_text(RECIPE + "# changed")
    assert changes_since(result) == ["mine.py has changed since"]
    monkeypatch.setattr(cal, "__version__", "9.9.9")
    version = f"run with Calibrant {result.environment['calibrant']}, this is 9.9.9"
    assert changes_since(result) == [version, "mine.py has changed since"]
    assert change_lines([result, result]) == [f"2 trials: {version}", "2 trials: mine.py has changed since"]


def test_another_folder_of_data_is_named(mine: Path, store: Store, tmp_path: Path) -> None:
    trial = trained(store, configure(f"{mine}:mine"), tmp_path / "one")
    assert other_data(trial, tmp_path / "one") == other_data(trial, None) == []
    line = f"trained on the data in {tmp_path / 'one'}; use another --runs for other data"
    assert other_data(trial, tmp_path / "two") == [line]
    assert change_lines([], [line, line]) == [f"2 trials: {line}"]
    write_json(trial.folder / kept.DATA, {"fingerprint": "of an older version"})
    assert other_data(trial, tmp_path / "two") == []
    write_json(trial.folder / kept.DATA, {"folder": None})
    assert other_data(trial, tmp_path / "two") == ["trained without --data-dir; use another --runs for other data"]


def test_a_moved_folder_of_data_does_not_stop_a_trial_from_being_continued(mine: Path, store: Store) -> None:
    short = configure(f"{mine}:mine")
    trained(store, short, Path("one"), keeps_checkpoint=True)
    longer = trained(store, short.replaced({"epochs": 3}), Path("two"))
    assert read_json(longer.folder / kept.DATA)["folder"] == str(Path("two").resolve())


def test_an_error_in_load_names_the_recipe_and_where_its_traceback_is(mine: Path, store: Store) -> None:
    mine.write_text(RECIPE + "def load():\n    raise ValueError('my own problem')\nmine = Recipe(load, nn.Linear)\n")
    configuration = configure(f"{mine}:mine")
    shown = f"calibrant runs show {configuration.identity[:8]} --runs {store.folder}"
    with pytest.raises(ValueError, match=rf"\Amine\.py:mine: my own problem.*{re.escape(shown)}\Z"):
        run_trial(store, configuration, None, "cpu", raises=True)
    assert "line 9, in load" in (store.trial(configuration).failure() or "")


def test_a_trial_is_not_continued_with_other_source(mine: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = configure(f"{mine}:mine")
    with monkeypatch.context() as patched:
        patched.setattr(running, "write_result", lambda *_: 1 / 0)
        assert run_trial(store, configuration, None, "cpu") == "failed"
    mine.write_text(RECIPE + "# changed")
    assert run_trial(store, configuration, None, "cpu") == "failed"
    assert "last.ckpt" in str(store.trial(configuration).failure())
    (store.trial(configuration).folder / kept.CHECKPOINT).unlink()
    trained(store, configuration)


def test_a_change_of_a_named_file_is_told_and_refused(whole: Trial, store: Store, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"1")
    configuration = TINY.replaced({"initial_weights": str(weights)})
    result = replace(whole.result(), configuration=configuration)
    assert changes_since(result) == []
    weights.write_bytes(b"2")
    assert changes_since(result) == ["initial_weights has changed since"]
    with pytest.raises(FileError, match=r"weights\.pt.*initial-weights"):
        run_trial(store, configuration, None, "cpu", raises=True)
    weights.unlink()  # as on another machine
    assert changes_since(result) == []


@pytest.fixture(params=[nn.Dropout, nn.AlphaDropout])
def with_dropout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Configuration:
    def build(configuration: Configuration, data: Data) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(1024, 16), nn.ReLU(), request.param(0.5), nn.Linear(16, 10))

    monkeypatch.setattr(fitting, "first_network", build)
    return TINY.replaced({"epochs": 1})


def test_predictions_with_dropout_are_kept_for_networks_that_have_it(
    with_dropout: Configuration, tmp_path: Path
) -> None:
    trial, again = (trained(Store(tmp_path / name), with_dropout) for name in ("one", "other"))
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
