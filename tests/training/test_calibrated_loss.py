"""CalibratedLoss: what held-out data may touch, what comes out, and that an interrupted run goes on to the bit."""

import copy
import io
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import calibrant as cal
from calibrant.posthoc import TemperatureScaling
from calibrant.training import CalibratedLoss, CalibrationWarning, interleave
from tests.training.batches import Batches, knowing, samples, train, with_settings


def network(seed: int = 0, inputs: int = 10, classes: int = 4) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, classes))


def gradients(model: nn.Module) -> list[Tensor]:
    found = [weights.grad.clone() for weights in model.parameters() if weights.grad is not None]
    model.zero_grad()
    return found


def test_no_gradient_comes_from_held_out_data_by_default() -> None:
    model = network().eval()
    (x, y), (x_held_out, y_held_out) = samples(64, 0), samples(64, 1)
    calibrated = with_settings(CalibratedLoss(model), patience=0)
    x_held_out.requires_grad_()
    calibrated(x, y, x_held_out, y_held_out).backward()
    assert x_held_out.grad is None
    assert calibrated.temperature != 1
    found = gradients(model)
    F.cross_entropy(model(x) / calibrated.temperature, y).backward()
    assert all(torch.equal(a, b) for a, b in zip(found, gradients(model), strict=True))


@pytest.mark.parametrize("objective", [cal.ESDLoss(), cal.MMCELoss(), cal.SoftBinnedECELoss()])
def test_published_is_bit_for_bit_the_two_terms(objective: nn.Module) -> None:
    one, other = network(), network()
    (x, y), held_out = samples(64, 0), samples(64, 1)
    torch.manual_seed(7)
    loss = CalibratedLoss(one, "published", objective=objective, weight=2.5)(x, y, *held_out)
    torch.manual_seed(7)
    expected = F.cross_entropy(other(x), y) + 2.5 * objective(other(held_out[0]), held_out[1])
    assert torch.equal(loss, expected)
    loss.backward()
    expected.backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(one), gradients(other), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))


def test_head_lets_held_out_data_reach_the_last_layer_only() -> None:
    model = network()
    (x, y), held_out = samples(64, 0), samples(64, 1)
    torch.manual_seed(3)
    F.cross_entropy(model(x), y).backward()
    plain = gradients(model)
    torch.manual_seed(3)
    CalibratedLoss(model, "head", weight=4.0)(x, y, *held_out).backward()
    with_head = gradients(model)
    assert all(torch.equal(a, b) for a, b in zip(plain[:-2], with_head[:-2], strict=True))
    assert not any(torch.allclose(a, b) for a, b in zip(plain[-2:], with_head[-2:], strict=True))


@pytest.mark.parametrize("method", ["temperature", "head"])
def test_batchnorm_statistics_are_left_to_training_batches(method: Any) -> None:
    one, other = network(), network()
    (x, y), held_out = samples(64, 0), samples(64, 1)
    CalibratedLoss(one, method)(x, y, *held_out)
    other(x)
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))
    assert all(module.training for module in one.modules())


def test_dropout_is_off_for_held_out_batches() -> None:
    model = network()
    x, y = samples(500, 0)
    model(x)  # running statistics that are not those of the start
    calibrated = CalibratedLoss(model)
    calibrated(x, y, x, y)
    used = calibrated.loop.buffer()[0]
    assert used.shape == (500, 4)
    with torch.no_grad():
        assert not torch.equal(model.train()(x), used)


def test_modules_that_were_frozen_by_the_user_stay_so() -> None:
    model = network()
    model[1].eval()
    x, y = samples(64, 0)
    CalibratedLoss(model)(x, y, x, y)
    assert [module.training for module in model] == [True, False, True, True, True]


@pytest.mark.parametrize("batches", [1, 2, 3, 4, 5, 8, 12])
def test_every_batch_of_a_loader_that_does_not_shuffle_has_its_turn(batches: int) -> None:
    model = nn.Linear(2, 2)
    calibrated = CalibratedLoss(model, every=4)
    used = []
    for step in range(600):
        before = calibrated.next_due
        x, y = torch.randn(4, 2), torch.randint(2, (4,))
        calibrated(x, y, x, y)
        if calibrated.next_due != before:
            used.append(step)
    counts = torch.bincount(torch.tensor(used) % batches, minlength=batches)
    assert 600 / len(used) == pytest.approx(4, abs=0.5)
    assert counts.min() >= len(used) // batches // 2


