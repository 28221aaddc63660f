"""Every kind of data as a recipe of one's own: each trains one trial."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

import calibrant_lab
from calibrant_lab import (
    Data,
    FolderSettings,
    Method,
    Pairs,
    PairSettings,
    Recipe,
    Settings,
    TextData,
    image_folder,
    text_pairs,
)
from calibrant_lab.recipes import RECIPES
from calibrant_lab.trials.configuration import configure
from calibrant_lab.trials.fit import first_network
from calibrant_lab.trials.run import run_trial
from calibrant_lab.trials.store import Store, Trial

SHORT: dict[str, Any] = {"epochs": 1, "batch_size": 16, "validation_fraction": 0.2, "calibration_fraction": 0.3}
GENERATOR = np.random.default_rng(0)
ROWS, LABELS = GENERATOR.normal(size=(80, 4)), np.arange(80) % 3


def train_one(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path | None = None, **settings: Any
) -> Trial:
    """Train one trial of a recipe that stands in the test instead of a file."""
    monkeypatch.setitem(RECIPES, "mine", recipe)
    configuration = configure("mine", "esd", settings=settings)
    store = Store(tmp_path / "runs")
    assert run_trial(store, configuration, folder, "cpu", raises=True) == "done"
    trial = store.trial(configuration)
    assert 0 <= trial.result().test["accuracy"] <= 1
    return trial


@pytest.mark.parametrize("make", [np.asarray, torch.tensor, np.ndarray.tolist])
def test_arrays_tensors_and_lists_in_memory(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = make(ROWS), make(LABELS)
    recipe = Recipe(
        lambda: Data((x[:50], y[:50]), (x[50:], y[50:])),
        lambda data, settings: nn.Linear(4, data.classes, bias=settings.bias),
        bias=True, **SHORT,
    )  # fmt: skip
    trial = train_one(recipe, tmp_path, monkeypatch, bias="false")
    assert trial.predicted("test").logits.shape == (30, 3)
    assert list(torch.load(trial.folder / "model.pt", weights_only=True)) == ["weight"]


def test_saved_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "features.npz", x=ROWS.astype(np.float16), y=LABELS)

    def load(folder: Path) -> Data:
        saved = np.load(folder / "features.npz")
        train, validation, test = ((saved["x"][rows], saved["y"][rows]) for rows in np.split(np.arange(80), [40, 60]))
        return Data(train, test, validation=validation)

    trial = train_one(
        Recipe(load, lambda data: nn.Linear(4, data.classes), **SHORT), tmp_path, monkeypatch, folder=tmp_path
    )
    assert [len(trial.predicted(part).target) for part in ("validation", "test")] == [20, 20]


def test_a_folder_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, count in (("train", 12), ("val", 4)):
        for name in ("ant", "bee"):
            (tmp_path / part / name).mkdir(parents=True)
            for k in range(count):
                pixels = GENERATOR.integers(0, 255, (20, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{k}.png")

    def build(data: Data) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(768, data.classes))

    recipe = Recipe(image_folder, build, settings=FolderSettings, image_size=16, workers=0, **SHORT)
    trial = train_one(recipe, tmp_path, monkeypatch, folder=tmp_path)
    assert trial.predicted("test").target.tolist() == [0] * 4 + [1] * 4


def test_pairs_of_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


class Squares(Dataset[tuple[Tensor, int]]):
    """Without labels to look up: they are read sample by sample."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((2,), float(index**2 % 7)), index % 2


def test_any_dataset_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(lambda: Data(Squares(), Squares()), lambda: nn.Linear(2, 2), **SHORT)
    trial = train_one(recipe, tmp_path, monkeypatch)
    assert trial.predicted("test").target.tolist() == [0, 1] * 30


class Mixed(Squares):
    """Inputs of several tensors, some of them in a mapping."""

    def __getitem__(self, index: int) -> Any:
        x, label = super().__getitem__(index)
        return (x, {"more": x[:1]}), label


class OfSeveral(nn.Linear):
    def forward(self, inputs: Any) -> Tensor:
        first, others = inputs
        return super().forward(torch.cat([first, others["more"]], 1))


