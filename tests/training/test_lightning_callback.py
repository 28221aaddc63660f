"""The temperature in the loop for a LightningModule that knows nothing of Calibrant."""

import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import calibrant as cal
from calibrant.training import (
    CalibratedLoss,
    CalibrationWarning,
    InterleavedModule,
    StopAfterTemperature,
    TemperatureInTheLoop,
    interleave,
)
from tests.training.batches import with_settings
from tests.training.lightning_runs import QUIET, OwnModule, noisy, same, trainer

pytestmark = QUIET


def own(*last: nn.Module, dropout: float = 0.0) -> OwnModule:
    torch.manual_seed(1)
    hidden = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(dropout))
    return OwnModule(nn.Sequential(hidden, nn.Linear(64, 3), *last))


def loaders(shuffle: bool = True) -> tuple[DataLoader[Any], DataLoader[Any], DataLoader[Any]]:
    whole = noisy(240, 0).tensors
    train, held_out = (TensorDataset(*(column[part] for column in whole)) for part in (slice(120), slice(120, None)))
    validation = DataLoader(noisy(300, 1), 300)
    return DataLoader(train, 20, shuffle=shuffle), DataLoader(held_out, 60, shuffle=shuffle), validation


@pytest.mark.usefixtures("moves_at_once")
def test_it_trains_as_the_loss_does_in_a_plain_loop(tmp_path: Path) -> None:
    train, held_out, _ = loaders(shuffle=False)
    module, callback = own(), TemperatureInTheLoop(held_out)
    trainer(tmp_path, callback, max_epochs=6).fit(module, train)
    assert callback.finished is not None
    plain = own()
    calibrated, optimizer = (
        with_settings(CalibratedLoss(plain), patience=0),
        torch.optim.AdamW(plain.parameters(), 0.02),
    )
    place = 0
    batches = list(held_out)
    for _ in range(6):
        for x, y in train:
            due = calibrated.steps >= calibrated.next_due
            loss = calibrated(x, y, *batches[place % 2])
            place += due
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert calibrated.temperature > 1
    finished = calibrated.finish(held_out)
    assert finished.temperature == pytest.approx(callback.finished.temperature, rel=1e-3)
    torch.testing.assert_close(module.state_dict(), plain.state_dict(), rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("moves_at_once")
@pytest.mark.parametrize("last", [(), (nn.Softsign(),)])
def test_the_module_is_calibrated_and_free_of_hooks_after_fit(last: tuple[nn.Module, ...], tmp_path: Path) -> None:
    train, held_out, validation = loaders()
    module, callback = own(*last), TemperatureInTheLoop(held_out)
    run = trainer(tmp_path, callback, max_epochs=15)
    run.fit(module, train, validation)
    assert callback.temperature == 1
    assert run.callback_metrics["train_temperature"] != 1
    assert {"train_held_out_accuracy", "train_held_out_nll", "train_held_out_gap", "train_warnings"} <= set(
        run.callback_metrics
    )
    x, y = noisy(3000, 2).tensors
    assert cal.metrics.ece(logits=module(x).detach(), target=y, bins=20) < 0.1
    assert not last or "net.2.calibrant_temperature" in module.state_dict()
    assert last or not any(each._forward_hooks for each in module.modules())


def test_a_checkpoint_has_the_best_temperature_before_the_loss_has_moved(tmp_path: Path) -> None:
    train, held_out, validation = loaders()
    callback = TemperatureInTheLoop(held_out)
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=5, save_top_k=-1)
    trainer(tmp_path, callback, saving, max_epochs=1).fit(own(), train, validation)
    [path] = tmp_path.glob("*.ckpt")
    state = torch.load(path, weights_only=True)["callbacks"]["TemperatureInTheLoop"]
    assert state["loss"]["loop"]["log_temperature"] == 0
    assert state["temperature"] == pytest.approx(math.exp(state["loss"]["loop"]["_best"]))
    assert state["temperature"] != 1


@pytest.mark.usefixtures("moves_at_once")
def test_a_shuffled_run_goes_on_from_the_end_of_an_epoch(tmp_path: Path) -> None:
    def fitted(seed: int, *callbacks: lightning.Callback, path: Path | None = None) -> OwnModule:
        lightning.seed_everything(seed, verbose=False)
        train, held_out, validation = loaders()
        module = own(dropout=0.2)
        run = trainer(tmp_path, TemperatureInTheLoop(held_out), *callbacks, max_epochs=4)
        run.fit(module, interleave(train, None), validation, ckpt_path=path, weights_only=True)
        return module

    module = fitted(0, ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1))
    for epoch in (0, 2, 3):  # after the last there is nothing left to train
        resumed = fitted(7, path=tmp_path / f"epoch={epoch}.ckpt")
        assert same(resumed.state_dict(), module.state_dict())


@pytest.mark.usefixtures("moves_at_once")
def test_weights_from_before_the_end_of_fit_are_told(tmp_path: Path) -> None:
    train, held_out, validation = loaders()
    saving = ModelCheckpoint(tmp_path, "{epoch}")
    run = trainer(tmp_path, TemperatureInTheLoop(held_out), saving, max_epochs=2)
    module = own()
    run.fit(module, train)
    run.save_checkpoint(tmp_path / "finished.ckpt")
    run.test(module, validation, ckpt_path=tmp_path / "finished.ckpt", weights_only=True, verbose=False)
    with pytest.warns(CalibrationWarning, match="before the end"):
        run.test(module, validation, ckpt_path=saving.best_model_path, weights_only=True, verbose=False)


@pytest.mark.usefixtures("moves_at_once")
def test_early_stopping_and_kept_weights_see_calibrated_logits(tmp_path: Path) -> None:
    train, held_out, validation = loaders()
    module, callback = own(), TemperatureInTheLoop(held_out)
    stops, keeps = EarlyStopping("nll", patience=3), StopAfterTemperature(patience=None)
    run = trainer(tmp_path, callback, stops, keeps, max_epochs=40)
    run.fit(module, train, validation)
    assert stops.best_score == pytest.approx(min(module.losses))
    assert callback.finished is not None
    x, y = noisy(3000, 2).tensors
    assert cal.metrics.ece(logits=module(x).detach(), target=y, bins=20) < 0.1


def test_bad_use_is_explained(tmp_path: Path) -> None:
    train, held_out, _ = loaders()
    with pytest.raises(TypeError, match="generator"):
        TemperatureInTheLoop(batch for batch in held_out)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        few = DataLoader(Subset(train.dataset, range(3)), 3)
        trainer(tmp_path, TemperatureInTheLoop(few), max_epochs=1).fit(own(), train)
    told = [str(one.message) for one in caught if issubclass(one.category, CalibrationWarning)]
    assert told[0].startswith("3 held-out samples are too few")
    assert told[1].startswith("3 held-out samples are also training samples")
    classifier = InterleavedModule(nn.Linear(6, 3), method="temperature")
    with pytest.raises(ValueError, match="remove this callback"):
        trainer(tmp_path, TemperatureInTheLoop(held_out)).fit(classifier, interleave(train, held_out))
    with pytest.raises(TypeError, match="held-out batch"):
        trainer(tmp_path, TemperatureInTheLoop([torch.zeros(4, 6)])).fit(own(), train)
    with pytest.raises(ValueError, match="gave no batch"):
        trainer(tmp_path, TemperatureInTheLoop([])).fit(own(), train)
    of_two: Any = SimpleNamespace(world_size=2)
    with pytest.raises(ValueError, match="DistributedSampler"):
        TemperatureInTheLoop(held_out).on_train_start(of_two, own())
