"""The same early stopping for Trainer: what is reported, when it stops, which weights are left, and after a resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.posthoc import TemperatureScaling

pytest.importorskip("transformers", reason="needs the extra 'hf'")

from transformers import Trainer, TrainerCallback, TrainingArguments

from calibrant.training import CalibratedTrainer, StopTrainerAfterTemperature

Rows = list[dict[str, Tensor]]


def rows(count: int, seed: int) -> Rows:
    """Labels of which a fifth is wrong."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=draw)
    y = x[:, :3].argmax(1)
    y = torch.where(torch.rand(count, generator=draw) < 0.2, (y + 1) % 3, y)
    return [{"x": values, "labels": label} for values, label in zip(x, y, strict=True)]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 64), nn.ReLU())
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.body(x))
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Keep(TrainerCallback):
    """The weights at every evaluation."""

    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []

    def on_evaluate(self, *_: Any, **kwargs: Any) -> None:
        self.states.append({name: value.clone() for name, value in kwargs["model"].state_dict().items()})


def made(folder: Path, kind: type[Trainer], stopping: Any, *callbacks: Any, **changed: Any) -> Trainer:
    given: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 20, "num_train_epochs": 12, "learning_rate": 0.02,
        "lr_scheduler_type": "constant", "eval_strategy": "epoch", "save_strategy": "no", "report_to": "none",
        "use_cpu": True, "disable_tqdm": True, "save_total_limit": None,
    }  # fmt: skip
    options: dict[str, Any] = {"compute_metrics": stopping.compute_metrics} if kind is Trainer else {
        "calibration_dataset": rows(20, seed=3), "weight": 0.0,
    }  # fmt: skip
    return kind(
        Classifier(), TrainingArguments(**given | changed), train_dataset=rows(200, seed=0),
        eval_dataset=rows(200, seed=1), callbacks=[stopping, *callbacks], **options,
    )  # fmt: skip


def score_of(model: nn.Module, state: dict[str, Tensor]) -> tuple[float, float]:
    model.load_state_dict(state)
    x, y = (torch.stack([row[name] for row in rows(200, seed=1)]) for name in ("x", "labels"))
    with torch.no_grad():
        logits = model(x)["logits"]
    scaling = TemperatureScaling(strict=True).fit(logits, y)
    return F.cross_entropy(scaling(logits).double(), y).item(), scaling.temperature_


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Trainer, CalibratedTrainer])
@pytest.mark.parametrize("patience", [2, None])
def test_the_model_ends_with_the_weights_of_its_best_evaluation(
    kind: type[Trainer], patience: int | None, tmp_path: Path
) -> None:
    stopping, keep = StopTrainerAfterTemperature(patience), Keep()
    trainer = made(tmp_path, kind, stopping, keep)
    trainer.train()
    model: Any = trainer.model
    final = {name: value.clone() for name, value in model.state_dict().items()}
    scores = [score_of(model, state) for state in keep.states]
    best = min(range(len(scores)), key=lambda place: scores[place])
    assert len(scores) == (12 if patience is None else best + 1 + patience) <= 12
    assert stopping.best_epoch_ == best + 1
    assert (stopping.best_score_, stopping.temperature_) == pytest.approx(scores[best], rel=1e-5)
    torch.testing.assert_close(final, keep.states[best], rtol=0, atol=0)
    logged = [entry["eval_refined_nll"] for entry in trainer.state.log_history if "eval_refined_nll" in entry]
    assert logged == pytest.approx([score for score, _ in scores], rel=1e-5)
    model.load_state_dict(final)
    assert trainer.evaluate()["eval_refined_nll"] == pytest.approx(stopping.best_score_, rel=1e-5)
    assert "test_refined_nll" in (trainer.predict(rows(50, seed=4)).metrics or {})  # type: ignore[arg-type]
    assert stopping.best_epoch_ == best + 1


@pytest.mark.slow
def test_a_resumed_training_ends_the_same_and_folded(tmp_path: Path) -> None:
    def stopping() -> StopTrainerAfterTemperature:
        return StopTrainerAfterTemperature(2, fold=True)

    whole, first = stopping(), stopping()
    plain = StopTrainerAfterTemperature(2)
    saving = made(tmp_path / "a", Trainer, first, save_strategy="epoch")
    saving.train()
    expected: Any = saving.model
    unfolded = made(tmp_path / "b", Trainer, plain)
    unfolded.train()
    x = torch.randn(7, 6)
    other: Any = unfolded.model
    torch.testing.assert_close(other(x)["logits"] / plain.temperature_, expected(x)["logits"])
    steps = sorted(int(path.name.split("-")[1]) for path in (tmp_path / "a").glob("checkpoint-*"))
    for step in (steps[0], steps[-2], steps[-1]):
        whole = stopping()
        resumed = made(tmp_path / "a", Trainer, whole)
        resumed.train(resume_from_checkpoint=str(tmp_path / "a" / f"checkpoint-{step}"))
        found: Any = resumed.model
        torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=0)
        assert (whole.best_score_, whole.temperature_, whole.best_epoch_) == (
            first.best_score_, first.temperature_, first.best_epoch_,
        )  # fmt: skip
    (tmp_path / "a" / f"checkpoint-{steps[-1]}" / "best_after_temperature.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"best evaluation, .*best_after_temperature.pt, are missing"):
        made(tmp_path / "a", Trainer, stopping()).train(
            resume_from_checkpoint=str(tmp_path / "a" / f"checkpoint-{steps[-1]}")
        )


def test_metrics_of_ones_own_are_kept_and_missing_predictions_explained(tmp_path: Path) -> None:
    stopping = StopTrainerAfterTemperature(compute_metrics=lambda given: {"samples": len(given.label_ids)})
    scores = made(tmp_path, Trainer, stopping).evaluate()
    assert scores["eval_samples"] == 200
    assert scores["eval_refined_nll"] > 0
    trainer = made(tmp_path, Trainer, stopping, num_train_epochs=1)
    trainer.compute_metrics = None
    with pytest.raises(ValueError, match=r"saw no predictions: pass compute_metrics=stopping\.compute_metrics"):
        trainer.train()