def test_batches_that_come_every_fourth_step_are_all_used() -> None:
    calibrated = CalibratedLoss(nn.Linear(2, 2), every=4)
    for step in range(200):
        x, y = torch.randn(4, 2), torch.randint(2, (4,))
        before = calibrated.next_due
        calibrated(x, y, *((x, y) if step % 4 == 0 else (None, None)))
        assert (calibrated.next_due != before) == (step % 4 == 0)


def test_finish_makes_the_model_itself_calibrated() -> None:
    model = network()
    data, held_out, new = samples(300, 0), samples(600, 1), samples(5000, 2)
    calibrated = with_settings(CalibratedLoss(model), patience=0)
    train(calibrated, model, 60, data, held_out)
    model.eval()
    with torch.no_grad():
        raw = model(new[0])
    finished = calibrated.finish(Batches(held_out, 100), [new])
    with torch.no_grad():
        after = model(new[0])
    assert torch.allclose(after, raw / finished.temperature, rtol=1e-4, atol=1e-5)
    assert calibrated.temperature == 1
    assert finished.temperature > 1.2
    assert cal.metrics.ece(logits=raw.numpy(), target=new[1].numpy()) > 0.08
    assert cal.metrics.ece(logits=after.numpy(), target=new[1].numpy()) < 0.05
    assert finished.new is not None
    assert abs(finished.new.gap) < 0.05
    assert finished.held_out.samples == 600
    with torch.no_grad():
        best = TemperatureScaling(strict=True).fit(model(held_out[0]), held_out[1]).temperature_
    assert abs(math.log(best)) < finished.error  # no more than what was shrunk


@pytest.mark.filterwarnings("ignore::calibrant.training.CalibrationWarning")
def test_finish_of_the_published_recipe_changes_nothing_unless_asked_to() -> None:
    model = knowing(nn.Linear(10, 4))
    held_out = samples(400, 1)
    before = copy.deepcopy(model.state_dict())
    calibrated = CalibratedLoss(model, "published")
    assert calibrated.finish([held_out]).temperature == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert calibrated.finish([held_out], fold=True).temperature != 1


@pytest.mark.parametrize("shape", [(6,), (6, 5, 5)], ids=["samples", "places"])
def test_weights_of_dense_samples(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 1)
    x, y, weight = torch.randn(6, 2, 5, 5), torch.randint(3, (6, 5, 5)), torch.rand(shape)
    loss = CalibratedLoss(model)(x, y, sample_weight=weight)
    each = F.cross_entropy(model(x), y, reduction="none")
    everywhere = weight.reshape(6, -1, 1).expand(6, -1, 5).expand(6, 5, 5) if len(shape) == 1 else weight
    torch.testing.assert_close(loss, (each * everywhere).sum() / everywhere.sum())


def test_weights_count_in_finish() -> None:
    x, y = samples(400, 1)
    weight = torch.randint(0, 3, (400,), generator=torch.Generator().manual_seed(0))
    repeated = x.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0)
    found = []
    for batches in ([(x[:150], y[:150], weight[:150]), (x[150:], y[150:], weight[150:])], [repeated]):
        model = knowing(nn.Linear(10, 4))
        found.append(CalibratedLoss(model).finish(batches).temperature)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("objective", [None, cal.ESDLoss(), cal.MMCELoss(), cal.SoftBinnedECELoss()])
