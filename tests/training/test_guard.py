"""The guard: every warning, none in sound training, and known failures."""

import io
import math
import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.guard import digits, network
from torch import nn

import calibrant as cal
from calibrant.losses.checks import Classification
from calibrant.training import CalibratedLoss, CalibrationWarning, finetune, interleave
from calibrant.training.forward import BatchScores
from calibrant.training.guard import FEWEST_SEEN, WINDOW, Guard
from calibrant.training.temperature_loop import looks_trained_on
from tests.training.batches import Batch, Batches

QUIET = pytest.mark.filterwarnings("ignore::calibrant.training.CalibrationWarning")
WARN_OF_SAME = CalibratedLoss._warn_of_same


def fit(model: nn.Module, data: Batch, epochs: int) -> None:
    """Train with the cross entropy alone."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(epochs):
        for x, y in Batches(data, 64):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def train(
    calibrated: CalibratedLoss, model: nn.Module, seed: int, *, epochs: int, size: int, rate: float = 1e-3
) -> None:
    data, held_out, test = digits(seed)
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    batches = interleave(Batches(data, size), Batches(held_out, size))
    for _ in range(epochs):
        for (x, y), other in batches:
            loss = calibrated(x, y, *other)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    calibrated.finish([held_out], [test])


def warned(calibrated: CalibratedLoss, model: nn.Module, seed: int, **options: Any) -> set[str]:
    """Train, and return which warnings came; each must come once, as a Python warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(calibrated, model, seed, **options)
    given = [str(one.message) for one in caught if issubclass(one.category, CalibrationWarning)]
    assert sorted(given) == sorted(calibrated.guard.warnings_.values())
    return set(calibrated.guard.warnings_)


def accuracy(model: nn.Module, data: Batch) -> float:
    with torch.no_grad():
        return float((model(data[0]).argmax(1) == data[1]).double().mean())


def published(seed: int, weight: float, *, root: bool = True) -> tuple[float, set[str]]:
    """Test accuracy after published training, and the warnings given."""
    model = network(seed)
    calibrated = CalibratedLoss(model, "published", objective=cal.ESDLoss(root=root), weight=weight)
    found = warned(calibrated, model, seed, epochs=12, size=16)
    return accuracy(model, digits(seed)[2]), found


# Known failures


@pytest.mark.parametrize(("weight", "loses"), [(10.0, 0.03), pytest.param(1000.0, 0.4, marks=pytest.mark.slow)])
def test_a_large_weight_of_published_esd_costs_accuracy(weight: float, loses: float) -> None:
    found, warnings_ = published(0, weight)
    assert found < published(0, 0.0)[0] - loses
    assert "outweighs" in warnings_


# Sound training


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("temperature", {}),
        ("published", {}),
        ("published", {"weight": 2.0}),
        ("published", {"objective": cal.MMCELoss()}),
        ("head", {}),
    ],
    ids=["temperature", "published", "published-2", "mmce", "head"],
)
@pytest.mark.parametrize("seed", range(3))
def test_sound_training_gives_no_warning(method: Any, options: dict[str, Any], seed: int) -> None:
    model = network(seed)
    calibrated = CalibratedLoss(model, method, **options)
    assert warned(calibrated, model, seed, epochs=20, size=64, rate=1e-2) == set()
    assert accuracy(model, digits(seed)[2]) > 0.9


# Held-out data = training data


