"""InterleavedModule with a CalibratedLoss: the method, the end of fit, the guard."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import TensorDataset

import calibrant as cal
from calibrant.training import (
    CalibrationWarning,
    InterleavedDataModule,
    InterleavedModule,
    StopAfterTemperature,
    interleave,
)
from tests.training.lightning_runs import QUIET, classifier, data, network, noisy, result, same, samples, trainer

pytestmark = QUIET


def noisy_data(**options: Any) -> InterleavedDataModule:
    defaults: dict[str, Any] = {"batch_size": 20, "calibration_fraction": 0.5, "validation": noisy(300, 1)}
    return InterleavedDataModule(noisy(240, 0), **(defaults | options))


def over_fitting(**options: Any) -> InterleavedModule:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3))
    defaults: dict[str, Any] = {"method": "temperature", "learning_rate": 0.02}
    return InterleavedModule(model, **(defaults | options))


def over_fitting_from(path: Path) -> InterleavedModule:
    fresh = over_fitting()
    return InterleavedModule.load_from_checkpoint(path, model=fresh.model, method=fresh.method, weights_only=True)


def test_the_folded_state_is_saved_and_loaded(tmp_path: Path) -> None:
    module, run = over_fitting(), trainer(tmp_path, max_epochs=3)
    run.fit(module, datamodule=noisy_data())
    run.save_checkpoint(tmp_path / "end.ckpt")
    loaded = over_fitting_from(tmp_path / "end.ckpt")
    (x, _) = noisy(50, 3).tensors
    assert torch.equal(loaded(x), module(x))
    assert torch.equal(loaded.model(x), module.model(x))
    assert loaded.method == "temperature"
    # Nothing is left to train, and the temperature is not solved for again.
    again = trainer(tmp_path, max_epochs=3)
    again.fit(module, datamodule=noisy_data(), ckpt_path=tmp_path / "end.ckpt", weights_only=True)
    assert torch.equal(module(x), loaded(x))


@pytest.mark.usefixtures("moves_at_once")
def test_a_checkpoint_within_training_has_its_temperature(tmp_path: Path) -> None:
    module = over_fitting()
    saving = ModelCheckpoint(tmp_path, "{epoch}", every_n_epochs=1, save_top_k=-1)
    run = trainer(tmp_path, saving, max_epochs=4)
    run.fit(module, datamodule=noisy_data())
    with pytest.warns(CalibrationWarning, match="before the end"):
        loaded = over_fitting_from(tmp_path / "epoch=2.ckpt")
    assert loaded.calibrated_loss is not None
    assert loaded.temperature == pytest.approx(loaded.calibrated_loss.loop.best) != 1
    validated = trainer(tmp_path).validate(loaded, datamodule=noisy_data(), verbose=False)[0]
    assert validated["validation_nll"] == pytest.approx(module.history[2]["validation_nll"], rel=0.05)
    x, y = noisy(500, 3).tensors
    raw = loaded.model(x)
    torch.testing.assert_close(loaded(x), raw / loaded.temperature)
    finished = loaded.finish([(x, y)])
    assert loaded.temperature == 1
    torch.testing.assert_close(loaded(x), raw / finished.temperature)


def test_the_temperature_is_that_of_weights_that_a_callback_puts_back(tmp_path: Path) -> None:
    module = over_fitting()
    stopping = StopAfterTemperature(patience=None)
    trainer(tmp_path, stopping, max_epochs=15).fit(module, datamodule=noisy_data())
    assert stopping.best_epoch_ is not None
    assert stopping.best_epoch_ < 14
    (x, y) = noisy(3000, 2).tensors
    assert cal.metrics.ece(logits=module.model(x).detach(), target=y, bins=20) < 0.08


@pytest.mark.parametrize("method", ["head", "published"])
def test_methods_without_a_temperature_leave_the_logits(method: Any, tmp_path: Path) -> None:
    module = InterleavedModule(network(), method=method)
    trainer(tmp_path).fit(module, datamodule=data())
    assert module.temperature == 1
    assert module.finished is None
    assert "train_temperature" not in module.history[-1]
    assert "train_objective" in module.history[-1]
    run = trainer(tmp_path)
    run.validate(module, datamodule=data(), verbose=False)


@pytest.mark.slow
@pytest.mark.usefixtures("moves_at_once")
@pytest.mark.parametrize("method", ["temperature", "head", "published"])
def test_every_checkpoint_leads_to_the_same_end(method: Any, tmp_path: Path) -> None:
    def fresh() -> InterleavedModule:
        return classifier(method=method, objective=None, learning_rate=0.02)

    def source() -> InterleavedDataModule:
        return noisy_data(batch_size=30)

    torch.set_num_threads(1)
    saving = trainer(tmp_path, ModelCheckpoint(tmp_path, "{step}", save_top_k=-1))
    saving.fit(fresh(), datamodule=source())
    expected = result(saving)
    assert method != "temperature" or saving.lightning_module.finished is not None
    checkpoints = sorted(tmp_path.glob("*.ckpt"))
    assert len(checkpoints) == 3
    for checkpoint in checkpoints:
        resumed = trainer(tmp_path)
        resumed.fit(fresh(), datamodule=source(), ckpt_path=checkpoint, weights_only=True)
        assert same(result(resumed), expected), checkpoint.name


def test_held_out_data_that_are_easier_than_new_data_are_reported(tmp_path: Path) -> None:
    (x, y) = noisy(400, 0).tensors
    easy = (x[:, :3]).argmax(1)
    loaders = [
        torch.utils.data.DataLoader(TensorDataset(x, y), 20),
        torch.utils.data.DataLoader(TensorDataset(x, easy), 40),
    ]
    new = torch.utils.data.DataLoader(noisy(1000, 1), 500)
    module = over_fitting(learning_rate=1e-3)
    with pytest.warns(CalibrationWarning, match="easier than new data"):
        trainer(tmp_path, max_epochs=4).fit(module, interleave(*loaders), new)
    assert module.history[-1]["train_warnings"] == 1


def test_a_method_needs_held_out_data(tmp_path: Path) -> None:
    module = InterleavedModule(network(), method="temperature")
    with pytest.raises(ValueError, match="no calibration data"):
        trainer(tmp_path).fit(module, datamodule=data(calibration_fraction=0))
    x, y = samples()
    with pytest.raises(TypeError, match="calibration batches"):
        trainer(tmp_path).fit(module, torch.utils.data.DataLoader(TensorDataset(x, y), 20))


def test_the_fewest_held_out_samples_are_asked_of_the_objective(tmp_path: Path) -> None:
    held_out, loader = {"calibration_batch_size": 2}, interleave([noisy(20, 0)[:]], [noisy(2, 1)[:]])
    for objective in (cal.BrierLoss(), cal.MMCELoss(unbiased=True)):
        for given in ({"datamodule": noisy_data(**held_out)}, {"train_dataloaders": loader}):
            module = over_fitting(method=None, objective=objective)
            trainer(tmp_path, max_epochs=1).fit(module, **given)
            assert "train_objective" in module.history[0]
    for given in ({"datamodule": noisy_data(**held_out)}, {"train_dataloaders": loader}):
        with pytest.raises(ValueError, match="at least 3 samples"):
            trainer(tmp_path, max_epochs=1).fit(over_fitting(method=None, objective=cal.ESDLoss()), **given)


def test_validation_does_not_disturb_training(tmp_path: Path) -> None:
    without, with_it = trainer(tmp_path, limit_val_batches=0), trainer(tmp_path, val_check_interval=2)
    for run in (without, with_it):
        run.fit(classifier(), datamodule=data())
    assert same(result(without)["weights"], result(with_it)["weights"])


def test_a_loaded_module_trains_on(tmp_path: Path) -> None:
    run = trainer(tmp_path, max_epochs=1)
    run.fit(module := classifier(), datamodule=data())
    run.save_checkpoint(tmp_path / "end.ckpt")
    loaded = InterleavedModule.load_from_checkpoint(
        tmp_path / "end.ckpt", model=classifier().model, objective=cal.ESDLoss(), weights_only=True
    )
    assert same(loaded.state_dict(), module.state_dict())
    assert loaded.history == module.history
    trainer(tmp_path, max_epochs=2).fit(loaded, datamodule=data())
    assert [entry["epoch"] for entry in loaded.history] == [0, 1]