def test_weights_count_in_the_objective(objective: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(10, 4)
    data, (x, y) = samples(20, 0), samples(60, 1)
    weight = torch.rand(60)
    method: Any = "head" if objective is None else "published"
    step = CalibratedLoss(model, method, objective=objective).step(*data, x, y, held_out_weight=weight)
    if objective is None:
        expected = (F.cross_entropy(model(x), y, reduction="none") * weight).sum() / weight.sum()
    else:
        expected = objective(model(x), y, sample_weight=weight)
    torch.testing.assert_close(step.objective, expected)


@pytest.mark.parametrize("method", ["temperature", "head", "published"])
def test_one_weight_per_sample_of_a_dense_batch_is_that_of_its_positions(method: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 5, 4, generator=generator), torch.randint(3, (12, 4), generator=generator)
    weight = torch.rand(12, generator=generator)
    model = nn.Conv1d(5, 3, 1)
    values = [
        with_settings(CalibratedLoss(model, method), patience=0)(x, y, x, y, held_out_weight=each)
        for each in (weight, weight.unsqueeze(1).expand(12, 4))
    ]
    torch.testing.assert_close(values[0], values[1], rtol=0, atol=0)
    if method != "temperature":
        assert values[0].item() != CalibratedLoss(model, method)(x, y, x, y).item()
    with pytest.raises(ValueError, match=r"\(7,\) for 48"):
        CalibratedLoss(model, method)(x, y, x, y, held_out_weight=torch.ones(7))


@pytest.mark.parametrize("multi_label", [False, True])
def test_weights_of_binary_and_multi_label_samples_count_in_the_objective(multi_label: bool) -> None:
    x = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(6, 3 if multi_label else 1)
    y = (x[:, :3] > 0).float() if multi_label else (x[:, 0] > 0).long()
    weight = torch.arange(1.0, 31.0)
    calibrated = CalibratedLoss(model, "published", multi_label=multi_label)
    assert calibrated.objective is not None
    expected = calibrated.objective(model(x), y, sample_weight=weight)  # type: ignore[call-arg]
    torch.testing.assert_close(calibrated.step(x, y, x, y, held_out_weight=weight).objective, expected)


@pytest.mark.parametrize("method", ["temperature", "head", "published"])
def test_a_few_held_out_samples_are_too_few_for_every_method(method: Any) -> None:
    calibrated = CalibratedLoss(nn.Linear(10, 4), method)
    calibrated(*samples(20, 0), *samples(4, 1))
    with pytest.warns(CalibrationWarning, match="4 held-out"):
        calibrated.finish([samples(4, 1)], [samples(20, 2)])


def plain_objective(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, target)


@pytest.mark.parametrize("objective", [cal.AvUCLoss(), plain_objective])
def test_an_objective_that_takes_no_weights_is_named(objective: Any) -> None:
    name = getattr(objective, "__name__", type(objective).__name__)
    calibrated = CalibratedLoss(nn.Linear(10, 4), "published", objective=objective)
    with pytest.raises(TypeError, match=f"{name}.*sample_weight"):
        calibrated(*samples(20, 0), *samples(60, 1), held_out_weight=torch.ones(60))


def test_an_interrupted_run_goes_on_to_the_bit() -> None:
    data, held_out = samples(300, 0), samples(100, 1)

    def steps(model: nn.Module, calibrated: CalibratedLoss, optimizer: Any, batches: Any) -> Iterator[None]:
        for _ in range(4):
            for (x, y), other in batches:
                loss = calibrated(x, y, *other)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                yield

    def start() -> tuple[nn.Module, CalibratedLoss, Any, Any]:
        model = network()
        torch.manual_seed(5)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        calibrated = with_settings(CalibratedLoss(model), patience=0)
        return model, calibrated, optimizer, interleave(Batches(data, 50), Batches(held_out, 50))

    whole = start()
    for _ in steps(*whole):
        pass
    assert whole[1].temperature > 1
    first = start()
    for number, _ in enumerate(steps(*first), 1):
        if number == 12:  # the end of an epoch
            break
    file = io.BytesIO()
    torch.save({index: part.state_dict() for index, part in enumerate(first)}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = start()
    for index, part in enumerate(second):
        part.load_state_dict(saved[index])
    for number, _ in enumerate(steps(*second), 13):
        if number == 24:
            break
    assert second[1].temperature == whole[1].temperature
    assert all(torch.equal(a, b) for a, b in zip(whole[0].parameters(), second[0].parameters(), strict=True))
    assert whole[1].finish([held_out]) == second[1].finish([held_out])


@pytest.mark.parametrize("method", ["temperature", "published", "head"])
def test_a_batch_whose_labels_are_all_ignored_does_not_stop_training(method: Any) -> None:
    model = network()
    x, y = samples(64, 0)
    loss = CalibratedLoss(model, method)(x, torch.full_like(y, -100), *samples(64, 1))
    loss.backward()
    assert all(weights.grad is not None and weights.grad.isfinite().all() for weights in model.parameters())
    assert loss.isfinite()


@pytest.mark.parametrize(
    "loss",
    [None, cal.LabelSmoothingLoss(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))],
)
def test_training_is_that_of_any_loss_until_it_over_fits(loss: nn.Module | None) -> None:
    model = network().eval()
    (x, y), held_out = samples(64, 0), samples(64, 1)
    value = CalibratedLoss(model, loss=loss)(x, y, *held_out)
    assert torch.equal(value, (loss or F.cross_entropy)(model(x), y))


def test_sample_weights_count_as_repetition() -> None:
    model = nn.Linear(10, 4)
    x, y = samples(40, 0)
    weight = torch.randint(0, 4, (40,), generator=torch.Generator().manual_seed(0))
    repeated = x.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0)
    one, other = with_settings(CalibratedLoss(model), damping=1.0), with_settings(CalibratedLoss(model), damping=1.0)
    weighted = one(x, y, x, y, sample_weight=weight, held_out_weight=weight)
    assert weighted.item() == pytest.approx(other(*repeated, *repeated).item(), rel=1e-5)
    assert one.temperature == pytest.approx(other.temperature, rel=1e-5)


