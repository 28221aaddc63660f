"""Checkpoints are saved where they are worth their time, whole or not at all."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
import torch

from calibrant_lab.trials.watching import KeepLast, WholeCheckpointIO


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


def test_a_failure_while_writing_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, io = tmp_path / "last.ckpt", WholeCheckpointIO()
    io.save_checkpoint({"step": 1}, path)

    def half(_: object, to: IO[bytes]) -> None:
        to.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="no space"):
        io.save_checkpoint({"step": 2}, path)
    assert io.load_checkpoint(path, weights_only=True) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
