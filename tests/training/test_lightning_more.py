"""What users of Lightning combine: precisions, several validation sets, reloading, loaders of their own."""

from typing import Any

import lightning
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import calibrant as cal
from calibrant.training import InterleavedDataModule, InterleavedModule, interleave

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]


def samples(count: int = 90) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 4, generator=generator), torch.arange(count) % 3)


def trainer(**options: Any) -> lightning.Trainer:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    return lightning.Trainer(accelerator="cpu", **({"max_epochs": 2} | quiet | options))


def classifier(**options: Any) -> InterleavedModule:
    torch.manual_seed(0)
    return InterleavedModule(nn.Linear(4, 3), cal.ESDLoss(), **options)


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed", "64-true"])
def test_scores_are_summed_in_double_whatever_the_precision(precision: str) -> None:
    module = classifier()
    data = InterleavedDataModule(samples(), validation=samples(), batch_size=20)
    trainer(precision=precision).fit(module, data)
    assert module.training_scores.totals.dtype == torch.float64
    assert len(module.history) == 2
    assert 0 <= module.history[-1]["validation_ece"] <= 1


def test_several_validation_loaders_are_scored_as_one_set() -> None:
    module = classifier()
    one, other = samples(30), samples(60)
    batches = interleave(DataLoader(samples(), 30), DataLoader(samples(), 30))
    trainer(max_epochs=1).fit(module, batches, [DataLoader(one, 30), DataLoader(other, 30)])
    model = module.model
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in (one.tensors, other.tensors))
    assert module.history[0]["validation_accuracy"] == pytest.approx(right / 90)


class Seen(lightning.Callback):
    def __init__(self) -> None:
        self.first: list[list[float]] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.first.append([*batch.train[0][:, 0].tolist(), *batch.calibration[0][:, 0].tolist()])


def test_reloading_the_loaders_does_not_repeat_the_first_order() -> None:
    seen = Seen()
    data = InterleavedDataModule(samples(), batch_size=20, calibration_batch_size=5)
    trainer(max_epochs=3, reload_dataloaders_every_n_epochs=1, callbacks=[seen]).fit(classifier(), data)
    again = Seen()
    data = InterleavedDataModule(samples(), batch_size=20, calibration_batch_size=5)
    trainer(max_epochs=3, callbacks=[again]).fit(classifier(), data)
    assert len({tuple(order) for order in seen.first}) == 3
    assert seen.first == again.first


def test_a_plateau_scheduler_needs_validation() -> None:
    module = classifier(scheduler=ReduceLROnPlateau)
    with pytest.raises(MisconfigurationException, match="validation_nll which is not available"):
        trainer().fit(module, InterleavedDataModule(samples(), batch_size=20))


def test_weight_zero_computes_no_objective() -> None:
    module = classifier(weight=0.0)
    trainer(max_epochs=1).fit(module, InterleavedDataModule(samples(), batch_size=20))
    assert "train_objective" not in module.history[0]


def test_a_last_batch_of_one_sample_can_be_left_out() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    data = InterleavedDataModule(samples(90), batch_size=20, drop_last=True)
    trainer(max_epochs=1).fit(InterleavedModule(model, cal.ESDLoss()), data)
    assert len(data.train_dataloader()) == 4
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        trainer(max_epochs=1).fit(
            InterleavedModule(model, cal.ESDLoss()), InterleavedDataModule(samples(90), batch_size=20)
        )


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(samples())


def test_a_loader_without_a_length_trains_and_refuses_to_be_resumed(tmp_path: Any) -> None:
    def batches() -> Any:
        return interleave(DataLoader(Stream(), 30), DataLoader(samples(), 30))

    first = trainer(max_epochs=1)
    first.fit(classifier(), batches())
    first.save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match="without a length cannot be resumed"):
        trainer(max_epochs=3).fit(classifier(), batches(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)


def test_dense_predictions_do_not_pile_up() -> None:
    module = InterleavedModule(nn.Conv2d(1, 3, 1), cal.ESDLoss())
    images = TensorDataset(torch.randn(24, 1, 64, 64), torch.randint(3, (24, 64, 64)))
    trainer(max_epochs=1).fit(module, InterleavedDataModule(images, batch_size=8, calibration_fraction=0.25))
    assert sum(pairs.confidence.numel() for pairs, _ in module.training_scores._waiting) <= 2**16
