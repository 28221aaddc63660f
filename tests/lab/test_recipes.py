"""Every kind of data as a recipe of one's own: each trains one trial."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from calibrant_lab import (
    Data,
    Pairs,
    PairSettings,
    Recipe,
    Settings,
    TextData,
    text_pairs,
)
from calibrant_lab.recipes import RECIPES
from calibrant_lab.trials.configuration import configure
from calibrant_lab.trials.fit import first_network
from calibrant_lab.trials.store import Store, Trial
from tests.lab.training import trained

Patch = pytest.MonkeyPatch
SHORT: dict[str, Any] = {"epochs": 1, "batch_size": 16, "validation_fraction": 0.2, "calibration_fraction": 0.3}
GENERATOR = np.random.default_rng(0)
ROWS, LABELS = GENERATOR.normal(size=(80, 4)), np.arange(80) % 3


def train_one(recipe: Recipe, tmp_path: Path, monkeypatch: Patch, folder: Path | None = None, **settings: Any) -> Trial:
    """Train one trial of a recipe that stands in the test instead of a file."""
    monkeypatch.setitem(RECIPES, "mine", recipe)
    trial = trained(Store(tmp_path / "runs"), configure("mine", "esd", settings=settings), folder, raises=True)
    assert 0 <= trial.result().test["accuracy"] <= 1
    return trial


@pytest.mark.parametrize("make", [np.asarray, torch.tensor, np.ndarray.tolist])
def test_arrays_tensors_and_lists_in_memory(make: Any, tmp_path: Path, monkeypatch: Patch) -> None:
    x, y = make(ROWS), make(LABELS)
    recipe = Recipe(
        lambda: Data((x[:50], y[:50]), (x[50:], y[50:])),
        lambda data, settings: nn.Linear(4, data.classes, bias=settings.bias),
        bias=True, **SHORT,
    )  # fmt: skip
    trial = train_one(recipe, tmp_path, monkeypatch, bias="false")
    assert trial.predicted("test").logits.shape == (30, 3)
    assert list(torch.load(trial.folder / "model.pt", weights_only=True)) == ["weight"]


def test_saved_features_with_a_validation_part(tmp_path: Path, monkeypatch: Patch) -> None:
    np.savez(tmp_path / "features.npz", x=ROWS.astype(np.float16), y=LABELS)

    def load(folder: Path) -> Data:
        saved = np.load(folder / "features.npz")
        train, validation, test = ((saved["x"][rows], saved["y"][rows]) for rows in np.split(np.arange(80), [40, 60]))
        return Data(train, test, validation=validation)

    recipe = Recipe(load, lambda data: nn.Linear(4, data.classes), **SHORT)
    trial = train_one(recipe, tmp_path, monkeypatch, folder=tmp_path)
    assert [len(trial.predicted(part).target) for part in ("validation", "test")] == [20, 20]


def test_pairs_of_texts(tmp_path: Path, monkeypatch: Patch) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "sleeps", "runs"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    by_name: Any = {"vocab": {word: number for number, word in enumerate(words)}}
    if transformers.__version__ < "5":
        by_name = {"vocab_file": str(tmp_path / "vocab.txt")}
    tokenizer = transformers.BertTokenizer(**by_name)
    tokenizer.save_pretrained(tmp_path / "model")
    texts = [" ".join(GENERATOR.choice(words[5:], 3)) for _ in range(40)]

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(len(words), 3)

        def forward(self, input_ids: Tensor, **_: Tensor) -> Tensor:
            logits: Tensor = self.bag(input_ids)
            return logits

    def load(settings: PairSettings) -> Data:
        pairs = Pairs(texts, texts[::-1], torch.arange(40) % 3)
        return text_pairs(TextData(pairs, pairs, pairs, classes=3), settings)

    recipe = Recipe(load, Bag, settings=PairSettings, model=str(tmp_path / "model"), max_length=16, **SHORT)
    trial = train_one(recipe, tmp_path, monkeypatch)
    assert len(trial.predicted("test").target) == 40


class Squares(Dataset[Any]):
    """Inputs of several tensors, some of them in a mapping; labels are read sample by sample."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        x = torch.full((2,), float(index**2 % 7))
        return (x, {"more": x[:1]}), index % 2


class OfSeveral(nn.Linear):
    def forward(self, inputs: Any) -> Tensor:
        first, others = inputs
        return super().forward(torch.cat([first, others["more"]], 1))


def test_any_dataset_of_torch_with_inputs_of_several_tensors(tmp_path: Path, monkeypatch: Patch) -> None:
    recipe = Recipe(lambda: Data(Squares(), Squares()), lambda: OfSeveral(3, 2), **SHORT)
    trial = train_one(recipe, tmp_path, monkeypatch)
    assert trial.predicted("test").target.tolist() == [0, 1] * 30


@pytest.mark.parametrize(
    ("recipe", "token"),
    [
        (Recipe(lambda: (ROWS, LABELS), nn.Identity), "Data, got tuple"),  # type: ignore[arg-type, return-value]
        (Recipe(lambda: Data((ROWS, LABELS), (ROWS, LABELS)), lambda: 3), "Module"),  # type: ignore[arg-type, return-value]
    ],
)
def test_errors_of_what_a_recipe_returns(recipe: Recipe, token: str) -> None:
    with pytest.raises(TypeError, match=token):
        recipe.build(recipe.load(recipe.settings(), None), recipe.settings())


class Noisy(nn.Linear):
    """Draws random numbers in every pass, and counts the passes in which it is in training mode."""

    trained = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.trained += self.training
        return super().forward(inputs) + torch.rand(1)


@pytest.mark.parametrize(("outputs", "classes"), [(2, 3), (4, 3), (3, 2), (1, 3)])
def test_a_network_of_other_outputs_than_classes_is_refused(
    outputs: int, classes: int, tmp_path: Path, monkeypatch: Patch
) -> None:
    part = ROWS, LABELS % classes
    recipe = Recipe(lambda: Data(part, part), lambda: nn.Linear(4, outputs), **SHORT)
    with pytest.raises(ValueError, match=f"{outputs} outputs?.*{classes} classes"):
        train_one(recipe, tmp_path, monkeypatch)


@pytest.mark.parametrize("flat", [False, True])
def test_one_output_is_enough_for_two_classes(flat: bool, tmp_path: Path, monkeypatch: Patch) -> None:
    part, last = (ROWS, LABELS % 2), [nn.Flatten(0)] if flat else []
    recipe = Recipe(lambda: Data(part, part), lambda: nn.Sequential(nn.Linear(4, 1), *last), **SHORT)
    assert len(train_one(recipe, tmp_path, monkeypatch).predicted("test").target) == 80


def test_the_check_of_the_outputs_leaves_no_trace(monkeypatch: Patch) -> None:
    data = Data((ROWS, LABELS), (ROWS, LABELS))
    network = Noisy(4, 3)
    monkeypatch.setitem(RECIPES, "mine", Recipe(lambda: data, lambda: network, **SHORT))
    assert first_network(configure("mine", seed=5), data) is network
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert network.training
    assert not network.trained


def test_defaults_of_a_recipe_keep_the_bounds_and_descriptions_of_the_settings() -> None:
    kind = Recipe(Data, nn.Identity, epochs=7, width=3).settings
    assert (kind().epochs, kind.model_fields["epochs"].description) == (7, Settings.model_fields["epochs"].description)
    for name, value in (("epochs", 0), ("width", "wide")):
        with pytest.raises(ValueError, match=name):
            kind.checked({name: value})