def test_binary_dense_and_multi_label_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=generator)
    binary = knowing(nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)))
    y = (x[:, 0] + 0.5 * torch.randn(400, generator=generator) > 0).long()
    calibrated = with_settings(CalibratedLoss(binary), damping=1.0)
    loss = calibrated(x, y, x, y)
    expected = F.binary_cross_entropy_with_logits(binary(x) / calibrated.temperature, y.float())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)

    labels = torch.stack([(x[:, k] + 0.5 * torch.randn(400, generator=generator) > 0).float() for k in range(3)], 1)
    tagger = knowing(nn.Linear(6, 3))
    calibrated = with_settings(CalibratedLoss(tagger, multi_label=True), damping=1.0)
    loss = calibrated(x, labels, x, labels)
    expected = F.binary_cross_entropy_with_logits(tagger(x) / calibrated.temperature, labels)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    calibrated.finish([(x, labels)])
    published = CalibratedLoss(tagger, "published", multi_label=True).step(x, labels, x, labels)
    assert published.objective is not None
    assert published.objective.item() == cal.ESDLoss(view="multi-label")(tagger(x), labels).item()

    images = torch.randn(8, 2, 6, 6, generator=generator)
    segments = (images + torch.randn(images.shape, generator=generator)).argmax(1)
    segments[:, 0] = -100
    dense = knowing(nn.Conv2d(2, 3, 1))
    calibrated = with_settings(CalibratedLoss(dense), damping=1.0)
    loss = calibrated(images, segments, images, segments)
    assert len(calibrated.loop.buffer()[1]) == 8 * 30
    assert loss.item() == pytest.approx(F.cross_entropy(dense(images) / calibrated.temperature, segments).item())
    calibrated.finish([(images, segments)])


