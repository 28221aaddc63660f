"""Training under Lightning: what is minimised and logged, what users combine, and what is refused."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.tuner.tuning import Tuner
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import calibrant as cal
from calibrant.training import (
    CalibrationWarning,
    InterleavedDataModule,
    InterleavedModule,
    interleave,
    interleaved_split,
)
from calibrant.training.forward import ScoreSums, freeze_batchnorm_statistics, loss_or_zero
from tests.training.lightning_runs import QUIET, STEPS, classifier, data, network, samples, trainer

pytestmark = QUIET


@pytest.mark.parametrize("batchnorm", ["update", "freeze"])
def test_it_trains_as_the_plain_loop_does(batchnorm: Any, tmp_path: Path) -> None:
    model, objective = network(), cal.ESDLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    loader = data().train_dataloader()
    for _ in range(2):
        for (x, y), (x_cal, y_cal) in loader:
            loss = F.cross_entropy(model(x), y)
            if batchnorm == "freeze":
                with freeze_batchnorm_statistics(model):
                    calibrated = model(x_cal)
            else:
                calibrated = model(x_cal)
            optimizer.zero_grad()
            (loss + 0.7 * objective(calibrated, y_cal)).backward()
            optimizer.step()

    ours = classifier(weight=0.7, scheduler=None, batchnorm=batchnorm)
    trainer(tmp_path, max_epochs=2).fit(ours, datamodule=data())
    torch.testing.assert_close(ours.model.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_what_is_logged_is_what_the_metrics_say(tmp_path: Path) -> None:
    x, y = samples()
    held_out = TensorDataset(x[:37], y[:37])
    module = classifier(optimizer=lambda weights: torch.optim.SGD(weights, lr=0.0))
    run = trainer(tmp_path, max_epochs=1)
    run.fit(module, datamodule=data(test=held_out, predict=held_out))
    tested = run.test(module, datamodule=data(test=held_out), verbose=False)[0]
    validated = run.validate(module, datamodule=data(), verbose=False)[0]
    logits = torch.cat(run.predict(module, datamodule=data(predict=held_out)))  # type: ignore[arg-type]
    expected = {
        "nll": cal.metrics.log_loss(logits=logits, target=y[:37]),
        "accuracy": cal.metrics.accuracy(logits=logits, target=y[:37]),
        "ece": cal.metrics.ece(logits=logits, target=y[:37], bins=20),
    }
    assert tested == pytest.approx({f"test_{name}": value for name, value in expected.items()}, rel=1e-6)
    assert validated == pytest.approx({f"validation_{name}": value for name, value in expected.items()}, rel=1e-6)
    (entry,) = module.history
    assert set(entry) == {
        "epoch", "train_nll", "train_accuracy", "train_ece", "train_objective", "train_silent",
        "train_held_out_accuracy", "train_held_out_nll", "train_held_out_gap", "train_warnings",
        "validation_nll", "validation_accuracy", "validation_ece",
    }  # fmt: skip


def test_running_scores_are_those_of_all_samples_and_counted_batches() -> None:
    x, y = samples(500)
    model, scores = nn.Linear(6, 3), ScoreSums()
    logits = model(x).detach()
    for part, labels in zip(logits.split(9), y.split(9), strict=True):
        scores.add(cal.losses.checks.classification(part, labels))
    for value in (0.5, 0.0, -0.25, 0.75):
        scores.add_value(torch.tensor(value))
    scores.add_value(torch.tensor(math.nan), 0)
    found = scores.since()
    assert found.nll == pytest.approx(F.cross_entropy(logits, y).item(), rel=1e-6)
    assert found.accuracy == pytest.approx((logits.argmax(1) == y).float().mean().item(), rel=1e-6)
    assert found.ece == pytest.approx(cal.metrics.ece(logits=logits, target=y, bins=20), rel=1e-6)
    assert (found.value, found.silent) == (0.25, 0.25)  # a negative value has a gradient


@pytest.mark.parametrize("options", [{}, {"loss": cal.FocalLoss()}, {"loss": cal.FocalLoss(ignore_index=7)}])
def test_batches_in_which_every_label_is_ignored_train_nothing(options: Any, tmp_path: Path) -> None:
    x, y = samples()
    ignored = torch.full_like(y[:25], getattr(options.get("loss"), "ignore_index", -100))
    pairs, nothing = (x[:25], y[:25]), (x[25:50], ignored)
    unknown = (x[25:50], torch.full_like(ignored, -100))  # the objective's own label to ignore
    modules = []
    for train, calibration in (([pairs, nothing], [pairs, unknown]), ([pairs], [pairs])):
        torch.manual_seed(0)
        module = InterleavedModule(
            nn.Linear(6, 3), cal.MMCELoss(), optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1), **options
        )
        validation: DataLoader[Any] = DataLoader([nothing], batch_size=None)  # type: ignore[arg-type]
        trainer(tmp_path, max_epochs=1).fit(module, interleave(train, calibration), validation)
        modules.append(module)
    torch.testing.assert_close(modules[0].state_dict(), modules[1].state_dict(), rtol=0, atol=0)
    first, second = (module.history[0] for module in modules)
    assert (first.pop("train_silent"), second.pop("train_silent")) == (0.5, 0.0)
    assert first.pop("train_objective") == second.pop("train_objective") / 2
    assert first == second  # NaN would differ from itself


@pytest.mark.parametrize("ignored", [True, False])
def test_an_ignored_batch_is_recognised_without_a_look_at_its_values(ignored: bool) -> None:
    target = torch.full((4,), -100) if ignored else torch.tensor([0, 1, 2, -100])
    logits = torch.tensor([[1.0, 2.0, 0.0]] * 3 + [[float("nan")] * 3], requires_grad=True)

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return torch.compile(loss_or_zero, backend="eager")(cal.BrierLoss(), logits, target)  # as on an accelerator

    compiled, plain = loss(logits, target), loss_or_zero(cal.BrierLoss(), logits, target)
    torch.testing.assert_close(compiled, plain)
    gradients = [torch.autograd.grad(value, logits)[0] for value in (compiled, plain)]
    torch.testing.assert_close(*gradients)
    assert (compiled == 0) == ignored


def test_another_loss_takes_the_place_of_the_nll(tmp_path: Path) -> None:
    module = classifier(objective=None, loss=cal.FocalLoss())
    trainer(tmp_path, max_epochs=1, limit_val_batches=0).fit(module, datamodule=data(calibration_fraction=0))
    assert set(module.history[0]) == {"epoch", "train_loss", "train_accuracy", "train_ece"}


def test_the_calibration_batches_of_the_data_module_have_nearly_equal_sizes() -> None:
    pairs = TensorDataset(torch.arange(1290).float())
    loader = InterleavedDataModule(pairs, batch_size=64, calibration_batch_size=128).train_dataloader()
    held_out = [batch.calibration[0] for batch in loader][:4]
    assert [len(batch) for batch in held_out] == [65, 64, 65, 64]
    first, second = torch.cat(held_out[:2]), torch.cat(held_out[2:])
    assert first.sort().values.equal(second.sort().values)
    assert not first.equal(second)  # a new order in each pass


def test_without_an_objective_held_out_data_is_left_alone(tmp_path: Path) -> None:
    everything = TensorDataset(*samples())
    rest, _ = interleaved_split(everything, 0.1)
    trained = []
    for part, fraction in ((everything, 0.1), (rest, 0.0)):
        torch.manual_seed(0)
        module = InterleavedModule(nn.Linear(6, 3))
        source = InterleavedDataModule(part, batch_size=25, calibration_fraction=fraction)
        expects = pytest.warns(CalibrationWarning, match="no method") if fraction else nullcontext()
        with expects:
            trainer(tmp_path, max_epochs=1).fit(module, datamodule=source)
        trained.append(module.state_dict())
    torch.testing.assert_close(*trained, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("scheduler", "left"),
    [
        (lambda made: ExponentialLR(made, 0.5), 0.5**3),
        (lambda made: {"scheduler": ExponentialLR(made, 0.5), "interval": "step"}, 0.5 ** (3 * STEPS)),
        # The first validation is the best one so far; no later one can be ten times as good.
        (lambda made: ReduceLROnPlateau(made, factor=0.5, patience=0, threshold=0.9), 0.5**2),
    ],
)
def test_schedulers_go_on_when_they_should(scheduler: Any, left: float, tmp_path: Path) -> None:
    run = trainer(tmp_path, max_epochs=3)
    run.fit(classifier(scheduler=scheduler), datamodule=data())
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-3 * left)


def test_values_are_logged_while_an_epoch_goes_on(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []

    class Watch(lightning.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            seen.append({name: float(value) for name, value in trainer.progress_bar_metrics.items()})

    trainer(tmp_path, Watch(), max_epochs=1, log_every_n_steps=2).fit(classifier(), datamodule=data())
    assert not seen[1]
    assert seen[2].keys() == {"train_accuracy", "train_ece", "train_objective"}


PLAIN = [(torch.zeros(4, 6), torch.zeros(4, dtype=torch.long))]
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "plain batches": (lambda: PLAIN, TypeError, "interleave"),
    "no calibration data": (lambda: interleave(PLAIN, None), ValueError, "no calibration data"),
    "no target": (lambda: interleave([torch.zeros(4, 6)], PLAIN), TypeError, "Tensor"),
    "three parts": (lambda: interleave([PLAIN[0] * 2], PLAIN), TypeError, "got tuple of 4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_batches_are_explained(case: str, tmp_path: Path) -> None:
    loader, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        trainer(tmp_path, max_epochs=1).fit(classifier(), loader())


def test_bad_options_are_explained() -> None:
    with pytest.raises(ValueError, match="weight"):
        classifier(weight=-1.0)
    with pytest.raises(ValueError, match="no weight"):
        classifier(objective=None, method="temperature", weight=2.0)
    with pytest.raises(ValueError, match="batchnorm"):
        classifier(batchnorm="freze")
    with pytest.raises(ValueError, match="no test data"):
        data().test_dataloader()
    with pytest.raises(TypeError, match="got tuple"):
        InterleavedModule(nn.LSTM(6, 3))(torch.zeros(2, 6))


def pairs(count: int = 90) -> TensorDataset:
    return TensorDataset(*samples(count))


def linear(**options: Any) -> InterleavedModule:
    torch.manual_seed(0)
    return InterleavedModule(nn.Linear(6, 3), cal.ESDLoss(), **options)


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed", "64-true"])
def test_scores_are_summed_in_double_whatever_the_precision(precision: str, tmp_path: Path) -> None:
    module = linear()
    source = InterleavedDataModule(pairs(), validation=pairs(), batch_size=20)
    trainer(tmp_path, max_epochs=2, precision=precision).fit(module, source)
    sums = module.training_scores._sums
    assert sums is not None
    assert sums.dtype == torch.float64
    assert len(module.history) == 2
    assert 0 <= module.history[-1]["validation_ece"] <= 1


def test_several_validation_loaders_are_scored_as_one_set(tmp_path: Path) -> None:
    module = linear()
    one, other = pairs(30), pairs(60)
    batches = interleave(DataLoader(pairs(), 30), DataLoader(pairs(), 30))
    trainer(tmp_path, max_epochs=1).fit(module, batches, [DataLoader(one, 30), DataLoader(other, 30)])
    model = module.model
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in (one.tensors, other.tensors))
    assert module.history[0]["validation_accuracy"] == pytest.approx(right / 90)


class Seen(lightning.Callback):
    def __init__(self) -> None:
        self.first: list[list[float]] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.first.append([*batch.train[0][:, 0].tolist(), *batch.calibration[0][:, 0].tolist()])


def test_reloading_the_loaders_does_not_repeat_the_first_order(tmp_path: Path) -> None:
    seen = Seen()
    data = InterleavedDataModule(pairs(), batch_size=20, calibration_batch_size=5)
    trainer(tmp_path, seen, reload_dataloaders_every_n_epochs=1).fit(linear(), data)
    again = Seen()
    data = InterleavedDataModule(pairs(), batch_size=20, calibration_batch_size=5)
    trainer(tmp_path, again).fit(linear(), data)
    assert len({tuple(order) for order in seen.first}) == 3
    assert seen.first == again.first


def test_weight_zero_computes_no_objective(tmp_path: Path) -> None:
    module = linear(weight=0.0)
    trainer(tmp_path, max_epochs=1).fit(module, InterleavedDataModule(pairs(), batch_size=20))
    assert "train_objective" not in module.history[0]


def test_a_last_batch_of_one_sample_can_be_left_out(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    data = InterleavedDataModule(pairs(90), batch_size=20, drop_last=True)
    trainer(tmp_path, max_epochs=1).fit(InterleavedModule(model, cal.ESDLoss()), data)
    assert len(data.train_dataloader()) == 4
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        trainer(tmp_path, max_epochs=1).fit(
            InterleavedModule(model, cal.ESDLoss()), InterleavedDataModule(pairs(90), batch_size=20)
        )


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(pairs())


def test_a_loader_without_a_length_trains_and_refuses_to_be_resumed(tmp_path: Path) -> None:
    def batches() -> Any:
        return interleave(DataLoader(Stream(), 30), DataLoader(pairs(), 30))

    first = trainer(tmp_path, max_epochs=1)
    first.fit(linear(), batches())
    first.save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match="without a length"):
        trainer(tmp_path, max_epochs=3).fit(linear(), batches(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)


def sgd(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.1)


@pytest.mark.slow
def test_the_learning_rate_finder_sets_the_rate_and_leaves_no_other_trace(tmp_path: Path) -> None:
    module, source = classifier(scheduler=None), data()
    run = trainer(tmp_path, max_epochs=30)
    finder = Tuner(run).lr_find(module, datamodule=source, num_training=60, early_stop_threshold=None)
    assert finder is not None
    assert module.learning_rate == finder.suggestion() != 1e-3
    assert module.history == []
    run.fit_loop.max_epochs = 2
    torch.manual_seed(5)
    run.fit(module, datamodule=source)
    assert run.optimizers[0].param_groups[0]["lr"] == module.learning_rate

    fresh = classifier(scheduler=None, learning_rate=module.learning_rate)
    torch.manual_seed(5)
    trainer(tmp_path, max_epochs=2).fit(fresh, datamodule=data())
    assert module.history == fresh.history
    torch.testing.assert_close(module.state_dict(), fresh.state_dict(), rtol=0, atol=0)


def test_a_rate_that_would_have_no_effect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="default optimizer"):
        classifier(learning_rate=0.01, optimizer=sgd)
    with pytest.raises(ValueError, match="learning_rate"):
        classifier(learning_rate=-0.1)
    with pytest.raises(AttributeError, match="learning rate finder"):
        Tuner(trainer(tmp_path)).lr_find(classifier(optimizer=sgd), datamodule=data(), num_training=5)


def test_early_stopping_watches_the_validation_nll(tmp_path: Path) -> None:
    stops = EarlyStopping(monitor="validation_nll", patience=2)
    module = classifier(learning_rate=0.0)
    trainer(tmp_path, stops, max_epochs=50).fit(module, datamodule=data())
    # BatchNorm's statistics still change the validation for some epochs, and then nothing does.
    assert len(module.history) < 50
    assert stops.best_score == min(entry["validation_nll"] for entry in module.history)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch hides it, unless warnings are errors
def test_a_compiled_classifier_trains_as_a_plain_one(tmp_path: Path) -> None:
    histories = []
    options: dict[str, Any] = {"batch_size": 10, "calibration_batch_size": 5, "validation": None}
    torch._dynamo.utils.counters.clear()
    for compiles in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))
        module = InterleavedModule(model, cal.ESDLoss(), optimizer=sgd)
        given: Any = torch.compile(module, backend="eager") if compiles else module
        torch.manual_seed(2)
        trainer(tmp_path, max_epochs=2).fit(given, datamodule=data(**options))
        histories.append(module.history)
    for plain, compiled in zip(*histories, strict=True):
        assert compiled == pytest.approx(plain, rel=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 6  # and not one for every step
