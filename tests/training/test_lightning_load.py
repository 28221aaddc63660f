"""A checkpoint is enough to build the classifier again, and nothing in it is run."""

import base64
import importlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from calibrant.training.checkpoint import module_of, structure_of
from torch import Tensor, nn

import calibrant as cal
from calibrant.training import CalibratedClassifier
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


def test_the_path_is_enough_for_classes_of_ones_own_that_are_imported(tmp_path: Path) -> None:
    module = CalibratedClassifier(OwnNetwork(), cal.ESDLoss())
    path = saved(module, tmp_path)
    loaded: Any = CalibratedClassifier.load_from_checkpoint(path)
    assert_same(loaded, module)
    assert (type(loaded.model), type(loaded.model.block)) == (OwnNetwork, Block)
    assert loaded.model.same.weight is loaded.model.head.weight
    assert_same(CalibratedClassifier.load_from_checkpoint(path, model=OwnNetwork()), module)
    assert_same(CalibratedClassifier.load_from_checkpoint(path, trusted=[Block, OwnNetwork]), module)
    trainer(tmp_path, max_epochs=1).fit(loaded, datamodule=data())


def test_classes_that_are_not_imported_are_named_or_the_model_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere.py").write_text("from torch import nn\nclass Elsewhere(nn.Linear):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    elsewhere: Any = importlib.import_module("elsewhere")
    structure = structure_of(nn.Sequential(Block(), elsewhere.Elsewhere(6, 3))) or ""
    assert isinstance(module_of(structure)[1], elsewhere.Elsewhere)
    monkeypatch.delitem(sys.modules, "elsewhere")
    message = (
        r"the model has parts that are not in torch.nn: elsewhere.Elsewhere. If you trust them, import them and pass "
        r"trusted=\[Elsewhere\], or pass model=, built as before"
    )
    with pytest.raises(ValueError, match=message):
        module_of(structure, name="model")
    assert "elsewhere" not in sys.modules


class Plain:
    """Imported, but no module."""


def activation(x: Tensor) -> Tensor:
    return x


class Restored(nn.Linear):
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("part", [Plain(), activation, Path("a"), Restored(2, 2)])
def test_what_is_imported_but_no_plain_module_is_refused(part: Any) -> None:
    model = Block()
    model.part = part
    with pytest.raises(ValueError, match=r"has parts that are not in torch.nn: .*If you trust them, import them and"):
        module_of(structure_of(model) or "")


class Called(nn.Module):
    calls = 0

    def __init__(self, *_: Any) -> None:
        super().__init__()
        Called.calls += 1


class CallsAModule:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return Called, ("anything",)


class OfAClass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kind = Block
        self.hidden = [Block()]


def test_a_class_that_is_imported_is_not_called() -> None:
    model = nn.Linear(2, 2)
    model.part = CallsAModule()  # type: ignore[assignment]
    file = io.BytesIO()
    torch.save(model, file)
    with pytest.raises(Exception, match="the file calls Called"):
        module_of(base64.b64encode(file.getvalue()).decode())
    assert type(module_of(structure_of(Called()) or "")) is Called
    assert Called.calls == 1


def test_a_class_as_an_attribute_and_a_module_in_a_list_are_the_real_ones() -> None:
    again = module_of(structure_of(OfAClass()) or "")
    assert again.kind is Block
    assert type(again.hidden[0]) is Block


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
