"""Training stops by the validation loss after temperature scaling, and ends with the weights that had the lowest."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader

from calibrant.posthoc import TemperatureScaling
from calibrant.training import StopAfterTemperature
from calibrant.training.temperature_loop import refined_nll
from tests.ranks import free_port, on_two_ranks
from tests.training.lightning_runs import (
    QUIET,
    STEPS,
    OwnModule,
    classifier,
    data,
    exact_classifier,
    exact_data,
    noisy,
    take_place,
    trainer,
)

pytestmark = QUIET


class Own(OwnModule):
    """Keeps the weights of every validation."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3)), 0.006)
        self.states: list[dict[str, Tensor]] = []

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.states.append({name: value.clone() for name, value in self.state_dict().items()})


def expected_score(module: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    with torch.no_grad():
        logits = module.eval()(x)
    scaling = TemperatureScaling(strict=True).fit(logits, y)
    return F.cross_entropy(scaling(logits).double(), y).item(), scaling.temperature_


@pytest.mark.parametrize("patience", [2, None])
def test_a_module_of_ones_own_ends_with_the_weights_of_its_best_validation(
    patience: int | None, tmp_path: Path
) -> None:
    module, stopping, validation = Own(), StopAfterTemperature(patience), noisy(200, seed=1)
    run = trainer(tmp_path, stopping, max_epochs=12)
    run.fit(module, DataLoader(noisy(200, seed=0), 20), DataLoader(validation, 64))
    final = {name: value.clone() for name, value in module.state_dict().items()}
    scores = []
    for state in module.states:
        module.load_state_dict(state)
        scores.append(expected_score(module, *validation.tensors))
    best = min(range(len(scores)), key=lambda epoch: scores[epoch])
    assert len(scores) == (12 if patience is None else best + 1 + patience) <= 12
    assert 0 < best < 11
    assert stopping.best_epoch_ == best
    assert (stopping.best_score_, stopping.temperature_) == pytest.approx(scores[best], rel=1e-5)
    assert run.callback_metrics["validation_refined_nll"].item() == pytest.approx(scores[-1][0], rel=1e-5)
    torch.testing.assert_close(final, module.states[best], rtol=0, atol=0)


def test_folded_the_model_is_calibrated_itself(tmp_path: Path) -> None:
    modules = []
    for folds in (False, True):
        module = classifier(learning_rate=0.01)
        stopping = StopAfterTemperature(fold=folds)
        trainer(tmp_path, stopping, max_epochs=8).fit(module, datamodule=data())
        modules.append(module.eval())
    x = torch.randn(50, 6)
    torch.testing.assert_close(modules[0](x) / stopping.temperature_, modules[1](x))
    assert abs(stopping.temperature_ - 1) > 0.01
    assert not list(modules[1].model.buffers())[3:]  # those of BatchNorm


def outcome(module: nn.Module, stopping: StopAfterTemperature) -> Any:
    return {**module.state_dict()}, stopping.best_score_, stopping.temperature_, stopping.best_epoch_


@pytest.mark.slow
def test_a_resumed_run_ends_the_same(tmp_path: Path) -> None:
    def run(callbacks: list[Any], path: Path | None = None) -> tuple[Any, int]:
        stopping = StopAfterTemperature(2, fold=True)
        run = trainer(tmp_path, stopping, *callbacks, max_epochs=24)
        module = classifier(learning_rate=0.2, scheduler=None)
        run.fit(module, datamodule=data(), ckpt_path=path, weights_only=True)
        return outcome(module, stopping), run.global_step

    (*expected,) = run([ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)])
    assert expected[1] < 24 * STEPS  # it stopped early, and the last checkpoints are from after the decision
    for path in sorted(tmp_path.glob("*.ckpt")):
        (*found,) = run([], path)
        torch.testing.assert_close(found[0][0], expected[0][0], rtol=0, atol=0)
        assert found[0][1:] == expected[0][1:], path.name
        assert found[1] == expected[1], path.name


def test_batches_of_a_loader_may_be_judged_by_instead(tmp_path: Path) -> None:
    module, held_out = Own(), noisy(60, seed=2)
    torch.manual_seed(1)
    stopping = StopAfterTemperature(1, loader=DataLoader(held_out, 25, shuffle=True))
    run = trainer(tmp_path, stopping, max_epochs=1)
    run.fit(module, DataLoader(noisy(100, seed=0), 20, shuffle=True), DataLoader(noisy(30, seed=1), 30))
    score, temperature = expected_score(module, *held_out.tensors)
    assert (stopping.best_score_, stopping.temperature_) == pytest.approx((score, temperature), rel=1e-5)


def judge_on_a_rank(rank: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    take_place(rank, port)
    module, stopping = exact_classifier("sgd"), StopAfterTemperature(2, fold=True)
    run = trainer(folder, stopping, strategy="ddp", devices=2, max_epochs=6)
    run.fit(module, datamodule=exact_data(batch_size=15, calibration_batch_size=3, calibration_fraction=0.12))
    torch.save((outcome(module, stopping), run.global_step), folder / f"{rank}.pt")


@pytest.mark.slow
def test_two_ranks_agree_with_one_process(tmp_path: Path) -> None:
    port = free_port()
    on_two_ranks(judge_on_a_rank, port, tmp_path)
    module, stopping = exact_classifier("sgd"), StopAfterTemperature(2, fold=True)
    run = trainer(tmp_path, stopping, max_epochs=6)
    run.fit(module, datamodule=exact_data(batch_size=30, calibration_batch_size=6, calibration_fraction=0.12))
    (weights, *numbers), steps = outcome(module, stopping), run.global_step
    for rank in range(2):
        (found, *others), stopped = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(found, weights, rtol=0, atol=1e-6)
        assert others == pytest.approx(numbers, rel=1e-5)
        assert stopped == steps


def test_without_a_best_temperature_the_loss_is_the_plain_one() -> None:
    logits, target = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 0])
    assert refined_nll(logits, target) == pytest.approx((F.cross_entropy(logits, target).item(), 1.0))
    broken = torch.tensor([[float("nan"), 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert refined_nll(broken, torch.tensor([0, 0, 1, 1]))[0] == float("inf")
    ignored = torch.tensor([-100, 0, 1, 1])
    assert refined_nll(broken, ignored) == pytest.approx(refined_nll(broken[1:], ignored[1:]))


def test_what_cannot_work_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="patience"):
        StopAfterTemperature(0)
    run = trainer(tmp_path, StopAfterTemperature(), max_epochs=1)
    with pytest.raises(ValueError, match="validation data"):
        run.fit(classifier(), datamodule=data(validation=None))

    class Strange(Own):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            pass

    run = trainer(tmp_path, StopAfterTemperature(), max_epochs=1)
    with pytest.raises(TypeError, match="validation_step"):
        run.fit(Strange(), DataLoader(noisy(20, seed=0), 20), DataLoader(noisy(20, seed=0).tensors[0], 5))  # type: ignore[arg-type]
