"""InterleavedTrainer without an objective: the temperature in the loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

import calibrant as cal

pytest.importorskip("transformers", reason="needs the extra 'hf'")
pytest.importorskip("datasets", reason="needs the extra 'hf'")

from transformers import BertForSequenceClassification

from calibrant.training import InterleavedTrainer
from tests.training.huggingface_runs import arguments, bert, flat, pad, split_options


class Noisy(Dataset[dict[str, Any]]):
    """Sentences whose first word gives the label away, most of the time."""

    def __init__(self, samples: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, 50, (samples, 4), generator=draw)
        self.tokens[:, 0] = torch.randint(1, 10, (samples,), generator=draw)
        chance = torch.rand(samples, generator=draw) < 0.3
        self.labels = torch.where(chance, torch.randint(3, (samples,), generator=draw), self.tokens[:, 0] % 3)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def trainer(folder: Path, seed: int = 0, **changed: Any) -> InterleavedTrainer:
    defaults = {"max_steps": 40, "learning_rate": 3e-3, "per_device_train_batch_size": 32}
    of_training, options = split_options(defaults | changed)
    return InterleavedTrainer(
        bert(dropout=0.1, seed=seed), arguments(folder, **of_training), pad, train_dataset=Noisy(256, 1),
        calibration_dataset=Noisy(128, 2), eval_dataset=Noisy(1000, 3), **options,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("moves_at_once")
def test_the_model_that_is_saved_is_calibrated(tmp_path: Path) -> None:
    one = trainer(tmp_path, max_steps=150, logging_steps=10)
    one.train()
    assert one.method == "temperature"
    assert one.finished is not None
    assert one.model is not None
    assert not any(module._forward_hooks for module in one.model.modules())
    entries = [entry for entry in one.state.log_history if "temperature" in entry]
    assert len({entry["temperature"] for entry in entries}) > 2
    assert {"held_out_accuracy", "held_out_nll", "held_out_gap"} <= set(entries[-1])
    metrics = one.evaluate()
    one.save_model(str(tmp_path / "saved"))
    loaded = BertForSequenceClassification.from_pretrained(tmp_path / "saved").train(False)
    test = Noisy(1000, 3)
    batch = pad([test[index] for index in range(1000)])
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = loaded(**batch).logits
    assert F.cross_entropy(logits, labels).item() == pytest.approx(metrics["eval_loss"], rel=1e-3)
    plain = trainer(tmp_path, max_steps=150, weight=0.0)
    plain.train()
    assert metrics["eval_ece"] < plain.evaluate()["eval_ece"] / 1.5
    assert cal.metrics.ece(logits=logits, target=labels, bins=20) == pytest.approx(metrics["eval_ece"], abs=1e-3)


@pytest.mark.filterwarnings("ignore::calibrant.training.CalibrationWarning")
@pytest.mark.usefixtures("moves_at_once")
def test_the_loss_sees_divided_logits(tmp_path: Path) -> None:
    ratios: list[float] = []

    def loss(outputs: Any, labels: Any, **_: Any) -> torch.Tensor:
        found = one.calibrated_loss
        assert found is not None
        assert found.divided is not None
        assert found.divided.latest is not None
        ratios.append(found.temperature)
        assert torch.equal(outputs.logits.detach(), found.divided.latest)
        return F.cross_entropy(outputs.logits, labels)

    one = trainer(tmp_path, compute_loss_func=loss)
    one.train()
    assert len(set(ratios)) > 1


@pytest.mark.filterwarnings("ignore::calibrant.training.CalibrationWarning")
@pytest.mark.slow
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.usefixtures("moves_at_once")
def test_a_resumed_training_ends_with_the_same_weights(steps: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_steps": 20, "gradient_accumulation_steps": steps}
    whole = trainer(tmp_path, save_strategy="steps", save_steps=5, **options)
    whole.train()
    # Trainer itself does one step more after a checkpoint of the last step, unless that is the end of an epoch.
    for stop in (5, 15) if steps == 1 else (5, 20):
        resumed = trainer(tmp_path, seed=9, **options)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stop}"))
        assert torch.equal(flat(resumed.model), flat(whole.model)), stop
        assert resumed.finished == whole.finished
    assert torch.load(tmp_path / "checkpoint-15" / "calibrated_loss.pt", weights_only=True)["temperature"] != 1


@pytest.mark.slow
def test_an_objective_or_its_weight_means_the_published_recipe(tmp_path: Path) -> None:
    assert trainer(tmp_path, objective=cal.ESDLoss()).method == "published"
    assert trainer(tmp_path, weight=0.5).method == "published"
    one = trainer(tmp_path, method="published", logging_steps=5, max_steps=5)
    one.train()
    assert one.finished is None
    assert "held_out_accuracy" in one.state.log_history[0]
    assert trainer(tmp_path, method="head", weight=2.0).method == "head"
