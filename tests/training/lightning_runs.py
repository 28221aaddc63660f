"""Small runs under Lightning that the tests share, here where other processes can import them."""

import os
from pathlib import Path
from typing import Any
from unittest import mock

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import calibrant as cal
from calibrant.training import TemperatureInTheLoop
from calibrant.training.lightning import InterleavedModule
from calibrant.training.lightning_data import InterleavedDataModule
from calibrant.training.temperature_loop import TemperatureLoop

# What Lightning says of small runs.
QUIET = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in (
        ".*does not have many workers", ".*LeafSpec:FutureWarning", "Checkpoint directory",
        "You defined a `validation_step` but have no `val_dataloader`", "Be aware that when using `ckpt_path`",
    )
]  # fmt: skip
EPOCHS = 3
STEPS = 4  # an epoch: 90 samples for the NLL, 25 of them in a step


def samples(count: int = 100, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return x.to(dtype), (x[:, 0] > 0).long() + (x[:, 1] > 1).long()


def noisy(count: int, seed: int) -> TensorDataset:
    """Data of which no network can be sure."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    return TensorDataset(x, (x[:, :3] + torch.randn(count, 3, generator=generator)).argmax(1))


def data(**options: Any) -> InterleavedDataModule:
    x, y = samples()
    defaults: dict[str, Any] = {
        "batch_size": 25,
        "calibration_batch_size": 7,
        "validation": TensorDataset(x[:37], y[:37]),
    }
    return InterleavedDataModule(TensorDataset(x, y), **(defaults | options))


def network() -> nn.Module:
    """With dropout, which draws random numbers, and BatchNorm, which has a state."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def classifier(kind: type[InterleavedModule] = InterleavedModule, **options: Any) -> InterleavedModule:
    defaults: dict[str, Any] = {
        "objective": cal.ESDLoss(),
        "scheduler": lambda optimizer: ExponentialLR(optimizer, 0.9),
    }
    return kind(network(), **(defaults | options))


def trainer(folder: Path, *callbacks: lightning.Callback, **options: Any) -> lightning.Trainer:
    saves = any(isinstance(callback, Checkpoint) for callback in callbacks)
    defaults: dict[str, Any] = {"max_epochs": EPOCHS, "logger": False, "enable_checkpointing": saves}
    return lightning.Trainer(
        accelerator="cpu", default_root_dir=folder, callbacks=list(callbacks),
        enable_progress_bar=False, enable_model_summary=False, **(defaults | options),
    )  # fmt: skip


def result(trained: lightning.Trainer) -> dict[str, Any]:
    """All that two runs must have in common."""
    module = trained.lightning_module
    assert isinstance(module, InterleavedModule)
    return {
        "weights": module.state_dict(),
        "optimizer": trained.optimizers[0].state_dict(),
        "history": module.history,
        "step": trained.global_step,
    }


def take_place(rank: int, port: int) -> None:
    """Let a Trainer of this process be one of two."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0", "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip


def run_on_two_ranks(rank: int, port: int, folder: Path) -> None:
    """One of two processes: train plain networks with half the batch, and one with BatchNorm to see that it can."""
    torch.set_num_threads(1)
    take_place(rank, port)
    results = {}
    for name in ("sgd", "adamw", "temperature"):
        trains = trainer(folder, strategy="ddp", devices=2, max_epochs=2)
        module = exact_classifier(name)
        trains.fit(module, datamodule=exact_data(**sizes(name, ranks=2)))
        tested = trains.test(module, datamodule=exact_data(batch_size=4), verbose=False)[0]
        results[name] = result(trains) | {"test": tested}
    trains = trainer(folder, strategy="ddp", devices=2, max_epochs=3)
    results["callback"] = callback_result(trains, rank, ranks=2)
    saving = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    trains = trainer(folder, saving, strategy="ddp", devices=2, max_epochs=2)
    trains.fit(classifier(), datamodule=data())
    results["batchnorm"] = result(trains)
    trains = trainer(folder, strategy="ddp", devices=2, max_epochs=2)
    trains.fit(classifier(), datamodule=data(), ckpt_path=folder / "epoch=0.ckpt", weights_only=True)
    results["resumed"] = result(trains)
    torch.save(results, folder / f"rank{rank}.pt")


def exact_data(**options: Any) -> InterleavedDataModule:
    """90 and 10 samples, which two ranks divide, and 37 to evaluate, which they do not."""
    x, y = samples(dtype=torch.float64)
    return InterleavedDataModule(
        TensorDataset(x, y), validation=TensorDataset(x[:37], y[:37]), test=TensorDataset(x[:37], y[:37]), **options
    )


def sizes(name: str, ranks: int) -> dict[str, Any]:
    """Batches of 30 and 6 samples on all ranks; a temperature takes more of them."""
    if name == "temperature":
        return {"batch_size": 10 // ranks, "calibration_batch_size": 40 // ranks, "calibration_fraction": 0.4}
    return {"batch_size": 30 // ranks, "calibration_batch_size": 6 // ranks, "calibration_fraction": 0.12}


def exact_classifier(optimizer: str) -> InterleavedModule:
    """In float64, where two orders of summation agree to far more than 1e-6."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), last := nn.Linear(8, 3)).double()
    if optimizer == "temperature":
        last.weight.data *= 20  # over-confident from the start
        module = InterleavedModule(model, method="temperature", learning_rate=0.03)
        assert module.calibrated_loss is not None
        module.calibrated_loss.loop.over_fits = True  # there is no time to
        return module
    makers = {"sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9), "adamw": None}
    return InterleavedModule(model, cal.ESDLoss(root=False), weight=5.0, optimizer=makers[optimizer])


class OwnModule(lightning.LightningModule):
    """Somebody's module, which knows nothing of Calibrant; it keeps what a validation found."""

    def __init__(self, net: nn.Module, rate: float = 0.02) -> None:
        super().__init__()
        self.net, self.rate = net, rate
        self.passes = 0  # in evaluation mode
        self.losses: list[float] = []
        self.right: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.passes += not self.training
        logits: Tensor = self.net(x)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = getattr(batch, "train", batch)
        return nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        logits = self(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.losses.append(loss.item())
        self.right.append(logits.argmax(1) == y)
        self.log("nll", loss, sync_dist=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), self.rate)


def callback_result(trains: lightning.Trainer, rank: int, ranks: int) -> dict[str, Any]:
    """Train a module with TemperatureInTheLoop, each rank on its part of every batch."""
    x, y = samples(200, torch.float64)
    y = torch.where(torch.arange(200) % 5 == 0, (y + 1) % 3, y)  # of which no network can be sure
    train, held_out, new = (
        DataLoader(part, size // ranks, sampler=DistributedSampler(part, ranks, rank, shuffle=False))
        for part, size in (
            (TensorDataset(x[:60], y[:60]), 10),
            (TensorDataset(x[60:140], y[60:140]), 40),
            (TensorDataset(x[140:], y[140:]), 60),
        )
    )
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3)).double()
    callback, module = TemperatureInTheLoop(held_out, every=2), OwnModule(net, 0.03)
    trains.callbacks.append(callback)  # type: ignore[attr-defined]
    with mock.patch.object(TemperatureLoop, "patience", 0):
        trains.fit(module, train, new)
    assert callback.finished is not None
    assert callback._loss is not None
    return {
        "weights": module.state_dict(),
        "temperature": callback.finished.temperature,
        "logged": {name: float(value) for name, value in trains.callback_metrics.items()},
        "compared": callback._loss.guard.state_dict()["_accuracy"],
    }


def same(a: Any, b: Any) -> bool:
    """Whether two nests of tensors and numbers are equal to the bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
