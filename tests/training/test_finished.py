"""After ``finish()``: again, training that goes on, and states from before it."""

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant.training import CalibratedLoss, CalibrationWarning
from calibrant.training.forward import evaluating
from calibrant.training.guard import Reminder
from tests.training.batches import Batch, knowing, samples, train, with_settings

TELL = Reminder.tell
HELD_OUT = samples(300, 1)


class Within(nn.Module):
    """Runs its layers by itself: torch compiles them without a look at their hooks, unlike nn.Sequential's."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


def trained(model: Any = None, **options: Any) -> tuple[nn.Module, CalibratedLoss]:
    model = knowing(nn.Linear(10, 4)) if model is None else model
    with torch.no_grad():
        next(model.parameters()).mul_(3)
    calibrated = with_settings(CalibratedLoss(model, **options), patience=0, damping=1.0)
    train(calibrated, model, 3, samples(300, 0), HELD_OUT)
    assert calibrated.temperature > 1.5
    return model, calibrated


def batches_of(data: Batch, *sizes: int) -> list[Batch]:
    return list(zip(*(column.split(list(sizes)) for column in data), strict=True))


@pytest.mark.filterwarnings("ignore::calibrant.training.CalibrationWarning")
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("how", ["model.compile()", "torch.compile", "a compiled part"])
def test_the_layer_of_a_compiled_model_is_divided(how: str) -> None:
    def network() -> Within:
        torch.manual_seed(0)
        return Within(nn.Linear(10, 32), nn.ReLU(), Within(nn.Dropout(0.1), nn.Linear(32, 4)))

    model: Any = network()
    given: Any = torch.compile(model, backend="aot_eager") if how == "torch.compile" else model
    if how != "torch.compile":
        (model if how == "model.compile()" else model.layers[2]).compile(backend="aot_eager")
    with torch.no_grad(), evaluating(model):
        for size in (128, 100, 128):  # code for any size is made at the second
            given(HELD_OUT[0][:size])
        raw = network().eval()(HELD_OUT[0])
    finished = with_settings(CalibratedLoss(given), patience=0).finish(batches_of(HELD_OUT, 200, 100))
    fresh = network()
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh.eval()(HELD_OUT[0]), raw / finished.temperature)
    with torch.no_grad():
        torch.testing.assert_close(given.eval()(HELD_OUT[0]), raw / finished.temperature, rtol=1e-4, atol=1e-5)


@pytest.mark.slow_after(1)
def test_a_compiled_model_without_such_a_layer_is_scaled_at_once() -> None:
    model = knowing(Within(nn.Linear(10, 4), nn.Hardtanh(-50, 50)))
    model.compile(backend="aot_eager")
    with torch.no_grad():
        for size in (300, 200, 100):
            raw = model(HELD_OUT[0][:size])
        finished = with_settings(CalibratedLoss(model), patience=0).finish([HELD_OUT])
        assert finished.temperature != 1
        torch.testing.assert_close(model(HELD_OUT[0][:100]), raw / finished.temperature)


@pytest.mark.parametrize("last", [(), (nn.Hardtanh(-50, 50),)])
def test_a_second_finish_on_the_same_data_changes_nothing(last: tuple[nn.Module, ...]) -> None:
    model, calibrated = trained(knowing(nn.Sequential(nn.Linear(10, 4), *last)))
    few = samples(40, 2)  # a temperature that is shrunk, which a second solution would undo in part
    first = calibrated.finish([few])
    assert first.temperature > 1.5
    assert first.error > 0.1
    state = copy.deepcopy(calibrated.state_dict())
    before = copy.deepcopy(model.state_dict())
    assert calibrated.finish([few]).temperature == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(model.state_dict(), before, rtol=1e-5, atol=0)
    other = with_settings(CalibratedLoss(model), patience=0)
    other.load_state_dict(state)
    assert other.finish([few]).temperature == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_of_other_precisions_are_finished(dtype: torch.dtype) -> None:
    model, x = knowing(nn.Linear(10, 4)).to(dtype), HELD_OUT[0].to(dtype)
    assert CalibratedLoss(model).finish([(x, HELD_OUT[1])]).temperature != 1


def test_training_may_go_on_after_finish_and_is_told_once() -> None:
    model, calibrated = trained()
    calibrated.finish([HELD_OUT])
    with pytest.warns(CalibrationWarning, match="goes on after finish") as told:
        train(calibrated, model, 3, samples(300, 0), HELD_OUT)
    assert len(told) == 1
    assert calibrated.guard.warnings_.keys() == {"finished"}
    assert calibrated.finish([HELD_OUT]).temperature != pytest.approx(1, abs=1e-5)


def test_a_state_from_before_finish_needs_the_weights_from_before_it() -> None:
    model, calibrated = trained()
    state, weights = copy.deepcopy((calibrated.state_dict(), model.state_dict()))
    calibrated.finish([HELD_OUT])
    calibrated.load_state_dict(state)
    uses: list[Any] = [
        lambda: calibrated(*HELD_OUT), lambda: calibrated.finish([HELD_OUT]),
        lambda: calibrated.compare([HELD_OUT], [HELD_OUT]),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(ValueError, match="saved before finish"):
            use()
    model.load_state_dict(weights)
    assert calibrated.temperature > 1.5
    calibrated(*HELD_OUT)
    assert calibrated.finish([HELD_OUT]).temperature > 1.5


@pytest.mark.parametrize("how", ["before", "after", "before, and finished again", "in half precision"])
def test_weights_from_before_finish_are_told(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reminder, "tell", TELL)
    told: list[str] = []
    monkeypatch.setattr("calibrant.training.guard.warn", lambda text, *_: told.append(text))
    model, calibrated = trained()
    weights = copy.deepcopy(model.state_dict())
    calibrated.finish([HELD_OUT])
    if how == "after":
        weights = copy.deepcopy(model.state_dict())
    if how == "in half precision":
        model.bfloat16()
    else:
        model.load_state_dict(weights)
    if how == "before, and finished again":
        calibrated.finish([HELD_OUT])
    del calibrated
    gc.collect()
    assert ["changed since finish()" in text for text in told] == ([True] if how == "before" else [])
