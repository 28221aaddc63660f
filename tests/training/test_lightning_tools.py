"""Lightning's own tools work with ours: the learning rate finder, early stopping, torch.compile."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.tuner.tuning import Tuner
from torch import nn

import calibrant as cal
from calibrant.training import CalibrationWarning, InterleavedModule
from tests.training.lightning_runs import classifier, data, trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]


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
    with pytest.raises(ValueError, match=r"learning_rate=0.01 applies to the default optimizer only"):
        classifier(learning_rate=0.01, optimizer=sgd)
    with pytest.raises(ValueError, match="learning_rate must be at least 0"):
        classifier(learning_rate=-0.1)
    with pytest.raises(AttributeError, match="learning rate finder"):
        Tuner(trainer(tmp_path)).lr_find(classifier(optimizer=sgd), datamodule=data(), num_training=5)


def test_early_stopping_watches_the_validation_nll(tmp_path: Path) -> None:
    stops = EarlyStopping(monitor="validation_nll", patience=2)
    module = classifier(learning_rate=0.0)
    trainer(tmp_path, stops, max_epochs=50, enable_checkpointing=False).fit(module, datamodule=data())
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
        expects = pytest.warns(CalibrationWarning, match="as in compiled code") if compiles else nullcontext()
        with expects:
            trainer(tmp_path, max_epochs=2).fit(given, datamodule=data(**options))
        histories.append([{**entry, "train_warnings": 0} for entry in module.history])
    for plain, compiled in zip(*histories, strict=True):
        assert compiled == pytest.approx(plain, rel=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 6  # and not one for every step
