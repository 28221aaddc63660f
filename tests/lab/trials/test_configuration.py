"""Recipes, methods, files of settings and changes come to one checked configuration."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from calibrant.files import FileError
from calibrant_lab.plugins import UnknownNameError
from calibrant_lab.recipes import RECIPES
from calibrant_lab.trials.configuration import Configuration, configure, label, read_configuration, read_settings
from tests.lab.made_trials import of


def test_the_papers_settings_are_the_defaults() -> None:
    found: dict[str, Any] = {name: configure(name).settings for name in RECIPES}
    images = [found[name] for name in ("mnist", "cifar10", "cifar100")]
    assert {(c.epochs, c.batch_size, c.learning_rate, c.weight_decay) for c in images} == {(250, 512, 1e-3, 1e-2)}
    assert {(c.calibration_fraction, c.validation_fraction, c.flip) for c in images} == {(0.1, 0.1, False)}
    assert [c.model for c in images] == ["lenet5", "resnet50-cifar", "resnet34-cifar"]
    assert {(c.crop_padding, c.mean, c.std) for c in images[1:]} == {(4, (0.5,) * 3, (0.5,) * 3)}
    assert found["mnist"].image_size == 32
    imagenet = found["imagenet100"]
    assert (imagenet.model, imagenet.epochs, imagenet.weight_decay, imagenet.image_size) == ("resnet18", 90, 1e-4, 224)
    text = [found[name] for name in ("snli", "anli")]
    assert [(c.model, c.max_length) for c in text] == [("bert-base-uncased", 158), ("roberta-base", 128)]
    assert {(c.epochs, c.batch_size, c.learning_rate, c.weight_decay) for c in text} == {(15, 512, 1e-5, 1e-2)}


def test_every_trial_can_be_compiled_limited_and_of_less_precision() -> None:
    for name in RECIPES:
        settings = configure(name).settings
        assert (settings.compile, settings.max_steps, settings.precision) == (False, None, "32")


def test_a_change_goes_where_it_belongs() -> None:
    found = configure("mnist", "mmce").replaced({"batch-size": "64", "weight": "2", "seed": 3, "mean": [0.1]})
    assert (found.settings.batch_size, found.option("weight"), found.seed) == (64, 2.0, 3)
    assert dict(found.replaced({"method": "esd"}).options) == {"weight": 1.0}  # of its own defaults
    assert found.replaced({"method": "mmce"}) == found
    assert found.settings.learning_rate == configure("mnist").settings.learning_rate


def test_a_saved_configuration_comes_back(tmp_path: Path) -> None:
    first = configure("cifar10", "mmce", options={"bandwidth": 0.2, "root": False}, settings={"flip": True}, seed=4)
    (tmp_path / "config.json").write_text(json.dumps(first.to_dict()))
    found = read_configuration(tmp_path / "config.json")
    assert found == first
    assert found.to_dict() == first.to_dict()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs should be greater than or equal to 1, got 0"),
        ({"weight": -1.0}, "weight should be greater than or equal to 0"),
        ({"weight": float("nan")}, "weight should be a finite number"),
        ({"weight": "much"}, "weight should be a valid number, .*, got 'much'"),
        ({"root": 2}, "root should be a valid boolean"),
        ({"learning_rate": float("inf")}, "learning-rate should be a finite number"),
        ({"learning_rate": 0}, "learning-rate should be greater than 0"),
        ({"calibration_fraction": 1.0}, "calibration-fraction should be less than 1"),
        ({"calibration_batch_size": 0}, "calibration-batch-size should be greater than or equal to 1"),
        ({"epochs": 1.5}, "epochs should be a valid integer"),
        ({"flip": 7}, "flip should be a valid boolean"),
        ({"max_steps": 0}, "max-steps should be greater than or equal to 1"),
        ({"precision": "64"}, "precision should be '32', 'bf16-mixed' or '16-mixed', got '64'"),
        ({"method": "magic"}, "unknown method 'magic'"),
        ({"method": "esdd"}, "did you mean esd"),
        ({"epoch": 3}, "unknown setting 'epoch', did you mean epochs"),
        ({"seed": 2**63}, r"seed must be a whole number from 0 to 2\^63"),
        ({"seed": True}, "seed must be a whole number"),
        ({"mean": [float("nan")]}, "should be a finite number"),
        ({"std": [0.0]}, "should be greater than 0"),
    ],
)
def test_a_bad_setting_says_which_and_what_it_should_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        configure("mnist", "mmce").replaced(changes)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "recipe = ", "is not valid TOML"),
        ("a.json", "{", "is not valid JSON"),
        ("a.json", "[1]", "must contain settings by name"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FileError, match=rf"{name}: {message}"):
        read_settings(tmp_path / name)


def test_a_missing_file_and_a_missing_recipe(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.toml: cannot be read"):
        read_settings(tmp_path / "none.toml")
    with pytest.raises(UnknownNameError, match="unknown recipe 'svhn': choose from made, digits, mnist"):
        configure("svhn")
    content = configure("mnist").to_dict() | {"recipe": "svhn"}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"a\.json: .*unknown recipe 'svhn'"):
        read_configuration(tmp_path / "a.json")


def test_every_setting_is_explained() -> None:
    for recipe in RECIPES.values():
        assert all(field.description for field in recipe.settings.model_fields.values())


@pytest.mark.parametrize(
    ("recipe", "method", "changes", "message"),
    [
        ("digits", "nll", {"image_size": 64}, "unknown setting 'image-size'"),
        ("cifar10", "nll", {"noise": 0.1}, "unknown setting 'noise'"),
        ("snli", "nll", {"crop_padding": 4}, "unknown setting 'crop-padding'"),
        ("imagenet100", "nll", {"max_length": 64}, "unknown setting 'max-length'"),
        ("mnist", "nll", {"weight": 2.0}, "weight is not an option of nll, which has none"),
        ("mnist", "loop", {"weight": 2.0}, "weight is not an option of loop"),
        ("mnist", "esd", {"bandwidth": 2.0}, "bandwidth is not an option of esd, which has weight"),
    ],
)
def test_settings_of_other_recipes_and_options_of_other_methods_are_refused(
    recipe: str, method: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnknownNameError, match=message):
        configure(recipe, method).replaced(changes)


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, str]:
    """Three files of one name, of which two have the same content."""
    for folder, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "weights.pt").write_bytes(content)
    return {name: str(tmp_path / name / "weights.pt") for name in "abc"}


@pytest.mark.parametrize("setting", ["initial_weights", "class_list"])
def test_a_file_counts_by_its_content(setting: str, weights: dict[str, str]) -> None:
    one, same, other = (configure("imagenet100", settings={setting: path}) for path in weights.values())
    assert one == same != other
    assert one.identity == same.identity != other.identity


def test_another_file_of_the_same_name_is_another_trial(weights: dict[str, str]) -> None:
    """A file that is replaced, and a file that is named anew."""
    first = configure("mnist", settings={"initial_weights": weights["a"]})
    Path(weights["a"]).write_bytes(b"3")
    assert configure("mnist", settings={"initial_weights": weights["a"]}) != first
    assert first.replaced({"initial_weights": weights["a"]}) != first
    assert first.replaced({"epochs": 3}).files == first.files  # read once


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.pt: cannot be read .*: give initial-weights a file"):
        configure("mnist", settings={"initial_weights": str(tmp_path / "none.pt")})


RECIPE = """
from torch import nn
import torch
from calibrant_lab import Data, Recipe
x, y = torch.arange(80.0)[:, None], torch.arange(80) % 2
mine = Recipe(load=lambda: Data((x[:60], y[:60]), (x[60:], y[60:])), build=lambda: nn.Linear(1, 2), epochs=3, width=4)
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(RECIPE)
    return f"{tmp_path / 'mine.py'}:mine"