class Half(nn.Module):
    """Logits in 16 bits, as autocast makes them."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(10, 4), scale

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x)
        return (logits * self.scale).half()


def test_half_precision_logits_may_grow_and_overflow() -> None:
    (x, y), held_out = samples(64, 0), samples(64, 1)
    calibrated = with_settings(CalibratedLoss(Half(5e3)), patience=0)
    loss = calibrated(x, y, *held_out)
    loss.backward()
    assert loss.isfinite()
    assert 1e3 < calibrated.largest_logit <= 65504
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        overflowing = CalibratedLoss(Half(1e6))
        overflowing(x, y, *held_out)
    assert "not finite" in overflowing.guard.warnings_


def test_a_final_network_that_overflows_on_some_samples_is_reported_and_they_are_left_out() -> None:
    model = nn.Linear(10, 4)
    calibrated = CalibratedLoss(model)
    x, y = samples(64, 1)
    expected = CalibratedLoss(model).finish([(x[3:], y[3:])], fold=False)
    x = x.clone()
    x[:3] = math.inf
    with pytest.warns(CalibrationWarning, match="3 of 64"):
        finished = calibrated.finish([(x[:40], y[:40]), (x[40:], y[40:])], fold=False)
    assert finished == expected


def test_a_final_network_that_diverged_is_an_error_that_names_it() -> None:
    model = nn.Linear(10, 4)
    calibrated = CalibratedLoss(model)
    with torch.no_grad():
        model.weight.fill_(math.nan)
    with pytest.raises(ValueError, match="all 64"):
        calibrated.finish([samples(64, 1)])


def test_a_training_that_diverged_is_not_told_to_hold_out_more_data() -> None:
    (x, y), held_out = samples(64, 0), samples(64, 1)
    model = nn.Linear(10, 4)
    calibrated = CalibratedLoss(model)
    with torch.no_grad():
        model.weight.fill_(math.nan)
    with pytest.warns(CalibrationWarning, match="diverged"):
        calibrated(x, y, *held_out)
    with torch.no_grad():
        model.weight.zero_()
    with pytest.warns(CalibrationWarning, match="diverged") as caught:
        calibrated.finish([held_out])
    assert not any("hold out" in str(each.message) for each in caught)


def test_logits_of_ignored_samples_may_be_anything() -> None:
    x, y = samples(64, 1)
    x, y = x.clone(), y.clone()
    x[:3], y[:3] = math.nan, -100
    calibrated = CalibratedLoss(knowing(nn.Linear(10, 4)))
    calibrated(*samples(64, 0), x, y)
    assert calibrated.finish([(x, y)]).held_out.samples == 61


X, Y = samples(64, 0)
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no module": (lambda: CalibratedLoss(lambda x: x), TypeError, "torch.nn.Module"),  # type: ignore[arg-type]
    "unknown method": (lambda: CalibratedLoss(network(), "loop"), ValueError, "method"),  # type: ignore[arg-type]
    "weight": (lambda: CalibratedLoss(network(), weight=1.0), ValueError, "no weight"),
    "objective": (lambda: CalibratedLoss(network(), objective=cal.ESDLoss()), ValueError, "no objective"),
    "class": (
        lambda: CalibratedLoss(network(), "published", objective=cal.ESDLoss),  # type: ignore[arg-type]
        TypeError, r"ESDLoss\(\)",
    ),
    "every": (lambda: CalibratedLoss(network(), every=0), ValueError, "every"),
    "no held-out target": (lambda: CalibratedLoss(network())(X, Y, X), ValueError, "y_held_out"),
    "weights of another loss": (
        lambda: CalibratedLoss(network(), loss=cal.FocalLoss())(X, Y, sample_weight=torch.ones(64)), ValueError, "own",
    ),
    "no last layer": (
        lambda: CalibratedLoss(nn.Sequential(nn.Linear(10, 4), nn.Tanh()), "head")(X, Y, X, Y), ValueError, "linear",
    ),
    "labels of another form": (
        lambda: CalibratedLoss(network())(X, Y, X, torch.randint(2, (64, 4))), ValueError, "multi_label=True",
    ),
    "labels from 1": (lambda: CalibratedLoss(network())(X, Y, X, Y + 1), ValueError, "from 0"),
    "no logits": (lambda: CalibratedLoss(nn.LSTM(10, 4))(X, Y), TypeError, "logits alone"),
    "an array": (lambda: CalibratedLoss(network())(X.numpy(), Y), TypeError, "as_tensor"),
    "no batch of pairs": (lambda: CalibratedLoss(network()).finish([X]), TypeError, "inputs, target"),
    "no batch": (lambda: CalibratedLoss(network()).finish([]), ValueError, "no batch"),
    "a data set": (
        lambda: CalibratedLoss(network()).finish(TensorDataset(X, Y)), TypeError, "DataLoader",  # type: ignore[arg-type]
    ),
    "arrays": (lambda: CalibratedLoss(network()).finish([(X.numpy(), Y.numpy())]), TypeError, "ndarray"),
    "too few weights": (lambda: CalibratedLoss(network()).finish([(X, Y, torch.ones(10))]), ValueError, "64 pred"),
    "a negative weight": (lambda: CalibratedLoss(network()).finish([(X, Y, -torch.ones(64))]), ValueError, "negative"),
    "no weight": (lambda: CalibratedLoss(network()).finish([(X, Y, torch.zeros(64))]), ValueError, "every weight is 0"),
    "some weights": (lambda: CalibratedLoss(network()).finish([(X, Y, Y), (X, Y)]), ValueError, "1 of 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused(case: str) -> None:
    call, error, key = REFUSED[case]
    with pytest.raises(error, match=key):
        call()


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(("kept", "least"), [(1.0, 1.0), (0.15, 0.95)], ids=["balanced", "one class is rare"])
@pytest.mark.parametrize("seed", [3, 6, 4, 0, 1, 2, 5])
def test_a_network_leaves_the_plateau_at_which_it_starts(seed: int, kept: float, least: float) -> None:
    torch.manual_seed(seed)
    x = 2.0 * torch.randint(2, (16_000, 10)) - 1
    y = (x[:, :3].prod(1) > 0).long()
    stays = (y == 0) | (torch.rand(len(y)) < kept)
    x, y = x[stays], y[stays]
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    calibrated, optimizer = CalibratedLoss(model), torch.optim.SGD(model.parameters(), 0.1)
    batches = interleave(Batches((x[:1800], y[:1800]), 50), Batches((x[1800:2000], y[1800:2000]), 50))
    for _ in range(42):
        for (x_train, y_train), held_out in batches:
            optimizer.zero_grad()
            calibrated(x_train, y_train, *held_out).backward()
            optimizer.step()
    assert (model(x[2000:]).argmax(1) == y[2000:]).double().mean() >= least