def test_inputs_of_several_tensors_reach_the_network_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(lambda: Data(Mixed(), Mixed()), lambda: OfSeveral(3, 2), **SHORT)
    trial = train_one(recipe, tmp_path, monkeypatch)
    assert trial.predicted("test").logits.shape == (60, 2)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Data((ROWS, LABELS[:5]), (ROWS, LABELS)), "got 80 samples and 5 labels"),
        (lambda: Data((ROWS, LABELS / 2), (ROWS, LABELS)), "labels must be whole numbers"),
        (lambda: Data((ROWS, LABELS), (ROWS, LABELS), classes=2), "label 2 is not one of 2 classes"),
        (lambda: Data((ROWS, LABELS - 1), (ROWS, LABELS)), "label -1 .* number them from 0"),
        (lambda: Data(*[(ROWS, LABELS)] * 3), "takes 3 positional arguments but 4 were given"),
        (lambda: Data(3, (ROWS, LABELS)), "the train part must be .* got int"),
    ],
)
def test_data_that_do_not_fit_together(made: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        made()


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(lambda: (ROWS, LABELS), nn.Identity), "load must return calibrant_lab.Data, got tuple"),  # type: ignore[arg-type, return-value]
        (Recipe(lambda: Data((ROWS, LABELS), (ROWS, LABELS)), lambda: 3), "build must return a torch.nn.Module"),  # type: ignore[arg-type, return-value]
    ],
)
def test_a_recipe_that_returns_something_else(recipe: Recipe, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        recipe.build(recipe.load(recipe.settings(), None), recipe.settings())


class Noisy(nn.Linear):
    """Draws random numbers in every pass, and counts the passes in which it is in training mode."""

    trained = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.trained += self.training
        return super().forward(inputs) + torch.rand(1)


@pytest.mark.parametrize(("outputs", "classes"), [(2, 3), (4, 3), (3, 2), (1, 3)])
def test_a_network_of_other_outputs_than_classes_is_refused(
    outputs: int, classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = ROWS, LABELS % classes
    recipe = Recipe(lambda: Data(part, part), lambda: nn.Linear(4, outputs), **SHORT)
    message = f"the network has {outputs} outputs?, but the data have {classes} classes: build it with data.classes"
    with pytest.raises(ValueError, match=message):
        train_one(recipe, tmp_path, monkeypatch)


@pytest.mark.parametrize("flat", [False, True])
def test_one_output_is_enough_for_two_classes(flat: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, last = (ROWS, LABELS % 2), [nn.Flatten(0)] if flat else []
    trial = train_one(
        Recipe(lambda: Data(part, part), lambda: nn.Sequential(nn.Linear(4, 1), *last), **SHORT), tmp_path, monkeypatch
    )
    assert len(trial.predicted("test").target) == 80


def test_the_check_of_the_outputs_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Data((ROWS, LABELS), (ROWS, LABELS))
    network = Noisy(4, 3)
    monkeypatch.setitem(RECIPES, "mine", Recipe(lambda: data, lambda: network, **SHORT))
    assert first_network(configure("mine", seed=5), data) is network
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert network.training
    assert not network.trained


def test_defaults_of_a_recipe_keep_the_bounds_and_words_of_the_setting() -> None:
    kind = Recipe(Data, nn.Identity, epochs=7, width=3).settings
    assert (kind().epochs, kind.model_fields["epochs"].description) == (7, Settings.model_fields["epochs"].description)
    with pytest.raises(ValueError, match="epochs should be greater than or equal to 1, got 0"):
        kind.checked({"epochs": 0})
    with pytest.raises(ValueError, match="width should be a valid integer"):
        kind.checked({"width": "wide"})


def test_the_public_names_are_enough_for_a_recipe_and_a_method() -> None:
    assert {"Data", "DatasetSamples", "Method", "Recipe", "Settings", "TensorSamples"} <= set(calibrant_lab.__all__)
    assert Method("mine", objective=nn.MSELoss).holds_out


PACKAGE = Path(calibrant_lab.__file__).parent
# Besides a recipe's own file: the list of built-in ones, what was published about them, and which are the paper's.
MAY_NAME_RECIPES = ("recipes/__init__.py", "paper/published.py")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_else_knows_the_name_of_a_recipe(path: Path) -> None:
    if str(path.relative_to(PACKAGE)) in MAY_NAME_RECIPES:
        pytest.skip("a list of names, which decides nothing")
    constants = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    assert not constants & set(RECIPES), "a Literal, a match or a comparison with the name of a recipe"
