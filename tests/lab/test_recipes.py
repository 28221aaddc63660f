"""Recipes, the built-in ones and every kind of data as one's own: each trains on a handful of samples."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
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
from calibrant_lab.trials.store import CHECKPOINT, Store, Trial
from tests.lab.training import assert_same, killed_at, trained

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


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "cat", "runs", "sleeps", "not"]
RELATIONS = ["entailment", "neutral", "contradiction"]


def text_folder(folder: Path) -> dict[str, Any]:
    """Forty pairs of sentences in SNLI's files, and a small random BERT."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder.mkdir()
    generator = np.random.default_rng(0)
    for part, count in (("train", 40), ("dev", 24), ("test", 24)):
        rows = [
            {"gold_label": RELATIONS[k % 3]}
            | {f"sentence{n}": " ".join(generator.choice(WORDS[5:], 5 - n)) for n in (1, 2)}
            for k in range(count)
        ]
        (folder / f"snli_1.0_{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    torch.manual_seed(0)
    small = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(small).save_pretrained(folder / "bert")
    (folder / "bert/vocab.txt").write_text("\n".join(WORDS))
    return {"model": str(folder / "bert"), "batch_size": 12, "max_length": 16}


def picture_folder(folder: Path) -> dict[str, Any]:
    """Three classes with ten pictures each to train on, and three to test on."""
    generator = np.random.default_rng(0)
    for label, name in enumerate(["ant", "bee", "cat"]):
        for part, count in (("train", 10), ("val", 3)):
            (folder / part / name).mkdir(parents=True)
            for k in range(count):
                pixels = generator.integers(0, 200, (40, 40, 3), dtype=np.uint8) + 25 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / part / name / f"{k}.png")
    return {"image_size": 32, "batch_size": 10, "workers": 0, "validation_fraction": 0.2}


MADE = {"snli": text_folder, "imagenet100": picture_folder}


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(len(WORDS), 3)

    def forward(self, input_ids: Tensor, **_: Tensor) -> Tensor:
        logits: Tensor = self.bag(input_ids)
        return logits


def test_pairs_of_texts(tmp_path: Path, monkeypatch: Patch) -> None:
    texts = [" ".join(GENERATOR.choice(WORDS[5:], 3)) for _ in range(40)]

    def load(settings: PairSettings) -> Data:
        pairs = Pairs(texts, texts[::-1], torch.arange(40) % 3)
        return text_pairs(TextData(pairs, pairs, pairs, classes=3), settings)

    model = text_folder(tmp_path / "saved")["model"]
    recipe = Recipe(load, Bag, settings=PairSettings, model=model, max_length=16, **SHORT)
    assert len(train_one(recipe, tmp_path, monkeypatch).predicted("test").target) == 40


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


@pytest.mark.parametrize("last", [[], [nn.Flatten(0)]])
def test_one_output_is_enough_for_two_classes(last: list[nn.Module], tmp_path: Path, monkeypatch: Patch) -> None:
    part = ROWS, LABELS % 2
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "more", "step"), [("snli", {}, 4), ("imagenet100", {}, 3), ("imagenet100", {"workers": 2}, 3)]
)
def test_a_recipe_trains_and_goes_on_after_an_interruption(
    recipe: str, more: dict[str, int], step: int, tmp_path: Path
) -> None:
    settings = MADE[recipe](tmp_path / "data") | {"epochs": 2, "calibration_fraction": 0.3} | more
    configuration = configure(recipe, "esd", settings=settings)
    whole = trained(Store(tmp_path / "whole"), configuration, tmp_path / "data")
    assert 0 <= whole.result().test["accuracy"] <= 1

    store = Store(tmp_path / "runs")
    assert (killed_at(step, store, configuration, tmp_path / "data").folder / CHECKPOINT).exists()
    assert_same(whole, trained(store, configuration, tmp_path / "data"))


def test_a_list_of_classes_is_used_and_its_content_is_part_of_the_identity(tmp_path: Path) -> None:
    settings = picture_folder(tmp_path / "data") | {"class_list": str(tmp_path / "classes.txt"), "epochs": 1}
    identities = []
    for names in ("ant\nbee\n", "ant\ncat\n"):
        (tmp_path / "classes.txt").write_text(names)
        configuration = configure("imagenet100", settings=settings)
        identities.append(configuration.identity)
    trial = trained(Store(tmp_path / "runs"), configuration, tmp_path / "data")
    assert torch.load(trial.folder / "model.pt", weights_only=True)["fc.bias"].shape == (2,)
    assert identities[0] != identities[1]