def test_a_recipe_from_outside_is_the_same_trial_wherever_its_file_is(mine: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.py").write_text(RECIPE)
    here, there = configure(mine), configure(f"{tmp_path / 'elsewhere' / 'mine.py'}:mine")
    assert here == there
    assert here.identity == there.identity
    assert here.replaced({"width": 5}) != here
    assert label(here.replaced({"width": 5})) == "NLL width 5"


def test_a_relative_path_means_the_same_in_any_folder(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = configure("./mine.py:mine")
    monkeypatch.chdir("/")
    assert found.recipe == mine
    assert found.of_recipe is configure(mine).of_recipe


def test_a_configuration_reaches_another_process_whole(mine: str, weights: dict[str, str]) -> None:
    found = configure("mnist", "esd", settings={"initial_weights": weights["a"]})
    Path(weights["a"]).unlink()  # its digest goes with it
    for one in (found, configure(mine, seed=5)):
        copy: Configuration = pickle.loads(pickle.dumps(one))  # noqa: S301
        assert copy == one
        assert copy.to_dict() == one.to_dict()


@pytest.mark.parametrize(
    ("configuration", "text"),
    [
        (of("nll"), "NLL"),
        (of("esd", weight=2.0), "ESD λ 2"),
        (of("esd"), "ESD λ 1"),
        (of("esd-raw", weight=60.0), "ESD, raw λ 60"),
        (of("mmce", weight=0.6, bandwidth=0.4, batch_size=64), "MMCE λ 0.6 φ 0.4 batch 64"),
        (of("s-avuc", softness=0.1), "S-AvUC λ 1 T 0.1"),
        (of("focal", gamma=2.0, learning_rate=0.01), "focal gamma 2 learning rate 0.01"),
        (of("nll", reduced_split=True, compile=True), "NLL reduced split compile"),
        (of("nll", max_steps=7, precision="bf16-mixed"), "NLL max steps 7 precision bf16-mixed"),
        (configure("imagenet100", settings={"flip": False}), "NLL no flip"),
    ],
)
def test_a_trial_is_called_by_what_tells_it_from_others(configuration: Configuration, text: str) -> None:
    assert label(configuration) == text
