"""The temperature in the loop for a LightningModule that knows nothing of Calibrant."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import calibrant as cal
from calibrant.training import (
    CalibratedLoss,
    CalibrationWarning,
    StopAfterTemperature,
    TemperatureInTheLoop,
    interleave,
)
from tests.training.test_lightning_method import noisy
from tests.training.test_lightning_resume import same

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]


class Own(lightning.LightningModule):
    """Somebody's module."""

    def __init__(self, *last: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        hidden = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(dropout))
        self.net = nn.Sequential(hidden, nn.Linear(64, 3), *last)
        self.validated: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = getattr(batch, "train", batch)
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.validated.append(loss.item())
        self.log("loss", loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 0.02)


def loaders(shuffle: bool = True) -> tuple[DataLoader[Any], DataLoader[Any], DataLoader[Any]]:
    whole = noisy(240, 0).tensors
    train, held_out = (TensorDataset(*(column[part] for column in whole)) for part in (slice(120), slice(120, None)))
    validation = DataLoader(noisy(300, 1), 300)
    return DataLoader(train, 20, shuffle=shuffle), DataLoader(held_out, 60, shuffle=shuffle), validation


def trainer(folder: Path, *callbacks: lightning.Callback, **options: Any) -> lightning.Trainer:
    saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    return lightning.Trainer(
        accelerator="cpu", default_root_dir=folder, callbacks=list(callbacks), enable_progress_bar=False,
        enable_model_summary=False, logger=False, enable_checkpointing=saves, **({"max_epochs": 6} | options),
    )  # fmt: skip


def test_it_trains_as_the_loss_does_in_a_plain_loop(tmp_path: Path) -> None:
    train, held_out, _ = loaders(shuffle=False)
    module, callback = Own(), TemperatureInTheLoop(held_out, patience=0)
    trainer(tmp_path, callback).fit(module, train)
    assert callback.finished is not None
    plain = Own()
    calibrated, optimizer = CalibratedLoss(plain, patience=0), torch.optim.AdamW(plain.parameters(), 0.02)
    place = 0
    batches = list(held_out)
    for _ in range(6):
        for x, y in train:
            due = calibrated._step >= calibrated._due
            loss = calibrated(x, y, *batches[place % 2])
            place += due
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert calibrated.temperature > 1
    finished = calibrated.finish(held_out)
    assert finished.temperature == pytest.approx(callback.finished.temperature, rel=1e-3)
    torch.testing.assert_close(module.state_dict(), plain.state_dict(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("last", [(), (nn.Softsign(),)])
def test_the_module_is_calibrated_and_free_of_hooks_after_fit(last: tuple[nn.Module, ...], tmp_path: Path) -> None:
    train, held_out, validation = loaders()
    module, callback = Own(*last), TemperatureInTheLoop(held_out, patience=0)
    run = trainer(tmp_path, callback, max_epochs=15)
    run.fit(module, train, validation)
    assert callback.temperature == 1
    assert run.callback_metrics["train_temperature"] != 1
    assert {"train_held_out_accuracy", "train_held_out_nll", "train_held_out_gap", "train_warnings"} <= set(
        run.callback_metrics
    )
    x, y = noisy(3000, 2).tensors
    assert cal.metrics.ece(logits=module(x).detach(), target=y, bins=20) < 0.08
    assert not last or "net.2.calibrant_temperature" in module.state_dict()
    assert last or not any(each._forward_hooks for each in module.modules())


def test_every_checkpoint_leads_to_the_same_end(tmp_path: Path) -> None:
    def source() -> dict[str, Any]:
        train, _, validation = loaders(shuffle=False)
        # A loader that Lightning can pick up again.
        return {"train_dataloaders": interleave(train, None), "val_dataloaders": validation}

    callback = TemperatureInTheLoop(loaders()[1], patience=0)
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=5, save_top_k=-1)
    module = Own(dropout=0.0)
    run = trainer(tmp_path, callback, saving, max_epochs=5)
    run.fit(module, **source())
    checkpoints = list(tmp_path.glob("*.ckpt"))
    assert len(checkpoints) == 6
    temperatures = set()
    for path in checkpoints:
        states = torch.load(path, weights_only=True)["callbacks"]
        temperatures.add(states["TemperatureInTheLoop"]["temperature"])
        if path.name == "step=30.ckpt":
            continue
        resumed, other = Own(), TemperatureInTheLoop(loaders()[1], patience=0)
        trainer(tmp_path, other, max_epochs=5).fit(resumed, **source(), ckpt_path=path, weights_only=True)
        assert other.finished == callback.finished, path.name
        assert same(resumed.state_dict(), module.state_dict())
    assert len(temperatures) > 2
    done, other = Own(), TemperatureInTheLoop(loaders()[1], patience=0)
    trainer(tmp_path, other, max_epochs=5).fit(done, **source(), ckpt_path=tmp_path / "step=30.ckpt", weights_only=True)
    assert same(done.state_dict(), module.state_dict())


def test_early_stopping_and_kept_weights_see_calibrated_logits(tmp_path: Path) -> None:
    train, held_out, validation = loaders()
    module, callback = Own(), TemperatureInTheLoop(held_out, patience=0)
    stops, keeps = EarlyStopping("loss", patience=3), StopAfterTemperature(patience=None)
    run = trainer(tmp_path, callback, stops, keeps, max_epochs=40)
    run.fit(module, train, validation)
    assert stops.best_score == pytest.approx(min(module.validated))
    assert callback.finished is not None
    x, y = noisy(3000, 2).tensors
    assert cal.metrics.ece(logits=module(x).detach(), target=y, bins=20) < 0.08


def test_held_out_batches_leave_the_random_numbers_of_training_alone(tmp_path: Path) -> None:
    orders = []
    for shuffle in (False, True):
        train, _, _ = loaders()
        module = Own(dropout=0.5)
        seen: list[Tensor] = []
        module.net[0].register_forward_hook(
            lambda each, given, _, seen=seen: seen.append(given[0]) if each.training else None
        )
        torch.manual_seed(5)
        trainer(tmp_path, TemperatureInTheLoop(loaders(shuffle)[1]), max_epochs=2).fit(module, train)
        orders.append(seen)
    assert len(orders[0]) == 12
    assert same(*orders)


def test_bad_use_is_explained(tmp_path: Path) -> None:
    train, held_out, _ = loaders()
    with pytest.raises(TypeError, match="again and again, got generator"):
        TemperatureInTheLoop(batch for batch in held_out)
    with pytest.warns(CalibrationWarning, match="3 held-out samples say nothing"):
        TemperatureInTheLoop(DataLoader(Subset(held_out.dataset, range(3)), 3))
    with pytest.raises(ValueError, match="no layer 'head'"):
        trainer(tmp_path, TemperatureInTheLoop(held_out, layer="head")).fit(Own(), train)
    with pytest.raises(TypeError, match=r"held-out batch must be \(inputs, target\)"):
        trainer(tmp_path, TemperatureInTheLoop([torch.zeros(4, 6)])).fit(Own(), train)
    with pytest.raises(ValueError, match="gave no batch"):
        trainer(tmp_path, TemperatureInTheLoop([])).fit(Own(), train)
    of_two: Any = SimpleNamespace(world_size=2)
    with pytest.raises(ValueError, match=r"every process the same samples: give it a .*DistributedSampler"):
        TemperatureInTheLoop(held_out).on_train_start(of_two, Own())
    module = Own()
    trainer(tmp_path, TemperatureInTheLoop(held_out, layer="net.1"), max_epochs=1).fit(module, train)
