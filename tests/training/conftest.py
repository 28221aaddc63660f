"""Fixtures of the tests of training."""

import pytest

from calibrant.training import CalibratedLoss
from calibrant.training.guard import Reminder
from calibrant.training.temperature_loop import TemperatureLoop


@pytest.fixture
def moves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the temperature move from the start, where a test has no time to overfit."""
    monkeypatch.setattr(TemperatureLoop, "patience", 0)


@pytest.fixture(autouse=True)
def unreminded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests have no use for finish()."""
    monkeypatch.setattr(Reminder, "tell", lambda _: None)


@pytest.fixture(autouse=True)
def one_batch_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tests hold out the training batch, for brevity."""
    monkeypatch.setattr(CalibratedLoss, "_warn_of_same", lambda *_: None)
