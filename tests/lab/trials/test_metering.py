"""A meter watches a run and changes nothing about it."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant.files import FileError
from calibrant_lab.data.samples import Data
from calibrant_lab.trials import fit as fitting
from calibrant_lab.trials import metering
from calibrant_lab.trials.configuration import Configuration, configure
from calibrant_lab.trials.fit import Trained, fit, predict, prepare
from calibrant_lab.trials.metering import Meter
from calibrant_lab.trials.store import Progress

TINY = configure("digits", "esd", settings={"epochs": 2, "batch_size": 512})


class Noise(nn.Module):
    """Draws random numbers in either mode, as loaders and transforms may."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + 0.01 * torch.randn_like(inputs)


@pytest.fixture
def sensitive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that would show it: it draws random numbers, and has a layer that stays in its mode."""

    def build(configuration: Configuration, data: Data) -> nn.Module:
        torch.manual_seed(0)
        frozen = nn.BatchNorm1d(16).eval()
        return nn.Sequential(nn.Flatten(), nn.Linear(1024, 16), frozen, nn.Dropout(0.5), Noise(), nn.Linear(16, 10))

    monkeypatch.setattr(fitting, "first_network", build)


def run(meter: bool, progress: Path, configuration: Configuration = TINY) -> tuple[Trained, Meter]:
    prepared = prepare(configuration)
    watching = Meter(prepared, progress)
    return fit(prepared, callbacks=[watching] if meter else [], accelerator="cpu"), watching


@pytest.mark.usefixtures("sensitive")
def test_a_run_with_a_meter_is_that_without(tmp_path: Path) -> None:
    without, _ = run(False, tmp_path / "progress.json")
    within, meter = run(True, tmp_path / "progress.json")
    assert within.history == without.history
    weights, others = within.model.state_dict(), without.model.state_dict()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert torch.equal(within.test.logits, without.test.logits)
    added = [row.keys() - before.keys() for row, before in zip(meter.history(within), within.history, strict=True)]
    assert added == [{"test_accuracy", "test_ece", "test_nll"}] * 2


@pytest.mark.slow
def test_the_time_to_score_the_test_set_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any) -> Any:
        time.sleep(1.5)
        return predict(*arguments)

    monkeypatch.setattr(metering, "predict", slow)
    began = time.monotonic()
    _, meter = run(True, tmp_path / "progress.json")
    assert meter.cost().seconds < time.monotonic() - began - 1.5


@pytest.fixture
def signs(monkeypatch: pytest.MonkeyPatch) -> list[Progress]:
    """Progress as it is written, after every step."""
    written: list[Progress] = []
    monkeypatch.setattr(metering, "write_json", lambda path, content: written.append(Progress(**content)))
    monkeypatch.setattr(metering, "SECONDS_BETWEEN_SIGNS", 0.0)
    return written


def test_a_running_trial_records_its_progress(tmp_path: Path, signs: list[Progress]) -> None:
    trained, _ = run(True, tmp_path / "progress.json")
    assert [round(3 * sign.epochs) for sign in signs] == [1, 2, 3, 3, 4, 5, 6]  # and once more, when an epoch is scored
    assert [sign.seconds for sign in signs] == sorted(sign.seconds for sign in signs)
    assert {sign.of for sign in signs} == {2}
    first = trained.history[0]
    assert signs[0].accuracy != signs[0].accuracy  # not yet known
    assert (signs[3].accuracy, signs[3].ece) == pytest.approx((first["validation_accuracy"], first["validation_ece"]))


def test_progress_counts_towards_a_limit_of_steps(tmp_path: Path, signs: list[Progress]) -> None:
    run(True, tmp_path / "progress.json", TINY.replaced({"epochs": 9, "max_steps": 3}))
    assert [(round(3 * sign.epochs), sign.of) for sign in signs] == [(1, 1), (2, 1), (3, 1)]
    assert signs[-1].share == 1


def test_a_full_disk_does_not_end_a_run_for_want_of_a_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: object) -> None:
        raise FileError(path, "cannot be written: no space left")

    monkeypatch.setattr(metering, "write_json", full)
    trained, _ = run(True, tmp_path / "progress.json")
    assert len(trained.history) == 2


def test_its_state_is_plain_and_goes_on(tmp_path: Path) -> None:
    prepared = prepare(TINY)
    meter, later = (Meter(prepared, tmp_path / "progress.json") for _ in range(2))
    scores = {0: {"test_ece": 0.5}}
    meter.load_state_dict({"elapsed": (100.0, 90.0), "images": 7, "scores": scores, "peak_memory": 10**15})
    meter.on_train_start()
    torch.save(meter.state_dict(), tmp_path / "state.pt")
    later.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    later.on_train_start()
    later.on_train_end()
    cost = later.cost()
    assert 100 <= cost.seconds < 110
    assert 90 <= cost.processor_seconds < 100
    assert (cost.images, cost.peak_memory) == (7, 10**15)
    assert later.state_dict()["scores"] == scores


def test_a_large_test_set_is_scored_no_longer_than_is_trained(tmp_path: Path) -> None:
    settings = {"epochs": 7, "rows": 100, "test_rows": 300, "batch_size": 50}
    prepared = prepare(configure("made", "nll", settings=settings))
    meter = Meter(prepared, tmp_path / "progress.json")
    history = meter.history(fit(prepared, callbacks=[meter], accelerator="cpu"))
    assert [int(row["epoch"]) + 1 for row in history if "test_nll" in row] == [3, 6, 7]
