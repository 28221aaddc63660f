"""The guard: every warning, none in sound training, and four known failures."""

import io
import math
import warnings
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.guard import digits, network
from torch import nn

import calibrant as cal
from calibrant.losses.checks import Classification
from calibrant.posthoc import TemperatureScaling
from calibrant.training import CalibratedLoss, CalibrationWarning, interleave
from calibrant.training.guard import FEWEST_SEEN, WINDOW, Guard, Scores
from calibrant.training.temperature_loop import looks_trained_on
from tests.training.batches import Batch, Batches

WARN_OF_SAME = CalibratedLoss._warn_of_same


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


@cache
def baseline(seed: int) -> float:
    found, _ = published(seed, 0.0)
    return found


# The four failures


def test_failure_1_published_esd_with_weight_10_costs_accuracy() -> None:
    found, warnings_ = published(0, 10.0)
    assert found < baseline(0) - 0.03
    assert "outweighs" in warnings_


@pytest.mark.slow
@pytest.mark.parametrize("method", ["published", "temperature"])
def test_failure_3_fine_tuning_on_samples_the_network_has_seen(method: Any) -> None:
    data, held_out, test = digits(1)
    model = network(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(25):
        for x, y in Batches((torch.cat((data[0], held_out[0])), torch.cat((data[1], held_out[1]))), 64):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert accuracy(model, held_out) > 0.99
    before = _temperature(model, test)
    assert "seen" in warned(CalibratedLoss(model, method), model, 1, epochs=25, size=64)
    assert _temperature(model, test) > before + 0.1 > 1.1


def _temperature(model: nn.Module, data: Batch) -> float:
    with torch.no_grad():
        return TemperatureScaling(strict=True).fit(model(data[0]), data[1]).temperature_


@pytest.mark.slow
def test_failure_4_weight_1000_collapses_accuracy() -> None:
    found, warnings_ = published(0, 1000.0)
    assert found < 0.5
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


def test_fine_tuning_on_samples_that_are_new_gives_no_warning() -> None:
    data, *_ = digits(2)
    model = network(2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(25):
        for x, y in Batches(data, 64):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert warned(CalibratedLoss(model, "published"), model, 2, epochs=10, size=64) == set()


# Held-out data = training data


def noisy(seed: int) -> tuple[Batch, Batch, Batch]:
    """600 training, 200 held-out and 2,000 test samples; the best accuracy is about 70 %."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2800, 20, generator=generator)
    y = (x[:, :3] + 0.7 * torch.randn(2800, 3, generator=generator)).argmax(1)
    train, held_out, test = zip(x.split([600, 200, 2000]), y.split([600, 200, 2000]), strict=True)
    return train, held_out, test


def memorizing(seed: int, *, leaks: bool) -> tuple[nn.Module, CalibratedLoss, Batch]:
    """A network that memorizes its training data, with these or with other data held out."""
    data, held_out, _ = noisy(seed)
    torch.manual_seed(seed)
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


@pytest.mark.parametrize("seed", range(2))
def test_held_out_data_that_are_the_training_data_are_reported(seed: int) -> None:
    model, calibrated, data = memorizing(seed, leaks=True)
    before = ece(model, noisy(seed)[2])
    with pytest.warns(CalibrationWarning, match=r"log loss like that of training batches.*more confidence.* finish\("):
        calibrated.finish([data])
    assert ece(model, noisy(seed)[2]) > before + 0.02


@pytest.mark.parametrize("seed", range(2))
def test_other_data_for_the_same_network_give_no_warning(seed: int) -> None:
    _, calibrated, data = memorizing(seed, leaks=False)
    calibrated.finish([data])
    assert not calibrated.guard.warnings_


def test_calibrating_on_training_data_is_reported() -> None:
    model, _, data = memorizing(0, leaks=True)
    before = ece(model, noisy(0)[2])
    with pytest.warns(CalibrationWarning, match=r"more confidence: samples it was trained on do.*Pass data"):
        cal.training.finetune(model, [data], method="temperature")
    assert ece(model, noisy(0)[2]) > before + 0.02


def test_a_held_out_batch_that_is_the_training_batch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CalibratedLoss, "_warn_of_same", WARN_OF_SAME)
    (x, y), other, _ = noisy(0)
    model = nn.Linear(20, 3)
    sound = CalibratedLoss(model)
    sound(x, y, *other)
    assert not sound.guard.warnings_
    for held_out in ((x, y), (x.clone(), y.clone())):
        with pytest.warns(CalibrationWarning, match=r"batch is the training batch.* interleaved_split\(\)"):
            CalibratedLoss(model)(x, y, *held_out)


def test_few_right_or_little_confidence_is_not_that_of_training_samples() -> None:
    assert looks_trained_on(math.log(0.4), 0.1, 0.97)
    assert not looks_trained_on(math.log(0.4), 0.1, 0.9)
    assert not looks_trained_on(math.log(0.4), 0.3, 0.97)  # within chance
    assert not looks_trained_on(math.log(0.8), 0.01, 0.97)


# Each warning by itself


def batch(right: int, wrong: int, logit: float = 5.0) -> Classification:
    """A batch with so many right and wrong predictions of two classes."""
    target = torch.zeros(right + wrong, dtype=torch.long)
    logits = torch.zeros(right + wrong, 2)
    logits[:right, 0] = logits[right:, 1] = logit
    return Classification(logits, target)


def window(guard: Guard, training: Classification, *, steps: int = WINDOW) -> None:
    for _ in range(steps):
        guard.add_training(training)
    guard.close_window()


def test_a_fall_of_training_accuracy_is_a_collapse() -> None:
    guard = Guard()
    window(guard, batch(95, 5))
    window(guard, batch(91, 9))
    with pytest.warns(CalibrationWarning, match=r"training accuracy fell from 95.0% to 80.0%.*lower .* the weight"):
        window(guard, batch(80, 20))


def test_a_temperature_may_undo_over_fitting() -> None:
    guard = Guard(has_objective=False)
    for right in (95, 80):
        for _ in range(5):
            guard.add_held_out(batch(60, 40))
        window(guard, batch(right, 100 - right))
    for _ in range(5):
        guard.add_held_out(batch(30, 70))
    with pytest.warns(
        CalibrationWarning, match=r"training accuracy fell from 95.0% to 50.0%: lower the learning rate$"
    ):
        window(guard, batch(50, 50))


def test_other_data_than_the_held_out_at_the_end_are_reported() -> None:
    guard = Guard()
    for right in (600, 650, 640):
        guard.add_training(batch(right, 1000 - right))
        guard.add_held_out(batch(right, 1000 - right))
        guard.close_window()
    guard.judge_final(Scores(1000, 0.66, 0.9, 0.0))
    assert not guard.warnings_
    with pytest.warns(CalibrationWarning, match=r"80.0% on the data of finish\(\), and was at most 66.0% on held-out"):
        guard.judge_final(Scores(1000, 0.8, 0.9, 0.0))


@pytest.mark.parametrize("has_objective", [False, True])
def test_a_final_network_that_is_worse_than_its_training_is_reported(has_objective: bool) -> None:
    guard = Guard(has_objective=has_objective)
    for right in (800, 950, 940):
        guard.add_training(batch(right, 1000 - right))
        guard.add_held_out(batch(right, 1000 - right))
        guard.close_window()
    guard.judge_final(Scores(1000, 0.93, 0.2, 0.0))
    assert not guard.warnings_
    with pytest.warns(CalibrationWarning, match=r"was 95.0% at its best and is 74.0% with the final network") as caught:
        guard.judge_final(Scores(1000, 0.74, 0.9, 0.0))
    assert ("weight of the objective" in str(caught[0].message)) == has_objective


def test_a_fall_within_chance_is_none() -> None:
    guard = Guard()
    window(guard, batch(10, 0), steps=2)
    window(guard, batch(9, 1), steps=2)  # 2 of 20 is 1.5 standard errors
    lucky = Guard()
    window(lucky, batch(38, 2), steps=1)  # 95 % and 67.5 %, each with a standard error
    window(lucky, batch(27, 13), steps=1)
    with pytest.warns(CalibrationWarning, match="fell"):
        window(lucky, batch(270, 130), steps=1)


@pytest.mark.filterwarnings("ignore::calibrant.training.CalibrationWarning")
def test_the_window_closes_by_itself_unless_epochs_are_reported() -> None:
    guard = Guard()
    for correct in (95, 50):
        for _ in range(WINDOW):
            guard.add_training(batch(correct, 100 - correct))
    assert not guard.warnings_
    guard.add_training(batch(50, 50))
    assert set(guard.warnings_) == {"collapse"}
    told = Guard()
    told.told_of_epochs = True
    for correct in (95, 50, 50):
        for _ in range(WINDOW):
            told.add_training(batch(correct, 100 - correct))
    assert not told.warnings_


def test_held_out_samples_that_are_right_from_the_start_have_been_seen() -> None:
    guard = Guard()
    guard.add_training(batch(100, 0))
    with pytest.warns(CalibrationWarning, match=r"right on 100.0% of the first 300 held-out samples.*no training has"):
        guard.add_held_out(batch(300, 0))


@pytest.mark.parametrize(
    ("training", "held_out"),
    [
        (batch(100, 0), batch(FEWEST_SEEN - 1, 0)),  # too few to judge
        (batch(100, 0), batch(290, 10)),
        (batch(100, 0, logit=12.0), batch(300, 0)),  # right, but doubted a thousand times more than training samples
    ],
)
def test_held_out_samples_that_may_be_new_are_not_called_seen(training: Classification, held_out: Any) -> None:
    guard = Guard()
    guard.add_training(training)
    guard.add_held_out(held_out)


def test_samples_that_become_right_later_are_not_called_seen() -> None:
    guard = Guard()
    guard.add_training(batch(20, 80))
    guard.add_held_out(batch(60, 240))
    for _ in range(3):
        guard.add_held_out(batch(300, 0))


def test_an_objective_that_is_always_zero_is_silent() -> None:
    guard = Guard()
    for _ in range(WINDOW):
        guard.add_objective(torch.tensor(0.0))
    with pytest.warns(CalibrationWarning, match="0 on all of the last 50 held-out batches"):
        assert guard.close_window()["silent"] == 1


@pytest.mark.filterwarnings("ignore::calibrant.training.CalibrationWarning")
def test_a_negative_objective_is_not_silent() -> None:
    guard = Guard()
    for _ in range(30):
        guard.add_objective(torch.tensor(-0.001))
    assert guard.close_window()["silent"] == 0


def test_a_pull_that_cannot_be_measured_is_reported() -> None:
    guard = Guard()
    for _ in range(30):
        guard.add_objective(torch.tensor(0.1))
    with pytest.warns(CalibrationWarning, match="cannot be measured, as in compiled code"):
        guard.close_window()
    guard.close_window()  # as finish() does at the end of a window


@pytest.mark.filterwarnings("ignore::calibrant.training.CalibrationWarning")
def test_an_objective_that_speaks_now_and_then_is_not_silent() -> None:
    guard = Guard()
    for step in range(WINDOW):
        guard.add_objective(torch.tensor(float(step == 7)))
    assert guard.close_window()["silent"] == pytest.approx(1 - 1 / WINDOW)
    for _ in range(10):  # too few to judge
        guard.add_objective(torch.tensor(0.0))
    guard.close_window()
    assert "silent" not in guard.warnings_


def pulled(guard: Guard, weight: float, *, steps: int = WINDOW, scale: float = 1.0, logit: float = 1.0) -> float:
    """A window in which the objective pulls ``weight`` times as hard as the NLL of the same logits."""
    data = batch(60, 40, logit)
    for _ in range(steps):
        guard.add_training(data)
        guard.add_held_out(data)
        first, second = data.logits.clone().requires_grad_(), data.logits.clone().requires_grad_()
        guard.watch(first, "loss")
        guard.watch(second, "objective")
        loss = F.cross_entropy(first, data.target) + weight * F.cross_entropy(second, data.target)
        (scale * loss).backward()
    return guard.close_window()["pull"]


def test_an_objective_that_pulls_harder_than_the_loss_outweighs_it() -> None:
    guard = Guard()
    assert pulled(guard, 0.9) == pytest.approx(0.9)
    with pytest.warns(CalibrationWarning, match=r"pulled 1\.3 times as hard.*over 50 held-out batches"):
        assert pulled(guard, 1.3) == pytest.approx(1.3, rel=1e-4)


def test_a_few_batches_do_not_outweigh() -> None:
    assert pulled(Guard(), 50.0, steps=5) == pytest.approx(50)


def test_the_scale_of_mixed_precision_does_not_count() -> None:
    guard = Guard()
    assert pulled(guard, 0.5, scale=2.0**8) == pytest.approx(0.5, rel=1e-4)
    assert pulled(guard, 0.5, scale=2.0**16) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("held_out", "learns", "cause"),
    [
        (0.99, True, "lets the network learn these samples"),
        (0.80, True, "makes the network un-learn these samples"),
        (0.99, False, "easier than new data, or some of them are trained on too"),
        (0.80, False, "harder than new data"),
    ],
)
def test_held_out_and_new_data_that_part_are_reported_in_both_directions(
    held_out: float, learns: bool, cause: str
) -> None:
    guard = Guard(has_objective=learns)
    with pytest.warns(CalibrationWarning, match=cause):
        guard.compare(Scores(1000, 0.9, 0.3, 0.0), Scores(1000, held_out, 0.3, 0.0))
    assert set(guard.warnings_) == {"parted"}


def test_a_plain_loop_can_compare_after_an_epoch_and_is_reminded_of_it() -> None:
    model = network(0)
    _, held_out, test = digits(0)
    calibrated = CalibratedLoss(model, "published")
    with pytest.warns(CalibrationWarning, match=r"not compared with new data: .* finish\(held_out, new=validation\)"):
        calibrated.finish([held_out])
    for _ in range(30):  # held-out samples are learned
        step = torch.optim.AdamW(model.parameters(), 1e-2)
        for x, y in Batches(held_out, 64):
            step.zero_grad()
            F.cross_entropy(model(x), y).backward()
            step.step()
    calibrated = CalibratedLoss(model, "published")
    with pytest.warns(CalibrationWarning, match="lets the network learn these samples"):
        on_held_out, on_test = calibrated.compare([held_out], [test])
    assert on_held_out.accuracy == accuracy(model, held_out) > on_test.accuracy == accuracy(model, test)
    resumed = CalibratedLoss(model, "published")
    resumed.load_state_dict(calibrated.state_dict())
    resumed.finish([held_out])  # was compared before


def test_held_out_data_that_alone_are_calibrated_are_reported() -> None:
    guard = Guard()
    with pytest.warns(CalibrationWarning, match=r"by 0.2 points on held-out and by 15.0 on new data.*'temperature'"):
        guard.compare(Scores(2000, 0.8, 0.9, 0.15), Scores(1000, 0.81, 0.5, 0.002))
    Guard().compare(Scores(2000, 0.8, 0.9, 0.02), Scores(1000, 0.81, 0.5, 0.002))
    Guard().compare(Scores(2000, 0.8, 0.9, math.nan), Scores(1000, 0.81, 0.5, 0.002))


@pytest.mark.filterwarnings("ignore::calibrant.training.CalibrationWarning")
def test_short_epochs_are_judged_together() -> None:
    silent = Guard()
    for _ in range(5):
        assert not silent.warnings_
        for _ in range(6):
            silent.add_objective(torch.tensor(0.0))
        silent.close_window()
    assert "on all of the last 30 held-out batches" in silent.warnings_["silent"]
    leads = Guard()
    leads.told_of_epochs = True
    assert pulled(leads, 3.0, steps=6) == pytest.approx(3)
    with pytest.warns(CalibrationWarning, match="over 12 held-out batches"):
        pulled(leads, 3.0, steps=6)


def test_a_difference_within_chance_is_not_reported() -> None:
    Guard().compare(Scores(100, 0.9, 0.3, 0.0), Scores(100, 0.97, 0.3, 0.0))


def test_a_run_without_held_out_batches_is_reported() -> None:
    model = network(0)
    data, *_ = digits(0)
    calibrated = CalibratedLoss(model)
    for _ in range(199):
        calibrated(data[0][:4], data[1][:4])
    with pytest.warns(CalibrationWarning, match="no held-out batch in 200 steps"):
        calibrated(data[0][:4], data[1][:4])
    for _ in range(300):
        calibrated(data[0][:4], data[1][:4])


def test_every_warning_comes_once() -> None:
    guard = Guard()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            guard.warn("collapse", "fell")
            guard.warn("silent", "quiet")
    assert [str(one.message) for one in caught] == ["fell", "quiet"]
    assert guard.warnings_ == {"collapse": "fell", "silent": "quiet"}


def test_a_guard_goes_on_from_its_state() -> None:
    def run(guard: Guard, first: int, last: int) -> None:
        for step in range(first, last):
            data = batch(60 + step % 7, 40)
            guard.add_training(data)
            guard.add_held_out(data)
            guard.add_objective(torch.tensor(float(step % 3)))
            logits = data.logits.clone().requires_grad_()
            guard.watch(logits, "loss")
            guard.watch(logits, "objective")
            (step * logits.square().sum()).backward()
            if step == 20:
                guard.warn("silent", "quiet")

    whole = Guard()
    with pytest.warns(CalibrationWarning, match="quiet"):
        run(whole, 0, 130)
    first = Guard()
    with pytest.warns(CalibrationWarning, match="quiet"):
        run(first, 0, 77)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = Guard()
    second.load_state_dict(torch.load(file, weights_only=True))
    second.warn("silent", "quiet")  # was given before the interruption
    run(second, 77, 130)
    assert second.close_window() == whole.close_window()
    assert second.warnings_ == whole.warnings_
    assert second.state_dict()["_strongest"] == whole.state_dict()["_strongest"] > 0
