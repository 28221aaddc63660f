"""Trainer's own NLL, plus the weighted objective of calibration batches that are made as it makes training batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import calibrant as cal
from calibrant import ESDLoss, MMCELoss
from calibrant.posthoc import TemperatureScaling
from tests.ranks import free_port, on_two_ranks

transformers = pytest.importorskip("transformers", reason="needs the extra 'hf'")
datasets = pytest.importorskip("datasets", reason="needs the extra 'hf'")

from transformers import EarlyStoppingCallback, Trainer  # noqa: E402

from calibrant.training import InterleavedTrainer  # noqa: E402
from tests.training.huggingface_runs import (  # noqa: E402
    CLASSES,
    Batch,
    arguments,
    bert,
    flat,
    pad,
    split_options,
    take_place,
)

WEIGHT = 0.7


class Sentences(Dataset[dict[str, Any]]):
    """Random tokens of various lengths, and the order in which they were asked for."""

    def __init__(self, samples: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, 9, (samples,), generator=draw)
        self.tokens = [torch.randint(1, 50, (int(length),), generator=draw) for length in lengths]
        self.labels = torch.randint(CLASSES, (samples,), generator=draw)
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.asked.append(index)
        return {"input_ids": self.tokens[index], "labels": self.labels[index], "text": "not for the model"}

    def batch(self, indices: list[int]) -> Batch:
        return pad([self[index] for index in indices])


def calibrated(folder: Path, *, model: nn.Module | None = None, **changed: Any) -> InterleavedTrainer:
    """A trainer by plain gradient descent with rate 1: what the weights lose is the gradient."""
    data = {"calibration_dataset": Sentences(8, seed=2), "train_dataset": Sentences(8, seed=1), "weight": WEIGHT}
    of_training, options = split_options(data | changed)
    model = bert() if model is None else model
    given = arguments(folder, **of_training)
    descent = torch.optim.SGD(model.parameters(), lr=given.learning_rate)
    return InterleavedTrainer(model, given, pad, optimizers=(descent, None), **options)


def gradient(model: nn.Module, loss: Tensor) -> Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])


def objective_of(model: nn.Module, batch: Batch, objective: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return objective(model(batch["input_ids"], batch["attention_mask"]).logits, batch["labels"])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("objective", [ESDLoss(root=False), MMCELoss()], ids=lambda objective: type(objective).__name__)
@pytest.mark.parametrize("steps", [1, 2])
def test_a_step_descends_along_nll_and_the_mean_objective(tmp_path: Path, objective: nn.Module, steps: int) -> None:
    train, held_out = Sentences(4 * steps, seed=1), Sentences(10, seed=2)
    trainer = calibrated(
        tmp_path, train_dataset=train, calibration_dataset=held_out, objective=objective, calibration_batch_size=5,
        gradient_accumulation_steps=steps,
    )  # fmt: skip
    before = flat(trainer.model)
    trainer.train()

    model, everything = bert(), train.batch(list(range(4 * steps)))
    nll = F.cross_entropy(model(everything["input_ids"], everything["attention_mask"]).logits, everything["labels"])
    batches = [held_out.batch(held_out.asked[first : first + 5]) for first in (0, 5)][:steps]
    expected = nll + WEIGHT * torch.stack([objective_of(model, batch, objective) for batch in batches]).mean()
    torch.testing.assert_close(before - flat(trainer.model), gradient(model, expected), rtol=1e-4, atol=1e-6)


def summed(outputs: Any, labels: Tensor, num_items_in_batch: Tensor) -> Tensor:
    return 3 * F.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("samples", "options"),
    [
        (8, {"label_smoothing_factor": 0.1}),
        (8, {"compute_loss_func": summed}),
        (7, {"compute_loss_func": summed, "gradient_accumulation_steps": 2}),
        (16, {"gradient_accumulation_steps": 3, "max_steps": 2}),  # the second step has one batch only
    ],
    ids=["label smoothing", "own loss", "own loss over uneven batches", "a shorter last step"],
)
def test_the_nll_is_what_trainer_computes(tmp_path: Path, samples: int, options: dict[str, Any]) -> None:
    train: Any = Sentences(samples, seed=1)
    ours = calibrated(tmp_path, train_dataset=train, weight=0, **options)
    ours.train()
    model = bert()
    descent = torch.optim.SGD(model.parameters(), lr=1.0)
    own_loss = options.pop("compute_loss_func", None)
    trainer = Trainer(
        model, arguments(tmp_path, **options), pad, train, compute_loss_func=own_loss, optimizers=(descent, None)
    )
    trainer.model_accepts_loss_kwargs = False  # BERT drops the count it is given
    trainer.train()
    torch.testing.assert_close(flat(ours.model), flat(model), rtol=0, atol=0)


def test_the_objective_is_averaged_over_a_shorter_last_step_too(tmp_path: Path) -> None:
    """Two batches, then one: a constant gradient moves the weights alike in both steps."""

    def constant(logits: Tensor, _: Tensor) -> Tensor:
        return (logits - logits.detach()).sum() + bias.sum()

    model = bert()
    bias = model.classifier.bias
    bias_only = torch.optim.SGD([bias], lr=1.0)
    trainer = calibrated(
        tmp_path, model=model, train_dataset=Sentences(12, seed=1), gradient_accumulation_steps=2, max_steps=2,
        objective=constant, compute_loss_func=lambda outputs, *_, **__: 0 * outputs.logits.sum(),
    )  # fmt: skip
    trainer.optimizer = bias_only
    trainer.train()
    torch.testing.assert_close(bias.detach(), torch.full((CLASSES,), -2 * WEIGHT * (1 + 4)))


def test_calibration_every_counts_optimizer_steps(tmp_path: Path) -> None:
    held_out = Sentences(100, seed=2)
    values: list[float] = []

    def objective(logits: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = ESDLoss(root=False)(logits, labels)
        values.append(loss.item())
        return loss

    trainer = calibrated(
        tmp_path, train_dataset=Sentences(40, seed=1), calibration_dataset=held_out, objective=objective, max_steps=5,
        gradient_accumulation_steps=2, calibration_every=2, learning_rate=0.01,
    )  # fmt: skip
    trainer.train()
    logged = [entry.get("objective") for entry in trainer.state.log_history[:-1]]
    means = [float(np.mean(values[first : first + 2])) for first in (0, 2, 4)]
    assert len(values) == 6
    assert logged == [pytest.approx(means[0]), None, pytest.approx(means[1]), None, pytest.approx(means[2])]


def test_the_last_calibration_batch_is_not_small(tmp_path: Path) -> None:
    trainer = calibrated(tmp_path, calibration_dataset=Sentences(9, seed=2), calibration_batch_size=8)
    assert [len(batch["labels"]) for batch in trainer.get_calibration_dataloader()] == [5, 4]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_calibration_batches_are_padded_and_reshuffled_and_never_too_small(tmp_path: Path, strategy: str) -> None:
    sampling: dict[str, Any] = {"train_sampling_strategy": strategy}
    if transformers.__version__ < "5":
        sampling = {"group_by_length": strategy == "group_by_length"}
    held_out = Sentences(8, seed=2)
    seen: list[Batch] = []
    model = bert()

    def keep(module: nn.Module, _: Any, given: Batch) -> None:
        if module.training:  # not the pass that finds the layer that makes the logits
            seen.append(given)

    model.register_forward_pre_hook(keep, with_kwargs=True)
    trainer = calibrated(
        tmp_path, model=model, calibration_dataset=held_out, calibration_batch_size=3, max_steps=4, learning_rate=0.01,
        **sampling,
    )  # fmt: skip
    trainer.train()
    batches = [batch for batch in seen if "labels" not in batch]  # the model's own loss is not asked for
    assert [len(batch["input_ids"]) for batch in batches] == [3, 3, 3, 3]
    order = held_out.asked
    for batch, indices in zip(batches, (order[0:3], order[3:6], order[8:11], order[11:14]), strict=True):
        expected = held_out.batch(indices)
        assert torch.equal(batch["input_ids"], expected["input_ids"])
        assert torch.equal(batch["attention_mask"], expected["attention_mask"])
    for pass_, seed in ((order[:8], 42), (order[8:16], 43)):  # Trainer's seed, then the next
        assert pass_ == torch.randperm(8, generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("kind", [list, datasets.Dataset.from_list], ids=["a list", "a datasets.Dataset"])
def test_the_collator_sees_columns_the_model_takes(tmp_path: Path, kind: Callable[[list[Any]], Any]) -> None:
    columns: set[str] = set()

    def collator(samples: list[dict[str, Any]]) -> Batch:
        columns.update(*samples)
        return pad([{name: torch.tensor(sample[name]) for name in ("input_ids", "labels")} for sample in samples])

    rows = [
        {"input_ids": [1 + n % 9, 1 + n // 9], "labels": n % CLASSES, "text": "not for the model"} for n in range(16)
    ]
    trainer = calibrated(tmp_path, train_dataset=kind(rows[:8]), calibration_dataset=kind(rows[8:]))
    trainer.data_collator = collator
    next(iter(trainer.get_calibration_dataloader()))
    assert columns == {"input_ids", "labels"}


@pytest.mark.slow
def test_every_training_begins_the_calibration_set_anew(tmp_path: Path) -> None:
    held_out = Sentences(10, seed=2)
    trainer = calibrated(tmp_path, calibration_dataset=held_out, seed=5)
    orders = []
    for _ in range(2):
        trainer.train()
        orders.append(held_out.asked.copy())
        held_out.asked.clear()
    # The first batch and the one that accelerate reads ahead.
    assert orders == 2 * [torch.randperm(10, generator=torch.Generator().manual_seed(5)).tolist()[:8]]


def train_on_the_whole_sets(rank: int, ranks: int, port: int, folder: Path, method: str) -> None:
    """Batches are all of the data, shared out over the ranks, so that their order means nothing."""
    if ranks > 1:
        take_place(rank, ranks, port)
    settings: dict[str, Any] = {"objective": ESDLoss(root=False)}
    if method == "temperature":
        held_out = Sentences(40, seed=2)
        settings = {"weight": None, "calibration_dataset": held_out, "calibration_batch_size": 40 // ranks}
    trainer = calibrated(
        folder, method=method, **settings, per_device_train_batch_size=8 // ranks, max_steps=3, learning_rate=0.1,
        ddp_backend="gloo" if ranks > 1 else None, ddp_find_unused_parameters=False, eval_dataset=Sentences(11, seed=3),
    )  # fmt: skip
    trainer.train()
    scores = trainer.evaluate()
    assert trainer.args.world_size == ranks
    if rank == 0:
        torch.save((flat(trainer.model), scores["eval_ece"], scores["eval_accuracy"]), folder / f"{ranks}.pt")


@pytest.mark.slow  # test_distributed.py has quick ones
@pytest.mark.filterwarnings("ignore::calibrant.training.CalibrationWarning")
@pytest.mark.parametrize("method", ["temperature", "published", "head"])
def test_two_processes_equal_one(tmp_path: Path, method: str) -> None:
    port = free_port()
    train_on_the_whole_sets(0, 1, port, tmp_path, method)
    on_two_ranks(train_on_the_whole_sets, 2, port, tmp_path, method)
    one, two = (torch.load(tmp_path / f"{ranks}.pt", weights_only=True) for ranks in (1, 2))
    torch.testing.assert_close(two, one, rtol=0, atol=1e-6)


def test_evaluation_without_labels_has_no_scores(tmp_path: Path) -> None:
    unknown = Sentences(4, seed=1)
    unknown.labels[:] = -100
    assert "eval_ece" not in calibrated(tmp_path, eval_dataset=unknown).evaluate()


@pytest.mark.parametrize("joined", [True, False])
def test_evaluation_tells_accuracy_and_ece(tmp_path: Path, joined: bool) -> None:
    held = Sentences(50, seed=3)
    held.labels[7] = -100  # not to be counted
    trainer = calibrated(tmp_path, eval_dataset=held, eval_do_concat_batches=joined)
    scores = trainer.evaluate()
    output: Any = trainer.predict(held)
    logits, labels = (part if joined else np.concatenate(part) for part in (output.predictions, output.label_ids))
    logits, labels = np.delete(logits, 7, axis=0), np.delete(labels, 7)
    expected = {
        "accuracy": float((logits.argmax(1) == labels).mean()),
        "ece": cal.metrics.ece(logits=logits, target=labels, bins=20),
    }
    for name, value in expected.items():
        assert scores[f"eval_{name}"] == pytest.approx(value, abs=1e-6)
        assert output.metrics[f"test_{name}"] == pytest.approx(value, abs=1e-6)
    assert scores["eval_loss"] > 0


@pytest.mark.parametrize("key", ["accuracy", "eval_accuracy"])
def test_metrics_of_the_user_are_merged_and_win(tmp_path: Path, key: str) -> None:
    trainer = calibrated(
        tmp_path, eval_dataset=Sentences(20, seed=3), compute_metrics=lambda _: {key: 7.0, "mine": 8.0}
    )
    scores = trainer.evaluate()
    assert (scores["eval_accuracy"], scores["eval_mine"]) == (7.0, 8.0)
    assert 0 < scores["eval_ece"] < 1


class Headless(nn.Module):
    def __init__(self, key: str, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.key, self.shape = key, shape

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        return {"loss": self.weight, self.key: self.weight.expand(len(input_ids), *self.shape)}


class Unlabelled(Sentences):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[index]}


def pad_what_there_is(samples: list[dict[str, Any]]) -> Batch:
    batch = pad([{"labels": torch.tensor(0)} | sample for sample in samples])
    return batch if "labels" in samples[0] else {"input_ids": batch["input_ids"]}


REFUSED_AT_ONCE: list[tuple[dict[str, Any], str]] = [
    ({"calibration_dataset": None}, "calibration_dataset"),
    ({"objective": "esd"}, "objective"),
    ({"weight": -1.0}, "weight"),
    ({"calibration_every": 0}, "every"),
    ({"metric_for_best_model": "ece", "greater_is_better": True}, "greater_is_better=False"),
    ({"batchnorm": "off"}, "batchnorm"),
    ({"model": bert(num_labels=1)}, "num_labels=1"),
    ({"model": bert(problem_type="multi_label_classification")}, "multi_label"),
    ({"label_names": ["start", "end"]}, "label_names"),
    ({"batch_eval_metrics": True}, "batch_eval_metrics"),
]
REFUSED_IN_TRAINING: list[tuple[dict[str, Any], str]] = [
    ({"calibration_dataset": Unlabelled(8, seed=0)}, "labels"),
    ({"model": Headless("logits", (5, 3))}, "shape"),
    ({"model": Headless("hidden", (3,))}, "hidden"),
    ({"calibration_batch_size": 2}, "at least 3 samples"),
]


@pytest.mark.parametrize(("options", "key"), REFUSED_AT_ONCE)
def test_what_cannot_work_is_refused_at_once(tmp_path: Path, options: dict[str, Any], key: str) -> None:
    with pytest.raises((TypeError, ValueError), match=key):
        calibrated(tmp_path, **options)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("options", "key"), REFUSED_IN_TRAINING)
def test_what_cannot_be_calibrated_is_refused(tmp_path: Path, options: dict[str, Any], key: str) -> None:
    trainer = calibrated(tmp_path, **options)
    trainer.data_collator = pad_what_there_is
    with pytest.raises((TypeError, ValueError), match=key):
        trainer.train()


def test_early_stopping_of_transformers_watches_the_loss_after_temperature_scaling(tmp_path: Path) -> None:
    trainer = calibrated(
        tmp_path, eval_dataset=Sentences(60, seed=3), max_steps=12, learning_rate=0.5, eval_strategy="steps",
        eval_steps=1, save_strategy="steps", save_steps=1, metric_for_best_model="refined_nll",
        greater_is_better=False, load_best_model_at_end=True,
    )  # fmt: skip
    trainer.add_callback(EarlyStoppingCallback(2))
    trainer.train()
    found = [entry["eval_refined_nll"] for entry in trainer.state.log_history if "eval_refined_nll" in entry]
    best = min(range(len(found)), key=found.__getitem__)
    assert len(found) == best + 3 < 12
    output: Any = trainer.predict(Sentences(60, seed=3))
    logits, labels = torch.as_tensor(output.predictions), torch.as_tensor(output.label_ids)
    scaled = TemperatureScaling(strict=True).fit(logits, labels)(logits)
    assert F.cross_entropy(scaled, labels).item() == pytest.approx(found[best], rel=1e-4)


def test_predictions_that_are_no_logits_are_refused(tmp_path: Path) -> None:
    trainer = calibrated(
        tmp_path, eval_dataset=Sentences(9, seed=3), preprocess_logits_for_metrics=lambda logits, _: logits.argmax(-1)
    )
    with pytest.raises(ValueError, match="preprocess_logits_for_metrics"):
        trainer.evaluate()
