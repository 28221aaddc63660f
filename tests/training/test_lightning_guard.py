"""The guard under Lightning: validation is compared with held-out data, and differences are told."""

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.guard import digits, network
from torch.utils.data import DataLoader, TensorDataset

from calibrant.training import CalibrationWarning, TemperatureInTheLoop
from calibrant.training.forward import BatchScores
from calibrant.training.guard import Guard
from tests.training.batches import Batch, Batches
from tests.training.lightning_runs import QUIET, OwnModule, trainer

pytestmark = QUIET


def loader(data: Batch, size: int, *, shuffle: bool = False) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data), size, shuffle=shuffle)


def flipped(data: Batch, share: float) -> Batch:
    """The same samples, the first of them with the label of another class."""
    x, y = data
    y = y.clone()
    wrong = int(share * len(y))
    y[:wrong] = (y[:wrong] + 1) % 10
    return x, y


@pytest.mark.parametrize(("of_held_out", "of_new"), [(0.25, 0.0), (0.0, 0.25)])
def test_held_out_data_that_differ_from_validation_data_are_reported(
    of_held_out: float, of_new: float, tmp_path: Path
) -> None:
    train, held_out, test = digits(0)
    callback = TemperatureInTheLoop(loader(flipped(held_out, of_held_out), 64, shuffle=True))
    run, module = trainer(tmp_path, callback, max_epochs=6), OwnModule(network(0), 1e-2)
    with pytest.warns(CalibrationWarning, match="new data"):
        run.fit(module, loader(train, 32, shuffle=True), loader(flipped(test, of_new), 400))
    assert callback._loss is not None
    assert callback._loss.guard.warnings_.keys() == {"parted"}


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[BatchScores, BatchScores]]:
    """New and held-out scores that are compared."""
    found: list[tuple[BatchScores, BatchScores]] = []
    monkeypatch.setattr(Guard, "compare", lambda _, new, held_out, **__: found.append((new, held_out)))
    return found


def own_run(folder: Path, validation: Any, held_out: Any = None, **options: Any) -> OwnModule:
    train, other, _ = digits(0)
    module = OwnModule(network(0), 1e-2)
    callback = TemperatureInTheLoop(loader(other, 100) if held_out is None else held_out, every=1)
    run = trainer(folder, callback, **({"max_epochs": 2} | options))
    run.fit(module, loader(train, 100, shuffle=True), validation)
    return module


def test_validation_is_compared_without_another_forward_pass(
    compared: list[tuple[BatchScores, BatchScores]], tmp_path: Path
) -> None:
    test = digits(0)[2]
    module = own_run(tmp_path, loader(test, 200), num_sanity_val_steps=1)
    new, held_out = compared[-1]
    assert len(compared) == 2  # validations, and not the check before
    assert (new.samples, held_out.samples) == (797, 300)  # of which 700 passed
    accuracy = torch.cat(module.right[-4:]).double().mean().item()
    before = torch.cat(module.right[-8:-4]).double().mean().item()
    assert new.accuracy == pytest.approx(min(max(held_out.accuracy, before), accuracy))
    # One to find the layer, 14 held-out batches, one sanity check, two validations, the end.
    assert module.passes == 1 + 14 + 1 + 2 * 4 + 3


def test_only_the_first_validation_loader_is_compared(
    compared: list[tuple[BatchScores, BatchScores]], tmp_path: Path
) -> None:
    test = digits(0)[2]
    own_run(tmp_path, [loader(test, 200), loader(flipped(test, 1.0), 200)])
    assert [new.samples for new, _ in compared] == [797, 797]


def test_repeated_batches_without_a_dataset_count_once(
    compared: list[tuple[BatchScores, BatchScores]], tmp_path: Path
) -> None:
    _, held_out, test = digits(0)
    own_run(tmp_path, loader(test, 200), held_out=list(loader(held_out, 100)))
    own_run(tmp_path, loader(test, 200), held_out=Batches(held_out, 100))
    assert [old.samples for _, old in compared] == pytest.approx([300] * 4)


def test_validation_batches_of_another_form_are_not_compared(
    compared: list[tuple[BatchScores, BatchScores]], tmp_path: Path
) -> None:
    x, y = digits(0)[2]
    own_run(tmp_path, DataLoader([{"x": a, "y": b} for a, b in zip(x, y, strict=True)], 200))  # type: ignore[arg-type]
    assert not compared
