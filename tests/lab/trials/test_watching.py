"""Checkpoints are saved where they are worth their time."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from calibrant_lab.trials.watching import KeepLast


@pytest.mark.parametrize(
    ("settings", "saved"),
    [
        # Epochs end after 0.4, 0.8, 1.2, ... seconds: the third is the first to end a second after the start.
        ({"max_epochs": 4, "max_steps": -1}, [3, 4]),
        ({"max_epochs": 7, "max_steps": -1}, [3, 6, 7]),
        ({"max_epochs": 9, "max_steps": 20}, [2, 5, 8, 9]),  # the steps end with the second epoch
    ],
)
def test_short_epochs_are_saved_once_a_second_and_the_last_one_always(
    settings: dict[str, int], saved: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now, found = 0.0, []
    monkeypatch.setattr(time, "monotonic", lambda: now)
    trainer: Any = SimpleNamespace(should_stop=False, **settings)
    trainer.save_checkpoint = lambda _: found.append(trainer.current_epoch + 1)
    keep = KeepLast(tmp_path / "last.ckpt")
    keep.on_train_start()
    for epoch in range(settings["max_epochs"]):
        now += 0.4
        trainer.current_epoch, trainer.global_step = epoch, 10 * (epoch + 1)
        keep.on_train_epoch_end(trainer)
    assert found == saved
