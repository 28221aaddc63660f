"""Mistakes that a newcomer makes with calibrated training: each is told in one line, with a remedy."""

import copy
import gc
import warnings
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import calibrant as cal
from calibrant.training import CalibratedLoss, CalibrationWarning, finetune, interleave
from calibrant.training.guard import Reminder
from tests.training.batches import knowing, samples, train, with_settings

TELL = Reminder.tell
Output = namedtuple("Output", ["logits", "hidden"])


class Answering(nn.Module):
    """Returns logits, which no linear layer makes, in an answer of some kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.linear = knowing(nn.Linear(10, 4))

    def forward(self, features: Tensor) -> Any:
        logits = 3 * self.linear(features)
        return {"logits": logits, "hidden": features} if self.kind == "dict" else Output(logits, features)


@pytest.mark.parametrize("kind", ["dict", "namedtuple"])
def test_a_model_of_more_than_inputs_and_logits_is_trained_and_finished(kind: str) -> None:
    model, (x, y) = Answering(kind), samples(500, 1)
    given: Any = {"features": x} if kind == "dict" else x
    before = model(x)
    calibrated = CalibratedLoss(model)
    assert calibrated(given, y, given, y).isfinite()
    finished = calibrated.finish([(given, y)])
    after = model(x)
    read = dict if kind == "dict" else Output._asdict
    torch.testing.assert_close(read(after)["logits"], read(before)["logits"] / finished.temperature)
    assert finished.temperature > 1.5
    assert torch.equal(read(after)["hidden"], x)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("how", ["folds", "does not fold", "fails", "is forgotten"])
def test_a_model_without_its_temperature_is_told(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reminder, "tell", TELL)
    told: list[tuple[str, Any]] = []
    monkeypatch.setattr("calibrant.training.guard.warn", lambda *given: told.append(given))
    model = knowing(nn.Linear(10, 4))
    calibrated = with_settings(CalibratedLoss(model), patience=0, damping=1.0)
    train(calibrated, model, 3, samples(300, 0), samples(300, 1))
    assert calibrated.temperature > 1
    if how == "fails":
        with pytest.raises(ValueError, match="gave no batch"):
            calibrated.finish([])
    elif how != "is forgotten":
        calibrated.finish([samples(300, 1)], fold=how == "folds")
    del calibrated
    gc.collect()
    assert ["without finish()" in text for text, _ in told] == ([] if how == "folds" else [True])
    assert all(place[0] == __file__ for _, place in told)


def test_a_forgotten_finish_is_told_before_the_network_overfits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reminder, "tell", TELL)
    model = knowing(nn.Linear(10, 4))
    with torch.no_grad():
        model.weight *= 5
    calibrated = with_settings(CalibratedLoss(model, every=1), patience=1.0)  # it stands still, and does not overfit
    for _ in range(100):
        calibrated(*samples(16, 0), *samples(100, 1))
    assert calibrated.temperature == 1
    with pytest.warns(CalibrationWarning, match="without finish"):
        del calibrated


def test_a_network_that_ends_in_a_sigmoid_is_told() -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 6)
    y = (x[:, 0] + 0.5 * torch.randn(400) > 0).float().unsqueeze(1)
    model = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid())
    calibrated = CalibratedLoss(model, loss=nn.BCELoss())
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(60):
        optimizer.zero_grad()
        calibrated(x[:200], y[:200], x[200:], y[200:]).backward()
        optimizer.step()
    with pytest.warns(CalibrationWarning, match="sigmoid"):
        calibrated.finish([(x[200:], y[200:])])


def test_classes_without_samples_are_not_ruled_out() -> None:
    x, y = samples(300, 0)
    with pytest.warns(CalibrationWarning, match="1 of 4 classes"):
        result = finetune(knowing(nn.Linear(10, 4)), [(x[y != 2], y[y != 2])])
    assert {one.method for one in result.candidates} == {"nothing", "temperature"}


def test_a_second_model_with_the_same_problem_is_reported_too() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            CalibratedLoss(nn.Linear(10, 4)).finish([samples(3, 1)])
    assert len(caught) == 2 * len({str(one.message) for one in caught}) > 0


def test_held_out_samples_that_are_trained_on_too_are_told() -> None:
    data = TensorDataset(*samples(100, 0))
    parts = [Subset(data, range(60)), Subset(data, range(50, 100))]
    with pytest.warns(CalibrationWarning, match="^100 held-out") as caught:
        interleave(DataLoader(data, 10), DataLoader(data, 10))
    assert caught[0].filename == __file__
    with pytest.warns(CalibrationWarning, match="^10 held-out"):
        interleave(DataLoader(parts[0], 10), DataLoader(parts[1], 10))
    with pytest.warns(CalibrationWarning, match="^50 held-out"):
        interleave(DataLoader(data, 10), DataLoader(parts[1], 10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        interleave(DataLoader(Subset(data, range(50)), 10), DataLoader(parts[1], 10))
        half = torch.utils.data.SubsetRandomSampler(range(50))
        other = torch.utils.data.SubsetRandomSampler(range(50, 100))
        interleave(DataLoader(data, 10, sampler=half), DataLoader(data, 10, sampler=other))


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.LogSoftmax(1)])
def test_a_model_that_ends_in_a_softmax_is_told(last: nn.Module) -> None:
    model, (x, y) = nn.Sequential(knowing(nn.Linear(10, 4)), last), samples(300, 0)
    with pytest.warns(CalibrationWarning, match="softmax"):
        CalibratedLoss(model)(x, y, x, y)
    with pytest.warns(CalibrationWarning, match="softmax"):
        finetune(model, [(x, y)])


def test_samples_that_are_all_right_are_probably_trained_on() -> None:
    x, y = samples(400, 0, noise=0.0)
    with pytest.warns(CalibrationWarning, match="trained on"):
        CalibratedLoss(knowing(nn.Linear(10, 4))).finish([(x, y)])


def test_a_binary_loss_takes_its_own_kind_of_target() -> None:
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] + torch.randn(200, generator=torch.Generator().manual_seed(1)) > 0).float()
    model = knowing(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)))
    calibrated = with_settings(CalibratedLoss(model, loss=nn.BCEWithLogitsLoss()), patience=0)
    loss = calibrated(x, y, x, y)
    expected = nn.functional.binary_cross_entropy_with_logits(model(x) / calibrated.temperature, y)
    torch.testing.assert_close(loss, expected)
    calibrated.finish([(x, y)])
    with pytest.raises(ValueError, match="0 or 1"):
        CalibratedLoss(model, loss=nn.BCEWithLogitsLoss())(x, y, x, 0.5 * y)


@pytest.mark.filterwarnings("ignore::calibrant.training.CalibrationWarning")
def test_few_held_out_samples_change_a_sound_network_less_than_they_would_alone() -> None:
    """The temperature is shrunk toward 1, at which the network was trained, and the log loss on new data is lower."""
    x, y = samples(10_000, 3)
    model = nn.Linear(10, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=100)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    logits = model(x).detach()
    losses = []
    for seed in range(30):
        held_out = samples(40, 100 + seed)
        with torch.no_grad():
            best = cal.posthoc.TemperatureScaling(strict=True).fit(model(held_out[0]), held_out[1]).temperature_
        finished = CalibratedLoss(copy.deepcopy(model)).finish([held_out]).temperature
        assert min(1, best) < finished < max(1, best)
        losses.append([nn.functional.cross_entropy(logits / t, y).item() for t in (finished, best)])
    shrunk, alone = np.mean(losses, 0) - nn.functional.cross_entropy(logits, y).item()
    assert 0 < shrunk < 0.8 * alone
