"""The whole guard under InterleavedTrainer, and the method "head"."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.guard import digits
from torch import Tensor, nn
from torch.utils.data import Dataset

import calibrant as cal
from tests.training.batches import Batch

pytest.importorskip("transformers", reason="needs the extra 'hf'")
pytest.importorskip("datasets", reason="needs the extra 'hf'")

from calibrant.training import CalibrationWarning, InterleavedTrainer
from tests.training.huggingface_runs import arguments, split_options


class Images(Dataset[dict[str, Tensor]]):
    def __init__(self, data: Batch) -> None:
        self.x, self.y = data

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.y[index]}


class Network(nn.Module):
    """A classifier of digits that computes its own loss, as models of transformers do."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.body(x))
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def calibrated(folder: Path, *, model: nn.Module | None = None, **changed: Any) -> InterleavedTrainer:
    train, held_out, test = digits(0)
    defaults: dict[str, Any] = {
        "max_steps": -1, "num_train_epochs": 8, "learning_rate": 1e-3, "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 800, "eval_strategy": "epoch", "logging_steps": 25,
        "calibration_dataset": Images(held_out), "train_dataset": Images(train), "eval_dataset": Images(test),
    }  # fmt: skip
    of_training, options = split_options(defaults | changed)
    return InterleavedTrainer(Network() if model is None else model, arguments(folder, **of_training), **options)


def warned(trainer: InterleavedTrainer, **options: Any) -> set[str]:
    """Train, and return which warnings came; each must come once, as a Python warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train(**options)
    assert trainer.calibrated_loss is not None
    found = trainer.calibrated_loss.guard.warnings_
    given = [str(one.message) for one in caught if issubclass(one.category, CalibrationWarning)]
    assert sorted(given) == sorted(found.values())
    return set(found)


def logged(trainer: InterleavedTrainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("weight", "root", "bf16"),
    [(10.0, True, False), (1000.0, True, True), (1000.0, True, False), (100.0, False, False)],
)
def test_an_objective_that_leads_the_training_is_reported(
    tmp_path: Path, weight: float, root: bool, bf16: bool
) -> None:
    trainer = calibrated(tmp_path, objective=cal.ESDLoss(root=root), weight=weight, bf16=bf16)
    assert "outweighs" in warned(trainer)
    assert logged(trainer, "warnings")[0] == 0
    assert logged(trainer, "warnings")[-1] >= 1
    assert logged(trainer, "eval_accuracy")[-1] < (0.5 if weight == 1000 else 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["temperature", "head"])
def test_held_out_data_unlike_evaluation_data_are_reported(tmp_path: Path, method: str) -> None:
    x, y = digits(0)[1]
    flipped = torch.where(torch.arange(len(y)) % 3 == 0, (y + 1) % 10, y)
    trainer = calibrated(tmp_path, method=method, calibration_dataset=Images((x, flipped)))
    assert warned(trainer) == {"parted"}
    assert trainer.calibrated_loss is not None
    cause = "harder than new data" if method == "temperature" else "un-learn these samples"
    assert cause in trainer.calibrated_loss.guard.warnings_["parted"]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "options",
    [{}, {"weight": 4.0}, {"method": "head", "objective": cal.MMCELoss()}],
    ids=["temperature", "published-4", "head-mmce"],
)
def test_sound_training_gives_no_warning(tmp_path: Path, options: dict[str, Any]) -> None:
    trainer = calibrated(tmp_path, **{"learning_rate": 1e-2, "per_device_train_batch_size": 64} | options)
    assert warned(trainer) == set()
    assert set(logged(trainer, "warnings")) == {0}
    assert trainer.calibrated_loss is not None
    assert trainer.calibrated_loss.guard.has_objective == (trainer.method != "temperature")
    assert logged(trainer, "eval_accuracy")[-1] > 0.9


class Squashed(Network):
    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = torch.tanh(super().forward(x)["logits"])
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def test_method_head_needs_a_last_layer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="method 'head'"):
        calibrated(tmp_path, method="head", model=Squashed()).train()