def noisy(seed: int) -> tuple[Batch, Batch, Batch]:
    """600 training, 200 held-out and 2,000 test samples; the best accuracy is about 70 %."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2800, 20, generator=generator)
    y = (x[:, :3] + 0.7 * torch.randn(2800, 3, generator=generator)).argmax(1)
    train, held_out, test = zip(x.split([600, 200, 2000]), y.split([600, 200, 2000]), strict=True)
    return train, held_out, test


def memorizing(*, leaks: bool) -> tuple[nn.Module, CalibratedLoss, Batch]:
    """A network that memorizes its training data, with these or with other data held out."""
    data, held_out, _ = noisy(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 3))
    calibrated, optimizer = CalibratedLoss(model), torch.optim.AdamW(model.parameters(), 5e-3)
    for _ in range(20):
        for (x, y), other in interleave(Batches(data, 50), Batches(data if leaks else held_out, 50)):
            optimizer.zero_grad()
            calibrated(x, y, *other).backward()
            optimizer.step()
    return model, calibrated, data if leaks else held_out


def ece(model: nn.Module, data: Batch) -> float:
    with torch.no_grad():
        return cal.metrics.evaluate(logits=model(data[0]), target=data[1]).ece


@pytest.mark.parametrize("how", ["finish", "finetune"])
def test_held_out_data_that_are_the_training_data_are_reported(how: str) -> None:
    model, calibrated, data = memorizing(leaks=True)
    before = ece(model, noisy(0)[2])
    scales = calibrated.finish if how == "finish" else partial(finetune, model, method="temperature")
    with pytest.warns(CalibrationWarning, match="more confidence"):
        scales([data])
    assert ece(model, noisy(0)[2]) > before + 0.02


def test_other_data_for_the_same_network_give_no_warning() -> None:
    _, calibrated, data = memorizing(leaks=False)
    calibrated.finish([data])
    assert not calibrated.guard.warnings_


def test_a_held_out_batch_that_is_the_training_batch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CalibratedLoss, "_warn_of_same", WARN_OF_SAME)
    (x, y), other, _ = noisy(0)
    model = nn.Linear(20, 3)
    sound = CalibratedLoss(model)
    sound(x, y, *other)
    assert not sound.guard.warnings_
    for held_out in ((x, y), (x.clone(), y.clone())):
        with pytest.warns(CalibrationWarning, match="is the training batch"):
            CalibratedLoss(model)(x, y, *held_out)


def test_few_right_or_little_confidence_is_not_that_of_training_samples() -> None:
    assert looks_trained_on(math.log(0.4), 0.1, 0.97)
    assert not looks_trained_on(math.log(0.4), 0.1, 0.9)
    assert not looks_trained_on(math.log(0.4), 0.3, 0.97)  # within chance
    assert not looks_trained_on(math.log(0.8), 0.01, 0.97)


# Each warning by itself: its kind in `warnings_`


def batch(right: int, wrong: int, logit: float = 5.0) -> Classification:
    """A batch with so many right and wrong predictions of two classes."""
    target = torch.zeros(right + wrong, dtype=torch.long)
    logits = torch.zeros(right + wrong, 2)
    logits[:right, 0] = logits[right:, 1] = logit
    return Classification(logits, target)


def window(guard: Guard, training: Classification, held_out: Classification | None = None, *, steps: int = 5) -> None:
    for _ in range(steps):
        guard.add_training(training)
        if held_out is not None:
            guard.add_held_out(held_out)
    guard.close_window()


@QUIET
def test_a_fall_of_training_accuracy_is_a_collapse() -> None:
    guard = Guard()
    window(guard, batch(95, 5), steps=WINDOW)
    window(guard, batch(91, 9), steps=WINDOW)
    assert not guard.warnings_
    window(guard, batch(80, 20), steps=WINDOW)
    assert "95.0% to 80.0%" in guard.warnings_["collapse"]
    assert "the weight" in guard.warnings_["collapse"]


@QUIET
def test_a_temperature_may_undo_over_fitting() -> None:
    guard = Guard(has_objective=False)
    for right in (95, 80):
        window(guard, batch(right, 100 - right), batch(60, 40))
    assert not guard.warnings_
    window(guard, batch(50, 50), batch(30, 70))
    assert "collapse" in guard.warnings_
    assert "weight" not in guard.warnings_["collapse"]


@QUIET
@pytest.mark.parametrize("has_objective", [False, True])
def test_a_final_network_is_compared_with_the_held_out_batches_of_training(has_objective: bool) -> None:
    guard = Guard(has_objective=has_objective)
    for right in (600, 650, 640):
        window(guard, batch(right, 1000 - right), batch(right, 1000 - right), steps=1)
    for accuracy in (0.63, 0.66):
        guard.judge_final(BatchScores(1000, accuracy, 0.9, 0.0))
    assert not guard.warnings_
    guard.judge_final(BatchScores(1000, 0.8, 0.9, 0.0))
    assert set(guard.warnings_) == {"other data"}
    guard.judge_final(BatchScores(1000, 0.44, 0.9, 0.0))
    assert ("weight of the objective" in guard.warnings_["fell"]) == has_objective


@QUIET
def test_a_fall_within_chance_is_none() -> None:
    guard, lucky = Guard(), Guard()
    window(guard, batch(10, 0), steps=2)
    window(guard, batch(9, 1), steps=2)  # 2 of 20 is 1.5 standard errors
    window(lucky, batch(38, 2), steps=1)  # 95 % and 67.5 %, each with a standard error
    window(lucky, batch(27, 13), steps=1)
    assert not guard.warnings_
    assert not lucky.warnings_
    window(lucky, batch(270, 130), steps=1)
    assert "collapse" in lucky.warnings_


@QUIET
def test_the_window_closes_by_itself() -> None:
    guard = Guard()
    for correct in (95, 50):
        for _ in range(WINDOW):
            guard.add_training(batch(correct, 100 - correct))
    assert not guard.warnings_
    guard.add_training(batch(50, 50))
    assert set(guard.warnings_) == {"collapse"}


@QUIET
@pytest.mark.parametrize(
    ("training", "held_out", "seen"),
    [
        (batch(100, 0), [batch(300, 0)], True),
        (batch(100, 0), [batch(FEWEST_SEEN - 1, 0)], False),  # too few to judge
        (batch(100, 0), [batch(290, 10)], False),
        (batch(100, 0, logit=12.0), [batch(300, 0)], False),  # doubted a thousand times more than training samples
        (batch(20, 80), [batch(60, 240), *[batch(300, 0)] * 3], False),  # right later
    ],
)
def test_held_out_samples_that_are_right_from_the_start_have_been_seen(
    training: Classification, held_out: list[Classification], seen: bool
) -> None:
    guard = Guard()
    guard.add_training(training)
    for each in held_out:
        guard.add_held_out(each)
    assert set(guard.warnings_) == ({"seen"} if seen else set())


@QUIET
@pytest.mark.parametrize(
    ("values", "share"), [([0.0] * WINDOW, 1.0), ([-0.001] * 30, 0.0), ([1.0, *[0.0] * 49], 0.98), ([0.0] * 10, 1.0)]
)
def test_an_objective_that_is_always_zero_is_silent(values: list[float], share: float) -> None:
    guard = Guard()
    for value in values:
        guard.held_out.add_value(torch.tensor(value))
    assert guard.close_window()["silent"] == pytest.approx(share)
    assert ("silent" in guard.warnings_) == (share == 1 and len(values) == WINDOW)


def pulled(guard: Guard, weight: float, *, steps: int = WINDOW, scale: float = 1.0) -> float:
    """A window in which the objective pulls ``weight`` times as hard as the NLL of the same logits."""
    data = batch(60, 40, 1.0)
    for _ in range(steps):
        guard.add_training(data)
        guard.add_held_out(data)
        first, second = data.logits.clone().requires_grad_(), data.logits.clone().requires_grad_()
        guard.watch(first, "loss")
        guard.watch(second, "objective")
        loss = F.cross_entropy(first, data.target) + weight * F.cross_entropy(second, data.target)
        (scale * loss).backward()
    return guard.close_window()["pull"]


@QUIET
def test_an_objective_that_pulls_harder_than_the_loss_outweighs_it() -> None:
    guard = Guard()
    assert pulled(guard, 0.9) == pytest.approx(0.9)
    assert not guard.warnings_
    assert pulled(guard, 1.3) == pytest.approx(1.3, rel=1e-4)
    assert "1.3 times" in guard.warnings_["outweighs"]
    few = Guard()
    assert pulled(few, 50.0, steps=5) == pytest.approx(50)
    assert not few.warnings_


@pytest.mark.parametrize("scale", [2.0**8, 2.0**16])
def test_the_scale_of_mixed_precision_does_not_count(scale: float) -> None:
    assert pulled(Guard(), 0.5, scale=scale) == pytest.approx(0.5, rel=1e-4)


@QUIET
@pytest.mark.parametrize(
    ("new", "held_out", "learns", "kind", "cause"),
    [
        (BatchScores(1000, 0.9, 0.3, 0.0), BatchScores(1000, 0.99, 0.3, 0.0), True, "parted", " learn these"),
        (BatchScores(1000, 0.9, 0.3, 0.0), BatchScores(1000, 0.80, 0.3, 0.0), True, "parted", "un-learn"),
        (BatchScores(1000, 0.9, 0.3, 0.0), BatchScores(1000, 0.99, 0.3, 0.0), False, "parted", "easier"),
        (BatchScores(1000, 0.9, 0.3, 0.0), BatchScores(1000, 0.80, 0.3, 0.0), False, "parted", "harder"),
        (BatchScores(100, 0.9, 0.3, 0.0), BatchScores(100, 0.97, 0.3, 0.0), True, None, ""),  # chance
        (BatchScores(2000, 0.8, 0.9, 0.15), BatchScores(1000, 0.81, 0.5, 0.002), True, "gap", "0.2 points"),
        (BatchScores(2000, 0.8, 0.9, 0.02), BatchScores(1000, 0.81, 0.5, 0.002), True, None, ""),
        (BatchScores(2000, 0.8, 0.9, math.nan), BatchScores(1000, 0.81, 0.5, 0.002), True, None, ""),
    ],
)
def test_held_out_and_new_data_that_differ_are_reported(
    new: BatchScores, held_out: BatchScores, learns: bool, kind: str | None, cause: str
) -> None:
    guard = Guard(has_objective=learns)
    guard.compare(new, held_out)
    assert list(guard.warnings_) == ([] if kind is None else [kind])
    assert kind is None or cause in guard.warnings_[kind]


@QUIET
@pytest.mark.parametrize(
    ("right", "options", "parted"),
    [
        (700, {}, False),  # between the two evaluations
        (500, {}, True),  # below both
        (990, {}, True),  # above both
        (500, {"dropout": True}, False),  # which dropout explains
        (990, {"dropout": True}, True),  # which it does not
        (500, {"distinct": 10}, False),  # ten samples, again and again
    ],
)
def test_held_out_accuracy_is_expected_between_two_evaluations(
    right: int, options: dict[str, Any], parted: bool
) -> None:
    guard, dropout = Guard(), bool(options.get("dropout"))
    loader = SimpleNamespace(dataset=range(options.get("distinct", 1000)))
    guard.compare_evaluation(BatchScores(1000, 0.6, math.nan, math.nan), loader, dropout=dropout)
    guard.add_held_out(batch(right, 1000 - right))
    guard.since_log()  # an entry of the log is no evaluation
    guard.compare_evaluation(BatchScores(1000, 0.8, math.nan, math.nan), loader, dropout=dropout)
    assert ("parted" in guard.warnings_) == parted


@QUIET
def test_a_plain_loop_can_compare_after_an_epoch() -> None:
    model = network(0)
    _, held_out, test = digits(0)
    fit(model, held_out, 30)  # held-out samples are learned
    calibrated = CalibratedLoss(model, "published")
    on_held_out, on_test = calibrated.compare([held_out], [test])
    assert set(calibrated.guard.warnings_) == {"parted"}
    assert on_held_out.accuracy == accuracy(model, held_out) > on_test.accuracy == accuracy(model, test)


@QUIET
def test_a_run_without_held_out_batches_is_reported() -> None:
    x, y = digits(0)[0]
    calibrated = CalibratedLoss(network(0))
    for _ in range(199):
        calibrated(x[:4], y[:4])
    assert not calibrated.guard.warnings_
    calibrated(x[:4], y[:4])
    assert set(calibrated.guard.warnings_) == {"none"}


def test_every_warning_comes_once() -> None:
    guard = Guard()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            guard.warn("collapse", "fell")
            guard.warn("silent", "quiet")
    assert [str(one.message) for one in caught] == ["fell", "quiet"]
    assert guard.warnings_ == {"collapse": "fell", "silent": "quiet"}


@QUIET
def test_a_guard_goes_on_from_its_state() -> None:
    def run(guard: Guard, first: int, last: int) -> None:
        for step in range(first, last):
            data = batch(60 + step % 7, 40)
            guard.add_training(data)
            guard.add_held_out(data)
            guard.held_out.add_value(torch.tensor(float(step % 3)))
            logits = data.logits.clone().requires_grad_()
            guard.watch(logits, "loss")
            guard.watch(logits, "objective")
            (step * logits.square().sum()).backward()
            if step == 20:
                guard.warn("silent", "quiet")

    whole, first, second = Guard(), Guard(), Guard()
    run(whole, 0, 130)
    run(first, 0, 77)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    run(second, 77, 130)
    assert second.close_window() == pytest.approx(whole.close_window(), rel=1e-12)
    assert second.warnings_ == whole.warnings_
    assert second._strongest == pytest.approx(whole._strongest)
