"""A checkpoint is enough to build the classifier again, and nothing in it is run."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calibrant as cal
from calibrant.training import CalibratedClassifier
from calibrant.training.checkpoint import module_of, structure_of
from tests.training.lightning_runs import data, network, trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]


class Block(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("scale", torch.full((6,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)) * self.scale


class OwnNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = Block()
        self.head = nn.Linear(6, 3)
        self.same = self.head  # tied

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.same(self.block(x))
        return logits


class TouchesAFile:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return Path.touch, (Path("run"),)  # type: ignore[return-value]


def saved(module: CalibratedClassifier, folder: Path) -> Path:
    run = trainer(folder, max_epochs=1)
    run.fit(module, datamodule=data())
    run.save_checkpoint(folder / "end.ckpt")
    return folder / "end.ckpt"


def assert_same(loaded: CalibratedClassifier, module: CalibratedClassifier) -> None:
    torch.testing.assert_close(loaded.state_dict(), module.state_dict(), rtol=0, atol=0)
    assert loaded.history == module.history
    x = torch.randn(5, 6)
    assert torch.equal(loaded.eval()(x), module.eval()(x))
    loaded.train()


def test_the_path_is_enough_for_a_model_of_torch_layers(tmp_path: Path) -> None:
    module = CalibratedClassifier(
        network(), cal.MMCELoss(), 0.5, loss=cal.FocalLoss(gamma=2.0), learning_rate=0.01, batchnorm="freeze", bins=7
    )
    path = saved(module, tmp_path)
    loaded = CalibratedClassifier.load_from_checkpoint(path)
    assert_same(loaded, module)
    assert repr(loaded) == repr(module)
    assert (loaded.weight, loaded.learning_rate, loaded.batchnorm, loaded.evaluation_scores.bins) == (
        0.5, 0.01, "freeze", 7,
    )  # fmt: skip
    assert_same(CalibratedClassifier.load_from_checkpoint(io.BytesIO(path.read_bytes())), module)
    assert CalibratedClassifier.load_from_checkpoint(path, weight=3.0, objective=None).objective is None
    trainer(tmp_path, max_epochs=1).fit(loaded, datamodule=data())
    assert torch.load(path, weights_only=True)["calibrant"]["classifier"]["not_saved"] == []


def test_classes_of_ones_own_are_named_or_the_model_is_given(tmp_path: Path) -> None:
    module = CalibratedClassifier(OwnNetwork(), cal.ESDLoss())
    path = saved(module, tmp_path)
    message = (
        r"the model has parts that are not in torch.nn: tests.training.test_lightning_load.Block, tests.*OwnNetwork. "
        r"If you trust them, import them and pass trusted=\[Block, OwnNetwork\], or pass model=, built as before"
    )
    with pytest.raises(ValueError, match=message):
        CalibratedClassifier.load_from_checkpoint(path)
    assert_same(CalibratedClassifier.load_from_checkpoint(path, model=OwnNetwork()), module)
    loaded: Any = CalibratedClassifier.load_from_checkpoint(path, trusted=[Block, OwnNetwork])
    assert_same(loaded, module)
    assert loaded.model.same.weight is loaded.model.head.weight


def test_what_cannot_be_saved_is_asked_for(tmp_path: Path) -> None:
    class Local(nn.Linear):
        pass

    model = Local(6, 3)
    module = CalibratedClassifier(model, optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1))
    run = trainer(tmp_path, max_epochs=1)
    run.fit(module, datamodule=data(calibration_fraction=0))
    run.save_checkpoint(tmp_path / "end.ckpt")
    with pytest.raises(ValueError, match=r"the model could not be saved \(lambdas and classes inside functions"):
        CalibratedClassifier.load_from_checkpoint(tmp_path / "end.ckpt")
    loaded = CalibratedClassifier.load_from_checkpoint(tmp_path / "end.ckpt", model=nn.Linear(6, 3))
    assert_same(loaded, module)
    with pytest.raises(ValueError, match="was trained with optimizer=, a function, which a checkpoint does not hold"):
        trainer(tmp_path, max_epochs=1).fit(loaded, datamodule=data(calibration_fraction=0))
    given = CalibratedClassifier.load_from_checkpoint(tmp_path / "end.ckpt", model=nn.Linear(6, 3), optimizer=None)
    trainer(tmp_path, max_epochs=1).fit(given, datamodule=data(calibration_fraction=0))


def test_checkpoints_of_earlier_versions_need_the_model(tmp_path: Path) -> None:
    path = saved(CalibratedClassifier(network(), cal.ESDLoss()), tmp_path)
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["calibrant"]["classifier"]
    torch.save(checkpoint, path)
    with pytest.raises(ValueError, match="does not say how to build the model, like those of earlier versions: pass"):
        CalibratedClassifier.load_from_checkpoint(path)
    assert len(CalibratedClassifier.load_from_checkpoint(path, model=network()).history) == 1


def test_nothing_in_a_structure_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    evil = nn.Linear(2, 2)
    evil.extra = TouchesAFile()  # type: ignore[assignment]
    file = io.BytesIO()
    torch.save(evil, file)
    with pytest.raises(ValueError, match="pathlib"):
        module_of(base64.b64encode(file.getvalue()).decode(), trusted=[OwnNetwork])
    assert not (tmp_path / "run").exists()


def test_a_structure_has_no_weights() -> None:
    small, large = (structure_of(nn.Linear(size, size)) for size in (2, 2000))
    assert small is not None
    assert large is not None
    assert len(large) < len(small) + 100
    layer = nn.TransformerEncoderLayer(8, 2)
    again = module_of(structure_of(layer) or "")
    again.load_state_dict(layer.state_dict())
    x = torch.randn(4, 3, 8)
    assert torch.equal(again.eval()(x), layer.eval()(x))
